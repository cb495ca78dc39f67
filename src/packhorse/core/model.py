"""The nouns: plans, jobs, tasks, and the change that a verb decides on. All frozen; nothing here decides anything."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NamedTuple

from msgspec import Struct, field

from packhorse.core.paths import Path


class Status(StrEnum):
    PENDING = "pending"
    RUNNING = "running"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"

    __hash__ = str.__hash__
    """That of the text it equals. Enum's own is a call of Python's, at every look into a set of statuses."""

    @property
    def is_terminal(self) -> bool:
        return self in TERMINAL


TERMINAL = frozenset({Status.COMPLETED, Status.FAILED, Status.CANCELLED})


# The plan: what was going to happen, fixed when the job was submitted and shared by all jobs of one definition.


class Need(Struct, frozen=True, array_like=True):
    """One parameter of a stage that an earlier stage fills."""

    parameter: str
    stage: str
    how: Literal["needs", "each", "gather"]


class Backoff(Struct, frozen=True, array_like=True):
    """Seconds before the second attempt, doubling up to the cap."""

    base: float = 1.0
    cap: float = 60.0


class Revive(Struct, frozen=True, array_like=True):
    """Which failed runs are begun again by themselves, how often, and how many of a kind in what time."""

    codes: tuple[str, ...] = ()
    """None: nothing is."""
    times: int = 3
    """Of one job, until a person retries it."""
    backoff: float = 300.0
    """Seconds before the first, doubling up to `LONGEST_REVIVAL`."""
    budget: int = 100
    """Revivals of failures of one fingerprint in so many seconds."""
    per: float = 3_600.0


class StagePlan(Struct, frozen=True, omit_defaults=True, dict=True):
    name: str
    queue: str = "default"
    kind: str = ""
    """Names the code that can run it: pipeline, stage and the shape of its parameters. A worker claims kinds it has."""
    needs: tuple[Need, ...] = ()
    retries: int = 3
    backoff: Backoff = Backoff()
    timeout: float = 600.0
    stall: float | None = None
    memory: int | None = None
    weight: float = 1.0
    is_async: bool = False
    elements: int = 1000
    """How many elements an ``each`` stage may have."""
    unset: tuple[str, ...] = ()
    """What its author left to the deployment; filled in when a job is admitted."""

    @cached_property
    def over(self) -> str | None:
        """The stage whose list result this one runs once per element of, if it does."""
        return next((need.stage for need in self.needs if need.how == "each"), None)


class Plan(Struct, frozen=True, omit_defaults=True, dict=True):
    """The graph of a pipeline, stages in an order in which each follows what it needs."""

    pipeline: str
    stages: tuple[StagePlan, ...]
    deadline: float = 86_400.0
    pending: float = 86_400.0
    """Seconds after which a run that was never started fails."""
    keep: Mapping[Status, float] = field(default_factory=dict)
    """Seconds a job is kept after it ended, per status."""
    revive: Revive = Revive()
    slot: str | None = None
    """Jobs of one user that name the same slot are admitted one at a time; None admits any number."""
    secrets: tuple[Path, ...] = ()
    """Where in the parameters there are secrets: encrypted at rest, and never shown."""
    lists: tuple[str, ...] = ()
    """Parameters that take several files."""
    unset: tuple[str, ...] = ()
    fingerprint: str = ""

    @cached_property
    def index(self) -> Mapping[str, int]:
        return {stage.name: i for i, stage in enumerate(self.stages)}

    @cached_property
    def followers(self) -> Mapping[str, tuple[int, ...]]:
        """For each stage, the stages that directly need it."""
        return {
            stage.name: tuple(i for i, s in enumerate(self.stages) if any(n.stage == stage.name for n in s.needs))
            for stage in self.stages
        }

    @cached_property
    def heirs(self) -> Mapping[str, tuple[StagePlan, ...]]:
        """For each stage, those that need nothing but its result and what it needed itself.

        Elements have none: which of them is the last is not known before the commit, and what follows needs all.
        """
        return {stage.name: tuple(self._heirs(stage)) if stage.over is None else () for stage in self.stages}

    def _heirs(self, stage: StagePlan) -> list[StagePlan]:
        known = {stage.name, *(need.stage for need in stage.needs)}
        after = [self.stages[i] for i in self.followers[stage.name]]
        return [each for each in after if each.over is None and all(need.stage in known for need in each.needs)]

    @cached_property
    def sinks(self) -> tuple[StagePlan, ...]:
        return tuple(stage for stage in self.stages if not self.followers[stage.name])

    def stage(self, name: str) -> StagePlan:
        return self.stages[self.index[name]]


class Definition(Struct, frozen=True):
    """A pipeline as a worker published it: all that an API host needs to validate and admit a job."""

    app: str
    pipeline: str
    plan: bytes
    schema: bytes
    """JSON Schema of the parameters, files as ``{"type": "string", "format": "binary"}``."""
    fingerprint: str
    published_at: float = 0.0
    description: str = ""


class Defaults(Struct, frozen=True):
    """What a deployment says where a pipeline does not."""

    retries: int = 3
    backoff: Backoff = Backoff()
    timeout: float = 600.0
    deadline: float = 86_400.0
    keep: float = 604_800.0
    """Of what `kept` says nothing about."""
    kept: Mapping[Status, float] = field(default_factory=dict)
    pending: float = 86_400.0
    revive: Revive = Revive()


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
    """Some attempt may have left objects that nothing refers to."""
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

    def running(self) -> list[TaskId]:
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


# The change: decided, not yet committed.


class Holds(Struct, frozen=True, tag=True):
    """The lease of this task carries this token."""

    task: TaskId
    token: str


class Overdue(Struct, frozen=True, tag=True):
    """The lease carries this token and its time is over by the store's clock."""

    task: TaskId
    token: str


