"""The data of a job: tasks, results, events and failures. Frozen structs without decisions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from packhorse.core import error_codes
from packhorse.core.plan import Plan, Status, TaskStatus

# The job: what has happened so far. Small, because every step rewrites it.


class Failure(Struct, frozen=True, omit_defaults=True):
    code: str
    message: str
    stage: str | None = None
    element: int | None = None
    permanent: bool = False
    detail: str | None = None  # the end of the traceback, for the person who fixes it


class TaskId(NamedTuple):
    """A stage of a job, or one element of an ``each`` stage: the unit that is queued, leased and attempted."""

    stage: str
    element: int = 0


class Task(Struct, frozen=True, array_like=True):
    status: TaskStatus = TaskStatus.PENDING
    attempt: int = 0  # attempts started in this run, not counting hand-backs and `Later`
    token: str | None = None
    """Fencing token of the attempt that holds the lease. Random, compared for equality only."""
    started_at: float | None = None
    ended_at: float | None = None
    ready_at: float | None = None
    """When it became or becomes due; None while it waits for other stages."""
    error: Failure | None = None  # error of the last attempt that failed in this run
    is_alone: bool = False
    """A shared process died while running it: the next attempt gets its own process."""
    delay: float = 0.0  # seconds from when it was queued to `ready_at`

    @property
    def is_skipped(self) -> bool:
        return self.status is TaskStatus.SKIPPED

    @property
    def is_settled(self) -> bool:
        """Whether it has completed, or was skipped on purpose. One that is skipped because the run stops has no end."""
        return self.status is TaskStatus.COMPLETED or (self.is_skipped and self.ended_at is not None)

    @property
    def errors(self) -> int:
        """Attempts of this run that failed or were lost."""
        is_fine = self.status is TaskStatus.COMPLETED or self.status is TaskStatus.RUNNING
        return self.attempt - is_fine if self.attempt else 0


class Stage(Struct, frozen=True, array_like=True):
    """A stage's tasks: one, or one per element; None while an ``each`` stage does not know its elements yet."""

    tasks: tuple[Task, ...] | None = (Task(),)
    tolerates: int = 0  # elements that may fail permanently without failing the run
    reason: str | None = None
    """Why the whole stage was skipped on purpose; without a task if its condition was not met at submit."""

    @property
    def status(self) -> TaskStatus:
        if self.reason is not None:
            return TaskStatus.SKIPPED
        if self.tasks is None:
            return TaskStatus.PENDING
        if len(self.tasks) == 1 and not self.tolerates:
            return self.tasks[0].status
        seen = {task.status for task in self.tasks}
        if seen <= {TaskStatus.COMPLETED}:
            return TaskStatus.COMPLETED
        if TaskStatus.SKIPPED in seen and all(task.is_settled for task in self.tasks if task.is_skipped):
            seen.discard(TaskStatus.SKIPPED)
            if not seen:
                return TaskStatus.SKIPPED
            seen.add(TaskStatus.COMPLETED)
        if TaskStatus.FAILED in seen and self.tolerated:
            seen.discard(TaskStatus.FAILED)
            seen.add(TaskStatus.COMPLETED)
        if len(seen) == 1:
            return seen.pop()
        for status in (TaskStatus.FAILED, TaskStatus.RUNNING, TaskStatus.CANCELLED):
            if status in seen:
                return status
        if TaskStatus.SKIPPED in seen:  # a stage with completed elements did start
            return TaskStatus.CANCELLED if TaskStatus.COMPLETED in seen else TaskStatus.SKIPPED
        return TaskStatus.RUNNING if TaskStatus.COMPLETED in seen else TaskStatus.PENDING

    @property
    def is_done(self) -> bool:
        """Whether what needs it may start: all tasks have completed, were left out on purpose, or may be missing."""
        status = self.status
        return (
            status is TaskStatus.COMPLETED
            or self.reason is not None
            or (status is TaskStatus.SKIPPED and all(task.is_settled for task in self.tasks or ()))
        )

    @property
    def gaps(self) -> frozenset[int]:
        """Elements without a value, of a stage that is done."""
        tasks = self.tasks or ()
        return frozenset(n for n, task in enumerate(tasks) if task.status is not TaskStatus.COMPLETED)

    @property
    def failed(self) -> int:
        return sum(task.status is TaskStatus.FAILED for task in self.tasks or ())

    @property
    def tolerated(self) -> int:
        """Failed elements that are left out; 0 if they are more than the stage tolerates, which fails the run."""
        failed = self.failed if self.tolerates else 0
        return failed if failed <= self.tolerates else 0

    @property
    def done(self) -> int:
        """Tasks that nobody waits for any more: completed, left out on purpose, or failed and tolerated."""
        return sum(task.is_settled for task in self.tasks or ()) + self.tolerated


