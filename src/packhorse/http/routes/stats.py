"""How it goes: what there is, what runs and waits, and series to plot. Of all tenants together, so for operators."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromQuery, QueryParameter

from packhorse.background.stats import queue_stats
from packhorse.define.durations import seconds
from packhorse.define.validation import invalid
from packhorse.errors import QueueNotFound
from packhorse.http.openapi import refusing
from packhorse.http.services import Tools
from packhorse.jobs.stats import Figures, Point, Series, ended, percentiles, series
from packhorse.schemas.operations import PercentilesDocument, PointDocument, StatsDocument, WindowDocument
from packhorse.schemas.timestamps import iso
from packhorse.store.collections.readings import READINGS_KEPT, Level
from packhorse.store.statistics import MINUTE

Window = Annotated[
    str, QueryParameter(description="How far back the series goes, as 10m or 72h, which is the longest.")
]


@get("/stats", scope="operate", shared=True, responses=refusing(QueueNotFound))
async def stats(
    tools: NamedDependency[Tools],
    window: Window = "1h",
    queue: FromQuery[str | None] = None,
    pipeline: FromQuery[str | None] = None,
) -> StatsDocument:
    """What there is now, and a series of at most 300 points: of jobs, or, if a queue is named, of attempts in it."""
    length = _length(window)
    survey = await queue_stats(tools.store, tools.settings.lease)
    if queue is not None and queue not in survey.queues:
        raise QueueNotFound(queue=queue[:100])
    counts, counted_at = await tools.counts()
    today, failed = await ended(tools.store)
    found = await series(tools.store, length, queue=queue, pipeline=pipeline)
    return {
        "at": iso(survey.at),
        "jobs": {
            "total": counts.active + counts.completed + counts.failed + counts.cancelled,
            "active": counts.active,
            "completed": counts.completed,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
            "capped": list(counts.capped),
            "measured_at": iso(counted_at),
        },
        "running": survey.running,
        "waiting": survey.waiting,
        "waiting_capped": survey.is_capped,
        "oldest_wait_seconds": round(survey.oldest, 3),
        "workers": len(survey.live),
        "slots": sum(level.slots for level in survey.queues.values()),
        "processed_today": today,
        "failed_24h": failed,
        "window": _window(found, length, queue, pipeline),
        "series": [_point(point, found.step) for point in found.points],
    }


def _length(window: str) -> float:
    try:
        length = seconds(window)
    except ValueError as error:
        raise _wrong(str(error)) from None
    if not MINUTE <= length <= READINGS_KEPT:
        raise _wrong("It must be between one minute and 72 hours")
    return length


def _wrong(message: str) -> Exception:
    return invalid("The query is not valid", [{"field": "window", "message": message}])


def _window(found: Series, length: float, queue: str | None, pipeline: str | None) -> WindowDocument:
    return {
        "seconds": length,
        "step_seconds": found.step,
        "queue": queue,
        "pipeline": pipeline,
        "outcomes": dict(found.figures.outcomes),
        "per_minute": per_minute(found.figures, length),
        "wait_seconds": waits(found.figures),
        "run_seconds": _shown(percentiles(found.figures.run)),
    }


def _point(point: Point, step: int) -> PointDocument:
    return {
        "at": iso(point.at),
        "outcomes": dict(point.figures.outcomes),
        "per_minute": per_minute(point.figures, step),
        "wait_seconds": waits(point.figures),
        "run_seconds": _shown(percentiles(point.figures.run)),
        "ready": _most(point.levels, lambda level: level.ready),
        "oldest_seconds": _most(point.levels, lambda level: level.oldest),
        "running": _most(point.levels, lambda level: level.running),
        "workers": min(point.workers, default=None),
    }


def per_minute(figures: Figures, length: float) -> float:
    return round(figures.outcomes.total() * MINUTE / length, 3)


def waits(figures: Figures) -> PercentilesDocument:
    return _shown(percentiles(figures.wait))


def _shown(found: dict[str, float | None]) -> PercentilesDocument:
    p50, p95, p99 = (None if value is None else round(value, 4) for value in found.values())
    return {"p50": p50, "p95": p95, "p99": p99}


def _most(levels: Sequence[Level], of: Callable[[Level], float]) -> float | None:
    """A peak between two points must not be missed; None where nobody has looked."""
    return max((of(level) for level in levels), default=None)
