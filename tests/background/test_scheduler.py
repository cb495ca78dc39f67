"""The scheduler: fires what is due, records what it does not fire, and is never alone."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from packhorse.background import scheduler
from packhorse.background.scheduler import HOLD, LAP, POLL, WAIT, Scheduler, declare
from packhorse.blobs.base import Blobs
from packhorse.core import cron, json, lifecycle, schedules
from packhorse.core.models import Firing, Job
from packhorse.core.plan import Definition, Plan
from packhorse.core.schedules import Declared, Move, Run, Schedule
from packhorse.errors import StoreUnavailable
from packhorse.jobs.encryption import get_encryptor
from packhorse.jobs.transact import Transactor
from packhorse.settings import Settings, load
from packhorse.store.base import Filter, Store
from packhorse.store.collections import schedules as schedule_records
from packhorse.store.collections.workers import get_bookmark, publish_definitions, put_bookmark
from packhorse.store.sqlite import SqliteStore
from tests.contract.builders import ONE, SLOTTED, UNKNOWN, cancel, claim_one, fail, finish, submit
from tests.contract.schedules import claimed, created, terms, torn
from tests.contract.stores import Clock
from tests.worker.faulty import Faults, wrapped

DAY = 86_400.0
DEFINITIONS = [Definition("app", ONE.pipeline, json.encode(ONE), b"{}", ONE.fingerprint)]


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return load({}, env={}, folder=tmp_path).settings


@pytest.fixture
async def other(folder: Path, clock: Clock, store: Store) -> AsyncIterator[Store]:
    opened = await SqliteStore.open(folder / "store.db", clock)
    yield opened
    await opened.close()


@pytest.fixture
async def duty(store: Store, blobs: Blobs, settings: Settings) -> Scheduler:
    await publish(store, ONE)
    return Scheduler(store, blobs, settings, Transactor(store))


async def publish(store: Store, plan: Plan) -> None:
    await publish_definitions(store, [Definition("app", plan.pipeline, json.encode(plan), b"{}", plan.fingerprint)])


async def runs(store: Store, id: str = "nightly") -> list[Run]:
    """Oldest first."""
    return (await schedule_records.runs(store, "default", id))[::-1]


async def jobs(store: Store) -> list[Job]:
    return (await store.find(Filter()))[::-1]


async def found(store: Store, id: str = "nightly") -> Schedule:
    schedule = await schedule_records.get(store, "default", id)
    assert schedule is not None
    return schedule


async def tick(duty: Scheduler, clock: Clock, seconds: float = 1.0) -> float:
    clock.forward(seconds)
    return await duty.tick()


async def test_a_tick_becomes_a_job_with_the_parameters_of_its_version(
    store: Store, duty: Scheduler, clock: Clock
) -> None:
    await created(store)

    await tick(duty, clock)

    [job] = await jobs(store)
    [run] = await runs(store)
    spec = (await store.specs([job.id]))[job.id]
    assert (run.status, run.job_id, run.trace_id, run.tick) == ("fired", job.id, job.trace_id, clock.now)
    assert (job.user, job.tenant, job.firing) == ("ann", "default", Firing(run.schedule, run.tick))
    assert (spec.parameters, spec.origin) == (terms().parameters, "schedule")


async def test_it_sleeps_until_the_next_tick_and_never_long(store: Store, duty: Scheduler, clock: Clock) -> None:
    assert await duty.tick() == POLL
    await created(store, now=clock.now - 0.25)
    await duty.tick()
    clock.forward(0.75)

    assert await duty.tick() == 0.25


async def test_many_schedulers_fire_a_tick_once(
    store: Store, other: Store, duty: Scheduler, blobs: Blobs, settings: Settings, clock: Clock
) -> None:
    crowd = [duty, *(Scheduler(each, blobs, settings, Transactor(each)) for each in (store, other, other))]
    for n in range(5):
        await created(store, f"s{n}")
    clock.forward(1.0)

    for _ in range(3):
        await asyncio.gather(*(each.tick() for each in crowd))

    assert len(await jobs(store)) == 5
    assert [len(await runs(store, f"s{n}")) for n in range(5)] == [1] * 5


async def test_a_run_whose_scheduler_died_is_carried_on_by_another(store: Store, duty: Scheduler, clock: Clock) -> None:
    schedule = await created(store, cron="0 * * * *")
    clock.now = schedule.next_at or 0.0
    move = schedules.claim(schedule, clock.now, HOLD)
    assert move is not None
    await schedule_records.move(store, move)

    await duty.tick()
    before = await jobs(store)
    await tick(duty, clock, HOLD)

    assert before == []
    [job] = await jobs(store)
    assert [run.job_id for run in await runs(store)] == [job.id]


async def test_who_comes_back_late_makes_no_second_job(store: Store, duty: Scheduler, clock: Clock) -> None:
    """Claimed, stopped, taken over, and then gone on with what was read long ago."""
    schedule = await created(store, cron="0 * * * *")
    clock.now = schedule.next_at or 0.0
    move = schedules.claim(schedule, clock.now, HOLD)
    assert move is not None
    await schedule_records.move(store, move)
    await tick(duty, clock, HOLD)

    await duty._carry_safely(move.runs[0])

    assert len(await jobs(store)) == 1


async def test_a_deleted_job_does_not_make_room_for_a_second_one_of_its_tick(
    store: Store, duty: Scheduler, clock: Clock
) -> None:
    await created(store)
    clock.forward(1.0)
    [schedule] = await schedule_records.upcoming(store, clock.now, 1)
    move = schedules.claim(schedule, clock.now, HOLD)
    assert move is not None
    await schedule_records.move(store, move)
    await duty._carry_safely(move.runs[0])
    [job] = await jobs(store)
    ended = await cancel(store, job.id)
    clock.now = ended.purge_at or 0.0
    await erased(store, ended)

    await duty._carry_safely(move.runs[0])

    assert await jobs(store) == []


async def erased(store: Store, job: Job) -> None:
    change = lifecycle.purge(job, now=store.now())
    assert change is not None
    assert await store.commit([change]) == [None]
    await store.erase(job.id)


# Missed ticks


async def test_after_a_down_time_one_tick_is_fired_and_the_rest_is_one_record(
    store: Store, duty: Scheduler, clock: Clock
) -> None:
    first = (await created(store)).next_at

    await tick(duty, clock, 1000.0)

    missed, late = await runs(store)
    assert len(await jobs(store)) == 1
    assert (missed.status, missed.tick, missed.count) == ("missed", first, 999)
    assert (late.status, late.tick) == ("fired", clock.now)


async def test_a_tick_that_is_too_late_is_recorded_and_not_fired(store: Store, duty: Scheduler, clock: Clock) -> None:
    await created(store, cron="0 0 * * *")

    await tick(duty, clock, DAY + 3600.0)

    [missed] = await runs(store)
    assert (missed.status, missed.job_id) == ("missed", None)
    assert await jobs(store) == []


@pytest.mark.parametrize(
    ("late", "options", "status"),
    [
        (60.0 + HOLD, {}, "fired"),
        (8 * 3600.0, {}, "missed"),
        (8 * 3600.0, {"misfire": "catch_up", "window": DAY}, "fired"),
    ],
    ids=["soon", "too late", "caught up"],
)
async def test_a_run_whose_scheduler_died_is_carried_on_only_in_time(
    store: Store, duty: Scheduler, clock: Clock, late: float, options: dict[str, Any], status: str
) -> None:
    schedule = await created(store, cron="0 0 * * *", **options)
    clock.now = schedule.next_at or 0.0
    _, run = await claimed(store, schedule, clock.now, HOLD)

    await tick(duty, clock, late)

    assert [(each.status, each.tick) for each in await runs(store)] == [(status, run.tick)]
    assert len(await jobs(store)) == (status == "fired")


async def test_a_run_that_had_to_wait_is_carried_on_however_late(store: Store, duty: Scheduler, clock: Clock) -> None:
    schedule = await created(store, cron="0 0 * * *", overlap="queue")
    await schedule_records.move(store, schedules.run_now(schedule, clock.now))
    await duty.tick()
    clock.now = schedule.next_at or 0.0
    await duty.tick()
    waiting = await runs(store)
    clock.forward(8 * 3600.0)
    await finish(store, await claim_one(store))

    await duty.tick()

    assert [run.status for run in waiting] == ["fired", "due"]
    assert [run.status for run in await runs(store)] == ["completed", "fired"]


async def test_a_clock_that_was_set_back_fires_no_tick_again(store: Store, duty: Scheduler, clock: Clock) -> None:
    await created(store)
    for _ in range(5):
        await tick(duty, clock)
        await finish(store, await claim_one(store))
    before = await runs(store)

    clock.forward(-4.0)
    move = schedules.realign(await found(store), clock.now)
    assert move is not None
    await schedule_records.move(store, move)
    for _ in range(8):
        await tick(duty, clock, 0.5)

    assert await runs(store) == before
    assert len(await jobs(store)) == 5
    await tick(duty, clock)
    assert len(await runs(store)) == 6


# Overlaps


async def test_a_tick_is_skipped_while_the_run_before_is_not_over(store: Store, duty: Scheduler, clock: Clock) -> None:
    await created(store)

    await tick(duty, clock)
    await tick(duty, clock)
    await finish(store, await claim_one(store))
    await tick(duty, clock)

    first, second, third = await runs(store)
    assert [first.status, second.status, third.status] == ["completed", "skipped", "fired"]
    assert "was still active" in second.message
    assert len(await jobs(store)) == 2


async def test_queued_runs_wait_for_each_other_and_not_more_than_so_many(
    store: Store, duty: Scheduler, clock: Clock
) -> None:
    await created(store, overlap="queue")
    for _ in range(schedules.MAX_WAITING + 2):
        await tick(duty, clock)
    waiting = [run.status for run in await runs(store)]
    schedule = await found(store)
    await schedule_records.move(
        store, schedules.edit(schedule, terms(active=False), author="k", reason="", now=clock.now)
    )

    order = []
    for _ in range(schedules.MAX_WAITING + 1):
        claim = await claim_one(store)
        assert claim.job.firing is not None
        order.append(claim.job.firing.tick)
        await finish(store, claim)
        await tick(duty, clock, WAIT + HOLD)

    assert waiting == ["fired", *["due"] * schedules.MAX_WAITING, "skipped"]
    assert order == sorted(order)
    assert [run.status for run in await runs(store)] == ["completed"] * (schedules.MAX_WAITING + 1) + ["skipped"]


async def test_the_run_before_is_cancelled_and_waited_for(store: Store, duty: Scheduler, clock: Clock) -> None:
    await created(store, overlap="cancel")
    await tick(duty, clock)
    running = await claim_one(store)

    await tick(duty, clock)
    asked = (await jobs(store))[0].stopping
    before = len(await jobs(store))
    await fail(store, running)
    await tick(duty, clock, WAIT)

    assert (asked, before) == ("cancel", 1)
    assert [run.status for run in await runs(store)] == ["cancelled", "fired"]


async def test_of_several_that_wait_for_a_cancel_the_newest_goes(store: Store, duty: Scheduler, clock: Clock) -> None:
    await created(store, overlap="cancel")
    await tick(duty, clock)
    running = await claim_one(store)
    for _ in range(3):
        await tick(duty, clock)
    await fail(store, running)
    await tick(duty, clock, WAIT)

    statuses = [run.status for run in await runs(store)]
    assert statuses[0] == "cancelled"
    assert statuses.count("fired") == 1
    assert set(statuses[1:]) == {"skipped", "fired"}


@pytest.mark.parametrize(("overlap", "status"), [("skip", "skipped"), ("queue", "due"), ("cancel", "due")])
async def test_a_user_with_an_active_job_of_their_own_holds_the_tick_up(
    store: Store, duty: Scheduler, clock: Clock, overlap: str, status: str
) -> None:
    await publish(store, SLOTTED)
    mine = await submit(store, SLOTTED)
    await created(store, overlap=overlap)

    await tick(duty, clock)

    [run] = await runs(store)
    assert run.status == status
    assert mine.id in run.message


async def test_a_run_whose_job_is_gone_holds_nobody_up(store: Store, duty: Scheduler, clock: Clock) -> None:
    await created(store)
    await tick(duty, clock)
    [run] = await runs(store)
    lost = schedules.close_run(run, "fired", "", clock.now)
    await schedule_records.put_run(store, run, replace(lost, job_id=UNKNOWN))

    await tick(duty, clock)

    assert [each.status for each in await runs(store)] == ["failed", "fired"]


@pytest.mark.parametrize(("overlap", "status"), [("skip", "skipped"), ("queue", "due"), ("cancel", "due")])
async def test_a_run_whose_job_cannot_be_read_counts_as_not_over(
    store: Store, duty: Scheduler, clock: Clock, folder: Path, overlap: str, status: str
) -> None:
    await created(store, overlap=overlap)
    await tick(duty, clock)
    spoil(folder, "UPDATE jobs SET state = x'00'")

    await tick(duty, clock)

    first, second = await runs(store)
    assert (first.status, second.status) == ("fired", status)
    assert cron.utc(first.tick) in second.message


def spoil(folder: Path, statement: str) -> None:
    with contextlib.closing(apsw.Connection(str(folder / "store.db"))) as db:
        db.execute(statement)


# What cannot be fired


async def test_a_pipeline_that_is_not_there_is_a_reason(store: Store, duty: Scheduler, clock: Clock) -> None:
    await created(store, pipeline="gone")

    await tick(duty, clock)

    [run] = await runs(store)
    assert run.status == "skipped"
    assert "gone" in run.message


async def test_a_run_that_waits_goes_with_its_schedule(store: Store, duty: Scheduler, clock: Clock) -> None:
    await created(store, overlap="queue")
    await tick(duty, clock)
    await tick(duty, clock)
    await schedule_records.move(store, schedules.end(await found(store), author="k", reason="", now=clock.now))

    await tick(duty, clock, WAIT + HOLD)

    assert [(run.status, run.message) for run in await runs(store)] == [
        ("fired", ""),
        ("skipped", "The schedule was deleted."),
    ]


async def test_a_store_that_is_away_costs_no_tick(store: Store, blobs: Blobs, settings: Settings, clock: Clock) -> None:
    await publish(store, ONE)
    faults = Faults()
    shaky = Scheduler(wrapped(store, faults), blobs, settings, Transactor(store))
    await created(store, cron="0 * * * *")
    clock.now = (await found(store)).next_at or 0.0
    faults.refuse("commit", lambda: StoreUnavailable("away"))

    await shaky.tick()
    before = [run.status for run in await runs(store)]
    await tick(shaky, clock, HOLD)

    assert before == ["due"]
    assert [run.status for run in await runs(store)] == ["fired"]
    assert len(await jobs(store)) == 1


# What is wrong with one of them


async def poisoned(store: Store, id: str) -> None:
    """The server that took it knows the zone, this worker's tables do not."""
    made = await created(store, id)
    await schedule_records.move(
        store, Move(made, replace(made, terms=terms(zone="America/Newtown"), stamp=made.stamp + 1))
    )