Stopping = Literal["cancel", "fail", "expire"]

REASON_LENGTH = 300  # characters of the reason for which a stage was skipped
ERRORS_KEPT, ERROR_LENGTH = 100, 200
"""Errors of elements that a job keeps with their message, and characters of it: each step writes them all again."""


class Partial(NamedTuple):
    """How many elements failed and were left out, of how many in the stages that tolerate it, and the first errors."""

    failed: int
    of: int
    errors: Sequence[Failure]


SKIP_REASONS: Mapping[str, str] = {  # why stages never started, by the code with which the run expired
    error_codes.ORPHANED: "no worker started the job in time",
    error_codes.RUN_TIMEOUT: "the run timed out",
}


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
    slot: str | None = None  # key of the slot it holds while it is active
    webhooks: tuple[str, ...] = ()
    """Ids of the endpoints to notify when a run ends, fixed at submit."""
    firing: Firing | None = None  # None if the job was not created by a schedule

    status: Status = Status.PENDING
    run: int = 1
    version: int = 0
    events: int = 0  # the number of the newest event
    started_at: float | None = None
    completed_at: float | None = None
    updated_at: float = 0.0
    deadline_at: float | None = None  # when the run fails if it has not ended; None once it has
    purge_at: float | None = None
    """When the job and its objects are deleted; None while it is active."""
    is_purging: bool = False
    stopping: Stopping | None = None
    """Why running tasks are being stopped. The job ends when the last of them has ended."""
    has_litter: bool = False
    """The janitor has work: unreferenced objects may be left, or files are still to be published."""
    promoted: tuple[str, ...] = ()
    """Destination folders that the result files of this run were copied to."""
    revived: int = 0  # automatic retries since a person last retried it
    lineage: int = 0
    """A checksum of every change so far. After a failover to a store that lacks the last changes, versions repeat; this
    does not, so that no caller continues with a job that the store has never seen."""
    limit_values: Mapping[str, str] = field(default_factory=dict)
    """The parameters that its limits go by, escaped, fixed at submit."""
    counted: int | None = None
    """Bytes of its files that count towards its tenant's quota; None if it was submitted while there was none."""
    error: Failure | None = None
    stages: tuple[Stage, ...] = ()

    def stage(self, name: str) -> Stage:
        return self.stages[self.plan.index[name]]

    def tasks_of_run(self, name: str) -> Sequence[Task]:
        """The tasks of a stage that started in the current run; all of them if none did."""
        tasks, begin = self.stage(name).tasks or (), self.started_at
        if self.run == 1 or begin is None:
            return tasks
        return [task for task in tasks if task.started_at is not None and task.started_at >= begin] or tasks

    def task(self, at: TaskId) -> Task | None:
        index = self.plan.index.get(at.stage)
        tasks = None if index is None else self.stages[index].tasks
        return tasks[at.element] if tasks is not None and 0 <= at.element < len(tasks) else None

    @property
    def is_stopped(self) -> bool:
        """Whether nothing of this run starts any more, although not everything has completed."""
        return self.stopping is not None or self.status is Status.FAILED or self.status is Status.CANCELLED

    def stage_status(self, name: str) -> TaskStatus:
        """As the stage's own, except that a stage whose elements were still unknown is skipped when the run stops."""
        stage = self.stage(name)
        return TaskStatus.SKIPPED if stage.tasks is None and self.is_stopped else stage.status

    @property
    def skip_reason(self) -> str:
        """Why stages of this run never started that would have: what stopped the run."""
        error = self.error
        if error is None:
            return "the job was cancelled"
        if error.stage is not None:
            return f"stage {error.stage} failed"
        return SKIP_REASONS.get(error.code, "the deadline passed")

    def running_tasks(self) -> list[TaskId]:
        return [
            TaskId(plan.name, i)
            for plan, stage in zip(self.plan.stages, self.stages, strict=True)
            for i, task in enumerate(stage.tasks or ())
            if task.status is TaskStatus.RUNNING
        ]

    @property
    def partial(self) -> Partial | None:
        """What its stages have left out because it failed; None if nothing was."""
        failed = [
            task.error
            for stage in self.stages
            if stage.tolerated
            for task in stage.tasks or ()
            if task.status is TaskStatus.FAILED and task.error is not None
        ]
        if not failed:
            return None
        counted = (s for plan, s in zip(self.plan.stages, self.stages, strict=True) if plan.tolerate is not None)
        return Partial(len(failed), sum(len(stage.tasks or ()) for stage in counted), failed[:ERRORS_KEPT])

    @property
    def error_count(self) -> int:
        return sum(task.errors for stage in self.stages for task in stage.tasks or ())

    @property
    def last_error(self) -> Failure | None:
        """The last error in this run, even if a later attempt is running or has succeeded."""
        if self.error is not None:
            return self.error
        failed = [task for stage in self.stages for task in stage.tasks or () if task.error is not None]
        return max(failed, key=lambda task: task.ended_at or task.started_at or 0.0).error if failed else None

    @property
    def retry_count(self) -> int:
        return sum(max(0, task.attempt - 1) for stage in self.stages for task in stage.tasks or ())


