"""After a failover to a replica that lacks the last changes: versions repeat, and nobody goes on with what was lost."""

from __future__ import annotations

from msgspec.structs import replace

from packhorse.background.reaper import Reaper
from packhorse.core import lifecycle
from packhorse.core.changes import Change, EndLease, Grant
from packhorse.core.plan import Status
from packhorse.errors import Conflict
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Claim, Store
from tests.contract.builders import (
    APART,
    HOUR,
    LEASE,
    LEFT,
    ONLY,
    RIGHT,
    attempt_of,
    claim_one,
    finish,
    held,
    made,
    plan,
    refused,
    stage,
    started,
    submit,
    sure,
    token_of,
)
from tests.contract.stores import Clock

TICK = LEASE / 10


def without(change: Change, *effects: type) -> Change:
    return replace(change, effects=tuple(each for each in change.effects if not isinstance(each, effects)))


async def test_a_change_decided_on_a_history_that_the_store_has_lost_is_refused(store: Store) -> None:
    job = await submit(store)
    lost = lifecycle.start(job, ONLY, token="a", worker="w", lease=LEASE, now=1.0)
    there = await made(store, lifecycle.start(job, ONLY, token="b", worker="w", lease=LEASE, now=1.0))

    error = await refused(store, sure(lifecycle.cancel(lost.after, now=2.0)))

    assert lost.after.version == there.version
    assert type(error) is Conflict
    assert await held(store, job.id) == there


async def test_a_lost_change_without_events_is_not_taken_for_another(store: Store) -> None:
    job = await finish(store, await started(store, plan(stage("only"), publish="here")))
    lost = sure(lifecycle.tidy(job, now=1.0))
    there = await made(store, sure(lifecycle.delete(job, now=1.0)))

    error = await refused(store, lifecycle.promote(lost.after, to="there", run=1, now=2.0))

    assert type(error) is Conflict
    assert await held(store, job.id) == there


async def test_what_was_decided_from_memory_is_decided_again_on_what_is_there(store: Store) -> None:
    """The other stage of the job was finished, and that is lost: whoever remembers it must not write it back."""
    job = await submit(store, APART)
    left = await made(store, lifecycle.start(job, LEFT, token="l", worker="w", lease=HOUR, now=1.0))
    right = await made(store, lifecycle.start(left, RIGHT, token="r", worker="w", lease=HOUR, now=1.0))
    transact = Transactor(store)
    lost = lifecycle.hand_back(right, LEFT, token="l", now=1.0)
    transact.learn([lost.after])
    await made(store, lifecycle.hand_back(right, RIGHT, token="r", now=1.0))

    after = await transact(job.id, lambda job: lifecycle.cancel(job, now=2.0))

    assert token_of(after, LEFT) == "l"
    assert after.stopping == "cancel"


async def test_an_overdue_lease_of_a_task_that_does_not_run_is_dropped(timed: Store, clock: Clock) -> None:
    claimed = await leased_only(timed)

    await watch(timed, clock, 2 * LEASE)

    assert (await timed.overdue(10)).tasks == []
    assert await timed.held_by("w", 10) == []
    assert (await claim_one(timed)).job.id == claimed.job.id


async def test_a_task_is_started_although_a_lease_of_nobody_is_left_of_it(store: Store) -> None:
    claimed = await leased_only(store)

    again = await claim_one(store)

    assert again.job.id == claimed.job.id
    assert (await finish(store, again)).status is Status.COMPLETED
    assert await store.held_by("w", 10) == []


async def test_a_task_that_runs_under_a_token_that_nobody_holds_is_returned_uncounted(
    timed: Store, clock: Clock
) -> None:
    job = await submit(timed, plan(stage("only"), deadline=90 * 24 * HOUR))
    change = lifecycle.start(job, ONLY, token="nobody's", worker="w", lease=LEASE, now=clock())
    await made(timed, without(change, Grant))
    other = await started(timed, plan(stage("only"), deadline=90 * 24 * HOUR), lease=HOUR)

    await watch(timed, clock, 2 * LEASE)

    assert attempt_of(await held(timed, job.id)) == 0
    assert (await claim_one(timed)).job.id == job.id
    assert await held(timed, other.job.id) == other.job


async def leased_only(store: Store) -> Claim:
    """A task that waits again, although its lease was not ended."""
    claimed = await started(store)
    change = lifecycle.hand_back(claimed.job, ONLY, token=claimed.token, now=store.now())
    await made(store, without(change, EndLease))
    return claimed


async def watch(store: Store, clock: Clock, seconds: float) -> None:
    steady = Clock(1_000.0)
    reaper = Reaper(store, Transactor(store), LEASE, steady)
    for _ in range(round(seconds / TICK) + 2):
        await reaper.tick()
        clock.forward(TICK)
        steady.forward(TICK)
