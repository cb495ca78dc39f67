"""How an attempt starts: what it takes, what it is given, and what may not start."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Grant, TakeBack, Waiting
from packhorse.core.models import Job, Task, TaskId
from packhorse.core.plan import Status, TaskStatus
from packhorse.errors import NotAllowed
from tests.core.plans import (
    APART,
    CHAIN,
    HOPELESS,
    LEASE,
    LEFT,
    NOW,
    ONLY,
    RIGHT,
    cancelled,
    completed,
    failed,
    page,
    running,
    split,
    started,
    submitted,
    told,
)

LATER = NOW + 100.0


def test_a_start_takes_the_entry_from_the_queue_and_grants_the_lease() -> None:
    change = lifecycle.start(submitted(), ONLY, token="t", worker="w", lease=LEASE, now=LATER)

    assert change.guards == (Waiting(ONLY),)
    assert change.effects == (TakeBack(ONLY), Grant(ONLY, "t", "w", LEASE))


def test_an_attempt_is_counted_when_it_starts() -> None:
    job = started(submitted(), ONLY, now=LATER)

    assert job.task(ONLY) == Task(TaskStatus.RUNNING, attempt=1, token="t", started_at=LATER, ready_at=NOW)


def test_the_first_start_of_a_run_sets_the_job_running() -> None:
    change = lifecycle.start(submitted(), ONLY, token="t", worker="w", lease=LEASE, now=LATER)

    assert (change.after.status, change.after.started_at) == (Status.RUNNING, LATER)
    assert told(change) == [
        (2, "started", {"run": 1}),
        (3, "stage_started", {"stage": "only", "attempt": 1, "worker": "w"}),
    ]


def test_a_further_start_tells_of_the_stage_only() -> None:
    change = lifecycle.start(running(APART, LEFT), RIGHT, token="u", worker="w", lease=LEASE, now=LATER)

    assert change.after.started_at == NOW
    assert told(change) == [(4, "stage_started", {"stage": "right", "attempt": 1, "worker": "w"})]


def test_events_of_an_element_name_it() -> None:
    change = lifecycle.start(split(2), page(0), token="t", worker="w", lease=LEASE, now=LATER)

    assert change.events[-1].data == {"stage": "page", "element": 0, "attempt": 1, "worker": "w"}


def test_a_second_attempt_shows_why_the_first_failed_and_nothing_else_of_it() -> None:
    job = failed(running(), ONLY)
    [task] = job.stage("only").tasks or ()

    again = started(job, ONLY, token="u", now=LATER)

    fresh = Task(TaskStatus.RUNNING, attempt=2, token="u", started_at=LATER, ready_at=NOW + 0.5, error=task.error)
    assert again.task(ONLY) == fresh
    assert again.last_error == task.error
    assert again.last_error is not None
    assert (again.error, job.error_count, again.error_count) == (None, 1, 1)


@pytest.mark.parametrize(
    ("job", "at"),
    [
        pytest.param(running(), ONLY, id="it runs already"),
        pytest.param(completed(), ONLY, id="it has ended"),
        pytest.param(submitted(CHAIN), TaskId("bie"), id="it waits for another stage"),
        pytest.param(submitted(), TaskId("nowhere"), id="no such stage"),
        pytest.param(split(2), page(2), id="no such element"),
        pytest.param(split(2), page(-1), id="negative element"),
        pytest.param(cancelled(submitted()), ONLY, id="the job was cancelled"),
        pytest.param(cancelled(running(APART, LEFT)), RIGHT, id="the job is being cancelled"),
        pytest.param(failed(running(APART, LEFT), LEFT, error=HOPELESS), RIGHT, id="the job has failed"),
    ],
)
def test_what_is_not_waiting_does_not_start(job: Job, at: TaskId) -> None:
    with pytest.raises(NotAllowed):
        lifecycle.start(job, at, token="u", worker="w", lease=LEASE, now=LATER)


def test_a_job_being_stopped_starts_nothing_even_if_an_entry_is_left() -> None:
    job = replace(submitted(APART), stopping="cancel")

    with pytest.raises(NotAllowed):
        lifecycle.start(job, LEFT, token="u", worker="w", lease=LEASE, now=LATER)


def test_an_ended_job_starts_nothing_even_if_an_entry_is_left() -> None:
    job = replace(submitted(), status=Status.FAILED)

    with pytest.raises(NotAllowed):
        lifecycle.start(job, ONLY, token="u", worker="w", lease=LEASE, now=LATER)
