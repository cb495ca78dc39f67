"""What is run when: schedules move by compare-and-set, a tick has one run, and a run has one job."""

from __future__ import annotations

import asyncio

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle, schedules
from packhorse.core.models import Firing
from packhorse.core.schedules import Run
from packhorse.errors import Conflict, CorruptRecord
from packhorse.store.base import Store
from packhorse.store.collections import schedules as schedule_records
from tests.contract.builders import (
    HOPELESS,
    cancel,
    claim_one,
    fail,
    finish,
    made,
    refused,
    submission,
)
from tests.contract.schedules import (
    MIDNIGHT,
    again,
    claimed,
    created,
    creation,
    fired,
    stored,
    tear_run,
    terms,
    torn,
)
from tests.contract.stores import Clock

# Schedules


async def test_a_schedule_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    move = creation(
        now=1_800_000_000.25,
        parameters='{"ä": [1.0, "\\u0041"] }'.encode(),
        zone="Europe/Berlin",
        overlap="cancel",
        misfire="catch_up",
        window=90.5,
        labels={"team": "ä"},
    )

    await schedule_records.move(store, move)

    assert await schedule_records.get(other, "default", "nightly") == move.after
    assert await schedule_records.revisions(other, "default", "nightly") == [move.revision]
    assert await schedule_records.get(other, "acme", "nightly") is None


async def test_an_id_is_made_once_in_each_tenant(store: Store, other: Store) -> None:
    first = await created(store)

    with pytest.raises(Conflict):
        await schedule_records.move(other, creation(now=1.0))
    foreign = await created(other, tenant="acme")

    assert await schedule_records.get(store, "default", "nightly") == first
    assert await schedule_records.get(store, "acme", "nightly") == foreign


async def test_those_that_cannot_be_read_hide_no_others(store: Store) -> None:
    for n in range(5):
        await torn(store, f"bad{n}", now=1.0)
    for n in range(3):
        await created(store, f"good{n}", now=2.0 + n)

    listed = await schedule_records.list_all(store, "default", limit=2)
    rest = await schedule_records.list_all(store, "default", after=("default", listed[-1].id), limit=2)
    upcoming = await schedule_records.upcoming(store, 100.0, 2)

    assert [each.id for each in [*listed, *rest]] == ["good0", "good1", "good2"]
    assert [each.id for each in upcoming] == ["good0", "good1"]
    with pytest.raises(CorruptRecord):
        await schedule_records.get(store, "default", "bad0")


async def test_of_two_edits_of_one_version_one_is_made(store: Store, other: Store) -> None:
    before = await created(store)
    mine, theirs = (
        schedules.edit(before, terms(user=user), author=user, reason="", now=store.now()) for user in ("ann", "ben")
    )

    outcomes = await asyncio.gather(
        schedule_records.move(store, mine), schedule_records.move(other, theirs), return_exceptions=True
    )

    kept = mine if outcomes[0] is None else theirs
    assert [type(outcome) for outcome in outcomes].count(Conflict) == 1
    assert await schedule_records.get(store, "default", "nightly") == kept.after
    assert [each.version for each in await schedule_records.revisions(store, "default", "nightly")] == [2, 1]
    assert (await schedule_records.revisions(store, "default", "nightly"))[0] == kept.revision


async def test_a_refused_move_leaves_no_version_and_no_run_behind(store: Store) -> None:
    schedule = await created(store, now=99.5)
    moved, run = await claimed(store, schedule, 100.0)
    stale = schedules.edit(schedule, terms(user="ben"), author="k", reason="", now=200.0)
    assert stale.runs

    with pytest.raises(Conflict):
        await schedule_records.move(store, stale)
    fresh = schedules.edit(moved, terms(user="ben"), author="k", reason="", now=100.0)
    with pytest.raises(Conflict):  # the schedule is as it was read, but one of the runs is there
        await schedule_records.move(store, replace(fresh, runs=(replace(run, tick=7.0), run)))

    assert await schedule_records.get(store, "default", "nightly") == moved
    assert [each.version for each in await schedule_records.revisions(store, "default", "nightly")] == [1]
    assert await schedule_records.runs(store, "default", "nightly") == [run]


