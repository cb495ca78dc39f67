"""Stopping: cancel, deadline, and the siblings of a stage that failed for good."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change, EndLease, KeepResult, MakeDue, RecordFailure, ReleaseSlot, TakeBack
from packhorse.core.models import Failure, Job, Stopping, Task, TaskId
from packhorse.core.plan import Plan, Status, TaskStatus
from packhorse.errors import NotAllowed
from tests.core.plans import (
    APART,
    BROKEN,
    CHAIN,
    FAN,
    HOPELESS,
    LEFT,
    NOW,
    ONLY,
    RESULT,
    RIGHT,
    cancelled,
    completed,
    each,
    failed,
    finished,
    page,
    plan,
    running,
    split,
    stage,
    started,
    statuses,
    submitted,
    sure,
    told,
    words,
)

LATER = NOW + 100.0
HELD = plan(stage("only"), slot="convert")
HELD_APART = plan(stage("left"), stage("right"), slot="convert")
BRIEF = plan(stage("left"), stage("right"), deadline=50.0)

Verb = Callable[[Job, TaskId], Change]

ENDINGS: dict[str, Verb] = {
    "finish": lambda job, at: lifecycle.finish(job, at, token="t", result=RESULT, now=LATER),
    "fail": lambda job, at: lifecycle.fail(job, at, token="t", error=BROKEN, luck=0.0, now=LATER),
    "fail for good": lambda job, at: lifecycle.fail(job, at, token="t", error=HOPELESS, luck=0.0, now=LATER),
    "lose": lambda job, at: lifecycle.lose(job, at, token="t", now=LATER),
    "later": lambda job, at: lifecycle.later(job, at, token="t", seconds=5.0, now=LATER),
    "hand_back": lambda job, at: lifecycle.hand_back(job, at, token="t", now=LATER),
}
every_ending = pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)


def expired(job: Job, *, now: float = LATER) -> Job:
    return sure(lifecycle.expire(job, now=now)).after


def both_running(shape: Plan = APART) -> Job:
    return started(running(shape, LEFT), RIGHT)


STOPPED: dict[Stopping, Job] = {
    "cancel": cancelled(both_running()),
    "expire": expired(both_running(BRIEF)),
    "fail": failed(
        started(both_running(plan(stage("left"), stage("right"), stage("first"))), TaskId("first")),
        TaskId("first"),
        error=HOPELESS,
    ),
}
every_reason = pytest.mark.parametrize("why", STOPPED)


# cancel


def test_a_cancel_of_what_only_waits_ends_the_job_now() -> None:
    change = sure(lifecycle.cancel(submitted(CHAIN), now=LATER))

    job = change.after
    assert (job.status, job.completed_at, job.stopping, job.deadline_at) == (Status.CANCELLED, LATER, None, None)
    assert told(change) == [(2, "cancelled", {"run": 1})]


def test_a_cancel_takes_back_what_is_due_and_nothing_else() -> None:
    change = sure(lifecycle.cancel(submitted(CHAIN), now=LATER))

    assert (change.guards, change.effects) == ((), (TakeBack(TaskId("onnx")),))


def test_no_task_of_a_cancelled_job_waits_any_more() -> None:
    job = cancelled(split(2))

    assert [statuses(job, name) for name in ("split", "page", "book")] == [
        ["completed"],
        ["skipped", "skipped"],
        ["skipped"],
    ]
    assert job.task(page(0)) == Task(TaskStatus.SKIPPED)
    assert job.skip_reason == "the job was cancelled"


def test_a_task_that_waits_for_another_attempt_is_cancelled_not_skipped() -> None:
    job = cancelled(failed(running(), ONLY))

    assert statuses(job, "only") == ["cancelled"]


def test_elements_that_were_never_known_are_skipped_with_their_stage() -> None:
    job = cancelled(submitted(FAN))

    assert job.stage("page").tasks is None
    assert [job.stage_status(name) for name in ("split", "page", "book")] == [TaskStatus.SKIPPED] * 3


def test_elements_that_become_known_while_stopping_are_skipped() -> None:
    parts = plan(stage("split"), stage("other"), stage("page", each("split")))
    job = cancelled(started(running(parts, TaskId("split")), TaskId("other")))

    after = lifecycle.finish(job, TaskId("split"), token="t", result=RESULT, width=2, now=LATER).after

    assert (after.stopping, statuses(after, "page")) == ("cancel", ["skipped", "skipped"])


def test_a_cancel_between_attempts_ends_the_job_now() -> None:
    job = failed(running(), ONLY)

    change = sure(lifecycle.cancel(job, now=LATER))

    assert change.after.status is Status.CANCELLED


def test_a_cancelled_job_releases_its_slot() -> None:
    change = sure(lifecycle.cancel(submitted(HELD), now=LATER))

    assert change.effects == (TakeBack(ONLY), ReleaseSlot("default/ann/convert"))


def test_a_cancel_of_what_runs_asks_it_to_stop() -> None:
    change = sure(lifecycle.cancel(running(), now=LATER))

    job = change.after
    assert (job.status, job.stopping, job.completed_at) == (Status.RUNNING, "cancel", None)
    assert told(change) == [(4, "cancelling", {})]


def test_a_job_that_is_being_cancelled_keeps_its_lease_and_its_slot() -> None:
    change = sure(lifecycle.cancel(running(HELD_APART, LEFT), now=LATER))

    assert change.effects == (TakeBack(RIGHT),)
    assert change.after.task(LEFT) == running(HELD_APART, LEFT).task(LEFT)


@pytest.mark.parametrize(
    "job",
    [
        pytest.param(cancelled(submitted()), id="cancelled"),
        pytest.param(cancelled(running()), id="being cancelled"),
        pytest.param(STOPPED["fail"], id="failing"),
        pytest.param(STOPPED["expire"], id="expiring"),
    ],
)
def test_a_cancel_of_what_is_stopped_already_changes_nothing(job: Job) -> None:
    assert lifecycle.cancel(job, now=LATER) is None


@pytest.mark.parametrize("job", [completed(), failed(running(), ONLY, error=HOPELESS)])
def test_a_job_that_ended_otherwise_cannot_be_cancelled(job: Job) -> None:
    with pytest.raises(NotAllowed, match=f"Cannot cancel a {job.status} job"):
        lifecycle.cancel(job, now=LATER)


# expire


def test_a_run_past_its_deadline_fails_for_good() -> None:
    change = sure(lifecycle.expire(submitted(BRIEF), now=NOW + 50.0))

    job = change.after
    assert (job.status, job.error) == (Status.FAILED, lifecycle.DEADLINE)
    assert told(change) == [
        (2, "failed", {"run": 1, "code": "DEADLINE", "message": "The job did not end before its deadline."})
    ]


def test_an_expired_job_gives_back_what_was_due_and_its_slot() -> None:
    change = sure(lifecycle.expire(submitted(HELD), now=NOW + HELD.deadline))

    assert change.effects[:-1] == (TakeBack(ONLY), ReleaseSlot("default/ann/convert"))
    assert isinstance(change.effects[-1], RecordFailure)


def test_an_expired_job_asks_what_runs_to_stop() -> None:
    change = sure(lifecycle.expire(running(BRIEF, LEFT), now=LATER))

    job = change.after
    assert (job.status, job.stopping, job.error) == (Status.RUNNING, "expire", lifecycle.DEADLINE)
    assert (change.effects, change.events) == ((TakeBack(RIGHT),), ())


@pytest.mark.parametrize(
    ("job", "now"),
    [
        pytest.param(submitted(BRIEF), NOW + 49.9, id="not over yet"),
        pytest.param(cancelled(running(BRIEF, LEFT)), LATER, id="being cancelled"),
        pytest.param(expired(running(BRIEF, LEFT)), LATER, id="expiring"),
        pytest.param(completed(), NOW + 1e9, id="ended"),
    ],
)
def test_a_deadline_that_does_not_apply_changes_nothing(job: Job, now: float) -> None:
    assert lifecycle.expire(job, now=now) is None


@pytest.mark.parametrize(
    ("shape", "reason"),
    [
        pytest.param(replace(BRIEF, pending=100.0), "the deadline passed", id="deadline"),
        pytest.param(replace(BRIEF, pending=10.0), "no worker started the job in time", id="orphaned"),
    ],
)
def test_a_run_past_its_deadline_skips_what_has_not_started_and_says_why(shape: Plan, reason: str) -> None:
    after = expired(submitted(shape), now=NOW + 3_600.0)

    assert (statuses(after, "left"), after.skip_reason) == (["skipped"], reason)


def test_a_run_that_times_out_between_two_stages_ends_at_once_and_says_why() -> None:
    brief = replace(CHAIN, run_timeout=60.0)
    job = finished(running(brief, TaskId("onnx")), TaskId("onnx"), now=NOW + 1.0)

    change = sure(lifecycle.expire(job, now=NOW + 60.0))

    message = "The run timed out: it took longer than its run_timeout."
    assert (change.after.status, statuses(change.after, "bie")) == (Status.FAILED, ["skipped"])
    assert change.after.skip_reason == "the run timed out"
    assert told(change)[-1][2] == {"run": 1, "code": "RUN_TIMEOUT", "message": message}


# siblings


def test_a_stage_that_fails_for_good_takes_back_what_waits() -> None:
    change = lifecycle.fail(running(APART, LEFT), LEFT, token="t", error=HOPELESS, luck=0.0, now=LATER)

    assert change.effects[:-1] == (EndLease(LEFT), TakeBack(RIGHT))
    assert isinstance(change.effects[-1], RecordFailure)
    assert (change.after.status, statuses(change.after, "right")) == (Status.FAILED, ["skipped"])
    assert change.after.skip_reason == "stage left failed"


def test_a_stage_that_fails_for_good_asks_its_siblings_to_stop() -> None:
    change = lifecycle.fail(both_running(HELD_APART), LEFT, token="t", error=HOPELESS, luck=0.0, now=LATER)

    job = change.after
    assert (job.status, job.stopping, job.purge_at) == (Status.RUNNING, "fail", None)
    assert change.effects == (EndLease(LEFT),)
    assert words(change) == ["stage_failed"]


def test_an_element_that_fails_for_good_stops_the_others() -> None:
    job = started(started(split(3), page(0)), page(1))

    after = failed(job, page(0), error=HOPELESS)

    assert (after.stopping, statuses(after, "page")) == ("fail", ["failed", "running", "skipped"])


# the end of what was asked to stop


@every_reason
@every_ending
def test_a_job_is_stopping_until_the_last_attempt_has_ended(why: Stopping, end: Verb) -> None:
    job = end(STOPPED[why], LEFT).after

    assert (job.status, job.stopping) == (Status.RUNNING, why)


@pytest.mark.parametrize(("why", "status"), [("cancel", "cancelled"), ("expire", "failed"), ("fail", "failed")])
@every_ending
def test_the_last_attempt_to_end_ends_the_job(why: Stopping, status: str, end: Verb) -> None:
    job = end(STOPPED[why], LEFT).after

    change = end(job, RIGHT)

    assert (change.after.status.value, change.after.stopping, change.after.completed_at) == (status, None, LATER)
    assert words(change)[-1] == status


@every_reason
@every_ending
def test_a_job_asked_to_stop_is_not_retried(why: Stopping, end: Verb) -> None:
    change = end(STOPPED[why], LEFT)

    assert not any(isinstance(effect, MakeDue) for effect in change.effects)


@pytest.mark.parametrize("end", [verb for name, verb in ENDINGS.items() if name != "finish"])
def test_an_attempt_that_stopped_is_cancelled_not_failed(end: Verb) -> None:
    task = end(STOPPED["cancel"], LEFT).after.task(LEFT)

    assert task is not None
    assert (task.status, task.token, task.ready_at) == (TaskStatus.CANCELLED, None, None)


def test_a_failure_while_stopping_is_told_but_does_not_become_the_reason() -> None:
    change = lifecycle.fail(STOPPED["cancel"], LEFT, token="t", error=HOPELESS, luck=0.0, now=LATER)

    assert words(change) == ["stage_failed"]
    assert change.after.error is None


@pytest.mark.parametrize(("why", "code"), [("expire", "DEADLINE"), ("fail", "INVALID")])
def test_the_job_fails_with_the_error_that_stopped_it(why: Stopping, code: str) -> None:
    job = failed(STOPPED[why], LEFT, error=Failure("OTHER", "Too late to matter."))

    change = lifecycle.fail(job, RIGHT, token="t", error=BROKEN, luck=0.0, now=LATER)

    assert change.after.error is not None
    assert (change.after.error.code, change.events[-1].data["code"]) == (code, code)


def test_a_result_that_comes_in_while_stopping_is_kept() -> None:
    job = cancelled(running(APART, LEFT))

    change = lifecycle.finish(job, LEFT, token="t", result=RESULT, now=LATER)

    assert change.effects == (EndLease(LEFT), KeepResult(LEFT, RESULT))
    assert (change.after.status, statuses(change.after, "left")) == (Status.CANCELLED, ["completed"])


def test_a_cancelled_job_is_cancelled_even_if_its_last_stage_finished() -> None:
    change = lifecycle.finish(cancelled(running(HELD)), ONLY, token="t", result=RESULT, now=LATER)

    assert words(change) == ["stage_completed", "cancelled"]
    assert change.effects[-1] == ReleaseSlot("default/ann/convert")


@every_reason
@every_ending
def test_an_attempt_that_was_stopped_keeps_its_number(end: Verb, why: Stopping) -> None:
    job = end(STOPPED[why], LEFT).after

    task = job.task(LEFT)
    assert task is not None
    assert task.attempt == 1
