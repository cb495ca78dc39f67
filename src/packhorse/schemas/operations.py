"""Pipelines, queues, workers, statistics, promotion destinations and health."""

from collections.abc import Sequence
from typing import Any, Literal, TypedDict

from packhorse.core import json
from packhorse.core.plan import Definition, OnConflict, StagePlan, Status
from packhorse.define.options import WHILE
from packhorse.schemas.progress import iso
from packhorse.store.collections.workers import WorkerCard


class NeedDocument(TypedDict):
    stage: str
    how: Literal["needs", "each", "gather"]


class PlannedDocument(TypedDict):
    name: str
    queue: str
    needs: list[NeedDocument]
    when: str | None
    retries: int
    timeout: float


class PipelineDocument(TypedDict):
    """A pipeline; ``schema`` is the JSON Schema of its parameters. ``statuses`` and ``outputs`` are the app's own
    names, see ``alias`` of a job. ``on_conflict`` says what a submit does while the user has an active job, and is null
    without ``one_per_user``. ``is_served`` is false if no running worker can run all of its stages.
    """

    name: str
    app: str
    description: str
    schema: dict[str, Any]
    one_per_user: bool
    on_conflict: OnConflict | None
    statuses: dict[str, str]
    outputs: dict[str, str]
    stages: list[PlannedDocument]
    published_at: str | None
    is_served: bool


class PipelinesPage(TypedDict):
    items: list[PipelineDocument]
    next: None


def pipeline_to_json(published: Definition, live: Sequence[WorkerCard]) -> PipelineDocument:
    """``live``: the workers that are running now."""
    plan = json.plan_from(published.plan)
    return {
        "name": published.pipeline,
        "app": published.app,
        "description": published.description,
        "schema": json.decode(published.schema),
        "one_per_user": plan.slot is not None,
        "on_conflict": None if plan.slot is None else plan.on_conflict,
        "statuses": {status.value: called for status, called in plan.statuses.items()}
        | {f"{WHILE}{stage}": called for stage, called in plan.stage_statuses.items()},
        "outputs": dict(plan.outputs),
        "stages": [
            {
                "name": stage.name,
                "queue": stage.queue,
                "needs": [{"stage": need.stage, "how": need.how} for need in stage.needs],
                "when": None if stage.when is None else str(stage.when),
                "retries": stage.retries,
                "timeout": stage.timeout,
            }
            for stage in plan.stages
        ],
        "published_at": iso(published.published_at),
        "is_served": all(any(_can_run(card, stage) for card in live) for stage in plan.stages),
    }


def _can_run(card: WorkerCard, stage: StagePlan) -> bool:
    return stage.queue in card.queues and (stage.kind in card.kinds or not card.kinds)  # older workers have no kinds


class PauseDocument(TypedDict):
    at: str | None
    by: str
    reason: str


class PercentilesDocument(TypedDict):
    """In seconds, accurate to a fifth; null without data."""

    p50: float | None
    p95: float | None
    p99: float | None


class QueueDocument(TypedDict):
    """A queue; ``ready`` is counted up to 10000; workers and slots count live workers only.

    ``oldest_seconds`` is how long the oldest task has been ready; throughput (ended attempts per minute) and waits are
    those of the last five minutes.
    """

    name: str
    ready: int
    oldest_seconds: float
    running: int
    workers: int
    slots: int
    per_minute: float
    wait_seconds: PercentilesDocument
    paused: PauseDocument | None


class QueuesPage(TypedDict):
    items: list[QueueDocument]
    next: None


class CountsDocument(TypedDict):
    """Stored jobs; counts named in ``capped`` are lower bounds."""

    total: int
    active: int
    completed: int
    failed: int
    cancelled: int
    capped: list[str]
    measured_at: str | None


class WindowDocument(TypedDict):
    """The totals of a series."""

    seconds: float
    step_seconds: int
    queue: str | None
    pipeline: str | None
    outcomes: dict[str, int]
    per_minute: float
    wait_seconds: PercentilesDocument
    run_seconds: PercentilesDocument


