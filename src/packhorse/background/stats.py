"""Statistics: counts of what this process has done, and samples of how the queues stand.

Counts are kept in memory and added to the store every few seconds. A killed process loses those of its last seconds;
nothing is decided by them.
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
"""Seconds between writes, and of counts that a killed process loses."""
MOST = 10_000
"""Counts kept while the store is away. Further keys are not counted."""

WAIT = [f"wait:{n}" for n in range(LAST + 1)]
RUN = [f"run:{n}" for n in range(LAST + 1)]
"""Names of the buckets, built once."""

Key = tuple[int, str, str, str]
"""The minute, pipeline, queue and name."""


class StatsCounter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: dict[Key, int] = {}

    def attempt_started(self, claim: Claim, queue: str) -> None:
        """Count how long its task had been ready."""
        task = claim.job.task(claim.task)
        if task is not None and task.ready_at is not None:
            now = self._store.now()
            self._add(_minute(now), claim.job.plan.pipeline, queue, WAIT[bucket(now - task.ready_at)])

    def attempt_ended(self, claim: Claim, queue: str, outcome: str, seconds: float) -> None:
        """Count its outcome and how long it took."""
        minute, pipeline = _minute(self._store.now()), claim.job.plan.pipeline
        self._add(minute, pipeline, queue, outcome)
        self._add(minute, pipeline, queue, RUN[bucket(seconds)])

    def run_ended(self, job: Job) -> None:
        """Count its status and times. The wait is counted for first runs only: a person decides when to retry."""
        minute, pipeline = _minute(self._store.now()), job.plan.pipeline
        self._add(minute, pipeline, "", job.status.value)
        if job.started_at is not None and job.completed_at is not None:
            self._add(minute, pipeline, "", RUN[bucket(job.completed_at - job.started_at)])
            if job.run == 1:
                self._add(minute, pipeline, "", WAIT[bucket(job.started_at - max(job.created_at, job.not_before))])
        if job.status is Status.COMPLETED:
            for stage, took in _stage_times(job):
                self._add(minute, pipeline, STAGES, f"{stage}:{bucket(took)}")

    def _add(self, *key: *Key) -> None:
        count = self._counts.get(key, 0)
        if count or len(self._counts) < MOST:
            self._counts[key] = count + 1

    async def tick(self) -> float:
        await self.flush()
        return PERIOD

    async def flush(self) -> None:
        """Nothing is added twice: counts whose write may have succeeded are dropped."""
        counts, self._counts = self._counts, {}
        if not counts:
            return
        try:
            await self._store.tally(_by_step(counts))
        except UnknownOutcome:
            raise
        except StoreError:
            self._counts = Counter(counts) + Counter(self._counts)
            raise


def _minute(now: float) -> int:
    return int(now) // MINUTE * MINUTE


def _stage_times(job: Job) -> Iterator[tuple[str, float]]:
    """From the first start of a stage to its end, with all its attempts and elements. Stages that an earlier run has
    done are left out.
    """
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        began = min((task.started_at for task in stage.tasks or () if task.started_at is not None), default=None)
        ended = max((task.ended_at for task in stage.tasks or () if task.ended_at is not None), default=None)
        if began is not None and ended is not None and began >= (job.started_at or 0.0):
            yield plan.name, ended - began


def _by_step(counts: Mapping[Key, int]) -> dict[Tally, int]:
    """By minute and by quarter of an hour; for stages by quarter only."""
    found: Counter[Tally] = Counter()
    for (minute, pipeline, queue, name), count in counts.items():
        for step in (QUARTER,) if queue == STAGES else (MINUTE, QUARTER):
            found[Tally(step, minute // step * step, pipeline, queue, name)] += count
    return found


MOST_COUNTED = 10_000
"""Tasks counted per queue. This number means at least so many."""
JITTER = 5.0
"""Seconds over which workers spread their sample of a minute: the first one spares the others the work."""


class QueueStats(Struct, frozen=True):
    at: float
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
