"""Sparklines as geometry: a row of small bars, each with what it says. A template draws them as SVG.

Colour is never all there is: what went well stands up, what failed hangs down, and the row says in words what it shows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any, NamedTuple

from packhorse.web.widgets import formatting
from packhorse.web.widgets.plots import Bar

HEIGHT = 24
STEP = 6
"""From one bar to the next; one unit of it is left free."""
MIDDLE = 14
SHAPES = {
    "completed": (2, 12),
    "failed": (15, 8),
    "cancelled": (15, 4),
    "running": (8, 6),
    "pending": (11, 3),
    "due": (11, 3),
}
"""Where a bar begins, and how tall it is. What never ran is a dash on the line."""
DASH = (13, 2)
LAST = 30
"""Runs of a schedule that are shown."""


class Spark(NamedTuple):
    width: int
    height: int
    bars: list[Bar]
    text: str
    """What it shows, for those who do not see it."""
    line: int
    """What the bars stand on, or hang from."""


def runs(items: Sequence[Any]) -> Spark:
    """The last runs of a schedule, the newest on the right; given the newest first."""
    shown = list(reversed(items[:LAST]))
    bars = []
    for at, run in enumerate(shown, LAST - len(shown)):
        y, height = SHAPES.get(run["status"], DASH)
        bars.append(Bar(run["status"], at * STEP, y, STEP - 1, height, _run(run)))
    return Spark(LAST * STEP, HEIGHT, bars, _runs(shown), MIDDLE)


def _run(run: Any) -> str:
    took = "" if run["duration_ms"] is None else f" in {formatting.milliseconds(run['duration_ms'])}"
    many = "" if run["count"] == 1 else f" {run['count']} times"
    return f"{formatting.clock(run['tick'])}: {run['status']}{many}{took}"


def _runs(shown: Sequence[Any]) -> str:
    if not shown:
        return "No runs yet"
    counts = Counter(run["status"] for run in shown)
    told = ", ".join(f"{count} {status}" for status, count in counts.most_common())
    if len(shown) == 1:
        return f"The only run: {shown[-1]['status']}"
    return f"Last {len(shown)} runs: {told}; the last one {shown[-1]['status']}"


def trend(told: Any) -> Spark:
    """Failures by the hour; a thin line where it is not known how many there were."""
    counts: list[int | None] = told["counts"]
    most = max([each or 0 for each in counts], default=0)
    bars = []
    for at, count in enumerate(counts):
        age = len(counts) - 1 - at
        hours = f"{age} to {age + 1} h ago" if age else "in the last hour"
        if count is None:
            bars.append(Bar("unknown", at * STEP, HEIGHT - 3, STEP - 1, 3, f"{hours}: not known"))
        elif count:
            height = max(3, round(count / most * (HEIGHT - 2)))
            bars.append(
                Bar("count", at * STEP, HEIGHT - height, STEP - 1, height, f"{hours}: {formatting.number(count)}")
            )
    return Spark(len(counts) * STEP, HEIGHT, bars, _trend(counts, told["is_cut"]), HEIGHT - 1)


def _trend(counts: Sequence[int | None], is_cut: bool) -> str:
    known = sum(each or 0 for each in counts)
    if is_cut:
        hours = sum(each is not None for each in counts)
        return f"The newest {formatting.number(known)} are from the last {hours} h; before that is not known"
    return f"In 24 h: {formatting.number(known)}, of these {formatting.number(counts[-1] or 0)} in the last hour"
