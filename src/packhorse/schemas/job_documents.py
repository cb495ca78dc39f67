"""A job as it is shown, as types: one definition for the code that makes it, and for the OpenAPI file that tells of it.

The annotations are no strings here: a TypedDict made of strings does not know which of its members may be left out.
"""

from collections.abc import Mapping
from typing import Any, NotRequired, TypedDict

from packhorse.core.models import FailureStatus, Stopping
from packhorse.core.plan import Status


class InputDocument(TypedDict):
    """A file that came with the submit. In ``input``, also how many each parameter has that takes several:
    ``ref_images_count``.
    """

    parameter: str
    filename: str
    object_key: str
    size_bytes: int
    sha256: str


class ErrorDocument(TypedDict):
    """What went wrong: why a job failed, or, as ``last_error``, the last attempt that did."""

    code: str
    message: str
    stage: str | None
    detail: str | None
    element: NotRequired[int]


class ElementsDocument(TypedDict):
    """How many elements a stage has, and how they stand."""

    total: int
    completed: int
    failed: int
    running: int


class StageDocument(TypedDict):
    """How a stage stands; ``elements`` only of one that runs once per element."""

    status: Status
    progress: float
    current: float | None
    total: float | None
    message: str | None
    attempt: int
    started_at: str | None
    updated_at: str | None
    elements: NotRequired[ElementsDocument]


class TimingDocument(TypedDict):
    started_at: str | None
    completed_at: str | None
    duration_ms: int | None


class PositionDocument(TypedDict):
    """How far a job is; progress is 0 to 100."""

    stage: str | None
    stage_progress: float
    progress: float


class AliasDocument(TypedDict):
    """A job in the words of its app's users: what they call its status, and the keys of its files by their names."""

    status: str
    output: dict[str, str | list[str] | None]


class JobDocument(PositionDocument):
    """A job, in the one shape it has everywhere. Times are UTC, ISO 8601; ``keep`` is in seconds, for each end."""

    job_id: str
    pipeline: str
    user_id: str
    tenant_id: str
    created_by_client_id: str | None
    origin: str
    schedule_id: str | None
    tick: str | None
    status: Status
    stopping: Stopping | None
    stages: dict[str, StageDocument]
    parameters: dict[str, Any]
    inputs: list[InputDocument]
    input: InputDocument | None
    source_filename: str | None
    result: Any
    result_object_keys: dict[str, str | list[str]]
    published_folder: str | None
    promoted: bool
    promoted_object_keys: list[str]
    error: ErrorDocument | None
    error_count: int
    last_error: ErrorDocument | None
    created_at: str | None
    started_at: str | None
    completed_at: str | None
    updated_at: str | None
    expires_at: str | None
    keep: dict[Status, float]
    deadline_at: str | None
    not_before: str | None
    duration_ms: int | None
    stage_timings: dict[str, TimingDocument]
    run: int
    retry_count: int
    priority: int
    trace_id: str
    metadata: Mapping[str, Any]
    version: int
    last_event: int
    alias: AliasDocument | None


class ArtifactDocument(TypedDict):
    """A file that a stage made; its name is ``{stage}/{name}``, of an element ``{stage}/{element}/{name}``."""

    name: str
    filename: str
    size_bytes: int
    sha256: str
    content_type: str
    object_key: str


class SettledDocument(TypedDict):
    """What became of a failure: ``run`` is the one it was retried as, ``order_id`` in whose course."""

    at: str | None
    by: str
    reason: str
    run: int | None
    order_id: str | None


class FailureDocument(TypedDict):
    """A run that failed for good; ``revived`` counts how often its job had been retried by policy before."""

    failure_id: str
    fingerprint: str
    job_id: str
    run: int
    tenant_id: str
    user_id: str
    pipeline: str
    stage: str | None
    error_code: str
    message: str
    attempts: int
    timestamp: str | None
    trace_id: str
    schedule_id: str | None
    status: FailureStatus
    settled: SettledDocument | None
    revived: int
    revived_at_most: int
    revives_at: str | None


class TrendDocument(TypedDict):
    """How many failures there were in each of the last 24 hours, the oldest first.

    Only the newest 200 are counted; what they do not reach back to is null, and ``is_cut`` says so.
    """

    since: str | None
    seconds: float
    counts: list[int | None]
    is_cut: bool


class FailureGroupDocument(TypedDict):
    """Failures with one fingerprint. With ``has_more_users``, ``users`` is the least there are.

    ``trend`` is only there if it was asked for.
    """

    fingerprint: str
    tenant_id: str
    pipeline: str
    stage: str | None
    error_code: str
    message: str
    count: int
    open: int
    retried: int
    resolved: int
    dismissed: int
    users: int
    has_more_users: bool
    first_seen: str | None
    last_seen: str | None
    is_dismissed: bool
    dismissal: SettledDocument | None
    seen_again: str | None
    trend: NotRequired[TrendDocument]
