"""What a commit promises: whole or not at all, in order, and every refusal its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Firing, Job, Spec
from packhorse.core.plan import Status, TaskStatus
from packhorse.errors import AlreadySubmitted, Conflict, LeaseLost, PackhorseError, SlotTaken
from packhorse.store.base import Store
from tests.contract.builders import (
    APART,
    BROKEN,
    CHAIN,
    FAN,
    LEASE,
    LEFT,
    ONLY,
    RESULT,
    RIGHT,
    SLOT,
    SLOTTED,
    SPEC,
    UNKNOWN,
    cancel,
    cancelled,
    claim,
    claim_one,
    completed,
    dump,
    fail,
    failed,
    finish,
    finishing,
    held,
    ids,
    made,
    marked,
    next_id,
    page,
    refused,
    settled,
    split,
    started,
    submission,
    submit,
    submit_many,
    sure,
    waiting,
    words,
)
from tests.contract.stores import OpenStore

pytestmark = pytest.mark.cluster

UNWRITABLE = Spec(b"{}", metadata={"thing": object()})
"""No store can write it down, and finds out only after it has begun to."""


# what was committed is there


async def _started(store: Store) -> Job:
    return (await started(store)).job


async def _retrying(store: Store) -> Job:
    return await fail(store, await started(store), BROKEN)


async def _stopping(store: Store) -> Job:
    return await cancel(store, (await started(store)).job.id)


async def _purging(store: Store) -> Job:
    return await marked(store, await completed(store))


async def _retried(store: Store) -> Job:
    return await made(store, lifecycle.retry(await failed(store), now=store.now()))


async def _tidied(store: Store) -> Job:
    return await made(store, lifecycle.tidy(await failed(store), now=store.now()))


async def _full_of_facts(store: Store) -> Job:
    facts: dict[str, Any] = {"tenant": "acme", "user": "böb/../ann", "client": "key-7", "trace_id": "4bf9", "key": "k"}
    return await submit(store, SLOTTED, priority=-3, delay=60.5, fingerprint="f", **facts)


POINTS: dict[str, Callable[[Store], Awaitable[Job]]] = {
    "submitted": submit,
    "submitted with every fact": _full_of_facts,
    "submitted with a graph": lambda store: submit(store, FAN),
    "started": _started,
    "split": lambda store: split(store, 3),
    "split into nothing": lambda store: split(store, 0),
    "retrying": _retrying,
    "completed": completed,
    "failed": failed,
    "stopping": _stopping,
    "cancelled": cancelled,
    "retried": _retried,
    "tidied": _tidied,
    "purging": _purging,
}


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
async def test_another_handle_reads_the_job_exactly_as_it_was_decided(
    store: Store, other: Store, point: Callable[[Store], Awaitable[Job]]
) -> None:
    decided = await point(store)

    found = await held(other, decided.id)

    assert found == decided


@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
async def test_what_was_committed_outlives_its_handle(
    open_store: OpenStore, point: Callable[[Store], Awaitable[Job]]
) -> None:
    first = await open_store()
    await point(first)
    before = await dump(first)

    await first.close()

    assert await dump(await open_store()) == before


async def test_committing_nothing_says_nothing(store: Store) -> None:
    assert await store.commit([]) == []


async def test_an_event_is_written_in_the_same_step_as_the_status_it_tells_of(store: Store) -> None:
    job = await completed(store)

    events = await store.events(job.id)

    assert [event.type for event in events] == ["submitted", "started", "stage_started", "stage_completed", "completed"]
    assert len(events) == (await held(store, job.id)).events


@pytest.mark.parametrize("status", [Status.COMPLETED, Status.FAILED, Status.CANCELLED])
async def test_every_terminal_status_comes_with_its_own_event(store: Store, status: Status) -> None:
    points = {Status.COMPLETED: completed, Status.FAILED: failed, Status.CANCELLED: cancelled}

    job = await points[status](store)

    assert (await held(store, job.id)).status is status
    assert (await words(store, job.id))[-1] == status.value


# what was refused has left nothing


async def _stale_cancel(store: Store) -> Change:
    """Decided on a pending job, which somebody has claimed since."""
    job = await submit(store, SLOTTED)
    await claim_one(store)
    return sure(lifecycle.cancel(job, now=store.now()))


async def _stale_retry(store: Store) -> Change:
    job = await failed(store, SLOTTED)
    await made(store, lifecycle.tidy(job, now=store.now()))
    return sure(lifecycle.retry(job, now=store.now()))


async def _same_id_again(store: Store) -> Change:
    job = await submit(store, SLOTTED)
    return submission(CHAIN, job_id=job.id, now=store.now())


async def _of_a_job_never_seen(store: Store) -> Change:
    return sure(lifecycle.cancel(submission(now=store.now()).after, now=store.now()))


async def _of_an_erased_job(store: Store) -> Change:
    job = await marked(store, await failed(store, SLOTTED))
    await store.erase(job.id)
    return sure(lifecycle.retry(replace(job, is_purging=False), now=store.now()))


async def _finish_of_a_lost_lease(store: Store) -> Change:
    claimed = await started(store, SLOTTED)
    await settled(
        store, claimed.job.id, lambda job: lifecycle.lose(job, ONLY, token=claimed.token, now=0.0, witnessed=True)
    )
    return finishing(claimed, now=store.now())


async def _finish_of_another_attempt(store: Store) -> Change:
    claimed = await started(store, SLOTTED)
    await settled(
        store, claimed.job.id, lambda job: lifecycle.hand_back(job, ONLY, token=claimed.token, now=store.now())
    )
    await claim_one(store)
    return finishing(claimed, now=store.now())


async def _loss_of_a_lease_in_time(store: Store) -> Change:
    claimed = await started(store, SLOTTED)
    return lifecycle.lose(claimed.job, ONLY, token=claimed.token, now=store.now())


async def _slot_taken(store: Store) -> Change:
    await submit(store, SLOTTED)
    return submission(SLOTTED, now=store.now(), key="k")


async def _retry_while_the_slot_is_taken(store: Store) -> Change:
    job = await failed(store, SLOTTED)
    await submit(store, SLOTTED)
    return sure(lifecycle.retry(job, now=store.now()))


async def _key_used(store: Store) -> Change:
    await submit(store, key="k", fingerprint="f")
    return submission(SLOTTED, now=store.now(), key="k")


async def _key_used_and_slot_taken(store: Store) -> Change:
    await submit(store, SLOTTED, key="k")
    return submission(SLOTTED, now=store.now(), key="k")


async def _unwritable(store: Store) -> Change:
    return submission(SLOTTED, UNWRITABLE, now=store.now(), key="k")


async def _empty_id(store: Store) -> Change:
    return submission(SLOTTED, job_id="", now=store.now(), key="k")


REFUSALS: dict[str, tuple[Callable[[Store], Awaitable[Change]], type[PackhorseError]]] = {
    "cancel of a job claimed since": (_stale_cancel, Conflict),
    "retry of a job changed since": (_stale_retry, Conflict),
    "an id a second time": (_same_id_again, Conflict),
    "a job that is not there": (_of_a_job_never_seen, Conflict),
    "a job erased since": (_of_an_erased_job, Conflict),
    "finish of a lost lease": (_finish_of_a_lost_lease, LeaseLost),
    "finish of a superseded attempt": (_finish_of_another_attempt, LeaseLost),
    "loss of a lease in time": (_loss_of_a_lease_in_time, Conflict),
    "slot taken": (_slot_taken, SlotTaken),
    "retry while the slot is taken": (_retry_while_the_slot_is_taken, SlotTaken),
    "key used": (_key_used, AlreadySubmitted),
    "key used and slot taken": (_key_used_and_slot_taken, AlreadySubmitted),
    "unwritable": (_unwritable, PackhorseError),
    "empty id": (_empty_id, PackhorseError),
}

every_refusal = pytest.mark.parametrize(("arrange", "why"), REFUSALS.values(), ids=REFUSALS)


@every_refusal
async def test_a_refused_commit_says_why(
    store: Store, arrange: Callable[[Store], Awaitable[Change]], why: type[PackhorseError]
) -> None:
    change = await arrange(store)

    [error] = await store.commit([change])

    assert isinstance(error, why)


@every_refusal
async def test_a_refused_commit_leaves_nothing_behind(
    store: Store, arrange: Callable[[Store], Awaitable[Change]], why: type[PackhorseError]
) -> None:
    change = replace(await arrange(store), id="c")
    before = await dump(store)

    await refused(store, change)

    assert await dump(store) == before
    assert await store.holder(SLOT) in (None, *ids(before["jobs"]))
    assert not await store.has_change(change.after.id, "c")


@every_refusal
async def test_a_refused_commit_leaves_every_queue_as_the_jobs_say(
    store: Store, arrange: Callable[[Store], Awaitable[Change]], why: type[PackhorseError]
) -> None:
    change = await arrange(store)
    jobs: list[Job] = (await dump(store))["jobs"]

    await refused(store, change)

    assert sorted(await waiting(store)) == sorted((job.id, at) for job in jobs for at in _due(job))


def _due(job: Job) -> list[object]:
    return [ONLY for task in job.stage("only").tasks or () if task.status is TaskStatus.PENDING]


@every_refusal
async def test_a_refused_commit_harms_no_neighbour(
    store: Store, arrange: Callable[[Store], Awaitable[Change]], why: type[PackhorseError]
) -> None:
    change = await arrange(store)
    first, last = submission(CHAIN, now=store.now(), key="k2"), submission(CHAIN, now=store.now())

    outcomes = await store.commit([first, change, last])

    assert [outcomes[0], type(outcomes[1]) is type(None), outcomes[2]] == [None, False, None]
    assert await store.get([first.after.id, last.after.id]) == [first.after, last.after]
    assert await store.find_by_key("k2") == (first.after.id, "")


@every_refusal
async def test_a_refused_commit_of_one_caller_harms_no_other_caller(
    store: Store, arrange: Callable[[Store], Awaitable[Change]], why: type[PackhorseError]
) -> None:
    change = await arrange(store)
    first, last = submission(CHAIN, now=store.now()), submission(CHAIN, now=store.now())

    outcomes = await asyncio.gather(*(store.commit([one]) for one in (first, change, last)))

    assert [outcomes[0], outcomes[2]] == [[None], [None]]
    assert isinstance(outcomes[1][0], why)
    assert await store.get([first.after.id, last.after.id]) == [first.after, last.after]


async def test_a_late_finish_hears_lease_lost_and_not_just_that_something_changed(store: Store) -> None:
    change = await _finish_of_another_attempt(store)

    error = await refused(store, change)

    assert type(error) is LeaseLost


async def test_an_overdue_worker_is_not_told_of_a_lost_lease_that_it_has_renewed(store: Store) -> None:
    change = await _loss_of_a_lease_in_time(store)

    error = await refused(store, change)

    assert not isinstance(error, LeaseLost)


# several in one call


async def test_the_changes_of_one_job_follow_each_other_in_one_call(store: Store) -> None:
    submitted = submission(SLOTTED, now=store.now())
    start = lifecycle.start(submitted.after, ONLY, token="t", worker="w", lease=LEASE, now=store.now())
    finish = lifecycle.finish(start.after, ONLY, token="t", result=RESULT, now=store.now())

    outcomes = await store.commit([submitted, start, finish])

    assert outcomes == [None, None, None]
    assert await held(store, finish.after.id) == finish.after
    assert [event.n for event in await store.events(finish.after.id)] == [1, 2, 3, 4, 5]
    assert await store.results([finish.after.id]) == {finish.after.id: {ONLY: RESULT}}
    assert await store.holder(SLOT) is None


async def test_parallel_tasks_of_one_job_finish_in_one_call(store: Store) -> None:
    job = await split(store, 12)
    claims = await claim(store)
    changes: list[Change] = []
    job = claims[-1].job
    for claimed in claims:
        changes.append(finishing(replace(claimed, job=job), now=store.now()))
        job = changes[-1].after

    outcomes = await store.commit(changes)

    assert outcomes == [None] * 12
    assert await held(store, job.id) == job
    assert list((await store.results([job.id]))[job.id]) == [page(n) for n in range(12)] + [("split", 0)]


async def test_a_change_decided_on_a_refused_one_is_refused_too(store: Store) -> None:
    job = await submit(store, APART)
    first = lifecycle.start(job, LEFT, token="t", worker="w", lease=LEASE, now=store.now())
    early = lifecycle.lose(first.after, LEFT, token="t", now=store.now())
    after = lifecycle.start(early.after, RIGHT, token="u", worker="w", lease=LEASE, now=store.now())

    outcomes = await store.commit([first, early, after])

    assert [type(outcome) for outcome in outcomes] == [type(None), Conflict, Conflict]
    assert await held(store, job.id) == first.after
    assert await waiting(store) == [(job.id, RIGHT)]


async def test_a_change_decided_on_a_refused_one_is_refused_even_where_the_versions_meet_again(store: Store) -> None:
    job = await split(store, 3)
    [first, second, third] = await claim(store, limit=3)
    stale = await held(store, job.id)
    fresh = await finish(store, third)
    one = finishing(replace(first, job=stale), now=1.0)
    two = finishing(replace(second, job=one.after), now=1.0)

    outcomes = await store.commit([one, two])

    assert fresh.version == one.after.version
    assert [type(outcome) for outcome in outcomes] == [Conflict, Conflict]
    assert await held(store, job.id) == fresh


async def test_each_is_told_its_own_outcome_also_behind_one_that_was_decided_on_a_refused_one(store: Store) -> None:
    job = await split(store, 3)
    [first, second, third] = await claim(store, limit=3)
    stale = await held(store, job.id)
    await finish(store, third)
    one = finishing(replace(first, job=stale), now=1.0)
    two = finishing(replace(second, job=one.after), now=1.0)
    others = [submission(now=store.now()) for _ in range(3)]
    again = submission(job_id=others[0].after.id, now=store.now())

    outcomes = await store.commit([others[0], one, two, others[1], again, others[2]])

    expected = [type(None), Conflict, Conflict, type(None), Conflict, type(None)]
    assert [type(outcome) for outcome in outcomes] == expected
    assert await store.get([other.after.id for other in others]) == [other.after for other in others]


async def test_changes_are_made_in_the_order_given(store: Store) -> None:
    job = await submit(store, SLOTTED)
    gone, next_one = lifecycle.cancel(job, now=store.now()), submission(SLOTTED, now=store.now())
    too_late = submission(SLOTTED, now=store.now())

    outcomes = await store.commit([sure(gone), next_one, too_late])

    assert [type(outcome) for outcome in outcomes] == [type(None), type(None), SlotTaken]
    assert await store.holder(SLOT) == next_one.after.id


async def test_more_changes_than_any_store_takes_at_once_are_all_made(store: Store) -> None:
    jobs = await submit_many(store, 1500)

    assert await store.existing_ids(ids(jobs)) == set(ids(jobs))


async def test_two_handles_that_decided_on_one_job_do_not_both_have_their_way(store: Store, other: Store) -> None:
    job = await submit(store, SLOTTED)
    seen = await held(other, job.id)
    start = lifecycle.start(job, ONLY, token="t", worker="w", lease=LEASE, now=store.now())
    await made(store, start)

    error = await refused(other, lifecycle.cancel(seen, now=other.now()))

    assert type(error) is Conflict
    assert await held(other, job.id) == start.after
    assert await other.holder(SLOT) == job.id


async def test_jobs_of_different_plans_keep_their_own_graphs(store: Store, other: Store) -> None:
    jobs = [await submit(store, plan, SPEC) for plan in (CHAIN, FAN, APART)]

    found = await other.get(ids(jobs))

    assert [job.plan for job in found if job] == [CHAIN, FAN, APART]


async def test_a_job_may_be_asked_for_before_it_is_there(store: Store, other: Store) -> None:
    id = next_id()
    assert await store.get([id, UNKNOWN]) == [None, None]

    await submit(other, job_id=id)

    assert (await held(store, id)).id == id


async def test_where_a_job_was_promoted_to_is_kept(store: Store) -> None:
    job = await completed(store)

    change = lifecycle.promote(job, to="s3://bucket/größe", run=1, now=store.now())

    assert (await made(store, change)).promoted == ("s3://bucket/größe",)
    [kept] = await store.get([job.id])
    assert kept is not None
    assert kept.promoted == ("s3://bucket/größe",)


async def test_the_tick_that_a_job_was_made_for_is_kept(store: Store) -> None:
    firing = Firing("größe", 1_900_000_000.5)
    change = submission(now=store.now())

    await made(store, replace(change, after=replace(change.after, firing=firing)))

    [kept] = await store.get([change.after.id])
    assert kept is not None
    assert kept.firing == firing
