"""Statistics from counts and samples: throughput, outcomes, series to plot, and the queues as they are now."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from msgspec import Struct, field

from packhorse.core.failures import HOUR, MAX_TIMES, TREND_HOURS
from packhorse.core.plan import Definition
from packhorse.jobs.explain import is_live
from packhorse.schemas.failures import FailureGroupDocument, group_to_json, trend_to_json
from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.base import get_readable
from packhorse.store.collections.failures import list_times
from packhorse.store.collections.queues import Level, Reading, list_readings
from packhorse.store.collections.workers import WorkerCard, list_definitions, plans_of
from packhorse.store.counters import MINUTE, QUARTER, Tally

MOST_COUNTED = 10_000
"""Tasks counted per queue. This number means at least so many."""
MOST_POINTS = 300
"""Points of a series."""
LOOKED_THROUGH = 50
"""Number of groups, the last seen first, from which the worst are chosen."""
WORST = 5
RECENT = 300.0
"""Seconds over which a queue's throughput and waits are measured."""
DAY = 86_400
ENDS = ("completed", "failed", "cancelled")


class Figures(Struct):
    """Sums of counts."""

    outcomes: Counter[str] = field(default_factory=Counter)
    wait: Counter[int] = field(default_factory=Counter)
    run: Counter[int] = field(default_factory=Counter)
    estimates: Counter[str] = field(default_factory=Counter)
    """First runs that took no longer than the longer time of their estimate (kept), and that did (missed)."""

    def add(self, tally: Tally, count: int) -> None:
        what, is_bucket, number = tally.name.partition(":")
        if not is_bucket:
            self.outcomes[what] += count
        elif what == "wait":
            self.wait[int(number)] += count
        elif what == "run":
            self.run[int(number)] += count
        elif what == "estimate":
            self.estimates[number] += count


class Point(Struct):
    """One step of a series, with the samples taken in it."""

    at: int
    figures: Figures = field(default_factory=Figures)
    levels: list[Level] = field(default_factory=list)
    workers: list[int] = field(default_factory=list)


class Series(Struct, frozen=True):
    step: int
    points: Sequence[Point]
    figures: Figures
    """Of the whole window."""


async def by_queue(store: Store) -> dict[str, Figures]:
    """The last minutes of every queue."""
    found: dict[str, Figures] = {}
    for tally, count in await store.list_tallies(MINUTE, store.now() - RECENT):
        if tally.queue:
            found.setdefault(tally.queue, Figures()).add(tally, count)
    return found


async def count_ended(store: Store) -> tuple[int, int]:
    """Jobs that ended since midnight, UTC, and jobs that failed in the last 24 hours, to a quarter of an hour."""
    now = store.now()
    today, failed = 0, 0
    for tally, count in await store.list_tallies(QUARTER, now - DAY, queue=""):
        if tally.name in ENDS:
            today += count if tally.at >= now // DAY * DAY else 0
            failed += count if tally.name == "failed" else 0
    return today, failed


async def series(
    store: Store, window: float, *, queue: str | None = None, pipeline: str | None = None, with_levels: bool = True
) -> Series:
    """Of jobs, or of the attempts in one queue; with samples of that queue, or of all."""
    now = store.now()
    step = MINUTE if window <= MOST_POINTS * MINUTE else QUARTER
    since = now - window + step  # the current step counts as one
    counts = await store.list_tallies(step, since, queue=queue or "", pipeline=pipeline)
    readings = await list_readings(store, since) if with_levels else []
    points = {at: Point(at) for at in range(int(since // step) * step, int(now) + 1, step)}
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


async def worst_groups(store: Store, tenant: str) -> list[FailureGroupDocument]:
    """Groups with open failures, those that hit most users first, each with its trend."""
    found = [each for each in await store.failure_groups(tenant, limit=LOOKED_THROUGH) if each.open]
    found = sorted(found, key=lambda each: (each.users, each.open), reverse=True)[:WORST]
    now, names = store.now(), [each.fingerprint for each in found]
    times = await list_times(store, tenant, names, since=now - TREND_HOURS * HOUR, limit=MAX_TIMES) if names else []
    documents = [group_to_json(each) for each in found]
    for document, of in zip(documents, times, strict=True):
        document["trend"] = trend_to_json(of, now)
    return documents


# Queues as they are now


class QueueStats(Struct, frozen=True):
    at: float
    cards: Sequence[WorkerCard]
    """All workers."""
    live: Sequence[WorkerCard]
    """Workers with a heartbeat within one lease."""
    queues: Mapping[str, Level]

    @property
    def running(self) -> int:
        return sum(level.running for level in self.queues.values())

    @property
    def waiting(self) -> int:
        return sum(level.ready for level in self.queues.values())

    @property
    def is_capped(self) -> bool:
        """Whether more tasks wait than were counted."""
        return any(level.ready >= MOST_COUNTED for level in self.queues.values())

    @property
    def oldest(self) -> float:
        return max((level.oldest for level in self.queues.values()), default=0.0)


async def queue_stats(store: Store, lease: float) -> QueueStats:
    """The cost does not depend on the number of jobs."""
    now = store.now()
    cards = await workers.list_all(store)
    live = [card for card in cards if is_live(card, now, lease)]
    kinds = kinds_of(await list_definitions(store))
    for queue in (queue for card in live for queue in card.queues):
        kinds.setdefault(queue, set())
    ready = await store.ready(kinds, limit=MOST_COUNTED)
    oldest = await _oldest(store, kinds, now)
    return QueueStats(
        now,
        cards,
        live,
        {
            queue: Level(
                ready=ready[queue],
                oldest=oldest.get(queue, 0.0),
                running=sum(card.busy.get(queue, 0) for card in live),
                slots=sum(card.queues.get(queue, 0) for card in live),
            )
            for queue in sorted(kinds)
        },
    )


def kinds_of(definitions: Sequence[Definition]) -> dict[str, set[str]]:
    """For each queue that a pipeline uses, the kinds of stages in it."""
    found: dict[str, set[str]] = {}
    for plan in plans_of(definitions).values():
        for stage in plan.stages:
            found.setdefault(stage.queue, set()).add(stage.kind)
    return found


async def _oldest(store: Store, kinds: Mapping[str, set[str]], now: float) -> dict[str, float]:
    """For each queue, how long its oldest task has been ready: the first of each kind and priority counts."""
    heads = await store.heads(kinds)
    jobs = await get_readable(store, list({head.job_id for head in heads}))
    found: dict[str, float] = {}
    for head in heads:
        job = jobs.get(head.job_id)
        task = None if job is None else job.task(head.task)
        if task is not None and task.ready_at is not None:
            found[head.queue] = max(found.get(head.queue, 0.0), now - task.ready_at)
    return found
