"""What a job recorded while it ran: its events, the lines its stages printed, and what its tasks used."""

from collections.abc import Iterable
from typing import Any, TypedDict

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
