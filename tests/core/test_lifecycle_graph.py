"""The graph at work: which tasks become due when one finishes, and how many elements there are."""

from __future__ import annotations

import pytest

from packhorse.core import lifecycle
from packhorse.core.changes import AT_ONCE, Change, EndLease, MakeDue, RecordFailure
from packhorse.core.models import Failure, Job, Stage, Task, TaskId
from packhorse.core.plan import Plan, Status
from tests.core.plans import (
    BOOK,
    CHAIN,
    DIAMOND,
    FAN,
    LEFT,
    NESTED,
    NOW,
    RESULT,
    RIGHT,
    SPLIT,
    cancelled,
    due,
    each,
    failed,
    finished,
    gather,
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
    words,
)

LATER = NOW + 100.0
TOP, END = TaskId("top"), TaskId("end")


def finish(job: Job, at: TaskId, width: int | None = None) -> Change:
    return lifecycle.finish(job, at, token="t", result=RESULT, width=width, now=LATER)


# needs


def test_a_finished_stage_makes_the_next_one_due_now() -> None:
    change = finish(running(CHAIN, TaskId("onnx")), TaskId("onnx"))

    assert due(change) == [TaskId("bie")]
    assert change.after.task(TaskId("bie")) == Task(ready_at=LATER)


def test_a_stage_is_made_due_on_its_own_queue() -> None:
    mixed = plan(stage("onnx", queue="cpu", kind="a"), stage("bie", needs("onnx"), queue="gpu", kind="b"))

    change = finish(running(mixed, TaskId("onnx"), priority=3), TaskId("onnx"))

    assert change.effects[-1] == MakeDue(TaskId("bie"), "gpu", "b", 3, AT_ONCE)


def test_both_branches_become_due_together() -> None:
    change = finish(running(DIAMOND, TOP), TOP)

    assert due(change) == [LEFT, RIGHT]


def test_the_first_branch_to_finish_makes_nothing_due() -> None:
    job = started(ran(submitted(DIAMOND), TOP), LEFT)

    change = finish(job, LEFT)

    assert due(change) == []


def test_the_last_branch_to_finish_makes_the_join_due() -> None:
    job = started(ran(ran(submitted(DIAMOND), TOP), LEFT), RIGHT)

    change = finish(job, RIGHT)

    assert due(change) == [END]


def test_a_stage_is_made_due_once() -> None:
    job = started(ran(ran(submitted(DIAMOND), TOP), LEFT), RIGHT)

    change = finish(job, RIGHT)

    assert (len(due(change)), change.after.task(LEFT)) == (1, job.task(LEFT))


# each and gather


def test_every_element_becomes_due_when_the_list_is_known() -> None:
    change = finish(running(FAN, SPLIT), SPLIT, width=3)

    assert due(change) == [page(0), page(1), page(2)]
    assert change.after.stage("page") == Stage((Task(ready_at=LATER),) * 3)


def test_a_gathering_stage_is_due_with_the_last_element() -> None:
    job = started(ran(split(2), page(1)), page(0))

    change = finish(job, page(0))

    assert due(change) == [BOOK]


def test_a_gathering_stage_waits_for_every_element() -> None:
    job = started(split(2), page(1))

    change = finish(job, page(1))

    assert due(change) == []


def test_an_element_is_attempted_on_its_own() -> None:
    job = failed(started(split(2), page(1)), page(1))

    assert [task.attempt for task in job.stage("page").tasks or ()] == [0, 1]


def test_an_empty_list_is_passed_through() -> None:
    change = finish(running(FAN, SPLIT), SPLIT, width=0)

    assert change.after.stage("page") == Stage(())
    assert due(change) == [BOOK]


def test_an_empty_list_passes_through_stages_over_stages() -> None:
    change = finish(running(NESTED, SPLIT), SPLIT, width=0)

    assert (change.after.stage("page"), change.after.stage("seal")) == (Stage(()), Stage(()))
    assert due(change) == [BOOK]


def test_an_empty_list_with_nothing_behind_it_completes_the_job() -> None:
    change = finish(running(plan(stage("split"), stage("page", each("split"))), SPLIT), SPLIT, width=0)

    assert change.after.status is Status.COMPLETED
    assert words(change) == ["stage_completed", "completed"]


def test_a_stage_over_elements_has_as_many_as_it_runs_over() -> None:
    job = started(ran(split(2, NESTED), page(0)), page(1))

    change = finish(job, page(1))

    assert due(change) == [TaskId("seal", 0), TaskId("seal", 1)]


def test_a_stage_over_elements_waits_for_all_of_them() -> None:
    job = started(split(2, NESTED), page(0))

    change = finish(job, page(0))

    assert (due(change), change.after.stage("seal").tasks) == ([], None)


