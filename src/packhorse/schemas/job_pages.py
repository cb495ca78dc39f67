"""Answers about jobs and pipelines."""

from typing import Any, Literal, NotRequired, TypedDict

from packhorse.schemas.job_documents import ArtifactDocument, JobDocument


class JobsPage(TypedDict):
    """Newest first; ``next`` is the cursor of the next page, null on the last."""

    items: list[JobDocument]
    next: str | None


class CountDocument(TypedDict):
    """How many jobs there are; at least, if so."""

    count: int
    is_at_least: bool


class LeftJobDocument(TypedDict):
    """A job that was left as it is: it is gone, already so, in another status, or its user's slot is taken."""

    job_id: str
    why: str


class ChangedDocument(TypedDict):
    """How many jobs were changed by this request; in a trial, how many would be (at least, if so), and the newest.

    ``left`` counts those that were left as they are, by why; ``named`` shows some of them. ``next`` is the cursor with
    which to go on, null if all is done.
    """

    count: int
    is_at_least: bool
    left: dict[str, int]
    named: list[LeftJobDocument]
    first: list[JobDocument]
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
    """``ahead`` says how many go before it, up to 1000, where it only waits for its turn."""

    code: str
    message: str
    ahead: NotRequired[int]


class ExplainDocument(TypedDict):
    """Why a job is not running now."""

    reasons: list[ReasonDocument]


class StageEstimateDocument(TypedDict):
    """What is left of a stage, and within which time half of its runs have ended, in seconds."""

    seconds: float | None
    usual_seconds: float | None


class EstimateDocument(TypedDict):
    """How much longer a job will run, in seconds, null where there is nothing to tell from.

    Without the time that stages wait for a worker. It is told from ``runs`` of the last three days at least; 0: from
    nothing but the progress that the job reports.
    """

    seconds: float | None
    ends_at: str | None
    runs: int
    stages: dict[str, StageEstimateDocument]


class HistoryPage(TypedDict):
    """Events in order, each with ``n``, ``type``, ``at`` and its facts; ``next`` is the number of the last one, null if
    there are no more.
    """

    items: list[dict[str, Any]]
    next: int | None
