"""Retry by a person: the next run, and what of the last one it keeps."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import AT_ONCE, DropStages, MakeDue, ReleaseSlot, SettleFailures, SlotFree, TakeSlot
from packhorse.core.models import FailureStatus, Job, Settled, Stage, Task, TaskId
from packhorse.core.plan import Status
from packhorse.errors import JobNotFound, LeaseLost, NotAllowed
from tests.core.plans import (
    APART,
    BOOK,
    CHAIN,
    DIAMOND,
    FAN,
    HOPELESS,
    LEFT,
    NESTED,
    NOW,
    ONLY,
    RESULT,
    RIGHT,
    SPLIT,
    cancelled,
    completed,
    due,
    failed,
    finished,
    needs,
    page,
    plan,
    ran,
    retried,
    running,
    split,
    stage,
    started,
    statuses,
    submitted,
    sure,
    task,
    told,
)

LATER = NOW + 100.0
ONNX, BIE, NEF = TaskId("onnx"), TaskId("bie"), TaskId("nef")
HELD = plan(stage("only"), slot="convert")


def broken_at_bie(slot: str | None = None) -> Job:
    shape = plan(*CHAIN.stages, slot=slot)
    return failed(started(ran(submitted(shape, delay=5.0), ONNX), BIE), BIE, error=HOPELESS)


def done(job: Job, *tasks: TaskId) -> Job:
    for at in tasks:
        job = ran(job, at)
    return job


def test_a_retry_starts_the_next_run() -> None:
    job = retried(broken_at_bie(), now=LATER)

    assert (job.status, job.run, job.error) == (Status.PENDING, 2, None)
    assert (job.started_at, job.completed_at, job.purge_at) == (None, None, None)
    assert (job.not_before, job.deadline_at) == (LATER, LATER + CHAIN.deadline)


def test_a_retry_keeps_finished_stages_and_makes_the_failed_one_due() -> None:
    before = broken_at_bie()

    change = sure(lifecycle.retry(before, now=LATER))

    settled = SettleFailures(FailureStatus.OPEN, FailureStatus.RETRIED, Settled(LATER, run=2))
    assert change.effects == (settled, MakeDue(BIE, "default", "", 0, AT_ONCE))
    [done] = before.stages[0].tasks or ()
    kept = Stage((replace(done, attempt=0),))
    assert change.after.stages == (kept, Stage((Task(ready_at=LATER),)), Stage((Task(),)))


def test_retries_of_the_last_run_are_not_counted_in_the_next() -> None:
    before = broken_at_bie()
    [done] = before.stages[0].tasks or ()
    before = replace(before, stages=(Stage((replace(done, attempt=3),)), *before.stages[1:]))

    change = sure(lifecycle.retry(before, now=LATER))

    assert change.after.retry_count == 0


def test_a_retry_is_told_and_events_go_on() -> None:
    before = broken_at_bie()

    change = sure(lifecycle.retry(before, now=LATER))

    assert told(change) == [(before.events + 1, "retrying", {"run": 2, "why": "retry"})]


def test_a_retry_from_a_stage_says_which() -> None:
    change = sure(lifecycle.retry(broken_at_bie(), stage="onnx", now=LATER))

    assert change.events[0].data == {"run": 2, "why": "retry", "stage": "onnx"}


def test_attempts_are_counted_anew_in_the_next_run() -> None:
    job = failed(running(plan(stage("only", retries=0))), ONLY)

    again = failed(started(retried(job), ONLY), ONLY)

    assert (again.run, again.status, task(again).attempt) == (2, Status.FAILED, 1)


def test_the_next_run_starts_under_its_own_number() -> None:
    job = retried(failed(running(), ONLY, error=HOPELESS))

    change = lifecycle.start(job, ONLY, token="u", worker="w", lease=15.0, now=LATER)

    assert (change.events[0].type, change.events[0].data) == ("started", {"run": 2})


def test_the_next_run_ends_under_its_own_number() -> None:
    job = started(retried(failed(running(), ONLY, error=HOPELESS)), ONLY)

    change = lifecycle.finish(job, ONLY, token="t", result=RESULT, now=LATER)

    assert (change.events[-1].type, change.events[-1].data) == ("completed", {"run": 2})


def test_a_worker_of_the_last_run_hears_lease_lost() -> None:
    job = started(retried(cancelled(submitted())), ONLY, token="new")

    with pytest.raises(LeaseLost):
        finished(job, ONLY, token="t")


def test_a_cancelled_job_goes_on_where_it_was_stopped() -> None:
    job = cancelled(ran(submitted(APART), LEFT))

    change = sure(lifecycle.retry(job, now=LATER))

    assert due(change) == [RIGHT]


# from a stage, or everything


def test_a_stage_is_redone_with_all_that_follows_it() -> None:
    job = done(submitted(DIAMOND), TaskId("top"), LEFT, RIGHT, TaskId("end"))

    change = sure(lifecycle.retry(job, stage="left", now=LATER))

    assert change.effects[0] == DropStages(("left", "end"))
    assert due(change) == [LEFT]
    assert [s.status.value for s in change.after.stages] == ["completed", "pending", "completed", "pending"]


def test_everything_is_redone() -> None:
    job = done(submitted(CHAIN), ONNX, BIE, NEF)

    change = sure(lifecycle.retry(job, stage="*", now=LATER))

    assert change.effects == (DropStages(("onnx", "bie", "nef")), MakeDue(ONNX, "default", "", 0, AT_ONCE))
    assert change.after.stages == (Stage((Task(ready_at=LATER),)), Stage(), Stage())


def test_what_follows_is_found_through_several_stages() -> None:
    job = done(submitted(CHAIN), ONNX, BIE, NEF)

    change = sure(lifecycle.retry(job, stage="onnx", now=LATER))

    assert change.effects[0] == DropStages(("onnx", "bie", "nef"))


def test_a_retry_of_what_has_not_finished_drops_no_results() -> None:
    change = sure(lifecycle.retry(broken_at_bie(), now=LATER))

    assert not any(isinstance(effect, DropStages) for effect in change.effects)


def test_results_that_were_dropped_leave_litter() -> None:
    job = done(submitted(CHAIN), ONNX, BIE, NEF)

    again = retried(job, "nef")

    assert (job.has_litter, again.has_litter) == (False, True)


def test_a_retry_that_drops_nothing_makes_no_litter() -> None:
    job = retried(cancelled(submitted(CHAIN)))

    assert not job.has_litter


def test_a_retry_does_not_forget_litter() -> None:
    job = broken_at_bie()

    assert (job.has_litter, retried(job).has_litter) == (True, True)


def test_stages_without_results_may_be_named_too() -> None:
    change = sure(lifecycle.retry(broken_at_bie(), stage="nef", now=LATER))

    assert due(change) == [BIE]


# elements


def test_elements_are_redone_without_splitting_again() -> None:
    job = done(split(2), page(0), page(1), BOOK)

    change = sure(lifecycle.retry(job, stage="page", now=LATER))

    assert due(change) == [page(0), page(1)]


def test_elements_are_forgotten_when_the_list_is_made_again() -> None:
    job = done(split(2), page(0), page(1), BOOK)

    again = retried(job, "split")

    assert again.stage("page").tasks is None


def test_the_list_may_have_another_length_in_the_next_run() -> None:
    job = retried(done(split(2), page(0), page(1), BOOK), "*")

    again = ran(job, SPLIT, width=3)

    assert statuses(again, "page") == ["pending"] * 3


def test_a_stage_over_redone_elements_learns_them_again() -> None:
    job = retried(done(split(1, NESTED), page(0), TaskId("seal"), BOOK), "page")

    again = ran(job, page(0))

    assert again.stage("seal").tasks == (Task(ready_at=NOW),)


def test_no_elements_are_redone_in_no_time() -> None:
    job = ran(split(0, plan(*FAN.stages[:2], stage("note", needs("split")))), TaskId("note"))

    change = sure(lifecycle.retry(job, stage="page", now=LATER))

    assert (due(change), change.after.status) == ([], Status.COMPLETED)


# only the bookkeeping was missing


def test_a_run_with_nothing_left_to_do_completes_at_once() -> None:
    job = finished(cancelled(running()), ONLY)

    change = sure(lifecycle.retry(job, now=LATER))

    after = change.after
    assert (after.status, after.run, after.completed_at, after.deadline_at) == (Status.COMPLETED, 2, LATER, None)
    assert told(change) == [
        (job.events + 1, "retrying", {"run": 2, "why": "retry"}),
        (job.events + 2, "completed", {"run": 2}),
    ]


def test_a_run_with_nothing_left_to_do_does_not_keep_the_slot() -> None:
    job = finished(cancelled(running(HELD)), ONLY)

    change = sure(lifecycle.retry(job, now=LATER))

    assert change.effects[:2] == (TakeSlot("default/ann/convert"), ReleaseSlot("default/ann/convert"))


def test_a_run_with_nothing_left_to_do_is_kept_as_completed() -> None:
    job = finished(cancelled(running(plan(stage("only"), keep={Status.COMPLETED: 5.0}))), ONLY)

    assert retried(job, now=LATER).purge_at == LATER + 5.0


# the slot, and refusals


def test_a_retry_takes_the_slot_again() -> None:
    change = sure(lifecycle.retry(broken_at_bie(slot="convert"), now=LATER))

    assert change.guards == (SlotFree("default/ann/convert"),)
    assert change.effects[0] == TakeSlot("default/ann/convert")


def test_a_retry_without_a_slot_asks_for_nothing() -> None:
    change = sure(lifecycle.retry(broken_at_bie(), now=LATER))

    assert change.guards == ()


@pytest.mark.parametrize("job", [submitted(), running(), cancelled(running())])
@pytest.mark.parametrize("stage", [None, "only", "*"])
def test_an_active_job_is_left_as_it_is(job: Job, stage: str | None) -> None:
    assert lifecycle.retry(job, stage=stage, now=LATER) is None


def test_a_completed_job_must_be_told_what_to_do_again() -> None:
    with pytest.raises(NotAllowed, match="Name the stage to run again"):
        lifecycle.retry(completed(), now=LATER)


def test_a_stage_that_does_not_exist_is_refused_with_those_that_do() -> None:
    with pytest.raises(NotAllowed, match="no stage 'tflite'; it has onnx, bie, nef"):
        lifecycle.retry(broken_at_bie(), stage="tflite", now=LATER)


def test_a_job_that_is_being_deleted_cannot_be_found_any_more() -> None:
    job = completed(plan(stage("only"), keep={Status.COMPLETED: 5.0}))
    purging = sure(lifecycle.purge(job, now=LATER)).after

    with pytest.raises(JobNotFound):
        lifecycle.retry(purging, stage="*", now=LATER)
