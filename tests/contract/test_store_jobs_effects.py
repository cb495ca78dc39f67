"""Each effect of a change, seen from outside."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change, ReleaseSlot
from packhorse.core.models import Artifact, Input, Job, Result, Spec, Stored
from packhorse.core.plan import Plan, Status
from packhorse.store.base import Store
from tests.contract.builders import (
    APART,
    BIE,
    BROKEN,
    CHAIN,
    LEASE,
    LEFT,
    NEF,
    ONLY,
    ONNX,
    RESULT,
    RIGHT,
    SLOT,
    SLOTTED,
    cancel,
    cancelled,
    claim,
    claim_one,
    completed,
    fail,
    failed,
    finish,
    held,
    lease_of,
    made,
    offered,
    page,
    report,
    settled,
    split,
    started,
    submit,
    waiting,
)
from tests.contract.stores import Clock

pytestmark = pytest.mark.cluster

FILE = Stored("jobs/1/input/m.onnx", "mödel.onnx", 5, "ab" * 32, "model/onnx")


# MakeDue


async def test_a_submitted_job_is_due_at_once(store: Store, other: Store) -> None:
    job = await submit(store)

    assert await waiting(other) == [(job.id, ONLY)]


async def test_only_the_first_stages_of_a_submitted_job_are_due(store: Store) -> None:
    job = await submit(store, CHAIN)

    assert await waiting(store) == [(job.id, ONNX)]


async def test_a_finished_stage_makes_the_next_one_due(store: Store) -> None:
    claimed = await started(store, CHAIN)

    await finish(store, claimed)

    assert await waiting(store) == [(claimed.job.id, BIE)]


async def test_a_list_makes_one_task_due_per_element(store: Store) -> None:
    job = await split(store, 3)

    assert await waiting(store) == [(job.id, page(0)), (job.id, page(1)), (job.id, page(2))]


async def test_a_failed_attempt_is_due_again_after_its_backoff(timed: Store, clock: Clock) -> None:
    claimed = await started(timed)
    await fail(timed, claimed, BROKEN)
    assert await waiting(timed) == []

    clock.forward(1.0)

    assert await waiting(timed) == [(claimed.job.id, ONLY)]


async def test_a_task_handed_back_is_due_at_once(store: Store) -> None:
    claimed = await started(store)

    await settled(
        store, claimed.job.id, lambda job: lifecycle.hand_back(job, ONLY, token=claimed.token, now=store.now())
    )

    assert await waiting(store) == [(claimed.job.id, ONLY)]


# TakeBack


async def test_a_cancelled_job_has_nothing_due(store: Store) -> None:
    job = await submit(store, APART)

    await cancel(store, job.id)

    assert await offered(store) == []


async def test_a_cancelled_job_that_was_to_come_later_never_comes(timed: Store, clock: Clock) -> None:
    job = await submit(timed, delay=60.0)
    await cancel(timed, job.id)

    clock.forward(61.0)

    assert await offered(timed) == []


async def test_a_cancelled_job_that_had_become_due_meanwhile_never_comes(timed: Store, clock: Clock) -> None:
    job = await submit(timed, delay=60.0)
    clock.forward(61.0)
    await claim(timed, kinds=["another"])

    await cancel(timed, job.id)

    assert await offered(timed) == []


async def test_an_entry_taken_back_does_not_come_back_in_the_next_run(timed: Store, clock: Clock) -> None:
    """Else it would start the task before the time it has asked for."""
    job = await cancel(timed, (await submit(timed, delay=60.0)).id)
    await made(timed, lifecycle.retry(job, now=clock()))
    claimed = await claim_one(timed)
    await made(timed, lifecycle.later(claimed.job, ONLY, token=claimed.token, seconds=600.0, now=clock()))

    clock.forward(61.0)

    assert await claim(timed) == []


async def test_taking_back_one_job_leaves_its_neighbours_due(store: Store) -> None:
    first, job, last = await submit(store), await submit(store), await submit(store)

    await cancel(store, job.id)

    assert await waiting(store) == [(first.id, ONLY), (last.id, ONLY)]


async def test_a_started_task_is_not_due_any_more(store: Store, other: Store) -> None:
    await started(store)

    assert await waiting(other) == []


# Grant and EndLease


async def test_a_start_gives_the_worker_the_lease(store: Store, other: Store) -> None:
    claimed = await started(store, worker="w2")

    assert await other.held_by("w2", limit=10) == [(claimed.job, ONLY)]
    assert (await other.renew([lease_of(claimed)], LEASE)).lost == frozenset()


async def test_a_lease_lasts_its_seconds_of_the_stores_clock_not_the_workers(timed: Store, clock: Clock) -> None:
    job = await submit(timed)
    an_hour_ahead = clock() + 3600.0
    await made(timed, lifecycle.start(job, ONLY, token="t", worker="w", lease=LEASE, now=an_hour_ahead))
    clock.forward(LEASE - 0.5)
    assert (await timed.overdue(limit=10)).tasks == []

    clock.forward(0.5)

    assert [at for _, at in (await timed.overdue(limit=10)).tasks] == [ONLY]


@pytest.mark.parametrize("how", ["finish", "fail", "hand back", "later", "lose"])
async def test_however_an_attempt_ends_its_lease_has_ended(store: Store, how: str) -> None:
    claimed = await started(store)

    await settled(store, claimed.job.id, lambda job: _ending(how, job, claimed.token))

    assert await store.held_by("w", limit=10) == []
    assert (await store.renew([lease_of(claimed)], LEASE)).lost == {lease_of(claimed)}


def _ending(how: str, job: Job, token: str) -> Change:
    match how:
        case "finish":
            return lifecycle.finish(job, ONLY, token=token, result=RESULT, now=1.0)
        case "fail":
            return lifecycle.fail(job, ONLY, token=token, error=BROKEN, luck=0.0, now=1.0)
        case "hand back":
            return lifecycle.hand_back(job, ONLY, token=token, now=1.0)
        case "later":
            return lifecycle.later(job, ONLY, token=token, seconds=5.0, now=1.0)
    return lifecycle.lose(job, ONLY, token=token, now=1.0, witnessed=True)


async def test_ending_one_lease_leaves_the_jobs_other_leases(store: Store) -> None:
    await submit(store, APART)
    left, right = await claim(store)

    await finish(store, left)

    assert [at for _, at in await store.held_by("w", limit=10)] == [RIGHT]
    assert (await store.renew([lease_of(right)], LEASE)).lost == frozenset()


# TakeSlot and ReleaseSlot


async def test_a_submitted_job_holds_its_slot(store: Store, other: Store) -> None:
    job = await submit(store, SLOTTED)

    assert await other.holder(SLOT) == job.id


async def test_a_slot_nobody_took_has_no_holder(store: Store) -> None:
    await submit(store)

    assert await store.holder(SLOT) is None


@pytest.mark.parametrize("ended", [completed, failed, cancelled])
async def test_an_ended_job_holds_no_slot(store: Store, ended: Callable[[Store, Plan], Awaitable[Job]]) -> None:
    job = await ended(store, SLOTTED)

    assert (await held(store, job.id)).status.is_terminal
    assert await store.holder(SLOT) is None


async def test_a_job_holds_its_slot_until_the_last_of_its_tasks_has_stopped(store: Store) -> None:
    job = await submit(store, APART)
    slot = job.slot or ""
    left, right = await claim(store)
    await cancel(store, job.id)
    await fail(store, left, BROKEN)
    assert await store.holder(slot) == job.id

    after = await fail(store, right, BROKEN)

    assert after.status is Status.CANCELLED
    assert await store.holder(slot) is None


async def test_a_job_cannot_release_a_slot_that_another_job_holds(store: Store) -> None:
    ended, active = await failed(store, SLOTTED), await submit(store, SLOTTED)
    change = Change(ended, replace(ended, version=ended.version + 1), effects=(ReleaseSlot(SLOT),))

    await made(store, change)

    assert await store.holder(SLOT) == active.id


# KeepSpec and RememberKey


async def test_a_spec_is_read_back_whole(store: Store, other: Store) -> None:
    spec = Spec(b'{"x": "\xc3\xbc"}', (Input("model", 0, FILE),), {"note": ["a", 1, None, {"b": 2.5}]}, "cli")

    job = await submit(store, spec=spec)

    assert await other.specs([job.id]) == {job.id: spec}


async def test_a_key_is_remembered_with_its_job_and_fingerprint(store: Store, other: Store) -> None:
    job = await submit(store, key="k", fingerprint="f")

    assert await other.find_by_key("k") == (job.id, "f")
    assert await other.find_by_key("k2") is None


# KeepResult and DropStages


async def test_a_result_is_read_back_whole(store: Store, other: Store) -> None:
    result = Result(b'{"$file":0}', (Artifact("out", FILE),), (Artifact("extra", FILE),))
    claimed = await started(store)

    await finish(store, claimed, result)

    assert await other.results([claimed.job.id]) == {claimed.job.id: {ONLY: result}}


async def test_each_element_keeps_its_own_result(store: Store) -> None:
    job = await split(store, 3)

    for claimed in await claim(store):
        await finish(store, claimed, Result(b"%d" % claimed.task.element))

    found = (await store.results([job.id]))[job.id]
    assert [found[page(n)].value for n in range(3)] == [b"0", b"1", b"2"]


async def test_a_stage_done_again_replaces_its_result(store: Store) -> None:
    job = await completed(store)
    await made(store, lifecycle.retry(job, stage="only", now=store.now()))

    await finish(store, await claim_one(store), Result(b'"second"'))

    assert await store.results([job.id]) == {job.id: {ONLY: Result(b'"second"')}}


async def test_a_retry_from_a_stage_forgets_results_and_progress_of_it_and_what_follows(store: Store) -> None:
    job = await _ran_through(store)

    await made(store, lifecycle.retry(job, stage="bie", now=store.now()))

    assert await store.results([job.id]) == {job.id: {ONNX: RESULT}}
    assert list((await store.progress([job.id]))[job.id]) == [ONNX]
    assert await waiting(store) == [(job.id, BIE)]


async def test_a_plain_retry_keeps_what_was_finished(store: Store) -> None:
    await submit(store, APART)
    left, right = await claim(store)
    await finish(store, left)
    job = await fail(store, right)

    await made(store, lifecycle.retry(job, now=store.now()))

    assert await store.results([job.id]) == {job.id: {LEFT: RESULT}}
    assert await waiting(store) == [(job.id, RIGHT)]


async def test_forgetting_the_stages_of_one_job_leaves_those_of_another(store: Store) -> None:
    job, neighbour = await _ran_through(store), await _ran_through(store)

    await made(store, lifecycle.retry(job, stage="*", now=store.now()))

    assert list(await store.results([job.id, neighbour.id])) == [neighbour.id]
    assert set((await store.results([neighbour.id]))[neighbour.id]) == {ONNX, BIE, NEF}
    assert set((await store.progress([neighbour.id]))[neighbour.id]) == {ONNX, BIE, NEF}


async def _ran_through(store: Store) -> Job:
    """A completed chain, each stage of which has reported progress."""
    job = await submit(store, CHAIN)
    while claims := await claim(store):
        await store.report([report(claims[0], 100)])
        job = await finish(store, claims[0])
    return await held(store, job.id)
