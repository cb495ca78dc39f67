"""How an attempt ends: well, counted, uncounted, or too late to count at all."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import (
    AT_ONCE,
    Change,
    EndLease,
    Holds,
    KeepResult,
    MakeDue,
    Overdue,
    RecordFailure,
    ReleaseSlot,
    TakeBack,
)
from packhorse.core.models import Failure, Job, Task, TaskId
from packhorse.core.plan import Backoff, Status, TaskStatus
from packhorse.errors import LeaseLost, NotAllowed
from tests.core.plans import (
    APART,
    BROKEN,
    CHAIN,
    HOPELESS,
    LEFT,
    NOW,
    ONE,
    ONLY,
    RESULT,
    RIGHT,
    SPEC,
    completed,
    failed,
    finished,
    page,
    plan,
    running,
    split,
    stage,
    started,
    submitted,
    task,
    told,
)

LATER = NOW + 100.0
DAYS = 8 * 86_400.0

Verb = Callable[[Job, TaskId, str], Change]

ENDINGS: dict[str, Verb] = {
    "finish": lambda job, at, token: lifecycle.finish(job, at, token=token, result=RESULT, now=LATER),
    "fail": lambda job, at, token: lifecycle.fail(job, at, token=token, error=BROKEN, luck=0.0, now=LATER),
    "stall": lambda job, at, token: lifecycle.fail(job, at, token=token, error=lifecycle.STALLED, luck=0.0, now=LATER),
    "time_out": lambda job, at, token: lifecycle.fail(
        job, at, token=token, error=lifecycle.TIMED_OUT, luck=0.0, now=LATER
    ),
    "lose": lambda job, at, token: lifecycle.lose(job, at, token=token, now=LATER),
    "later": lambda job, at, token: lifecycle.later(job, at, token=token, seconds=5.0, now=LATER),
    "hand_back": lambda job, at, token: lifecycle.hand_back(job, at, token=token, now=LATER),
}
COUNTED = ("fail", "stall", "time_out", "lose")
UNCOUNTED = ("later", "hand_back")

every_ending = pytest.mark.parametrize("end", ENDINGS.values(), ids=ENDINGS)
counted = pytest.mark.parametrize("end", [ENDINGS[name] for name in COUNTED], ids=COUNTED)
uncounted = pytest.mark.parametrize("end", [ENDINGS[name] for name in UNCOUNTED], ids=UNCOUNTED)


# every way to end an attempt


@every_ending
def test_a_late_worker_hears_lease_lost(end: Verb) -> None:
    job = started(failed(running(), ONLY), ONLY, token="new")

    with pytest.raises(LeaseLost) as refusal:
        end(job, ONLY, "t")

    assert refusal.value.facts == {"job_id": "j", "stage": "only", "element": 0}


@every_ending
def test_a_worker_of_an_ended_job_hears_lease_lost(end: Verb) -> None:
    with pytest.raises(LeaseLost):
        end(completed(), ONLY, "t")


@every_ending
def test_an_attempt_at_nothing_hears_lease_lost(end: Verb) -> None:
    with pytest.raises(LeaseLost):
        end(running(), TaskId("only", 1), "t")


@every_ending
def test_a_token_that_outlived_its_attempt_is_not_enough(end: Verb) -> None:
    job = submitted()
    odd = replace(job, stages=(replace(job.stages[0], tasks=(Task(token="t"),)),))

    with pytest.raises(NotAllowed):
        end(odd, ONLY, "t")


@pytest.mark.parametrize("end", [verb for name, verb in ENDINGS.items() if name != "lose"])
def test_an_attempt_ends_only_while_it_holds_its_lease(end: Verb) -> None:
    change = end(running(), ONLY, "t")

    assert change.guards == (Holds(ONLY, "t"),)


@every_ending
def test_an_ended_attempt_gives_up_lease_and_token(end: Verb) -> None:
    change = end(running(), ONLY, "t")

    assert EndLease(ONLY) in change.effects
    assert task(change.after).token is None
    assert task(change.after).ended_at == LATER


@every_ending
def test_a_change_is_decided_on_the_version_before(end: Verb) -> None:
    job = running()

    change = end(job, ONLY, "t")

    assert change.before == job
    assert (change.after.version, change.after.updated_at) == (job.version + 1, LATER)


@every_ending
def test_events_go_on_without_gaps(end: Verb) -> None:
    job = running()

    change = end(job, ONLY, "t")

    assert [event.n for event in change.events] == list(range(job.events + 1, change.after.events + 1))
    assert {event.at for event in change.events} == {LATER}


# finish


def test_a_finished_attempt_keeps_its_result() -> None:
    change = lifecycle.finish(running(CHAIN, TaskId("onnx")), TaskId("onnx"), token="t", result=RESULT, now=LATER)

    assert change.effects == (
        EndLease(TaskId("onnx")),
        KeepResult(TaskId("onnx"), RESULT),
        MakeDue(TaskId("bie"), "default", "", 0, AT_ONCE),
    )
    assert told(change) == [(4, "stage_completed", {"stage": "onnx", "attempt": 1})]


def test_the_job_completes_with_its_last_stage() -> None:
    change = lifecycle.finish(running(), ONLY, token="t", result=RESULT, now=LATER)

    assert change.after.status is Status.COMPLETED
    assert (change.after.completed_at, change.after.deadline_at) == (LATER, None)
    assert told(change) == [(4, "stage_completed", {"stage": "only", "attempt": 1}), (5, "completed", {"run": 1})]


def test_the_job_goes_on_while_a_stage_is_left() -> None:
    job = finished(running(APART, LEFT), LEFT)

    assert (job.status, job.completed_at, job.purge_at) == (Status.RUNNING, None, None)


def test_a_completed_job_releases_its_slot() -> None:
    job = running(plan(stage("only"), slot="convert"))

    change = lifecycle.finish(job, ONLY, token="t", result=RESULT, now=LATER)

    assert change.effects[-1] == ReleaseSlot("default/ann/convert")


def test_a_job_that_goes_on_holds_its_slot() -> None:
    job = running(plan(stage("left"), stage("right"), slot="convert"), LEFT)

    change = lifecycle.finish(job, LEFT, token="t", result=RESULT, now=LATER)

    assert not any(isinstance(effect, ReleaseSlot) for effect in change.effects)


def test_a_stage_that_finished_alone_need_not_be_alone_again() -> None:
    job = lifecycle.fail(running(), ONLY, token="t", error=BROKEN, luck=0.0, alone=True, now=NOW).after

    done = finished(started(job, ONLY), ONLY)

    assert not task(done).is_alone


def test_a_run_without_failures_leaves_no_litter() -> None:
    assert not completed().has_litter


# fail, stall, time_out, lose: the attempt counts


@counted
def test_a_counted_failure_gives_the_task_another_attempt(end: Verb) -> None:
    change = end(running(), ONLY, "t")

    again = task(change.after)
    assert (again.status, again.attempt) == (TaskStatus.PENDING, 1)
    due = AT_ONCE if again.ready_at == change.after.updated_at else again.ready_at or 0.0
    assert MakeDue(ONLY, "default", "", 0, due, again.delay) in change.effects
    assert [event.type for event in change.events] == ["retrying"]


@counted
def test_the_last_counted_failure_fails_the_job(end: Verb) -> None:
    job = running(plan(stage("only", retries=0)))

    change = end(job, ONLY, "t")

    assert (task(change.after).status, change.after.status) == (TaskStatus.FAILED, Status.FAILED)
    assert [event.type for event in change.events] == ["stage_failed", "failed"]


@counted
def test_what_a_counted_failure_left_behind_is_litter(end: Verb) -> None:
    assert end(running(), ONLY, "t").after.has_litter


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (ENDINGS[name], code)
        for name, code in zip(COUNTED, ("EXCEPTION", "STALLED", "TIMEOUT", "WORKER_LOST"), strict=True)
    ],
)
def test_a_failure_says_what_happened_and_where(end: Verb, code: str) -> None:
    error = task(end(running(), ONLY, "t").after).error

    assert error is not None
    assert (error.code, error.stage, error.element) == (code, "only", None)


def test_a_failure_of_an_element_names_it() -> None:
    job = started(split(2), page(0))

    after = failed(job, page(0))

    assert task(after, page(0)).error == Failure("EXCEPTION", "It broke.", stage="page", element=0)


def test_a_failure_is_told_with_the_time_of_the_next_attempt() -> None:
    job = running(plan(stage("only", backoff=Backoff(base=8.0))))

    change = lifecycle.fail(job, ONLY, token="t", error=BROKEN, luck=0.5, now=LATER)

    facts = {"stage": "only", "attempt": 1, "code": "EXCEPTION", "message": "It broke.", "at": LATER + 6.0}
    assert told(change) == [(4, "retrying", facts)]


def test_the_wait_doubles_with_each_attempt() -> None:
    job = failed(running(plan(stage("only", backoff=Backoff(base=8.0)))), ONLY)

    again = failed(started(job, ONLY), ONLY, now=LATER)

    assert task(again).ready_at == LATER + 8.0


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_retries_are_attempts_beyond_the_first(retries: int) -> None:
    job = submitted(plan(stage("only", retries=retries)))
    for _ in range(retries):
        job = failed(started(job, ONLY), ONLY)

    last = failed(started(job, ONLY), ONLY)

    assert (job.status.is_terminal, last.status, task(last).attempt) == (False, Status.FAILED, retries + 1)


def test_a_permanent_failure_is_not_retried() -> None:
    change = lifecycle.fail(running(), ONLY, token="t", error=HOPELESS, luck=0.0, now=LATER)

    assert change.after.status is Status.FAILED
    assert change.after.error == replace(HOPELESS, stage="only")


def test_a_failed_job_says_why_in_its_event() -> None:
    change = lifecycle.fail(running(), ONLY, token="t", error=HOPELESS, luck=0.0, now=LATER)

    assert told(change) == [
        (4, "stage_failed", {"stage": "only", "attempt": 1, "code": "INVALID", "message": "It can never work."}),
        (5, "failed", {"run": 1, "code": "INVALID", "message": "It can never work.", "stage": "only"}),
    ]


def test_a_failed_job_releases_its_slot() -> None:
    job = running(plan(stage("only"), slot="convert"))

    change = lifecycle.fail(job, ONLY, token="t", error=HOPELESS, luck=0.0, now=LATER)

    assert change.effects[:-1] == (EndLease(ONLY), ReleaseSlot("default/ann/convert"))
    assert isinstance(change.effects[-1], RecordFailure)


def test_a_task_whose_shared_process_died_stays_alone_until_it_finishes() -> None:
    job = lifecycle.fail(running(), ONLY, token="t", error=BROKEN, luck=0.0, alone=True, now=NOW).after

    again = failed(started(job, ONLY), ONLY)

    assert (task(job).is_alone, task(again).is_alone) == (True, True)


def test_the_reaper_takes_a_lease_only_if_it_is_still_overdue() -> None:
    change = lifecycle.lose(running(), ONLY, token="t", now=LATER)

    assert change.guards == (Overdue(ONLY, "t"),)


def test_a_witness_of_the_death_need_not_wait_for_the_lease() -> None:
    change = lifecycle.lose(running(), ONLY, token="t", witnessed=True, now=LATER)

    assert change.guards == (Holds(ONLY, "t"),)


def test_a_lost_stage_is_due_again_at_once() -> None:
    change = lifecycle.lose(running(), ONLY, token="t", now=LATER)

    assert change.effects == (EndLease(ONLY), MakeDue(ONLY, "default", "", 0, AT_ONCE))


# later, hand_back: the attempt does not count


@uncounted
def test_an_uncounted_end_takes_the_attempt_off_again(end: Verb) -> None:
    change = end(running(plan(stage("only", retries=0))), ONLY, "t")

    again = task(change.after)
    assert (change.after.status, again.status, again.attempt) == (Status.RUNNING, TaskStatus.PENDING, 0)


@uncounted
def test_an_uncounted_end_repeats_its_number(end: Verb) -> None:
    job = end(running(), ONLY, "t").after

    again = started(job, ONLY, token="u")

    assert task(again).attempt == 1


@uncounted
def test_what_an_uncounted_end_left_behind_is_litter(end: Verb) -> None:
    assert end(running(), ONLY, "t").after.has_litter


def test_a_stage_that_asked_for_later_is_due_then() -> None:
    change = lifecycle.later(running(), ONLY, token="t", seconds=5.0, now=LATER)

    assert change.effects == (EndLease(ONLY), MakeDue(ONLY, "default", "", 0, LATER + 5, 5.0))
    assert told(change) == [(4, "retrying", {"stage": "only", "attempt": 1, "why": "later", "at": LATER + 5})]


def test_a_delay_that_a_clock_ahead_has_begun_begins_again() -> None:
    job = lifecycle.later(running(), ONLY, token="t", seconds=5.0, now=LATER + DAYS).after

    change = lifecycle.restart_delay(job, ONLY, now=LATER)

    assert change is not None
    assert change.effects == (TakeBack(ONLY), MakeDue(ONLY, "default", "", 0, LATER + 5, 5.0))
    assert (task(change.after).ready_at, change.after.deadline_at) == (LATER + 5, job.deadline_at)
    assert lifecycle.restart_delay(change.after, ONLY, now=LATER + 1) is None


def test_a_delayed_submit_by_a_clock_ahead_is_delayed_from_now_on() -> None:
    job = lifecycle.submit(ONE, SPEC, job_id="j", user="ann", delay=30.0, now=LATER + DAYS).after

    change = lifecycle.restart_delay(job, ONLY, now=LATER)

    assert change is not None
    assert (change.after.not_before, change.after.deadline_at) == (LATER + 30, LATER + 30 + ONE.deadline)


def test_a_delay_that_has_begun_before_now_goes_on() -> None:
    job = lifecycle.later(running(), ONLY, token="t", seconds=DAYS, now=LATER).after

    assert lifecycle.restart_delay(job, ONLY, now=LATER) is None


@pytest.mark.parametrize(("ahead", "is_restarted"), [(49.0, False), (51.0, True)])
def test_a_delay_begins_again_only_if_the_clock_was_ahead_by_ten_times_it(ahead: float, is_restarted: bool) -> None:
    job = lifecycle.later(running(), ONLY, token="t", seconds=5.0, now=LATER + ahead).after

    change = lifecycle.restart_delay(job, ONLY, now=LATER)

    assert (change is not None) == is_restarted


def test_the_delay_of_a_task_that_runs_does_not_begin_again() -> None:
    assert lifecycle.restart_delay(running(), ONLY, now=0.0) is None


def test_a_stage_handed_back_is_due_at_once() -> None:
    change = lifecycle.hand_back(running(), ONLY, token="t", now=LATER)

    assert change.effects == (EndLease(ONLY), MakeDue(ONLY, "default", "", 0, AT_ONCE))
    assert told(change) == [(4, "retrying", {"stage": "only", "attempt": 1, "why": "handed_back", "at": LATER})]


def test_a_hand_back_forgets_neither_the_attempts_before_nor_that_it_must_be_alone() -> None:
    job = lifecycle.fail(running(), ONLY, token="t", error=BROKEN, luck=0.0, alone=True, now=NOW).after

    back = lifecycle.hand_back(started(job, ONLY), ONLY, token="t", now=LATER).after

    assert (task(back).attempt, task(back).is_alone) == (1, True)


def test_a_task_keeps_its_queue_kind_and_priority_when_it_is_due_again() -> None:
    job = running(plan(stage("only", queue="gpu", kind="convert.only")), priority=7)

    change = lifecycle.hand_back(job, ONLY, token="t", now=LATER)

    assert change.effects[-1] == MakeDue(ONLY, "gpu", "convert.only", 7, AT_ONCE)


def test_neighbours_are_untouched_by_an_ended_attempt() -> None:
    job = started(running(APART, LEFT), RIGHT, token="u")

    after = failed(job, LEFT)

    assert after.task(RIGHT) == job.task(RIGHT)