async def test_one_that_cannot_be_claimed_stops_no_other(
    store: Store, duty: Scheduler, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "BATCH", 2)
    for n in range(5):
        await poisoned(store, f"bad{n}")
    clock.forward(0.5)
    await created(store, "good", now=clock.now)
    left = await created(store, "left", cron="0 * * * *")
    move = schedules.claim(replace(left, next_at=clock.now), clock.now)
    assert move is not None
    await schedule_records.move(store, replace(move, before=left))
    clock.forward(0.5)

    for _ in range(3):
        await duty.tick()

    assert [run.status for run in await runs(store, "good")] == ["fired"]
    assert [run.status for run in await runs(store, "left")] == ["fired"]
    assert await runs(store, "bad0") == []


async def test_one_that_could_not_be_claimed_is_tried_again(
    store: Store, blobs: Blobs, settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await publish(store, ONE)
    faults = Faults()
    shaky = Scheduler(wrapped(store, faults), blobs, settings, Transactor(store))
    await created(store)
    faults.refuse("put schedule", lambda: StoreUnavailable("away"))

    await tick(shaky, clock)
    await shaky.tick()
    shunned = await runs(store)
    monkeypatch.setattr(time, "monotonic", lambda at=time.monotonic(): at + scheduler.SHUN)
    await shaky.tick()

    assert shunned == []
    assert [run.status for run in await runs(store)] == ["fired"]


async def test_one_that_cannot_be_read_stops_no_other(store: Store, duty: Scheduler, clock: Clock) -> None:
    await torn(store, "bad")
    await created(store, "good")

    await tick(duty, clock)

    assert [run.status for run in await runs(store, "good")] == ["fired"]


async def test_a_pipeline_that_cannot_be_read_stops_no_other(
    store: Store, duty: Scheduler, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    await publish_definitions(store, [Definition("app", "torn", b"{", b"{}", "f")])
    await created(store, "bad", pipeline="torn")
    await created(store, "good")

    await tick(duty, clock)

    assert [run.status for run in await runs(store, "good")] == ["fired"]
    assert [run.status for run in await runs(store, "bad")] == ["skipped"]
    assert "definition torn" in caplog.text


async def test_a_bookmark_that_cannot_be_read_begins_the_round_anew(store: Store, duty: Scheduler) -> None:
    await put_bookmark(store, scheduler.ROUND, "torn")

    await duty.tick()

    assert await get_bookmark(store, scheduler.ROUND) != "torn"


async def test_the_round_goes_past_one_that_it_cannot_look_after(
    store: Store, duty: Scheduler, settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LAP", 0.0)
    await poisoned(store, "bad")
    gone = await created(store, "gone")
    await schedule_records.move(store, schedules.end(gone, author="k", reason="", now=clock.now))
    clock.forward(settings.runs_keep + 10.0)
    bad = await found(store, "bad")
    await schedule_records.move(store, Move(bad, replace(bad, next_at=clock.now + 100.0, stamp=bad.stamp + 1)))

    await duty.tick()

    assert await schedule_records.get(store, "default", "gone") is None


# Looking after all of them


async def test_old_runs_and_ended_schedules_go(
    store: Store, duty: Scheduler, settings: Settings, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler, "LAP", 0.0)
    await created(store)
    await tick(duty, clock)
    await cancel(store, (await jobs(store))[0].id)
    await schedule_records.move(store, schedules.end(await found(store), author="k", reason="", now=clock.now))

    await tick(duty, clock)
    kept = await runs(store)
    await tick(duty, clock, settings.runs_keep + 10.0)

    assert [run.status for run in kept] == ["cancelled"]
    assert await runs(store) == []
    assert await schedule_records.get(store, "default", "nightly") is None


async def test_the_round_finds_a_tick_that_the_clock_has_left_behind(
    store: Store, duty: Scheduler, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await created(store)
    await tick(duty, clock, 10 * DAY)
    clock.forward(-9 * DAY)
    monkeypatch.setattr(scheduler, "LAP", 0.0)

    await duty.tick()

    assert (await found(store)).next_at == clock.now + 1.0


async def test_the_round_is_made_by_one_of_all_workers(
    store: Store, duty: Scheduler, clock: Clock, blobs: Blobs, settings: Settings
) -> None:
    await duty.tick()
    marked = await get_bookmark(store, scheduler.ROUND)
    clock.forward(LAP / 2)

    await Scheduler(store, blobs, settings, Transactor(store)).tick()

    assert await get_bookmark(store, scheduler.ROUND) == marked


# What code declares


async def test_declared_schedules_are_made_once_however_many_workers_start(store: Store, other: Store) -> None:
    declared = [Declared("nightly", terms()), Declared("hourly", terms(cron="0 * * * *"))]

    await asyncio.gather(*(declare(each, declared, DEFINITIONS, get_encryptor("")) for each in (store, other, store)))

    assert [each.id for each in await schedule_records.list_all(store, "default")] == ["hourly", "nightly"]
    assert [each.version for each in await schedule_records.revisions(store, "default", "nightly")] == [1]
    assert not (await found(store)).is_adrift


async def test_what_a_person_has_changed_survives_a_deploy(store: Store) -> None:
    await declare(store, [Declared("nightly", terms())], DEFINITIONS, get_encryptor(""))
    mine: Any = terms(user="cleo")
    await schedule_records.move(
        store, schedules.edit(await found(store), mine, author="k1", reason="", now=store.now())
    )

    await declare(store, [Declared("nightly", terms(user="dora"))], DEFINITIONS, get_encryptor(""))

    kept = await found(store)
    assert (kept.terms.user, kept.version) == ("cleo", 2)
    assert kept.declared is not None
    assert kept.declared.user == "dora"
    assert kept.is_adrift
