"""Taking back what nobody works on: only what was watched long enough, and only if it is still so."""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from typing import Any

import pytest

from packhorse.background.reaper import BATCH, Reaper
from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.errors import CorruptRecord, NotAllowed, PackhorseError, StoreUnavailable
from packhorse.jobs.transact import Transactor, Verb
from packhorse.store.base import Claim, Store
from tests.contract.builders import (
    HOUR,
    LEASE,
    attempt_of,
    cancel,
    claim,
    claim_one,
    finish,
    held,
    ids,
    lease_of,
    plan,
    stage,
    started,
    submit,
    submit_many,
    waiting,
    words,
)
from tests.contract.stores import Clock
from tests.worker.builders import lose
from tests.worker.faulty import Faults

TICK = LEASE / 10


class Watch:
    """A reaper that is called as often as it wishes to be, and the two clocks it goes by."""

    def __init__(self, store: Store, transact: Transactor, wall: Clock) -> None:
        self.wall = wall
        self.steady = Clock(1_000.0)
        self.reaper = Reaper(store, transact, LEASE, self.steady)

    def forward(self, seconds: float) -> None:
        self.wall.forward(seconds)
        self.steady.forward(seconds)

    async def over(self, seconds: float) -> None:
        """Watch for so long."""
        for _ in range(round(seconds / TICK)):
            self.forward(TICK)
            await self.reaper.tick()


@pytest.fixture
async def watch(shaky: Store, transact: Transactor, clock: Clock) -> Watch:
    """One that has just begun."""
    watch = Watch(shaky, transact, clock)
    await watch.reaper.tick()
    return watch


async def is_lost(store: Store, claimed: Claim) -> bool:
    """Whether the attempt was taken from its worker and counted."""
    job = await held(store, claimed.job.id)
    task = job.task(claimed.task)
    assert task is not None
    return task.token != claimed.token


# Leases


async def test_an_overdue_lease_is_lost_once_it_was_watched_for_one_lease(store: Store, watch: Watch) -> None:
    claimed = await started(store)
    await watch.reaper.tick()

    await watch.over(LEASE - TICK)
    before = await is_lost(store, claimed)
    await watch.over(2 * TICK)

    assert not before
    assert await is_lost(store, claimed)
    assert await waiting(store) == [(claimed.job.id, claimed.task)]
    assert (await words(store, claimed.job.id))[-3:] == ["stage_started", "retrying", "stage_started"]


async def test_a_reaper_that_has_just_begun_loses_nothing_that_was_overdue_before(store: Store, watch: Watch) -> None:
    claimed = await started(store)
    watch.wall.forward(HOUR / 2)

    await watch.over(LEASE - TICK)

    assert not await is_lost(store, claimed)


async def test_a_lease_that_is_renewed_is_never_lost(store: Store, watch: Watch) -> None:
    claimed = await started(store)

    for _ in range(10):
        await watch.over(LEASE / 2)
        await store.renew([lease_of(claimed)], LEASE)

    assert not await is_lost(store, claimed)


async def test_a_lost_attempt_is_counted_and_the_last_one_ends_the_job(store: Store, watch: Watch) -> None:
    claimed = await started(store, plan(stage("only", retries=0)))

    await watch.over(2 * LEASE)

    job = await held(store, claimed.job.id)
    assert job.status is Status.FAILED
    assert job.error is not None
    assert (job.error.code, job.error.stage, attempt_of(job)) == ("WORKER_LOST", "only", 1)


async def test_a_job_that_cannot_be_written_keeps_no_other_from_being_freed(
    store: Store, watch: Watch, faults: Faults
) -> None:
    claimed = [await started(store) for _ in range(3)]
    await watch.over(LEASE)
    watch.forward(TICK)
    faults.refuse("commit", lambda: CorruptRecord(what="state", job_id=claimed[0].job.id, reason="test"))

    with pytest.raises(CorruptRecord):
        await watch.reaper.tick()

    assert [await is_lost(store, each) for each in claimed].count(True) == 2


async def test_a_store_that_is_away_is_not_asked_about_every_job(store: Store, watch: Watch, faults: Faults) -> None:
    for _ in range(3):
        await started(store)
    await watch.over(LEASE)
    watch.forward(TICK)
    before = faults.names().count("commit")
    faults.refuse("commit", StoreUnavailable)

    with pytest.raises(StoreUnavailable):
        await watch.reaper.tick()

    assert faults.names().count("commit") == before + 1