async def test_schedules_come_by_id_for_one_tenant_or_for_all(store: Store) -> None:
    for tenant, id in (("default", "b"), ("acme", "c"), ("default", "a"), ("default", "c")):
        await created(store, id, tenant=tenant)

    own = await schedule_records.list_all(store, "default", limit=2)
    rest = await schedule_records.list_all(store, "default", after=("default", own[-1].id))
    everything = await schedule_records.list_all(store, limit=10)

    assert [each.id for each in own + rest] == ["a", "b", "c"]
    assert sorted((each.tenant, each.id) for each in everything) == [
        ("acme", "c"), ("default", "a"), ("default", "b"), ("default", "c"),
    ]  # fmt: skip
    assert await schedule_records.list_all(store, "nobody") == []


async def test_pages_of_all_schedules_leave_none_out(store: Store) -> None:
    every = {(tenant, id) for tenant in ("a", "a-b", "b") for id in ("x", "y")}
    for tenant, id in every:
        await created(store, id, tenant=tenant)

    found: list[tuple[str, str]] = []
    while page := await schedule_records.list_all(store, after=found[-1] if found else None, limit=2):
        found += [(each.tenant, each.id) for each in page]

    assert sorted(found) == sorted(every)


async def test_upcoming_are_those_with_the_earliest_tick_and_no_paused_ones(store: Store) -> None:
    late = await created(store, "late", now=1_000_000.0, cron=MIDNIGHT)
    early = await created(store, "early", now=1_000_000.0)
    await created(store, "paused", now=1_000_000.0, active=False)

    assert early.next_at is not None
    assert await schedule_records.upcoming(store, 6_000_000.0, 10) == [early, late]
    assert await schedule_records.upcoming(store, 6_000_000.0, 1) == [early]
    assert await schedule_records.upcoming(store, early.next_at, 10) == [early]
    assert await schedule_records.upcoming(store, early.next_at - 0.001, 10) == []

    moved, _ = await claimed(store, early, 5_000_000.0)
    assert await schedule_records.upcoming(store, 6_000_000.0, 10) == [late, moved]


async def test_versions_come_newest_first_and_in_pages(store: Store, other: Store) -> None:
    schedule = await created(store)
    for n in range(3):
        move = schedules.edit(schedule, terms(user=f"u{n}"), author="k", reason=f"r{n}", now=store.now())
        await schedule_records.move(store, move)
        schedule = move.after

    assert [each.version for each in await schedule_records.revisions(other, "default", "nightly", limit=2)] == [4, 3]
    assert [each.version for each in await schedule_records.revisions(other, "default", "nightly", before=3)] == [2, 1]
    assert await schedule_records.revisions(other, "default", "unknown") == []


async def test_old_versions_are_dropped(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedule_records, "MAX_VERSIONS", 2)
    schedule = await created(store)
    for n in range(3):
        move = schedules.edit(schedule, terms(user=f"u{n}"), author="k", reason="", now=store.now())
        await schedule_records.move(store, move)
        schedule = move.after

    assert [each.version for each in await schedule_records.revisions(store, "default", "nightly")] == [4, 3]


# Runs


async def test_a_tick_is_claimed_by_one_of_many(store: Store, other: Store) -> None:
    schedule = await created(store, now=99.5)
    moves = [sure_move(schedules.claim(schedule, 100.0)) for _ in range(10)]

    outcomes = await asyncio.gather(
        *(schedule_records.move((store, other)[n % 2], move) for n, move in enumerate(moves)), return_exceptions=True
    )

    assert outcomes.count(None) == 1
    assert [type(each) for each in outcomes].count(Conflict) == 9
    assert [run.tick for run in await schedule_records.runs(store, "default", "nightly")] == [100.0]


