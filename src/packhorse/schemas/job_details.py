"""What is shown about a job besides the job: its events, log lines and usage, why it waits, how long it will run."""

from collections.abc import Iterable, Mapping
from typing import Any, NotRequired, TypedDict

from msgspec import Struct

from packhorse.core.models import Event, TaskId
from packhorse.schemas.progress import iso
from packhorse.store.base import Line, Sample


class HistoryPage(TypedDict):
    """Events in order, each with ``n``, ``type``, ``at`` and its details. ``next`` is the number of the last event,
    null on the last page.
    """

    items: list[dict[str, Any]]
    next: int | None


class LineDocument(TypedDict):
    """A line that a stage printed."""

    n: int
    stage: str
    element: int
    attempt: int
    at: str | None
    text: str


class LinesPage(TypedDict):
    """``next`` is the number of the last line, null on the last page."""

    items: list[LineDocument]
    next: int | None


class SampleDocument(TypedDict):
    at: str | None
    cpu: float
    memory_bytes: int


class SeriesDocument(TypedDict):
    """CPU (in cores) and memory that one task used."""

    stage: str
    element: int
    peak_cpu: float
    peak_memory_bytes: int
    samples: list[SampleDocument]


class SeriesPage(TypedDict):
    items: list[SeriesDocument]
    next: None


def event_to_json(event: Event) -> dict[str, Any]:
    facts = dict(event.data)
    due = {"not_before": iso(facts.pop("at"))} if "at" in facts else {}
    return {"n": event.n, "type": event.type, "at": iso(event.at), **facts, **due}


def line_to_json(line: Line) -> LineDocument:
    return {
        "n": line.n,
        "stage": line.task.stage,
        "element": line.task.element,
        "attempt": line.attempt,
        "at": iso(line.at),
        "text": line.text,
    }


def usage_to_json(samples: Iterable[Sample]) -> list[SeriesDocument]:
    """By task, in the order of the first sample."""
    by_task: dict[TaskId, list[Sample]] = {}
    for sample in samples:
        by_task.setdefault(sample.task, []).append(sample)
    return [
        {
            "stage": task.stage,
            "element": task.element,
            "peak_cpu": max(sample.cpu for sample in found),
            "peak_memory_bytes": max(sample.memory for sample in found),
            "samples": [{"at": iso(each.at), "cpu": each.cpu, "memory_bytes": each.memory} for each in found],
        }
        for task, found in by_task.items()
    ]


class FullLimit(Struct, frozen=True):
    """A limit that has no room for a task."""

    name: str
    most: int
    window: float
    """0: it counts what runs at once."""
    used: int
    parked: int
    jobs: tuple[str, ...]
    """Those of the same user that hold it."""
    free_at: float | None
    """When it is expected to have room: of a rate, that is certain."""


class Reason(Struct, frozen=True):
    code: str
    message: str
    ahead: int | None = None  # how many tasks are ahead of it, if that was counted
    limit: FullLimit | None = None


class StageEstimate(Struct, frozen=True):
    """Of one stage, in seconds; None where there is no data."""

    usual: float | None  # the median of its earlier runs
    seconds: float | None  # how much longer it will run
    runs: int
    most: float | None = None  # so much longer at most, in nine of ten cases


class Estimate(Struct, frozen=True):
    seconds: float | None
    most: float | None  # so much longer at most, in nine of ten cases
    runs: int  # how many earlier runs it is based on, at least; 0 if only on the job's own progress
    stages: Mapping[str, StageEstimate]


class FullLimitDocument(TypedDict):
    """A limit that has no room: ``used`` of ``most``, and ``parked`` tasks that wait for it.

    ``jobs`` are those of the same user that hold it. ``free_at`` is when a rate has room again, or when the first
    holder is expected to finish, going by earlier runs of its stage.
    """

    name: str
    most: int
    window_seconds: float | None
    used: int
    parked: int
    jobs: list[str]
    free_at: str | None


class ReasonDocument(TypedDict):
    """``ahead`` is how many tasks are ahead of it, up to 1000, if it only waits for its turn.

    ``limit`` is what it waits for with the code `LIMITED`.
    """

    code: str
    message: str
    ahead: NotRequired[int]
    limit: NotRequired[FullLimitDocument]


class ExplainDocument(TypedDict):
    """Why a job is not running now."""

    reasons: list[ReasonDocument]


class StageEstimateDocument(TypedDict):
    """How much longer a stage will run, and the median of its earlier runs, in seconds."""

    seconds: float | None
    usual_seconds: float | None


class EstimateDocument(TypedDict):
    """How much longer a job will run, in seconds, null if unknown.

    Half of the jobs need no longer than ``seconds``, and nine of ten no longer than ``most_seconds``.

    The time that stages wait for a worker is not included. It is based on at least ``runs`` runs of the last three
    days; 0 means only on the progress that the job reports.
    """

    seconds: float | None
    most_seconds: float | None
    ends_at: str | None
    runs: int
    stages: dict[str, StageEstimateDocument]


def reason_to_json(reason: Reason) -> ReasonDocument:
    document: ReasonDocument = {"code": reason.code, "message": reason.message}
    if reason.ahead is not None:
        document["ahead"] = reason.ahead
    if reason.limit is not None:
        document["limit"] = _limit_to_json(reason.limit)
    return document


def _limit_to_json(limit: FullLimit) -> FullLimitDocument:
    return {
        "name": limit.name,
        "most": limit.most,
        "window_seconds": limit.window or None,
        "used": limit.used,
        "parked": limit.parked,
        "jobs": list(limit.jobs),
        "free_at": None if limit.free_at is None else iso(limit.free_at),
    }


def estimate_to_json(estimate: Estimate, now: float) -> EstimateDocument:
    return {
        "seconds": _round(estimate.seconds),
        "most_seconds": _round(estimate.most),
        "ends_at": None if estimate.seconds is None else iso(now + estimate.seconds),
        "runs": estimate.runs,
        "stages": {
            name: {"seconds": _round(stage.seconds), "usual_seconds": _round(stage.usual)}
            for name, stage in estimate.stages.items()
        },
    }


def _round(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds, 2)