async def test_a_gap_between_two_looks_starts_the_watch_anew(store: Store, watch: Watch) -> None:
    await watch.over(2 * LEASE)
    claimed = await started(store)

    watch.forward(2 * LEASE)
    await watch.reaper.tick()
    await watch.over(LEASE - TICK)
    before = await is_lost(store, claimed)
    await watch.over(2 * TICK)

    assert not before
    assert await is_lost(store, claimed)


async def test_a_clock_that_jumps_ahead_costs_nobody_an_attempt(store: Store, watch: Watch) -> None:
    await watch.over(2 * LEASE)
    claimed = await started(store)

    watch.wall.forward(HOUR / 2)
    await watch.over(LEASE - TICK)
    before = await is_lost(store, claimed)
    await store.renew([lease_of(claimed)], LEASE)
    await watch.over(LEASE - TICK)

    assert not before
    assert not await is_lost(store, claimed)


async def test_a_reaper_that_sits_out_a_jump_does_not_ask_again_at_once(store: Store, watch: Watch) -> None:
    await watch.over(2 * LEASE)
    await submit_many(store, 2 * BATCH + 1)
    for _ in range(3):
        await claim(store)
    watch.wall.forward(HOUR / 2)

    waits = set()
    for _ in range(8):
        watch.forward(TICK)
        waits.add(await watch.reaper.tick())

    assert waits == {TICK}


async def test_a_clock_that_jumps_ahead_while_we_look_costs_nobody_an_attempt(
    store: Store, watch: Watch, faults: Faults
) -> None:
    await watch.over(2 * LEASE)
    claimed = await started(store)

    async def jump() -> None:
        watch.wall.forward(HOUR / 2)

    faults.before("overdue", jump)
    await watch.over(LEASE - TICK)

    assert not await is_lost(store, claimed)


async def test_a_clock_that_jumps_back_starts_the_watch_anew(store: Store, watch: Watch) -> None:
    await watch.over(2 * LEASE)
    claimed = await started(store, lease=LEASE / 5)

    watch.wall.forward(-LEASE / 2)
    await watch.over(LEASE - TICK)
    overdue = (await store.overdue(10)).tasks
    before = await is_lost(store, claimed)
    await watch.over(2 * TICK)

    assert len(overdue) == 1
    assert not before
    assert await is_lost(store, claimed)


async def test_a_store_that_was_away_costs_nobody_an_attempt(store: Store, watch: Watch, faults: Faults) -> None:
    await watch.over(2 * LEASE)
    claims = [await started(store) for _ in range(5)]
    for call in ("put bookmark", "overdue", "expired", "commit"):
        faults.refuse(call, StoreUnavailable, times=20)
    for _ in range(20):
        watch.forward(1.0)
        with pytest.raises(StoreUnavailable):
            await watch.reaper.tick()
    faults.mend()

    await watch.over(LEASE / 3)
    lost = [await is_lost(store, each) for each in claims]
    renewal = await store.renew([lease_of(each) for each in claims], LEASE)

    assert not any(lost)
    assert renewal.lost == frozenset()


async def test_a_store_that_only_answered_questions_for_a_while_costs_nobody_an_attempt(
    store: Store, watch: Watch, faults: Faults
) -> None:
    await watch.over(2 * LEASE)
    claims = [await started(store) for _ in range(5)]
    for call in ("put bookmark", "commit"):  # as on a full disk
        faults.refuse(call, StoreUnavailable, times=1000)
    for _ in range(40):
        watch.forward(1.0)
        await asyncio.gather(watch.reaper.tick(), return_exceptions=True)
    faults.mend()

    await watch.over(LEASE / 3)

    assert not any([await is_lost(store, each) for each in claims])


async def test_a_lease_that_is_renewed_after_we_looked_is_not_lost(store: Store, watch: Watch, faults: Faults) -> None:
    claimed = await started(store)
    await watch.over(LEASE)
    faults.after("overdue", lambda: store.renew([lease_of(claimed)], LEASE))

    watch.forward(TICK)
    await watch.reaper.tick()

    assert faults.args("commit") != []
    assert not await is_lost(store, claimed)
    assert (await finish(store, claimed)).status is Status.COMPLETED


async def test_a_lease_that_is_renewed_just_before_the_commit_is_not_lost(
    store: Store, watch: Watch, faults: Faults
) -> None:
    claimed = await started(store)
    await watch.over(LEASE)
    faults.before("commit", lambda: store.renew([lease_of(claimed)], LEASE))

    watch.forward(TICK)
    await watch.reaper.tick()

    assert not await is_lost(store, claimed)