class Waiting(Struct, frozen=True, tag=True):
    """The task is still in its queue."""

    task: TaskId


class Foremost(Struct, frozen=True, tag=True):
    """Nothing of these kinds that is more urgent than this task is ready in its queue.

    For fairness only, so a store may look without locking: what becomes ready a moment later comes too late.
    """

    task: TaskId
    kinds: tuple[str, ...]


class SlotFree(Struct, frozen=True, tag=True):
    """Nobody holds the slot, or this job does."""

    slot: str


class KeyUnused(Struct, frozen=True, tag=True):
    """No job was submitted with this idempotency key. Checked before any slot."""

    key: str


class RunUndecided(Struct, frozen=True, tag=True):
    """The run of this tick still carries this stamp: nobody has decided on it since it was read."""

    schedule: str
    tick: float
    stamp: int


Guard = Holds | Overdue | Waiting | Foremost | SlotFree | KeyUnused | RunUndecided


class MakeDue(Struct, frozen=True, tag=True):
    task: TaskId
    queue: str
    kind: str
    priority: int
    not_before: float


class TakeBack(Struct, frozen=True, tag=True):
    """Remove the task from its queue."""

    task: TaskId


class Grant(Struct, frozen=True, tag=True):
    """Give the worker the lease, for so many seconds of the store's clock."""

    task: TaskId
    token: str
    worker: str
    seconds: float


class EndLease(Struct, frozen=True, tag=True):
    task: TaskId


class TakeSlot(Struct, frozen=True, tag=True):
    slot: str


class ReleaseSlot(Struct, frozen=True, tag=True):
    """Release the slot if this job holds it."""

    slot: str


class KeepSpec(Struct, frozen=True, tag=True):
    spec: Spec


class RememberKey(Struct, frozen=True, tag=True):
    """Keep the idempotency key as long as the job."""

    key: str
    fingerprint: str


class KeepResult(Struct, frozen=True, tag=True):
    task: TaskId
    result: Result


class DropStages(Struct, frozen=True, tag=True):
    """Forget results and progress of these stages: they will be done again."""

    stages: tuple[str, ...]


class Notify(Struct, frozen=True, tag=True):
    """Tell these endpoints that the run has ended. One that is not there, or has ended, is told nothing."""

    endpoints: tuple[str, ...]
    run: int
    at: float


class MarkRun(Struct, frozen=True, tag=True):
    """Tell the run of the tick that this job was made for how the job stands. One that was purged is told nothing."""

    schedule: str
    tick: float
    status: str
    message: str = ""
    started_at: float | None = None
    ended_at: float | None = None


class RecordFailure(Struct, frozen=True, tag=True):
    """Keep the failure, and count it in its group: both, or neither, with the status that it is about."""

    failure: FailedRun


class SettleFailures(Struct, frozen=True, tag=True):
    """Move the job's failures from one status to the next, and their groups' counts with them."""

    was: FailureStatus
    now: FailureStatus
    settled: Settled | None = None
    """None: as it was said before."""


Effect = (
    MakeDue
    | TakeBack
    | Grant
    | EndLease
    | TakeSlot
    | ReleaseSlot
    | KeepSpec
    | RememberKey
    | KeepResult
    | DropStages
    | Notify
    | MarkRun
    | RecordFailure
    | SettleFailures
)


class Change(Struct, frozen=True):
    """A decision about one job, to be committed whole or not at all."""

    before: Job | None
    after: Job
    guards: tuple[Guard, ...] = ()
    effects: tuple[Effect, ...] = ()
    events: tuple[Event, ...] = ()
    id: str = ""
    """Kept with the events, so that a caller whose answer was lost can look whether it was made."""
