"""Plots as geometry: where lines, bars and grid lines go, in percent of a box. A template draws them as SVG.

Drawn by the server they need no script, print, and follow the theme by their classes. The box is as wide as there is
room, so what is written around it is no part of it: text that is stretched with a plot cannot be read on a phone.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

GAP = 0.1
"""Between two bars."""

Values = Sequence[float | None]


class Tick(NamedTuple):
    at: float
    text: str


class Line(NamedTuple):
    name: str
    path: str
    """As in the ``d`` of a path; a gap where there is no value."""


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
    ticks: list[Tick]
    """On the left, from the top down."""
    times: list[str]
    """Below, from the left to the right, with the same room between them."""
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
