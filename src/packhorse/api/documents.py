"""What is answered, as types: one definition for the code that makes it, and for the OpenAPI file that tells of it.

The annotations are no strings here: a TypedDict made of strings does not know which of its members may be left out.
"""

from typing import Any, Literal, NotRequired, TypedDict

from packhorse.core.cron import Mark
from packhorse.core.plan import Status
from packhorse.core.terms import Misfire, Overlap
from packhorse.shape.documents import ArtifactDocument as ArtifactDocument
from packhorse.shape.documents import FailureDocument as FailureDocument
from packhorse.shape.documents import FailureGroupDocument as FailureGroupDocument
from packhorse.shape.documents import JobDocument as JobDocument
from packhorse.shape.documents import PositionDocument as PositionDocument
from packhorse.shape.documents import StageDocument as StageDocument


class JobsPage(TypedDict):
    """Newest first; ``next`` is the cursor of the next page, null on the last."""

    items: list[JobDocument]
    next: str | None


class ArtifactsPage(TypedDict):
    items: list[ArtifactDocument]
    next: None


class LineDocument(TypedDict):
    """A line that a stage printed."""

    n: int
    stage: str
    element: int
    attempt: int
    at: str | None
    text: str


class LinesPage(TypedDict):
    """``next`` is the number of the last line, null if there are no more."""

    items: list[LineDocument]
    next: int | None


class SampleDocument(TypedDict):
    at: str | None
    cpu: float
    memory_bytes: int


class SeriesDocument(TypedDict):
    """What one task has used; CPU in cores."""

    stage: str
    element: int
    peak_cpu: float
    peak_memory_bytes: int
    samples: list[SampleDocument]


class SeriesPage(TypedDict):
    items: list[SeriesDocument]
    next: None


class NeedDocument(TypedDict):
    stage: str
    how: Literal["needs", "each", "gather"]


class PlannedDocument(TypedDict):
    name: str
    queue: str
    needs: list[NeedDocument]
    retries: int
    timeout: float


class PipelineDocument(TypedDict):
    """What can be submitted; ``schema`` is the JSON Schema of its parameters."""

    name: str
    app: str
    description: str
    schema: dict[str, Any]
    one_per_user: bool
    stages: list[PlannedDocument]
    published_at: str | None


class PipelinesPage(TypedDict):
    items: list[PipelineDocument]
    next: None


class ReasonDocument(TypedDict):
    code: str
    message: str


class ExplainDocument(TypedDict):
    """Why a job is not running now."""

    reasons: list[ReasonDocument]


class KeyDocument(TypedDict):
    """A key, or a token of one job, without what is secret of it."""

    key_id: str
    tenant_id: str
    scopes: list[str]
    name: str
    user_id: str | None
    job_id: str | None
    created_at: str | None
    created_by: str
    ends_at: str | None
    ended_by: str


class MadeKeyDocument(KeyDocument):
    """A key as it was just made: ``key`` is shown this once."""

    key: str


class KeysPage(TypedDict):
    items: list[KeyDocument]
    next: str | None


class AuditDocument(TypedDict):
    """One line of the audit; ``count`` says how many equal ones it stands for."""

    n: int
    at: str | None
    event: str
    tenant_id: str
    key_id: str
    address: str
    job_id: str
    trace_id: str
    count: int
    details: dict[str, Any]


class AuditPage(TypedDict):
    items: list[AuditDocument]
    next: int | None


class WebhookDocument(TypedDict):
    """Where a tenant is told of ended jobs; ``reason`` is why it is told no more."""

    webhook_id: str
    url: str
    created_at: str | None
    created_by: str
    ended_at: str | None
    reason: str


class NewWebhookDocument(WebhookDocument):
    """The secret is shown this once; with it a receiver can tell that a message is ours."""

    secret: str


class WebhooksPage(TypedDict):
    items: list[WebhookDocument]
    next: None


class DeliveryDocument(TypedDict):
    """A message that waits to be sent, or to be sent again; ``id`` is its ``webhook-id``."""

    id: str
    job_id: str
    run: int
    created_at: str | None
    attempts: int
    next_at: str | None
    error: str


