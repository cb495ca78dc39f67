"""Answers about queues, workers, statistics and health."""

from typing import Literal, TypedDict

from packhorse.core.plan import Status


class PauseDocument(TypedDict):
    at: str | None
    by: str
    reason: str


class PercentilesDocument(TypedDict):
    """In seconds, right within a fifth; null where there is nothing to tell from."""

    p50: float | None
    p95: float | None
    p99: float | None


class QueueDocument(TypedDict):
    """A queue; ``ready`` is counted up to 10000, workers and slots are those that are alive.

    ``oldest_seconds`` is for how long the foremost of its oldest jobs have been ready; throughput (attempts that ended,
    per minute) and waits are those of the last five minutes.
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
    """Jobs that are kept; of those named in ``capped`` there are more than was counted."""

    total: int
    active: int
    completed: int
    failed: int
    cancelled: int
    capped: list[str]
    measured_at: str | None


class WindowDocument(TypedDict):
    """The whole of a series, added up."""

    seconds: float
    step_seconds: int
    queue: str | None
    pipeline: str | None
    outcomes: dict[str, int]
    per_minute: float
    wait_seconds: PercentilesDocument
    run_seconds: PercentilesDocument


class PointDocument(TypedDict):
    """A stretch of a series, of ``step_seconds``; ready, oldest and running are the most that was seen, workers the
    least, null where nobody has looked.
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
    """How it goes. ``processed_today`` has ended since midnight, UTC."""

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
    """A task that a worker has in hand, or had; ``status`` is what its job has come to since."""

    job_id: str
    stage: str
    element: int
    since: str | None
    status: Status | None


class ServedDocument(TypedDict):
    slots: int
    busy: int


class MachineDocument(TypedDict):
    """A worker's host; CPU of all cores together, 0 to 1. Not fresh: it was so, longer ago than ten seconds."""

    measured_at: str | None
    is_fresh: bool
    cpu: float
    cores: int
    memory_bytes: int
    memory_total_bytes: int


class LossDocument(TypedDict):
    """How a worker was lost: ``tasks`` it had in hand were given back, of which ``work`` names the first few."""

    missed_at: str | None
    noticed_by: str
    tasks: int
    work: list[WorkDocument]


class WorkerDocument(TypedDict):
    """A worker. ``silent``: not heard of for a lease; ``lost``: missed by another, and what it held is given back."""

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
    """One line of the self-check. ``stale``: it was so, longer ago than a minute, and nobody has looked since."""

    name: str
    part: str
    state: Literal["ok", "bad", "stale"]
    value: str
    meaning: str
    measured_at: str | None


class FindingsDocument(TypedDict):
    """``ok`` if every finding is."""

    status: Literal["ok", "bad"]
    findings: list[FindingDocument]


class HealthDocument(TypedDict):
    status: Literal["ok"]
    version: str


class ReadyDocument(TypedDict):
    status: Literal["ready"]
    store: Literal["ok"]
    blobs: Literal["ok"]
