"""Answers about jobs and pipelines."""

from typing import Any, Literal, TypedDict

from packhorse.shape.documents import ArtifactDocument, JobDocument


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
    """What can be submitted; ``schema`` is the JSON Schema of its parameters. ``statuses`` and ``outputs`` are what the
    app's users call them: see ``alias`` of a job.
    """

    name: str
    app: str
    description: str
    schema: dict[str, Any]
    one_per_user: bool
    statuses: dict[str, str]
    outputs: dict[str, str]
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
