"""CPU and memory of a job over its time: what all its tasks used together, with the stages behind it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from packhorse.web.widgets import formatting, plots
from packhorse.web.widgets.timeline import Row

POINTS = 120


def plotted(
    series: Sequence[Any], rows: Mapping[str, Row], begin: str | None, end: str | None
) -> dict[str, plots.Plot]:
    """From the begin of the run to its end, or to now."""
    first, last = formatting.moment(begin), formatting.moment(end) or datetime.now(UTC)
    if first is None or not series:
        return {}
    step = max((last - first).total_seconds(), 0.001) / (POINTS - 1)
    tasks = [[(_seconds(each["at"], first), each) for each in one["samples"]] for one in series]
    at = [step * number for number in range(POINTS)]
    times = [datetime.fromtimestamp(first.timestamp() + each, UTC).strftime("%H:%M:%S") for each in at]
    bands = [(name, row.start, row.end) for name, row in rows.items() if row.start is not None and row.end is not None]

    def drawn(what: str, say: Any, least: float) -> plots.Plot:
        values = {what: [_together(tasks, each, what) for each in at]}
        return plots.lines(values, times, say, bands=bands, least=least)

    return {"cpu": drawn("cpu", lambda cores: f"{cores:g}", 0.1), "memory": drawn("memory_bytes", formatting.size, 1.0)}


def _seconds(at: str, first: datetime) -> float:
    found = formatting.moment(at)
    return 0.0 if found is None else (found - first).total_seconds()


def _together(tasks: Sequence[Sequence[tuple[float, Any]]], at: float, what: str) -> float | None:
    """Of all tasks that were being measured then; None if there was none."""
    found = [_latest(samples, at, what) for samples in tasks if samples and samples[0][0] <= at <= samples[-1][0]]
    return sum(found) if found else None


def _latest(samples: Sequence[tuple[float, Any]], at: float, what: str) -> float:
    value: float = next(sample[what] for when, sample in reversed(samples) if when <= at)
    return value