async def test_a_stage_that_finishes_after_we_looked_stays_finished(store: Store, watch: Watch, faults: Faults) -> None:
    claimed = await started(store)
    await watch.over(LEASE)
    faults.after("overdue", lambda: finish(store, claimed))

    watch.forward(TICK)
    await watch.reaper.tick()

    assert (await held(store, claimed.job.id)).status is Status.COMPLETED


async def test_a_stage_that_was_taken_over_after_we_looked_stays_with_its_new_worker(
    store: Store, watch: Watch, faults: Faults
) -> None:
    claimed = await started(store)
    await watch.over(LEASE)

    async def taken_over() -> None:
        await lose(store, claimed)
        await claim_one(store, worker="w2", lease=0.0)

    faults.after("overdue", taken_over)
    watch.forward(TICK)
    await watch.reaper.tick()

    assert await store.held_by("w2", 10) == [(await held(store, claimed.job.id), claimed.task)]
    assert attempt_of(await held(store, claimed.job.id)) == 2


async def test_more_overdue_leases_than_fit_in_a_batch_are_all_lost(store: Store, watch: Watch) -> None:
    await submit_many(store, BATCH + 5)
    claims = await claim(store)
    await watch.over(LEASE - TICK)

    watch.forward(TICK)
    seen = [await watch.reaper.tick(), await watch.reaper.tick()]
    watch.forward(TICK)
    waits = [await watch.reaper.tick(), await watch.reaper.tick()]

    assert seen == waits == [0.0, TICK]
    assert all([await is_lost(store, each) for each in claims])


async def test_a_lease_that_is_overdue_when_it_appears_is_left_to_its_worker_for_a_moment(
    store: Store, watch: Watch
) -> None:
    await watch.over(2 * LEASE)
    claimed = await started(store, lease=0.0)

    await watch.reaper.tick()
    before = await is_lost(store, claimed)
    await watch.over(TICK)

    assert not before
    assert await is_lost(store, claimed)


def break_jobs(
    transact: Transactor, monkeypatch: pytest.MonkeyPatch, broken: Collection[str], error: PackhorseError | None = None
) -> None:
    """Nothing of these jobs can be written."""
    real = Transactor.__call__

    async def call(self: Transactor, job_id: str, verb: Verb, **options: Any) -> Job:
        if job_id in broken:
            raise error or CorruptRecord(what="state", job_id=job_id, reason="test")
        return await real(self, job_id, verb, **options)

    monkeypatch.setattr(Transactor, "__call__", call)


async def watch_on(watch: Watch, seconds: float) -> int:
    """Watch for so long, as a worker does that goes on after an error; how often there was one."""
    errors = 0
    for _ in range(round(seconds / TICK)):
        watch.forward(TICK)
        try:
            while await watch.reaper.tick() == 0.0:
                pass
        except CorruptRecord:
            errors += 1
    return errors


