"""After the end: promoted, marked for deletion when its time is over, tidied when it left litter."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.errors import JobNotFound, NotAllowed
from tests.core.plans import (
    HOPELESS,
    NOW,
    ONLY,
    cancelled,
    completed,
    failed,
    plan,
    retried,
    running,
    stage,
    started,
    submitted,
    sure,
)

KEPT = plan(stage("only"), keep={Status.COMPLETED: 10.0, Status.FAILED: 20.0, Status.CANCELLED: 30.0})
LATER = NOW + 100.0


def only_differs(change: Change, **fields: object) -> bool:
    """Nothing but these fields moved, and nobody was told."""
    assert change.before is not None
    moved = {"version": change.before.version + 1, "lineage": change.after.lineage, "updated_at": LATER}
    return change == Change(change.before, replace(change.before, **moved, **fields))


@pytest.mark.parametrize(
    ("job", "keep"),
    [
        (completed(KEPT), 10.0),
        (failed(running(KEPT), ONLY, error=HOPELESS), 20.0),
        (cancelled(submitted(KEPT)), 30.0),
    ],
)
def test_an_ended_job_is_kept_as_long_as_its_status_says(job: Job, keep: float) -> None:
    assert job.purge_at == NOW + keep


def test_an_active_job_has_no_time_to_go() -> None:
    assert [job.purge_at for job in (submitted(KEPT), running(KEPT), cancelled(running(KEPT)))] == [None, None, None]


def test_a_job_whose_time_is_over_is_marked() -> None:
    change = sure(lifecycle.purge(completed(KEPT), now=LATER))

    assert only_differs(change, is_purging=True)


@pytest.mark.parametrize(
    ("job", "now"),
    [
        pytest.param(completed(KEPT), NOW + 9.9, id="its time is not over"),
        pytest.param(submitted(KEPT), NOW + 1e9, id="it has not ended"),
        pytest.param(retried(completed(KEPT), "*"), NOW + 1e9, id="it was retried"),
        pytest.param(sure(lifecycle.purge(completed(KEPT), now=LATER)).after, LATER, id="it is marked already"),
    ],
)
def test_a_job_that_is_not_to_go_is_not_marked(job: Job, now: float) -> None:
    assert lifecycle.purge(job, now=now) is None


def test_a_job_goes_the_moment_its_time_is_over() -> None:
    assert lifecycle.purge(completed(KEPT), now=NOW + 10.0) is not None


def test_a_tidied_job_has_no_litter() -> None:
    job = failed(running(KEPT), ONLY, error=HOPELESS)

    change = sure(lifecycle.tidy(job, now=LATER))

    assert only_differs(change, has_litter=False)


def test_a_job_without_litter_needs_no_tidying() -> None:
    assert lifecycle.tidy(completed(KEPT), now=LATER) is None


def test_a_job_that_may_still_refer_to_its_objects_is_not_tidied() -> None:
    job = started(failed(running(), ONLY), ONLY)

    with pytest.raises(NotAllowed):
        lifecycle.tidy(job, now=LATER)


def test_a_job_that_is_being_deleted_is_not_tidied() -> None:
    job = sure(lifecycle.purge(failed(running(KEPT), ONLY, error=HOPELESS), now=LATER)).after

    with pytest.raises(NotAllowed):
        lifecycle.tidy(job, now=LATER)


@pytest.mark.parametrize(
    "job", [completed(KEPT), failed(running(KEPT), ONLY, error=HOPELESS), cancelled(submitted(KEPT))]
)
def test_an_ended_job_that_is_deleted_is_marked_before_its_time(job: Job) -> None:
    assert only_differs(lifecycle.delete(job, now=LATER), is_purging=True, purge_at=LATER)


@pytest.mark.parametrize("job", [submitted(KEPT), running(KEPT), cancelled(running(KEPT))])
def test_an_active_job_is_cancelled_before_it_is_deleted(job: Job) -> None:
    with pytest.raises(NotAllowed, match="Cancel it first"):
        lifecycle.delete(job, now=LATER)


def test_a_deleted_job_is_not_there_to_be_deleted_or_retried() -> None:
    gone = lifecycle.delete(completed(KEPT), now=LATER).after

    with pytest.raises(JobNotFound):
        lifecycle.delete(gone, now=LATER)
    with pytest.raises(JobNotFound):
        lifecycle.retry(gone, stage="*", now=LATER)


def test_a_promoted_job_says_where_its_files_are() -> None:
    job = completed(KEPT)

    change = sure(lifecycle.promote(job, to="s3://bucket/a", run=1, now=LATER))

    assert only_differs(change, promoted=("s3://bucket/a",))
    assert lifecycle.promote(change.after, to="s3://bucket/a", run=1, now=LATER) is None


def test_a_job_may_be_promoted_to_several_places() -> None:
    once = sure(lifecycle.promote(completed(KEPT), to="file:///a", run=1, now=LATER)).after

    twice = sure(lifecycle.promote(once, to="file:///b", run=1, now=LATER)).after

    assert twice.promoted == ("file:///a", "file:///b")


@pytest.mark.parametrize(
    "job", [submitted(KEPT), running(KEPT), cancelled(submitted(KEPT)), failed(running(KEPT), ONLY, error=HOPELESS)]
)
def test_only_a_completed_job_is_promoted(job: Job) -> None:
    with pytest.raises(NotAllowed):
        lifecycle.promote(job, to="file:///a", run=1, now=LATER)


def test_files_of_an_earlier_run_do_not_count_for_this_one() -> None:
    again = replace(completed(KEPT), run=2)

    with pytest.raises(NotAllowed):
        lifecycle.promote(again, to="file:///a", run=1, now=LATER)


def test_a_job_that_is_being_deleted_is_not_promoted() -> None:
    job = sure(lifecycle.purge(completed(KEPT), now=LATER)).after

    with pytest.raises(NotAllowed):
        lifecycle.promote(job, to="file:///a", run=1, now=LATER)


def test_a_new_run_is_not_promoted() -> None:
    job = sure(lifecycle.promote(completed(KEPT), to="file:///a", run=1, now=LATER)).after

    assert retried(job, "*").promoted == ()