async def test_a_run_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    schedule = await created(store, now=99.5)
    moved, run = await claimed(store, schedule, 100.0, hold=3.25)
    late, last = await claimed(store, moved, 1_000.0)
    manual = schedules.run_now(late, 1_000.123457)
    await schedule_records.move(other, manual)

    assert await schedule_records.run(other, "default", "nightly", 100.0) == run
    assert await schedule_records.runs(other, "default", "nightly", before=101.0) == [run]
    assert await schedule_records.runs(other, "default", "nightly", limit=2) == [*manual.runs, last]
    assert last.tick == 1_000.0
    assert (await schedule_records.run(other, "default", "nightly", 101.0)) == Run(
        "default", "nightly", 101.0, 1, "missed", until=999.0, count=899, n=2,
        message="No worker ran them in time: 899 ticks until 1970-01-01T00:16:39Z.",
    )  # fmt: skip
    assert await schedule_records.run(other, "default", "nightly", 102.0) is None


async def test_runs_come_newest_first_in_pages_or_only_the_open_ones(store: Store) -> None:
    schedule = await created(store, now=99.5)
    for now in (100.0, 101.0):
        schedule, _ = await claimed(store, schedule, now)
    _, run = await claimed(store, schedule, 102.0)
    await schedule_records.put_run(store, run, schedules.close_run(run, "skipped", "busy", 103.0))

    assert [each.tick for each in await schedule_records.runs(store, "default", "nightly", limit=2)] == [102.0, 101.0]
    assert [each.tick for each in await schedule_records.runs(store, "default", "nightly", before=101.0)] == [100.0]
    assert [each.tick for each in await schedule_records.runs(store, "default", "nightly", open_only=True)] == [
        101.0,
        100.0,
    ]
    assert await schedule_records.runs(store, "acme", "nightly") == []


async def test_a_run_that_cannot_be_read_hides_no_others(store: Store) -> None:
    schedule = await created(store, now=99.5)
    for now in (100.0, 101.0, 102.0, 103.0):
        schedule, run = await claimed(store, schedule, now)
        if now in (101.0, 102.0):
            await tear_run(store, run)

    newest = await schedule_records.runs(store, "default", "nightly", limit=2)
    still_open = await schedule_records.runs(store, "default", "nightly", open_only=True)
    taken = await schedule_records.take_runs(store, 10, 5.0)

    assert [run.tick for run in newest] == [run.tick for run in still_open] == [103.0, 100.0]
    assert [run.tick for run in taken] == [100.0, 103.0]
    with pytest.raises(CorruptRecord):
        await schedule_records.run(store, "default", "nightly", 101.0)


async def test_of_two_decisions_on_a_run_the_first_stands(store: Store, other: Store) -> None:
    _, run = await claimed(store, await created(store, now=99.5), 100.0)
    first, second = (schedules.close_run(run, "skipped", why, 101.0) for why in ("first", "second"))

    await schedule_records.put_run(store, run, first)
    with pytest.raises(Conflict):
        await schedule_records.put_run(other, run, second)

    assert await schedule_records.run(other, "default", "nightly", 100.0) == first


async def test_a_run_is_taken_when_it_is_due_by_the_stores_clock_and_by_one(timed: Store, clock: Clock) -> None:
    schedule = await created(timed)
    clock.forward(10.0)
    _, run = await claimed(timed, schedule, clock.now, hold=3.0)

    assert await schedule_records.take_runs(timed, 10, 5.0) == []
    clock.forward(3.0)
    taken = await schedule_records.take_runs(timed, 10, 5.0)
    none = await schedule_records.take_runs(timed, 10, 5.0)
    clock.forward(5.0)
    again = await schedule_records.take_runs(timed, 10, 5.0)

    assert [(each.tick, each.due_at) for each in taken] == [(run.tick, clock.now)]
    assert none == []
    assert [each.tick for each in again] == [run.tick]


