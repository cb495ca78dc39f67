"""Plots and sparklines as geometry: where lines, bars and grid lines go. A template draws them as SVG.

Drawn by the server they need no script, print, and follow the theme by their classes. The box of a plot is as wide as
there is room, so what is written around it is no part of it: text that is stretched with it cannot be read on a phone.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from packhorse.web.widgets import formatting

GAP = 0.1  # between two bars

HEIGHT = 24  # of a sparkline: a row of small bars
STEP = 6  # from one bar to the next; one unit of it is left free
MIDDLE = 14
SHAPES = {
    "completed": (2, 12),
    "failed": (15, 8),
    "cancelled": (15, 4),
    "running": (8, 6),
    "pending": (11, 3),
    "due": (11, 3),
}
"""Where a bar begins, and how tall it is. What never ran is a dash on the line. Colour is never all there is: what went
well stands up, what failed hangs down, and the row says in words what it shows."""
DASH = (13, 2)
LAST = 30  # runs of a schedule that are shown

Values = Sequence[float | None]


class Tick(NamedTuple):
    at: float
    text: str


class Line(NamedTuple):
    name: str
    path: str  # as in the `d` of a path; a gap where there is no value


class Bar(NamedTuple):
    name: str
    x: float
    y: float
    width: float
    height: float
    title: str


class Band(NamedTuple):
    name: str
    x: float
    width: float


class Plot(NamedTuple):
    lines: list[Line]
    bars: list[Bar]
    bands: list[Band]
    ticks: list[Tick]  # on the left, from the top down
    times: list[str]  # below, from the left to the right, with the same room between them
    is_empty: bool


def lines(
    series: Mapping[str, Values],
    times: Sequence[str],
    say: Callable[[float], str],
    *,
    bands: Sequence[tuple[str, float, float]] = (),
    least: float = 0.0,
) -> Plot:
    """One line per series, all as long as ``times``. Bands are from and to, in shares of the width."""
    most = max([value for values in series.values() for value in values if value is not None], default=0.0)
    top = nice(max(most, least))
    drawn = [Line(name, _path(values, top)) for name, values in series.items()]
    shaded = [Band(name, _percent(start), _percent(end - start)) for name, start, end in bands]
    is_empty = all(value is None for values in series.values() for value in values)
    return Plot(drawn, [], shaded, _ticks(top, say), _times(times), is_empty)


def bars(series: Mapping[str, Sequence[float]], times: Sequence[str], say: Callable[[float], str]) -> Plot:
    """One stack per time."""
    count = len(times)
    stacks = [[values[at] for values in series.values()] for at in range(count)]
    top = nice(max([sum(stack) for stack in stacks], default=0.0))
    width = 100 / max(count, 1)
    drawn = []
    for at, stack in enumerate(stacks):
        base = 0.0
        for name, value in zip(series, stack, strict=True):
            if value:
                title = f"{times[at]}: {say(value)} {name}"
                x, y, height = round(at * width, 2), _y(base + value, top), _percent(value / top)
                drawn.append(Bar(name, x, y, round(max(width - GAP, GAP), 2), height, title))
                base += value
    is_empty = not drawn
    return Plot([], drawn, [], _ticks(top, say), _times(times), is_empty)


def nice(most: float) -> float:
    """The next round number, so that the ticks are round too."""
    if most <= 0:
        return 1.0
    size = 10 ** math.floor(math.log10(most))
    return next(float(step * size) for step in (1, 2, 4, 5, 10) if step * size >= most * 0.999999)


def _percent(share: float) -> float:
    return round(100 * share, 2)


def _y(value: float, top: float) -> float:
    return _percent(1 - value / top)


def _path(values: Values, top: float) -> str:
    """A value that stands alone is a short stroke: a line of one point is not seen."""
    step = 1 / max(len(values) - 1, 1)
    parts, is_drawn = [], False
    for at, value in enumerate(values):
        if value is None:
            is_drawn = False
            continue
        x, y = _percent(at * step), _y(value, top)
        parts.append(f"L{x:g} {y:g}" if is_drawn else f"M{x:g} {y:g}h0.01")
        is_drawn = True
    return "".join(parts)


def _ticks(top: float, say: Callable[[float], str]) -> list[Tick]:
    return [Tick(_y(share * top, top), say(share * top)) for share in (1.0, 0.5, 0.0)]


def _times(times: Sequence[str]) -> list[str]:
    """The first, the middle and the last."""
    last = len(times) - 1
    return [times[at] for at in sorted({0, last // 2, last})] if times else []


class Spark(NamedTuple):
    width: int
    height: int
    bars: list[Bar]
    text: str  # what it shows, for those who do not see it
    line: int  # what the bars stand on, or hang from


def runs_spark(items: Sequence[Any]) -> Spark:
    """The last runs of a schedule, the newest on the right; given the newest first."""
    shown = list(reversed(items[:LAST]))
    drawn = []
    for at, run in enumerate(shown, LAST - len(shown)):
        y, height = SHAPES.get(run["status"], DASH)
        drawn.append(Bar(run["status"], at * STEP, y, STEP - 1, height, _run_text(run)))
    return Spark(LAST * STEP, HEIGHT, drawn, _runs_text(shown), MIDDLE)


def _run_text(run: Any) -> str:
    took = "" if run["duration_ms"] is None else f" in {formatting.milliseconds(run['duration_ms'])}"
    many = "" if run["count"] == 1 else f" {run['count']} times"
    return f"{formatting.clock(run['tick'])}: {run['status']}{many}{took}"


def _runs_text(shown: Sequence[Any]) -> str:
    if not shown:
        return "No runs yet"
    counts = Counter(run["status"] for run in shown)
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    if len(shown) == 1:
        return f"The only run: {shown[-1]['status']}"
    return f"Last {len(shown)} runs: {told}; the last one {shown[-1]['status']}"


def trend_spark(trend: Any) -> Spark:
    """Failures by the hour; a thin line where it is not known how many there were."""
    counts: list[int | None] = trend["counts"]
    most = max([each or 0 for each in counts], default=0)
    drawn = []
    for at, count in enumerate(counts):
        age = len(counts) - 1 - at
        hours = f"{age} to {age + 1} h ago" if age else "in the last hour"
        if count is None:
            drawn.append(Bar("unknown", at * STEP, HEIGHT - 3, STEP - 1, 3, f"{hours}: not known"))
        elif count:
            height = max(3, round(count / most * (HEIGHT - 2)))
            drawn.append(
                Bar("count", at * STEP, HEIGHT - height, STEP - 1, height, f"{hours}: {formatting.number(count)}")
            )
    return Spark(len(counts) * STEP, HEIGHT, drawn, _trend_text(counts, trend["is_cut"]), HEIGHT - 1)


def _trend_text(counts: Sequence[int | None], is_cut: bool) -> str:
    known = sum(each or 0 for each in counts)
    if is_cut:
        hours = sum(each is not None for each in counts)
        return f"The newest {formatting.number(known)} are from the last {hours} h; before that is not known"
    return f"In 24 h: {formatting.number(known)}, of these {formatting.number(counts[-1] or 0)} in the last hour"
