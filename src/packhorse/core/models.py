"""The job and all that is kept of it: tasks, results, events, failures. All frozen; nothing here decides anything."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from packhorse.core.plan import Plan, Status

# The job: what has happened so far. Small, because it is rewritten with every step.


class Failure(Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    stage: str | None = None
    element: int | None = None
    permanent: bool = False
    detail: str | None = None
    """The end of the traceback, for the person who has to mend it."""


class TaskId(NamedTuple):
    """A stage of a job; of an ``each`` stage, one element. The unit that is due, leased, attempted and finished."""

    stage: str
    element: int = 0


class Task(Struct, frozen=True, array_like=True):
    status: Status = Status.PENDING
    attempt: int = 0
    """How many attempts were started in this run; hand-backs and ``Later`` are taken off again."""
    token: str | None = None
    """Names the attempt that holds the lease. Random, compared for equality only."""
    started_at: float | None = None
    ended_at: float | None = None
    ready_at: float | None = None
    """When it became due, or will; None while it waits for other stages."""
    error: Failure | None = None
    """Of the last attempt that failed in this run."""
    is_alone: bool = False
    """A shared process died with it inside: the next attempt has a process of its own."""

    @property
    def errors(self) -> int:
        """Attempts of this run that failed or were lost."""
        is_fine = self.status is Status.COMPLETED or self.status is Status.RUNNING
        return self.attempt - is_fine if self.attempt else 0


class Stage(Struct, frozen=True, array_like=True):
    """A stage's tasks: one, or one per element; None while an ``each`` stage does not know its elements yet."""

    tasks: tuple[Task, ...] | None = (Task(),)

    @property
    def status(self) -> Status:
        if self.tasks is None:
            return Status.PENDING
        if len(self.tasks) == 1:
            return self.tasks[0].status
        seen = {task.status for task in self.tasks}
        if seen <= {Status.COMPLETED}:
            return Status.COMPLETED
        for status in (Status.FAILED, Status.RUNNING, Status.CANCELLED):
            if status in seen:
                return status
        return Status.RUNNING if Status.COMPLETED in seen else Status.PENDING


Stopping = Literal["cancel", "fail", "expire"]


class Firing(Struct, frozen=True, array_like=True):
    """The tick of a schedule that a job was made for."""

    schedule: str
    tick: float


class Job(Struct, frozen=True):
    """One submit of a pipeline for one user."""

    id: str
    plan: Plan
    user: str
    tenant: str = "default"
    client: str | None = None
    priority: int = 0
    created_at: float = 0.0
    not_before: float = 0.0
    trace_id: str = ""
    slot: str | None = None
    """The full key of the slot it holds while active."""
    webhooks: tuple[str, ...] = ()
    """Ids of the endpoints that are told when a run ends, fixed when it was admitted."""
    firing: Firing | None = None
    """None for a job that somebody submitted."""

    status: Status = Status.PENDING
    run: int = 1
    version: int = 0
    events: int = 0
    """The number of the newest event."""
    started_at: float | None = None
    completed_at: float | None = None
    updated_at: float = 0.0
    deadline_at: float | None = None
    """When the run fails for good, None once it has ended."""
    purge_at: float | None = None
    """When record and objects go, None while it is active."""
    is_purging: bool = False
    stopping: Stopping | None = None
    """Why running tasks are asked to stop; the job ends when the last of them has."""
    has_litter: bool = False
    """Its objects need looking after: some may be left that nothing refers to, or some are still to be published."""
    promoted: tuple[str, ...] = ()
    """Folders elsewhere that the result files of this run were copied to, for good."""
    revived: int = 0
    """How often it was begun again by itself since a person last had a hand in it."""
    error: Failure | None = None
    stages: tuple[Stage, ...] = ()

    def stage(self, name: str) -> Stage:
        return self.stages[self.plan.index[name]]

    def task(self, at: TaskId) -> Task | None:
        index = self.plan.index.get(at.stage)
        tasks = None if index is None else self.stages[index].tasks
        return tasks[at.element] if tasks is not None and 0 <= at.element < len(tasks) else None

    def running_tasks(self) -> list[TaskId]:
        return [
            TaskId(plan.name, i)
            for plan, stage in zip(self.plan.stages, self.stages, strict=True)
            for i, task in enumerate(stage.tasks or ())
            if task.status is Status.RUNNING
        ]

    @property
    def error_count(self) -> int:
        return sum(task.errors for stage in self.stages for task in stage.tasks or ())

    @property
    def last_error(self) -> Failure | None:
        """What went wrong last in this run, also if the next attempt has begun since or went well."""
        if self.error is not None:
            return self.error
        failed = [task for stage in self.stages for task in stage.tasks or () if task.error is not None]
        return max(failed, key=lambda task: task.ended_at or task.started_at or 0.0).error if failed else None

    @property
    def retry_count(self) -> int:
        return sum(max(0, task.attempt - 1) for stage in self.stages for task in stage.tasks or ())


# What is written once and kept apart from the job.


class Stored(Struct, frozen=True, omit_defaults=True):
    """A file in the object store, with what a person called it."""

    key: str
    name: str
    size: int
    sha256: str
    content_type: str = "application/octet-stream"


class Input(Struct, frozen=True):
    """A file that came with the submit, and the parameter it belongs to."""

    parameter: str
    index: int
    file: Stored


class Spec(Struct, frozen=True, omit_defaults=True):
    parameters: bytes
    """JSON, each file in it as ``{"$file": n}`` where n counts ``inputs``."""
    inputs: tuple[Input, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "api"


class Artifact(Struct, frozen=True, omit_defaults=True):
    """A file that a stage made, under the name it is asked for by."""

    name: str
    file: Stored


class Result(Struct, frozen=True, omit_defaults=True):
    """What one task returned: JSON with each file as ``{"$file": n}`` where n counts ``files``."""

    value: bytes
    files: tuple[Artifact, ...] = ()
    extra: tuple[Artifact, ...] = ()
    """Published with ``ctx.artifact``, not part of the value."""

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return self.files + self.extra


class Event(Struct, frozen=True, omit_defaults=True):
    n: int
    type: str
    at: float
    data: Mapping[str, Any] = field(default_factory=dict)


# The failure of a run: a record of its own, which outlives the job.


class FailureStatus(StrEnum):
    OPEN = "open"
    RETRIED = "retried"
    RESOLVED = "resolved"
    DISMISSED = "dismissed"


class Settled(Struct, frozen=True, omit_defaults=True):
    """What became of a failure, or of a group: when, by whose hand, and why."""

    at: float
    by: str = ""
    reason: str = ""
    run: int | None = None
    """The run that it was retried as."""
    order: str = ""
    """The order in whose course it was done."""


class FailedRun(Struct, frozen=True, omit_defaults=True):
    """A run that failed for good."""

    id: str
    """Sorts by time: see `failures.failure_id`."""
    fingerprint: str
    job_id: str
    run: int
    tenant: str
    user: str
    pipeline: str
    code: str
    message: str
    at: float
    stage: str | None = None
    attempts: int = 0
    trace_id: str = ""
    schedule: str | None = None
    revived: int = 0
    """How often the job had been begun again by itself when it failed, out of so many times."""
    times: int = 0
    revive_at: float | None = None
    """When it is begun again by itself, if it is."""
    budget: tuple[int, float] | None = None
    """So many of its fingerprint in so many seconds."""

    status: FailureStatus = FailureStatus.OPEN
    settled: Settled | None = None
