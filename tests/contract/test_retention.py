"""What is kept how long: nothing young or needed goes, nothing stays past its time and one sweep, on every store."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from packhorse.background.janitor import FAILURES_KEEP, Janitor
from packhorse.background.reaper import Reaper
from packhorse.blobs.base import Blobs
from packhorse.blobs.local import Folder
from packhorse.core import lifecycle
from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.jobs.transact import Transactor
from packhorse.store.base import FailureFilter, Store
from tests.contract.builders import cancelled, claim_one, completed, held, plan, stage, started, submit, waiting
from tests.contract.failures import ALL, assert_counted, failing, id_of, one
from tests.contract.stores import Clock
from tests.worker.builders import put

DAY = 86_400.0
KEEP = {Status.COMPLETED: 30 * DAY, Status.FAILED: 20 * DAY, Status.CANCELLED: 7 * DAY}
KEPT = plan(stage("only"), keep=KEEP)


@pytest.fixture
async def blobs(folder: Path) -> AsyncIterator[Blobs]:
    opened = Folder(folder / "objects")
    yield opened
    await opened.close()


@pytest.fixture
def janitor(timed: Store, blobs: Blobs) -> Janitor:
    return Janitor(timed, blobs, Transactor(timed), orphan_after=2 * DAY, period=5.0)


async def with_object(blobs: Blobs, job: Job) -> Job:
    await put(blobs, f"jobs/{job.id}/input/a.txt")
    return job


async def is_there(store: Store, blobs: Blobs, job: Job) -> bool:
    """Record and objects, which must be of one mind."""
    [found] = await store.get([job.id])
    objects = await blobs.keys(f"jobs/{job.id}", limit=10)
    assert (found is None) == (not objects)
    return found is not None


@pytest.mark.parametrize("status", sorted(KEEP))
async def test_each_end_has_its_time_and_goes_with_the_next_sweep(
    timed: Store, blobs: Blobs, janitor: Janitor, clock: Clock, status: Status
) -> None:
    ends: dict[Status, Callable[..., Awaitable[Job]]] = {
        Status.COMPLETED: completed,
        Status.FAILED: failing,
        Status.CANCELLED: cancelled,
    }
    job = await with_object(blobs, await ends[status](timed, plan=KEPT))
    assert job.purge_at == clock.now + KEEP[status]

    clock.forward(KEEP[status] - 1.0)
    await janitor.tick()
    young = await is_there(timed, blobs, job)
    clock.forward(1.0)
    await janitor.tick()

    assert young
    assert not await is_there(timed, blobs, job)


async def test_what_runs_or_waits_or_was_retried_stays_however_old_it_is(
    timed: Store, blobs: Blobs, janitor: Janitor, clock: Clock
) -> None:
    endless = plan(stage("only"), keep={Status.FAILED: 1.0}, deadline=1000 * DAY, pending=1000 * DAY)
    running = (await started(timed, endless)).job
    retried = await failing(timed, plan=endless)
    await timed.commit([change for change in [lifecycle.retry(retried, now=clock.now)] if change is not None])
    waiting = await submit(timed, endless, delay=900 * DAY)
    for job in (running, retried, waiting):
        await with_object(blobs, job)

    clock.forward(100 * DAY)
    for _ in range(3):
        await janitor.tick()

    assert [await is_there(timed, blobs, job) for job in (running, retried, waiting)] == [True] * 3


async def test_a_failure_outlives_its_job_and_goes_at_its_own_time(
    timed: Store, janitor: Janitor, clock: Clock
) -> None:
    job = await failing(timed, plan=plan(stage("only"), keep={Status.FAILED: DAY}))

    clock.forward(2 * DAY)
    await janitor.tick()
    assert await timed.get([job.id]) == [None]
    assert (await one(timed, job)).id == id_of(job)
    await assert_counted(timed)
    clock.forward(FAILURES_KEEP - 2 * DAY - 1.0)
    await janitor.tick()
    assert len(await timed.failures(ALL)) == 1
    clock.forward(2.0)
    await janitor.tick()

    assert await timed.failures(ALL) == []
    assert await timed.failure_groups("default") == []


async def test_a_run_past_its_run_timeout_fails_however_long_it_waited(timed: Store, clock: Clock) -> None:
    """The source's rules: pending over 24 h is orphaned, running over 10 min is timed out, neither is retried."""
    brief = plan(stage("only"), pending=DAY, run_timeout=600.0, deadline=2 * DAY)
    late, lost = await submit(timed, brief), await submit(timed, brief, user="bob")
    reaper = Reaper(timed, Transactor(timed), 0.0, clock)

    clock.forward(DAY - 300.0)
    await claim_one(timed)
    clock.forward(300.0)
    await reaper.tick()  # takes the lease of the silent worker, so that the task waits for its second attempt
    first = [await held(timed, job.id) for job in (late, lost)]
    clock.forward(299.0)
    await reaper.tick()
    before = await held(timed, late.id)
    clock.forward(1.0)
    await reaper.tick()
    ended = await held(timed, late.id)

    assert [job.status for job in first] == [Status.RUNNING, Status.FAILED]
    assert before.status is Status.RUNNING
    assert ended.error is not None
    assert (ended.status, ended.error.code, ended.error.permanent) == (Status.FAILED, "RUN_TIMEOUT", True)
    assert [each.job_id for each in await timed.failures(FailureFilter("default", code="RUN_TIMEOUT"))] == [late.id]
    assert await waiting(timed) == []


async def test_a_run_that_nobody_starts_is_orphaned_and_recorded(timed: Store, clock: Clock) -> None:
    """From when it may start, and only until somebody starts it."""
    brief = plan(stage("only"), pending=60.0, deadline=DAY)
    taken = await started(timed, brief, user="bob")
    lost, later = await submit(timed, brief), await submit(timed, brief, delay=100.0)
    reaper = Reaper(timed, Transactor(timed), 0.0, clock)  # with a lease of 0: it trusts the clock at once

    clock.forward(60.0)
    await reaper.tick()
    first = [(await held(timed, job.id)).status for job in (lost, later, taken.job)]
    clock.forward(100.0)
    await reaper.tick()

    assert first == [Status.FAILED, Status.PENDING, Status.RUNNING]
    assert [(await held(timed, job.id)).status for job in (later, taken.job)] == [Status.FAILED, Status.RUNNING]
    found = await timed.failures(FailureFilter("default", code="ORPHANED"))
    assert {each.job_id for each in found} == {lost.id, later.id}
    assert {each.attempts for each in found} == {0}
