"""From counts and readings to the numbers people look at: throughput, percentiles, and series short enough to plot."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from msgspec import Struct, field

from packhorse.core.histogram import percentile
from packhorse.store.base import Store
from packhorse.store.collections import readings as reading_records
from packhorse.store.collections.readings import Level, Reading
from packhorse.store.statistics import MINUTE, QUARTER, Tally

MOST_POINTS = 300
"""Of a series."""
RECENT = 300.0
"""Seconds over which a queue's throughput and waits are told."""
DAY = 86_400
ENDS = ("completed", "failed", "cancelled")
SHARES = {"p50": 0.50, "p95": 0.95, "p99": 0.99}

Counted = Iterable[tuple[Tally, int]]


class Figures(Struct):
    """What was counted over some time, added up."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wait: Counter[int] = field(default_factory=Counter)
    run: Counter[int] = field(default_factory=Counter)

    def add(self, tally: Tally, count: int) -> None:
        what, is_bucket, number = tally.name.partition(":")
        if not is_bucket:
            self.outcomes[what] += count
        elif what == "wait":
            self.wait[int(number)] += count
        elif what == "run":
            self.run[int(number)] += count


class Point(Struct):
    """A stretch of a series; ``levels`` are the readings that fall into it."""

    at: int
    figures: Figures = field(default_factory=Figures)
    levels: list[Level] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)


class Series(Struct, frozen=True):
    step: int
    points: Sequence[Point]
    figures: Figures
    """Of the whole window."""


def percentiles(counts: Counter[int]) -> dict[str, float | None]:
    return {name: percentile(counts, share) for name, share in SHARES.items()}


async def by_queue(store: Store) -> dict[str, Figures]:
    """The last minutes of every queue."""
    found: dict[str, Figures] = {}
    for tally, count in await store.tallied(MINUTE, store.now() - RECENT):
        if tally.queue:
            found.setdefault(tally.queue, Figures()).add(tally, count)
    return found


async def ended(store: Store) -> tuple[int, int]:
    """Jobs that have ended since midnight, UTC; and those that have failed in 24 hours, to a quarter of an hour."""
    now = store.now()
    today, failed = 0, 0
    for tally, count in await store.tallied(QUARTER, now - DAY, queue=""):
        if tally.name in ENDS:
            today += count if tally.at >= now // DAY * DAY else 0
            failed += count if tally.name == "failed" else 0
    return today, failed


async def series(store: Store, window: float, *, queue: str | None, pipeline: str | None) -> Series:
    """The jobs of the window, or the attempts in a queue; with how the queue stood, or all of them."""
    now = store.now()
    step = MINUTE if window <= MOST_POINTS * MINUTE else QUARTER
    since = now - window + step  # the stretch that is under way counts as one
    counts = await store.tallied(step, since, queue=queue or "", pipeline=pipeline)
    return _series(step, since, now, counts, await reading_records.list_since(store, since), queue)


def _series(
    step: int, since: float, now: float, counts: Counted, readings: Iterable[Reading], queue: str | None
) -> Series:
    first = int(since // step) * step
    points = {at: Point(at) for at in range(first, int(now) + 1, step)}
    whole = Figures()
    for tally, count in counts:
        if (point := points.get(tally.at)) is not None:
            point.figures.add(tally, count)
            whole.add(tally, count)
    for reading in readings:
        if (point := points.get(reading.at // step * step)) is not None:
            point.levels.append(_level(reading, queue))
            point.workers.append(reading.workers)
    return Series(step, list(points.values()), whole)


def _level(reading: Reading, queue: str | None) -> Level:
    """Of one queue, or of all together."""
    if queue is not None:
        return reading.queues.get(queue, Level())
    levels = reading.queues.values()
    return Level(
        ready=sum(level.ready for level in levels),
        oldest=max((level.oldest for level in levels), default=0.0),
        running=sum(level.running for level in levels),
        slots=sum(level.slots for level in levels),
    )
