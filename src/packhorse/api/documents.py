"""What is answered, as types: one definition for the code that makes it, and for the OpenAPI file that tells of it.

The annotations are no strings here: a TypedDict made of strings does not know which of its members may be left out.
"""

from collections.abc import Mapping
from typing import Any, Literal, NotRequired, TypedDict

from packhorse.core.model import Status, Stopping


class InputDocument(TypedDict):
    """A file that came with the submit."""

    parameter: str
    filename: str
    object_key: str
    size_bytes: int
    sha256: str


class ErrorDocument(TypedDict):
    """Why a job failed."""

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


class JobDocument(PositionDocument):
    """A job, in the one shape it has everywhere. Times are UTC, ISO 8601."""

    job_id: str
    pipeline: str
    user_id: str
    tenant_id: str
    created_by_client_id: str | None
    origin: str
    status: Status
    stopping: Stopping | None
    stages: dict[str, StageDocument]
    parameters: dict[str, Any]
    inputs: list[InputDocument]
    input: InputDocument | None
    source_filename: str | None
    result: Any
    result_object_keys: dict[str, str | list[str]]
    promoted: bool
    promoted_object_keys: list[str]
    error: ErrorDocument | None
    created_at: str | None
    started_at: str | None
    completed_at: str | None
    updated_at: str | None
    expires_at: str | None
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


class JobsPage(TypedDict):
    """Newest first; ``next`` is the cursor of the next page, null on the last."""

    items: list[JobDocument]
    next: str | None


class ArtifactDocument(TypedDict):
    """A file that a stage made; its name is ``{stage}/{name}``, of an element ``{stage}/{element}/{name}``."""

    name: str
    filename: str
    size_bytes: int
    sha256: str
    content_type: str
    object_key: str


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
    errors: NotRequired[list[MistakeDocument]]
