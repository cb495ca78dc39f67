"""What the nouns can tell about themselves."""

from __future__ import annotations

import pytest

from packhorse.core.models import Artifact, Job, Result, Stage, Stored, Task, TaskId
from packhorse.core.plan import Status, TaskStatus
from tests.core.plans import (
    DIAMOND,
    FAN,
    NESTED,
    SPLIT,
    cancelled,
    completed,
    failed,
    page,
    running,
    split,
    started,
    submitted,
)

P, R, C, F, X, S = (Task(status) for status in TaskStatus)


@pytest.mark.parametrize(
    ("tasks", "status"),
    [
        pytest.param(None, TaskStatus.PENDING, id="elements not known yet"),
        pytest.param((), TaskStatus.COMPLETED, id="no elements"),
        pytest.param((P, P), TaskStatus.PENDING, id="none begun"),
        pytest.param((P, C), TaskStatus.RUNNING, id="some done"),
        pytest.param((P, R), TaskStatus.RUNNING, id="some running"),
        pytest.param((C, C), TaskStatus.COMPLETED, id="all done"),
        pytest.param((C, X), TaskStatus.CANCELLED, id="some cancelled"),
        pytest.param((R, X), TaskStatus.RUNNING, id="still stopping"),
        pytest.param((S, S), TaskStatus.SKIPPED, id="none ever started"),
        pytest.param((C, S), TaskStatus.CANCELLED, id="some done, the others never started"),
        pytest.param((R, S), TaskStatus.RUNNING, id="others never start"),
        pytest.param((F, S), TaskStatus.FAILED, id="one failed before others started"),
        pytest.param((R, F, X, C), TaskStatus.FAILED, id="one failed"),
    ],
)
def test_a_stage_sums_up_its_tasks(tasks: tuple[Task, ...] | None, status: TaskStatus) -> None:
    assert Stage(tasks).status is status


def test_three_statuses_are_terminal() -> None:
    assert [status.value for status in Status if status.is_terminal] == ["completed", "failed", "cancelled"]


@pytest.mark.parametrize("at", [TaskId("nowhere"), page(2), page(-1), TaskId("book", 1)])
def test_a_task_that_is_not_there_is_none(at: TaskId) -> None:
    assert split(2).task(at) is None


def test_elements_that_are_not_known_are_none() -> None:
    assert submitted(FAN).task(page(0)) is None


def test_a_job_lists_what_runs() -> None:
    job = started(started(split(3), page(2)), page(0))

    assert job.running_tasks() == [page(0), page(2)]


@pytest.mark.parametrize("job", [submitted(), completed(), cancelled(submitted())])
def test_a_job_with_nothing_running_lists_nothing(job: Job) -> None:
    assert job.running_tasks() == []


def test_retries_are_summed_over_all_tasks() -> None:
    job = split(2)
    for at in (page(0), page(0), page(1)):
        job = failed(started(job, at), at)

    assert started(job, page(1)).retry_count == 2


def test_a_first_attempt_is_no_retry() -> None:
    assert running().retry_count == 0


def test_a_plan_knows_who_follows_whom() -> None:
    assert DIAMOND.followers == {"top": (1, 2), "left": (3,), "right": (3,), "end": ()}


def test_the_sinks_of_a_plan_are_followed_by_nothing() -> None:
    assert [[s.name for s in shape.sinks] for shape in (DIAMOND, NESTED)] == [["end"], ["book"]]


def test_a_stage_knows_what_it_runs_over() -> None:
    assert [s.over for s in NESTED.stages] == [None, "split", "page", None]


def test_the_artifacts_of_a_result_are_those_returned_and_those_published() -> None:
    file = Stored("k", "n", 1, "00")
    result = Result(b"1", files=(Artifact("a", file),), extra=(Artifact("b", file),))

    assert [artifact.name for artifact in result.artifacts] == ["a", "b"]


def test_a_job_finds_a_stage_by_its_name() -> None:
    job = running(FAN, SPLIT)

    assert job.stage("split") == job.stages[0]