async def test_a_page_of_leases_that_cannot_be_ended_does_not_hide_those_behind_them(
    store: Store, watch: Watch, transact: Transactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit_many(store, BATCH)
    stuck = await claim(store)
    await watch.over(TICK)
    claimed = await started(store)
    break_jobs(transact, monkeypatch, {each.job.id for each in stuck})

    errors = await watch_on(watch, LEASE + 4 * TICK)

    assert errors > 0
    assert await is_lost(store, claimed)


async def test_a_page_of_jobs_that_cannot_be_failed_does_not_hide_those_behind_them(
    store: Store, watch: Watch, transact: Transactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    brief = plan(stage("only"), deadline=2 * LEASE)
    stuck = await submit_many(store, BATCH, brief)
    await watch.over(TICK)
    job = await submit(store, brief)
    break_jobs(transact, monkeypatch, ids(stuck))

    errors = await watch_on(watch, 2 * LEASE + TICK)

    assert errors > 0
    assert (await held(store, job.id)).status is Status.FAILED


async def test_the_reaper_rests_if_a_page_of_jobs_past_their_deadline_must_not_be_failed(
    store: Store, watch: Watch, transact: Transactor, monkeypatch: pytest.MonkeyPatch
) -> None:
    left = await submit_many(store, BATCH + 1, plan(stage("only"), deadline=LEASE / 2))
    break_jobs(transact, monkeypatch, ids(left), NotAllowed(verb="expire", status="completed"))
    await watch.over(LEASE)

    answers = [await watch.reaper.tick() for _ in range(5)]

    assert answers[-1] == TICK


# Delays


@pytest.mark.parametrize("is_refused", [False, True])
async def test_delays_that_are_not_restarted_hide_none_behind_them_and_the_reaper_rests(
    store: Store, watch: Watch, transact: Transactor, monkeypatch: pytest.MonkeyPatch, is_refused: bool
) -> None:
    left = await submit_many(store, BATCH + 1, delay=1.0 if is_refused else HOUR, now=watch.wall() + 2 * HOUR)
    job = await submit(store, delay=1.0, now=watch.wall() + HOUR)
    if is_refused:
        break_jobs(transact, monkeypatch, ids(left), NotAllowed(verb="start", status="completed"))
    await watch.over(LEASE)

    answers = [await watch.reaper.tick() for _ in range(5)]

    assert answers[-1] == TICK
    assert (await held(store, job.id)).not_before < watch.wall() + LEASE
    assert [await held(store, each.id) for each in left] == left


async def test_a_delay_that_somebody_else_has_changed_is_not_reported_as_restarted(
    store: Store, watch: Watch, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job, other = [await submit(store, delay=1.0, now=watch.wall() + HOUR) for _ in range(2)]
    real = Transactor.__call__

    async def call(self: Transactor, job_id: str, verb: Verb, **options: Any) -> Job:
        if job_id == job.id:
            await cancel(store, job_id)
        return await real(self, job_id, verb, **options)

    monkeypatch.setattr(Transactor, "__call__", call)

    await watch.over(LEASE + TICK)

    said = [record.getMessage() for record in caplog.records if "its delay begins now" in record.getMessage()]
    assert (await held(store, job.id)).status is Status.CANCELLED
    assert len(said) == 1
    assert other.id in said[0]


# Deadlines


async def test_a_job_past_its_deadline_fails_for_good(store: Store, watch: Watch) -> None:
    await watch.over(2 * LEASE)
    job = await submit(store, plan(stage("only"), deadline=60.0))

    await watch.over(60.0 - TICK)
    before = await held(store, job.id)
    await watch.over(TICK)

    after = await held(store, job.id)
    assert before == job
    assert after.status is Status.FAILED
    assert after.error is not None
    assert (after.error.code, after.error.permanent) == ("DEADLINE", True)
    assert await waiting(store) == []


async def test_a_late_answer_of_the_store_is_no_jump_of_its_clock(
    store: Store, watch: Watch, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    await watch.over(2 * LEASE)
    job = await submit(store, plan(stage("only"), deadline=LEASE))

    async def wait() -> None:
        watch.forward(2 * LEASE)

    faults.after("overdue", wait)
    await watch.over(TICK)
    at_once = await held(store, job.id)
    await watch.over(LEASE + TICK)

    assert at_once == job
    assert (await held(store, job.id)).status is Status.FAILED
    assert "the clock jumped" not in caplog.text


async def test_a_running_job_past_its_deadline_is_asked_to_stop(store: Store, watch: Watch) -> None:
    claimed = await started(store, plan(stage("only"), deadline=60.0), lease=HOUR)

    await watch.over(60.0)

    job = await held(store, claimed.job.id)
    assert (job.status, job.stopping) == (Status.RUNNING, "expire")
    assert (await store.renew([lease_of(claimed)], None)).stopping == {lease_of(claimed)}


async def test_a_job_that_was_cancelled_after_we_looked_stays_cancelled(
    store: Store, watch: Watch, faults: Faults
) -> None:
    job = await submit(store, plan(stage("only"), deadline=60.0))
    await watch.over(60.0 - TICK)
    faults.after("expired", lambda: cancel(store, job.id))

    await watch.over(TICK)

    assert (await held(store, job.id)).status is Status.CANCELLED


async def test_more_expired_jobs_than_fit_in_a_batch_all_fail(store: Store, watch: Watch) -> None:
    expiring = await submit_many(store, BATCH + 5, plan(stage("only"), deadline=60.0))

    await watch.over(60.0 - TICK)
    watch.forward(TICK)
    waits = [await watch.reaper.tick(), await watch.reaper.tick()]

    assert waits == [0.0, TICK]
    assert {job.status for job in await store.get(ids(expiring)) if job is not None} == {Status.FAILED}