class PointDocument(TypedDict):
    """One step of a series, of ``step_seconds``; ready, oldest and running are maxima, workers is the minimum, null
    without readings.
    """

    at: str | None
    outcomes: dict[str, int]
    per_minute: float
    wait_seconds: PercentilesDocument
    run_seconds: PercentilesDocument
    ready: float | None
    oldest_seconds: float | None
    running: float | None
    workers: int | None


class StatsDocument(TypedDict):
    """Current numbers and a series. ``processed_today`` counts jobs that ended since midnight, UTC."""

    at: str | None
    jobs: CountsDocument
    running: int
    waiting: int
    waiting_capped: bool
    oldest_wait_seconds: float
    workers: int
    slots: int
    processed_today: int
    failed_24h: int
    window: WindowDocument
    series: list[PointDocument]


class WorkDocument(TypedDict):
    """A task that a worker is running, or was; ``status`` is the current status of its job."""

    job_id: str
    stage: str
    element: int
    since: str | None
    status: Status | None


class ServedDocument(TypedDict):
    slots: int
    busy: int


class MachineDocument(TypedDict):
    """A worker's host; CPU of all cores together, 0 to 1. Not fresh: measured more than ten seconds ago."""

    measured_at: str | None
    is_fresh: bool
    cpu: float
    cores: int
    memory_bytes: int
    memory_total_bytes: int


class LossDocument(TypedDict):
    """How a worker was lost: its ``tasks`` running tasks were released; ``work`` lists the first few."""

    missed_at: str | None
    noticed_by: str
    tasks: int
    work: list[WorkDocument]


class WorkerDocument(TypedDict):
    """A worker. ``silent``: no heartbeat for a lease; ``lost``: another worker noticed, and its tasks were released."""

    worker_id: str
    state: Literal["alive", "draining", "silent", "lost"]
    host: str
    pid: int
    version: str
    started_at: str | None
    seen_at: str | None
    queues: dict[str, ServedDocument]
    kinds: list[str]
    work: list[WorkDocument]
    machine: MachineDocument | None
    lost: LossDocument | None


class WorkersPage(TypedDict):
    items: list[WorkerDocument]
    next: None


class DestinationDocument(TypedDict):
    name: str


class DestinationsPage(TypedDict):
    items: list[DestinationDocument]
    next: None


class FindingDocument(TypedDict):
    """One check. ``stale``: last checked more than a minute ago."""

    name: str
    part: str
    state: Literal["ok", "bad", "stale"]
    value: str
    meaning: str
    measured_at: str | None


class FindingsDocument(TypedDict):
    """``ok`` if every finding is ``ok``."""

    status: Literal["ok", "bad"]
    findings: list[FindingDocument]


class HealthDocument(TypedDict):
    status: Literal["ok"]
    version: str


class ReadyDocument(TypedDict):
    status: Literal["ready"]
    store: Literal["ok"]
    blobs: Literal["ok"]


class LimitHolderDocument(TypedDict):
    """A task of your tenant that is counted."""

    job_id: str
    stage: str
    element: int
    worker: str
    since: str | None


class LimitKeyDocument(TypedDict):
    """One key of a limit. ``value`` is the user, tenant or parameter; null for users of other tenants.

    ``used`` tasks run now, or started within the window; ``parked`` ones wait, counted up to 1000. ``holders`` are
    those of your tenant. ``free_at`` is when a rate has room again.
    """

    value: str | None
    used: int
    parked: int
    holders: list[LimitHolderDocument]
    free_at: str | None


class LimitVersionDocument(TypedDict):
    """``most`` is null where the limit was reset to the numbers of the pipelines."""

    version: int
    most: int | None
    at: str | None
    by: str
    reason: str


class LimitDocument(TypedDict):
    """A limit on tasks of all jobs. ``by`` is ``user``, ``tenant``, ``params.NAME`` or ``name``.

    ``window_seconds`` is null if it counts what runs at once. ``declared`` are the numbers of the pipelines in
    ``pipelines``; ``set`` is the version in force that an operator has made, which replaces them.
    """

    name: str
    by: str
    window_seconds: float | None
    declared: list[int]
    pipelines: list[str]
    set: LimitVersionDocument | None
    version: int
    versions: list[LimitVersionDocument]
    used: int
    parked: int
    keys: list[LimitKeyDocument]


class LimitsPage(TypedDict):
    items: list[LimitDocument]
    next: None
