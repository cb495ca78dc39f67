"""Counts what this process has done, in memory, and adds it to the store's statistics every few seconds.

A process that is killed takes the counts of its last seconds along: they are statistics, nothing is decided by them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

from msgspec import Struct

from packhorse.core.histogram import LAST, bucket
from packhorse.core.models import Job
from packhorse.core.plan import Definition, Status
from packhorse.errors import StoreError, UnknownOutcome
from packhorse.jobs.estimate import STAGES
from packhorse.jobs.explain import is_live
from packhorse.store.base import Claim, Store
from packhorse.store.collections import definitions as definition_records
from packhorse.store.collections import readings, workers
from packhorse.store.collections.readings import Level, Reading
from packhorse.store.collections.workers import WorkerCard
from packhorse.store.statistics import MINUTE, QUARTER, Tally
from packhorse.store.tolerant_reads import get_readable, plans_of

PERIOD = 3.0
"""Seconds between writes, and what a killed process has counted for nothing."""
MOST = 10_000
"""Counts that wait for a store that is away; those that come behind are not begun."""

WAIT = [f"wait:{n}" for n in range(LAST + 1)]
RUN = [f"run:{n}" for n in range(LAST + 1)]
"""Names of the buckets, made once."""

Key = tuple[int, str, str, str]
"""The minute, pipeline, queue and name."""


class StatsCounter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: dict[Key, int] = {}

    def attempt_started(self, claim: Claim, queue: str) -> None:
        """An attempt was started, after its task had been ready for so long."""
        task = claim.job.task(claim.task)
        if task is not None and task.ready_at is not None:
            now = self._store.now()
            self._add(_minute(now), claim.job.plan.pipeline, queue, WAIT[bucket(now - task.ready_at)])

    def attempt_ended(self, claim: Claim, queue: str, outcome: str, seconds: float) -> None:
        """An attempt has ended so, after so long in its slot."""
        minute, pipeline = _minute(self._store.now()), claim.job.plan.pipeline
        self._add(minute, pipeline, queue, outcome)
        self._add(minute, pipeline, queue, RUN[bucket(seconds)])

    def run_ended(self, job: Job) -> None:
        """A run has ended. How long it waited is told of the first only: who retries decides when."""
        minute, pipeline = _minute(self._store.now()), job.plan.pipeline
        self._add(minute, pipeline, "", job.status.value)
        if job.started_at is not None and job.completed_at is not None:
            self._add(minute, pipeline, "", RUN[bucket(job.completed_at - job.started_at)])
            if job.run == 1:
                self._add(minute, pipeline, "", WAIT[bucket(job.started_at - max(job.created_at, job.not_before))])
        if job.status is Status.COMPLETED:
            for stage, took in _took(job):
                self._add(minute, pipeline, STAGES, f"{stage}:{bucket(took)}")

    def _add(self, *key: *Key) -> None:
        count = self._counts.get(key, 0)
        if count or len(self._counts) < MOST:
            self._counts[key] = count + 1

    async def tick(self) -> float:
        await self.flush()
        return PERIOD

    async def flush(self) -> None:
        """Nothing is added twice: what may have been written although nobody said so is not written again."""
        counts, self._counts = self._counts, {}
        if not counts:
            return
        try:
            await self._store.tally(_in_both(counts))
        except UnknownOutcome:
            raise
        except StoreError:
            self._counts = Counter(counts) + Counter(self._counts)
            raise


def _minute(now: float) -> int:
    return int(now) // MINUTE * MINUTE


def _took(job: Job) -> Iterator[tuple[str, float]]:
    """From the first start of a stage to its end, with all its attempts and elements. What an earlier run has done is
    not told again.
    """
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        began = min((task.started_at for task in stage.tasks or () if task.started_at is not None), default=None)
        ended = max((task.ended_at for task in stage.tasks or () if task.ended_at is not None), default=None)
        if began is not None and ended is not None and began >= (job.started_at or 0.0):
            yield plan.name, ended - began


def _in_both(counts: Mapping[Key, int]) -> dict[Tally, int]:
    """By minute, and by quarter of an hour; nobody asks for the stages of a minute."""
    found: Counter[Tally] = Counter()
    for (minute, pipeline, queue, name), count in counts.items():
        for step in (QUARTER,) if queue == STAGES else (MINUTE, QUARTER):
            found[Tally(step, minute // step * step, pipeline, queue, name)] += count
    return found


MOST_COUNTED = 10_000
"""Tasks in a queue that are counted; a number as high as this means at least so many."""
JITTER = 5.0
"""Seconds over which workers spread their look at a new minute: the first to come spares the others the work."""


class QueueStats(Struct, frozen=True):
    at: float
    live: Sequence[WorkerCard]
    """The workers that were heard of within a lease."""
    queues: Mapping[str, Level]

    @property
    def running(self) -> int:
        return sum(level.running for level in self.queues.values())

    @property
    def waiting(self) -> int:
        return sum(level.ready for level in self.queues.values())

    @property
    def is_capped(self) -> bool:
        """Whether more waits than was counted."""
        return any(level.ready >= MOST_COUNTED for level in self.queues.values())

    @property
    def oldest(self) -> float:
        return max((level.oldest for level in self.queues.values()), default=0.0)


async def queue_stats(store: Store, lease: float) -> QueueStats:
    """Costs the same however many jobs there are."""
    now = store.now()
    live = [card for card in await workers.list_all(store) if is_live(card, now, lease)]
    kinds = kinds_of(await definition_records.list_all(store))
    for queue in (queue for card in live for queue in card.queues):
        kinds.setdefault(queue, set())
    ready = await store.ready(kinds, limit=MOST_COUNTED)
    oldest = await _oldest(store, kinds, now)
    return QueueStats(
        now,
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
    """For each queue, since when the oldest of its jobs have been ready: of each kind and priority, the foremost."""
    heads = await store.heads(kinds)
    jobs = await get_readable(store, list({head.job_id for head in heads}))
    found: dict[str, float] = {}
    for head in heads:
        job = jobs.get(head.job_id)
        task = None if job is None else job.task(head.task)
        if task is not None and task.ready_at is not None:
            found[head.queue] = max(found.get(head.queue, 0.0), now - task.ready_at)
    return found


class QueueSampler:
    def __init__(self, store: Store, lease: float) -> None:
        self._store = store
        self._lease = lease

    async def tick(self) -> float:
        at = int(self._store.now() // MINUTE) * MINUTE
        if not any(reading.at == at for reading in await readings.list_since(self._store, at)):
            survey = await queue_stats(self._store, self._lease)
            await readings.add(self._store, Reading(at, len(survey.live), survey.queues))
        return max(0.0, at + MINUTE - self._store.now()) + random.uniform(0.0, JITTER)  # noqa: S311
