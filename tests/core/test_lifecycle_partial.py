"""Elements that fail for good and are left out, as far as their stage tolerates it."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle, models
from packhorse.core.changes import DropStages, KeepResult, RecordFailure
from packhorse.core.models import Failure, Job, TaskId
from packhorse.core.plan import Plan, Status, TaskStatus, Tolerance
from packhorse.errors import NotAllowed
from tests.core.plans import (
    BOOK,
    HOPELESS,
    NOW,
    cancelled,
    due,
    each,
    failed,
    gather,
    needs,
    page,
    plan,
    ran,
    retried,
    split,
    stage,
    started,
    statuses,
    sure,
    told,
)

ONE_LESS = plan(stage("split"), stage("page", each("split"), tolerate=Tolerance(1)), stage("book", gather("page")))
CHAINED = plan(
    stage("split"),
    stage("page", each("split"), tolerate=Tolerance(1)),
    stage("seal", each("page")),
    stage("index", needs("split")),
    stage("book", gather("seal")),
)


def lost(job: Job, element: int) -> Job:
    return failed(started(job, page(element)), page(element), error=HOPELESS)


def test_run_goes_on_without_an_element_that_its_stage_tolerates() -> None:
    job = ran(split(2, ONE_LESS), page(0))

    change = lifecycle.fail(started(job, page(1)), page(1), token="t", error=HOPELESS, luck=0.0, now=NOW)

    assert due(change) == [BOOK]
    assert change.after.stage_status("page") is TaskStatus.COMPLETED
    assert statuses(change.after, "page") == ["completed", "failed"]
    assert told(change)[0][2]["tolerated"] is True
    kept = [effect.result.error for effect in change.effects if isinstance(effect, KeepResult)]
    assert kept == [replace(HOPELESS, stage="page", element=1)]


def test_job_with_a_left_out_element_completes_and_says_so() -> None:
    job = ran(ran(lost(split(2, ONE_LESS), 1), page(0)), BOOK)

    assert job.status is Status.COMPLETED
    assert job.partial == models.Partial(1, 2, [replace(HOPELESS, stage="page", element=1)])


def test_one_failure_more_than_tolerated_fails_the_run_at_once() -> None:
    job = started(lost(split(3, ONE_LESS), 0), page(1))

    change = lifecycle.fail(job, page(1), token="t", error=HOPELESS, luck=0.0, now=NOW)

    assert change.after.status is Status.FAILED
    assert change.after.stage_status("page") is TaskStatus.FAILED
    assert change.after.partial is None
    assert statuses(change.after, "page") == ["failed", "failed", "skipped"]
    assert [effect for effect in change.effects if isinstance(effect, RecordFailure)]


@pytest.mark.parametrize(("share", "width", "most"), [(0.05, 1000, 50), (0.07, 100, 7), (0.29, 100, 29), (0.5, 1, 0)])
def test_share_is_a_share_of_the_elements_rounded_down(share: float, width: int, most: int) -> None:
    assert Tolerance(share=share).bound(width) == most


def test_attempts_are_used_up_before_an_element_is_left_out() -> None:
    job = failed(started(split(2, ONE_LESS), page(0)), page(0))

    assert statuses(job, "page")[0] == "pending"


def test_element_of_a_lost_worker_is_left_out_too() -> None:
    last = plan(stage("split"), stage("page", each("split"), tolerate=Tolerance(1), retries=0), stage("book"))

    change = lifecycle.lose(started(split(2, last), page(0)), page(0), token="t", now=NOW)

    assert statuses(change.after, "page") == ["failed", "pending"]


def test_stage_over_the_elements_skips_those_that_were_left_out() -> None:
    job = lost(ran(split(2, CHAINED), page(1)), 0)

    assert statuses(job, "seal") == ["skipped", "pending"]
    assert job.stage_status("seal") is TaskStatus.RUNNING
    assert ran(job, TaskId("seal", 1)).task(BOOK) is not None
    assert ran(job, TaskId("seal", 1)).stage_status("seal") is TaskStatus.COMPLETED


def test_cancelled_job_shows_a_stage_with_failures_as_cancelled() -> None:
    job = cancelled(lost(split(3, ONE_LESS), 0))

    assert job.stage_status("page") is TaskStatus.CANCELLED or job.stage_status("page") is TaskStatus.SKIPPED
    assert statuses(retried(job), "page") == ["pending", "pending", "pending"]


def test_retry_of_failed_elements_runs_only_them_and_what_follows() -> None:
    job = lost(ran(ran(split(2, CHAINED), page(1)), TaskId("index")), 0)
    job = ran(ran(job, TaskId("seal", 1)), BOOK)

    change = sure(lifecycle.retry(job, failed_elements=True, now=NOW))

    assert due(change) == [page(0)]
    assert statuses(change.after, "page") == ["pending", "completed"]
    assert statuses(change.after, "seal") == ["pending", "completed"]
    assert statuses(change.after, "index") == ["completed"]
    assert [effect.stages for effect in change.effects if isinstance(effect, DropStages)] == [("book",)]
    again = ran(change.after, page(0))
    assert due(lifecycle.finish(started(again, TaskId("seal", 0)), TaskId("seal", 0), token="t",
                                result=models.Result(b"1"), now=NOW)) == [BOOK]  # fmt: skip


def test_element_that_fails_again_is_left_out_again() -> None:
    job = ran(ran(lost(ran(ran(split(2, CHAINED), page(1)), TaskId("index")), 0), TaskId("seal", 1)), BOOK)

    job = lost(sure(lifecycle.retry(job, failed_elements=True, now=NOW)).after, 0)

    assert statuses(job, "seal") == ["skipped", "completed"]
    assert ran(job, BOOK).status is Status.COMPLETED


def test_retry_of_a_later_stage_keeps_what_was_left_out() -> None:
    job = ran(ran(lost(ran(ran(split(2, CHAINED), page(1)), TaskId("index")), 0), TaskId("seal", 1)), BOOK)

    job = retried(job, "seal")

    assert statuses(job, "page") == ["failed", "completed"]
    assert statuses(job, "seal") == ["skipped", "pending"]


def test_retry_of_a_failed_run_keeps_the_failures_of_stages_that_are_done() -> None:
    done = ran(lost(split(2, ONE_LESS), 1), page(0))

    job = retried(failed(started(done, BOOK), BOOK, error=HOPELESS))

    assert statuses(job, "page") == ["completed", "failed"]
    assert statuses(job, "book") == ["pending"]


def test_retry_of_failed_elements_is_refused_without_any() -> None:
    job = ran(ran(ran(split(2, ONE_LESS), page(0)), page(1)), BOOK)

    with pytest.raises(NotAllowed, match="No elements of this job have failed"):
        lifecycle.retry(job, failed_elements=True, now=NOW)


def test_errors_in_the_job_are_bounded() -> None:
    width = models.ERRORS_KEPT + 2
    wide = _wide(width)
    long = Failure("BROKEN", "x" * 2000, permanent=True, detail="y" * 8000)
    job = split(width, wide)
    for n in range(width):
        job = failed(started(job, page(n)), page(n), error=long)

    assert job.partial is not None
    assert (job.partial.failed, len(job.partial.errors)) == (width, models.ERRORS_KEPT)
    found = [task.error for task in job.stage("page").tasks or ()]
    assert {len(error.message) for error in found if error is not None} == {0, models.ERROR_LENGTH}
    assert {error.detail for error in found if error is not None} == {None}


def _wide(width: int) -> Plan:
    return plan(
        stage("split"), stage("page", each("split"), tolerate=Tolerance(share=1.0), elements=width), stage("book")
    )
