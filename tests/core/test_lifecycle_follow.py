"""A finish that goes on with what follows: one step instead of two, and nobody is overtaken."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change, EndLease, Foremost, Grant, Holds, KeepResult, MakeDue
from packhorse.core.models import TaskId
from packhorse.core.plan import TaskStatus
from packhorse.errors import NotAllowed
from tests.core.plans import CHAIN, DIAMOND, LEASE, NOW, RESULT, running, told

ONNX, BIE = TaskId("onnx"), TaskId("bie")
TOP, LEFT, RIGHT = TaskId("top"), TaskId("left"), TaskId("right")
LATER = NOW + 5.0


def finish(plan: str = "chain") -> Change:
    job, at = (running(CHAIN, ONNX), ONNX) if plan == "chain" else (running(DIAMOND, TOP), TOP)
    return lifecycle.finish(job, at, token="t", result=RESULT, now=LATER)


def follow(finished: Change, at: TaskId) -> Change:
    return lifecycle.follow(finished, at, kinds=["a", "b"], token="u", worker="w", lease=LEASE, now=LATER)


def test_what_follows_is_granted_and_never_enters_its_queue() -> None:
    change = follow(finish(), BIE)

    assert change.guards == (Holds(ONNX, "t"), Foremost(BIE, ("a", "b")))
    assert change.effects == (EndLease(ONNX), KeepResult(ONNX, RESULT), Grant(BIE, "u", "w", LEASE))


def test_it_leaves_the_job_as_a_finish_and_a_start_would_in_one_version() -> None:
    finished = finish()
    begun = lifecycle.start(finished.after, BIE, token="u", worker="w", lease=LEASE, now=LATER)

    change = follow(finished, BIE)

    assert change.before == finished.before
    assert change.after == replace(begun.after, version=finished.after.version)
    assert change.after.task(BIE) == begun.after.task(BIE)
    assert change.after.events == finished.after.events + 1


def test_both_are_told_without_a_gap() -> None:
    finished = finish()

    assert told(follow(finished, BIE)) == [
        *told(finished),
        (finished.after.events + 1, "stage_started", {"stage": "bie", "attempt": 1, "worker": "w"}),
    ]


def test_what_else_became_due_stays_due() -> None:
    change = follow(finish("diamond"), RIGHT)

    assert [effect.task for effect in change.effects if isinstance(effect, MakeDue)] == [LEFT]
    assert [task.status for at in (LEFT, RIGHT) if (task := change.after.task(at))] == [
        TaskStatus.PENDING,
        TaskStatus.RUNNING,
    ]


def test_what_is_not_due_cannot_follow() -> None:
    with pytest.raises(NotAllowed):
        follow(finish(), TaskId("nef"))