async def test_many_takers_take_each_run_once(store: Store, other: Store) -> None:
    ids = [f"s{n}" for n in range(20)]
    for id in ids:
        await claimed(store, await created(store, id, now=99.5), 100.0)

    taken = await asyncio.gather(*(schedule_records.take_runs((store, other)[n % 2], 5, 60.0) for n in range(8)))

    assert sorted(run.schedule for runs in taken for run in runs) == sorted(ids)


async def test_who_took_a_run_late_cannot_decide_with_what_was_read_before(timed: Store, clock: Clock) -> None:
    schedule = await created(timed)
    clock.forward(10.0)
    _, run = await claimed(timed, schedule, clock.now)
    await schedule_records.take_runs(timed, 10, 5.0)

    with pytest.raises(Conflict):
        await schedule_records.put_run(timed, run, schedules.close_run(run, "skipped", "late", clock.now))


# Jobs of runs


async def test_the_commit_of_a_job_tells_its_run(store: Store, other: Store) -> None:
    _, run = await claimed(store, await created(store, now=99.5), 100.0)

    job = await fired(store, run, trace_id="t1")

    found = await again(other, run)
    assert job.firing == Firing("nightly", 100.0)
    assert (found.status, found.job_id, found.trace_id, found.due_at) == ("fired", job.id, "t1", None)
    assert await schedule_records.take_runs(other, 10, 5.0) == []
    assert await schedule_records.runs(other, "default", "nightly", open_only=True) == [found]


async def test_a_run_never_has_two_jobs(store: Store, other: Store) -> None:
    _, run = await claimed(store, await created(store, now=99.5), 100.0)
    asked = [submission(now=store.now(), firing=Firing(run.schedule, run.tick), stamp=run.stamp) for _ in range(6)]

    outcomes = await asyncio.gather(*((store, other)[n % 2].commit([change]) for n, change in enumerate(asked)))

    ids = [change.after.id for change, [outcome] in zip(asked, outcomes, strict=True) if outcome is None]
    assert len(ids) == 1
    assert [type(outcome) for [outcome] in outcomes if outcome is not None] == [Conflict] * 5
    assert (await again(store, run)).job_id == ids[0]


async def test_two_jobs_for_one_run_in_one_commit_are_one(store: Store) -> None:
    _, run = await claimed(store, await created(store, now=99.5), 100.0)
    asked = [submission(now=1.0, firing=Firing(run.schedule, run.tick), stamp=run.stamp) for _ in range(2)]

    outcomes = await store.commit(asked)

    assert [type(outcome) for outcome in outcomes] == [type(None), Conflict]
    assert await store.get([asked[1].after.id]) == [None]


async def test_a_run_that_was_skipped_gets_no_job(store: Store) -> None:
    _, run = await claimed(store, await created(store, now=99.5), 100.0)
    await schedule_records.put_run(store, run, schedules.close_run(run, "skipped", "busy", 101.0))
    change = submission(now=store.now(), firing=Firing(run.schedule, run.tick), stamp=run.stamp)

    assert isinstance(await refused(store, change), Conflict)

    assert await store.get([change.after.id]) == [None]
    assert (await again(store, run)).status == "skipped"


async def test_the_end_of_the_job_ends_its_run_in_the_same_commit(store: Store) -> None:
    schedule, first = await claimed(store, await created(store, now=99.5), 100.0)
    schedule, second = await claimed(store, schedule, 101.0)
    _, third = await claimed(store, schedule, 102.0)
    await fired(store, first)
    done = await finish(store, await claim_one(store))
    await fired(store, second)
    broken = await fail(store, await claim_one(store), error=HOPELESS)
    stopped = await fired(store, third)
    await cancel(store, stopped.id)

    ok, failed, stop = [await again(store, run) for run in (first, second, third)]

    assert (ok.status, ok.started_at, ok.ended_at) == ("completed", done.started_at, done.completed_at)
    assert (failed.status, failed.message) == ("failed", "INVALID: It can never work.")
    assert failed.ended_at == broken.completed_at
    assert stop.status == "cancelled"
    assert await schedule_records.runs(store, "default", "nightly", open_only=True) == []