# Written once, and stored separately from the job.


class Stored(Struct, frozen=True, omit_defaults=True):
    """A file in the object store, with its original name."""

    key: str
    name: str
    size: int
    sha256: str
    content_type: str = "application/octet-stream"


class Input(Struct, frozen=True):
    """A file submitted with the job, and the parameter it belongs to."""

    parameter: str
    index: int
    file: Stored


class Spec(Struct, frozen=True, omit_defaults=True):
    parameters: bytes  # JSON. A file is `{"$file": n}`, where n is an index into `inputs`.
    inputs: tuple[Input, ...] = ()
    metadata: Mapping[str, Any] = field(default_factory=dict)
    origin: str = "api"


def primary_input(plan: Plan, spec: Spec | None) -> Input | None:
    """The file of the pipeline's first file parameter, else the one that came first; None if there is no file."""
    inputs = () if spec is None else spec.inputs
    return next((each for each in inputs if each.parameter == plan.primary), inputs[0] if inputs else None)


class Artifact(Struct, frozen=True, omit_defaults=True):
    """A file that a stage produced, and its artifact name."""

    name: str
    file: Stored


class Result(Struct, frozen=True, omit_defaults=True):
    """The result of one task: JSON in which a file is ``{"$file": n}``, an index into ``files``."""

    value: bytes
    files: tuple[Artifact, ...] = ()
    extra: tuple[Artifact, ...] = ()  # published with `ctx.artifact`, not part of the value
    error: Failure | None = None  # why this element has no value, although the run continues
    is_skipped: bool = False  # an element that was left out: its value does not count

    @property
    def artifacts(self) -> tuple[Artifact, ...]:
        return self.files + self.extra


class Event(Struct, frozen=True, omit_defaults=True):
    n: int
    type: str
    at: float
    data: Mapping[str, Any] = field(default_factory=dict)


# The failure of a run: a separate record that outlives the job.


class FailureStatus(StrEnum):
    OPEN = "open"
    RETRIED = "retried"
    RESOLVED = "resolved"
    DISMISSED = "dismissed"


class Settled(Struct, frozen=True, omit_defaults=True):
    """How a failure or a group was settled: when, by whom, and why."""

    at: float
    by: str = ""
    reason: str = ""
    run: int | None = None  # the run started by the retry
    order: str = ""  # the bulk action that settled it


class FailedRun(Struct, frozen=True, omit_defaults=True):
    """A run that failed with no attempt left."""

    id: str  # sorts by time: see `failures.failure_id`
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
    revived: int = 0  # automatic retries before this failure, out of `times`
    times: int = 0
    revive_at: float | None = None  # when it is retried automatically, if it is
    budget: tuple[int, float] | None = None
    """Maximum automatic retries per fingerprint, and the window in seconds."""
    alert_rate: tuple[int, float] | None = None
    """How many failures of its pipeline in how many seconds raise an alert; None: each new kind does."""

    status: FailureStatus = FailureStatus.OPEN
    settled: Settled | None = None