def test_a_nested_fan_runs_to_its_end() -> None:
    job = split(2, NESTED)
    for at in (page(0), page(1), TaskId("seal", 1), TaskId("seal", 0)):
        job = ran(job, at)

    done = ran(job, BOOK)

    assert done.status is Status.COMPLETED


def test_two_stages_over_one_list_both_get_its_elements() -> None:
    twice = plan(stage("split"), stage("page", each("split")), stage("cover", each("split")))

    change = finish(running(twice, SPLIT), SPLIT, width=2)

    assert due(change) == [page(0), page(1), TaskId("cover", 0), TaskId("cover", 1)]


def test_elements_that_need_another_stage_are_known_but_wait() -> None:
    both = plan(stage("split"), stage("style"), stage("page", each("split"), needs("style")))
    job = running(both, SPLIT)

    change = finish(job, SPLIT, width=2)

    assert (due(change), change.after.stage("page")) == ([], Stage((Task(), Task())))


def test_elements_that_waited_for_another_stage_become_due_with_it() -> None:
    both = plan(stage("split"), stage("style"), stage("page", each("split"), needs("style")))
    job = started(split(2, both), TaskId("style"))

    change = finish(job, TaskId("style"))

    assert due(change) == [page(0), page(1)]


def test_a_stage_may_run_over_a_list_and_gather_another() -> None:
    cross = plan(stage("split"), stage("page", each("split")), stage("index", each("split"), gather("page")))
    job = started(ran(split(2, cross), page(0)), page(1))

    change = finish(job, page(1))

    assert due(change) == [TaskId("index", 0), TaskId("index", 1)]


def test_the_width_of_a_list_that_nobody_runs_over_does_not_matter() -> None:
    change = finish(running(CHAIN, TaskId("onnx")), TaskId("onnx"), width=1_000_000)

    assert due(change) == [TaskId("bie")]


def test_the_width_that_an_element_returned_does_not_matter() -> None:
    job = started(split(1, NESTED), page(0))

    change = finish(job, page(0), width=1_000_000)

    assert due(change) == [TaskId("seal", 0)]


# what no plan can rule out beforehand

FEW = plan(stage("split"), stage("page", each("split"), elements=2))
FEW_BEHIND = plan(stage("split"), stage("page", each("split")), stage("seal", each("page"), elements=2))


def test_a_list_as_long_as_allowed_is_taken() -> None:
    change = finish(running(FEW, SPLIT), SPLIT, width=2)

    assert due(change) == [page(0), page(1)]


@pytest.mark.parametrize(("limited", "by"), [(FEW, "page"), (FEW_BEHIND, "seal")])
def test_a_longer_list_fails_the_stage_that_returned_it(limited: Plan, by: str) -> None:
    change = finish(running(limited, SPLIT), SPLIT, width=3)

    assert change.after.error == Failure(
        "TOO_MANY_ELEMENTS", f"split returned 3 elements; {by} takes at most 2.", stage="split", permanent=True
    )


def test_a_result_that_is_no_list_fails_the_stage_that_returned_it() -> None:
    change = finish(running(FAN, SPLIT), SPLIT, width=None)

    assert change.after.error == Failure(
        "NOT_A_LIST", "page runs once per element, but split did not return a list.", stage="split", permanent=True
    )


def test_a_refused_list_ends_the_job_with_nothing_due_and_nothing_kept() -> None:
    change = finish(running(FEW, SPLIT), SPLIT, width=3)

    assert change.effects[0] == EndLease(SPLIT)
    assert [type(effect) for effect in change.effects[1:]] == [RecordFailure]
    assert words(change) == ["stage_failed", "failed"]


# elements that become known while the job is being stopped


def stopped_while_splitting(width: int, shape: Plan) -> Job:
    return finished(cancelled(running(shape, SPLIT)), SPLIT, width=width)


def test_a_list_that_comes_in_too_late_starts_nothing() -> None:
    job = cancelled(running(FAN, SPLIT))

    change = finish(job, SPLIT, width=2)

    assert (due(change), change.after.status) == ([], Status.CANCELLED)


def test_a_list_that_came_in_too_late_is_known_to_the_next_run() -> None:
    job = stopped_while_splitting(2, FAN)

    change = sure(lifecycle.retry(job, now=LATER))

    assert due(change) == [page(0), page(1)]


def test_an_empty_list_that_came_in_too_late_is_passed_through_by_the_next_run() -> None:
    job = stopped_while_splitting(0, NESTED)

    change = sure(lifecycle.retry(job, now=LATER))

    assert due(change) == [BOOK]


def test_elements_are_redone_each_on_its_own() -> None:
    job = failed(started(ran(split(2), page(1)), page(0)), page(0), error=Failure("X", "x", permanent=True))

    again = retried(job)

    assert statuses(again, "page") == ["pending", "completed"]