class DeliveriesPage(TypedDict):
    items: list[DeliveryDocument]
    next: None


class TrialDocument(TypedDict):
    """What became of a message that was sent to try a webhook."""

    delivered: bool
    status: int | None
    error: str


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


class TermsDocument(TypedDict):
    """What a schedule says: what is run, for whom and when."""

    pipeline: str
    parameters: dict[str, Any]
    user_id: str
    cron: str
    zone: str
    active: bool
    overlap: Overlap
    misfire: Misfire
    window: float
    labels: dict[str, str]


class DifferenceDocument(TypedDict):
    """A field that differs; of the parameters each is one, as ``parameters.size``. What is not there is null."""

    field: str
    old: Any
    new: Any


class ScheduleDocument(TermsDocument):
    """A schedule; ``drift`` is where people have changed what the app's code declares, null if it declares nothing."""

    schedule_id: str
    tenant_id: str
    version: int
    origin: Literal["code", "person"]
    drift: list[DifferenceDocument] | None
    next_at: str | None
    last_at: str | None
    created_at: str | None
    updated_at: str | None
    updated_by: str
    deleted_at: str | None


class SchedulesPage(TypedDict):
    """By id; ``next`` is the cursor of the next page, null on the last."""

    items: list[ScheduleDocument]
    next: str | None


class VersionDocument(TermsDocument):
    """One version of a schedule, who made it why, and what it changed."""

    version: int
    author: str
    at: str | None
    action: str
    reason: str
    changes: list[DifferenceDocument]


class VersionsPage(TypedDict):
    """Newest first; ``next`` is what to ask for with ``before``, null on the last page."""

    items: list[VersionDocument]
    next: int | None


class DifferencePage(TypedDict):
    items: list[DifferenceDocument]
    next: None


class RunDocument(TypedDict):
    """What became of a tick; of several that nobody was there to run, one for all, with ``count`` and ``until``."""

    schedule_id: str
    tick: str | None
    version: int
    manual: bool
    status: str
    message: str
    job_id: str | None
    trace_id: str | None
    started_at: str | None
    ended_at: str | None
    duration_ms: int | None
    output_url: str | None
    count: int
    until: str | None


class RunsPage(TypedDict):
    """The newest tick first; ``next`` is what to ask for with ``before``, null on the last page."""

    items: list[RunDocument]
    next: float | None


class MomentDocument(TypedDict):
    """A time that a cron line names; ``at`` is null for a local time that no clock shows."""

    at: str | None
    local: str
    mark: Mark
    note: str


class PreviewPage(TypedDict):
    items: list[MomentDocument]
    next: None


class FailuresPage(TypedDict):
    """Newest first; ``next`` is the cursor of the next page, null on the last."""

    items: list[FailureDocument]
    next: str | None


class FailureGroupsPage(TypedDict):
    """The last seen first."""

    items: list[FailureGroupDocument]
    next: str | None


class LeftDocument(TypedDict):
    """A failure that an order has left as it is: its job is gone, or runs, or its user's slot is taken, ..."""

    failure_id: str
    why: str


class OrderDocument(TypedDict):
    """What was ordered about failures, and how far it is; ``left`` counts by reason, ``named`` shows some of them."""

    order_id: str
    kind: Literal["retry", "dismiss"]
    created_at: str | None
    by: str
    reason: str
    pace: float | None
    done: int
    left: dict[str, int]
    named: list[LeftDocument]
    ended_at: str | None


class OrdersPage(TypedDict):
    items: list[OrderDocument]
    next: str | None


class OrderedDocument(TypedDict):
    """How many open failures it is about (at least, if so), the newest of them, and the order unless it is a trial."""

    count: int
    is_at_least: bool
    first: list[FailureDocument]
    order: OrderDocument | None


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


class MistakeDocument(TypedDict):
    """What is wrong with one field; the name is empty if it is the whole."""

    field: str
    message: str


class ProblemDocument(TypedDict):
    """A problem of RFC 9457. Facts of the error, such as ``active_job_id``, stand beside these members."""

    type: str
    title: str
    status: int
    detail: str
    hint: NotRequired[str]
    trace_id: NotRequired[str]
    errors: NotRequired[list[MistakeDocument]]
