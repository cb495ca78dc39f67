"""Small plans, and jobs brought to a point by the verbs themselves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packhorse.core import lifecycle
from packhorse.core.changes import Change, MakeDue
from packhorse.core.models import Failure, Job, Result, Spec, Task, TaskId
from packhorse.core.plan import Need, Plan, StagePlan, Status

NOW = 1_000.0
LEASE = 15.0
SPEC = Spec(b'{"platform":"520"}')
RESULT = Result(b'"done"')
BROKEN = Failure("EXCEPTION", "It broke.")
HOPELESS = Failure("INVALID", "It can never work.", permanent=True)


def needs(stage: str) -> Need:
    return Need(stage, stage, "needs")


def each(stage: str) -> Need:
    return Need(stage, stage, "each")


def gather(stage: str) -> Need:
    return Need(stage, stage, "gather")


def stage(name: str, *needed: Need, **options: Any) -> StagePlan:
    return StagePlan(name, needs=needed, **options)


def plan(
    *stages: StagePlan, slot: str | None = None, keep: Mapping[Status, float] | None = None, deadline: float = 3_600.0
) -> Plan:
    return Plan("convert", stages, slot=slot, keep=keep or {}, deadline=deadline)


ONE = plan(stage("only"))
CHAIN = plan(stage("onnx"), stage("bie", needs("onnx")), stage("nef", needs("bie")))
APART = plan(stage("left"), stage("right"))
DIAMOND = plan(
    stage("top"), stage("left", needs("top")), stage("right", needs("top")), stage("end", needs("left"), needs("right"))
)
FAN = plan(stage("split"), stage("page", each("split")), stage("book", gather("page")))
NESTED = plan(stage("split"), stage("page", each("split")), stage("seal", each("page")), stage("book", gather("seal")))

ONLY = TaskId("only")
SPLIT, BOOK = TaskId("split"), TaskId("book")
LEFT, RIGHT = TaskId("left"), TaskId("right")


def page(element: int) -> TaskId:
    return TaskId("page", element)


def sure(change: Change | None) -> Change:
    """A change that is expected to be there."""
    assert change is not None
    return change


def submitted(plan: Plan = ONE, *, now: float = NOW, **options: Any) -> Job:
    return lifecycle.submit(plan, SPEC, job_id="j", user="ann", now=now, **options).after


def started(job: Job, at: TaskId, *, token: str = "t", now: float = NOW) -> Job:
    return lifecycle.start(job, at, token=token, worker="w", lease=LEASE, now=now).after


def finished(job: Job, at: TaskId, *, token: str = "t", width: int | None = None, now: float = NOW) -> Job:
    return lifecycle.finish(job, at, token=token, result=RESULT, width=width, now=now).after


def failed(job: Job, at: TaskId, *, token: str = "t", error: Failure = BROKEN, now: float = NOW) -> Job:
    return lifecycle.fail(job, at, token=token, error=error, luck=0.0, now=now).after


def ran(job: Job, at: TaskId, *, width: int | None = None, now: float = NOW) -> Job:
    return finished(started(job, at, now=now), at, width=width, now=now)


def running(plan: Plan = ONE, at: TaskId = ONLY, **options: Any) -> Job:
    return started(submitted(plan, **options), at)


def completed(plan: Plan = ONE, at: TaskId = ONLY, **options: Any) -> Job:
    return ran(submitted(plan, **options), at)


def split(width: int, plan: Plan = FAN, **options: Any) -> Job:
    """A job whose first stage has returned a list."""
    return ran(submitted(plan, **options), SPLIT, width=width)


def cancelled(job: Job, *, now: float = NOW) -> Job:
    return sure(lifecycle.cancel(job, now=now)).after


def retried(job: Job, stage: str | None = None, *, now: float = NOW) -> Job:
    return sure(lifecycle.retry(job, stage=stage, now=now)).after


def due(change: Change) -> list[TaskId]:
    """What the change puts into queues."""
    return [effect.task for effect in change.effects if isinstance(effect, MakeDue)]


def told(change: Change) -> list[tuple[int, str, Mapping[str, Any]]]:
    """The events of the change."""
    return [(event.n, event.type, event.data) for event in change.events]


def words(change: Change) -> list[str]:
    return [word for _, word, _ in told(change)]


def statuses(job: Job, stage: str) -> list[str]:
    return [task.status.value for task in job.stage(stage).tasks or ()]


def task(job: Job, at: TaskId = ONLY) -> Task:
    found = job.task(at)
    assert found is not None
    return found