async def test_a_retry_opens_the_run_again(store: Store) -> None:
    _, run = await claimed(store, await created(store, now=99.5), 100.0)
    await fired(store, run)
    broken = await fail(store, await claim_one(store), error=HOPELESS)

    await made(store, lifecycle.retry(broken, now=store.now()))
    opened = await again(store, run)
    await finish(store, await claim_one(store))

    assert (opened.status, opened.message, opened.ended_at) == ("fired", "", None)
    assert (await again(store, run)).status == "completed"


async def test_the_end_of_a_job_whose_run_was_purged_is_made_all_the_same(store: Store) -> None:
    _, run = await claimed(store, await created(store, now=99.5), 100.0)
    await fired(store, run)
    claim = await claim_one(store)
    found = await again(store, run)
    await schedule_records.put_run(store, found, replace(found, status="failed", stamp=found.stamp + 1))
    await schedule_records.trim_runs(store, await stored(store), older_than=1000.0, keep=10)

    done = await finish(store, claim)

    assert done.status.value == "completed"
    assert await schedule_records.run(store, "default", "nightly", 100.0) is None


# Clean-up


async def test_old_runs_and_those_beyond_the_limit_go_unless_they_are_open(store: Store) -> None:
    schedule = await created(store, now=99.5)
    ended = []
    for now in range(100, 106):
        schedule, run = await claimed(store, schedule, float(now))
        if now != 100:
            await schedule_records.put_run(store, run, schedules.close_run(run, "skipped", "", 200.0))
            ended.append(run.tick)

    await schedule_records.trim_runs(store, await stored(store), older_than=102.0, keep=10)
    after_age = [run.tick for run in await schedule_records.runs(store, "default", "nightly")]
    await schedule_records.trim_runs(store, await stored(store), older_than=0.0, keep=2)

    assert after_age == [105.0, 104.0, 103.0, 102.0, 100.0]
    assert [run.tick for run in await schedule_records.runs(store, "default", "nightly")] == [105.0, 104.0, 100.0]


async def test_old_runs_go_from_behind_pages_of_runs_that_cannot_be_read(store: Store) -> None:
    schedule = await created(store, now=99.5)
    for now in range(100, 125):
        schedule, run = await claimed(store, schedule, float(now))
        if now < 120:
            await tear_run(store, run)
        else:
            await schedule_records.put_run(store, run, schedules.close_run(run, "skipped", "", 200.0))

    await schedule_records.trim_runs(store, await stored(store), older_than=123.0, keep=100)

    assert [run.tick for run in await schedule_records.runs(store, "default", "nightly")] == [124.0, 123.0]


async def test_an_ended_schedule_goes_with_its_versions_when_it_has_no_run_left(store: Store) -> None:
    schedule, run = await claimed(store, await created(store, now=99.5), 100.0)
    move = schedules.end(schedule, author="k", reason="", now=100.5)
    await schedule_records.move(store, move)

    await schedule_records.drop(store, move.after)
    assert await schedule_records.get(store, "default", "nightly") == move.after

    await schedule_records.put_run(store, run, schedules.close_run(run, "skipped", "", 101.0))
    await schedule_records.trim_runs(store, await stored(store), older_than=1000.0, keep=10)
    await schedule_records.drop(store, schedule)  # not as it is now
    assert await schedule_records.get(store, "default", "nightly") == move.after

    await schedule_records.drop(store, move.after)
    assert await schedule_records.get(store, "default", "nightly") is None
    assert await schedule_records.list_all(store, "default") == []
    assert await schedule_records.revisions(store, "default", "nightly") == []


def sure_move(move: schedules.Move | None) -> schedules.Move:
    assert move is not None
    return move
