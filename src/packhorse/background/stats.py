"""Statistics: counts of what this process has done, and samples of how the queues stand.

Counts are kept in memory and added to the store every few seconds. A killed process loses those of its last seconds;
nothing is decided by them.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterator, Mapping
from math import inf

from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.errors import StoreError, UnknownOutcome
from packhorse.jobs.explain import STAGES, Past, past_durations, promised_seconds
from packhorse.jobs.stats import queue_stats
from packhorse.store.base import Claim, Store
from packhorse.store.collections.queues import Reading, add_reading, list_readings
from packhorse.store.counters import LAST_BUCKET, MINUTE, QUARTER, Tally, duration_bucket

PERIOD = 3.0
"""Seconds between writes, and of counts that a killed process loses."""
PAST_FRESH = 60.0
"""Seconds for which the times of earlier runs are used again, to judge estimates by them."""
JUDGED = 50
"""Pipelines whose estimates this process judges."""
ESTIMATES = {True: "estimate:kept", False: "estimate:missed"}
"""Whether a run took no longer than the longer time of its estimate."""
MOST = 10_000
"""Counts kept while the store is away. Further keys are not counted."""

WAIT = [f"wait:{n}" for n in range(LAST_BUCKET + 1)]
RUN = [f"run:{n}" for n in range(LAST_BUCKET + 1)]
"""Names of the buckets, built once."""

Key = tuple[int, str, str, str]
"""The minute, pipeline, queue and name."""


class StatsCounter:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: dict[Key, int] = {}
        self._past: dict[str, tuple[Past, float]] = {}
        """Of pipelines whose jobs end here, and when it was read. A run is judged by what was known before it ended."""

    def attempt_started(self, claim: Claim, queue: str) -> None:
        """Count how long its task had been ready."""
        task = claim.job.task(claim.task)
        if task is not None and task.ready_at is not None:
            now = self._store.now()
            self._add(_minute(now), claim.job.plan.pipeline, queue, WAIT[duration_bucket(now - task.ready_at)])

    def attempt_ended(self, claim: Claim, queue: str, outcome: str, seconds: float) -> None:
        """Count its outcome and how long it took."""
        minute, pipeline = _minute(self._store.now()), claim.job.plan.pipeline
        self._add(minute, pipeline, queue, outcome)
        self._add(minute, pipeline, queue, RUN[duration_bucket(seconds)])

    def run_ended(self, job: Job) -> None:
        """Count its status and times. The wait is counted for first runs only: a person decides when to retry."""
        minute, pipeline = _minute(self._store.now()), job.plan.pipeline
        self._add(minute, pipeline, "", job.status.value)
        if job.started_at is not None and job.completed_at is not None:
            self._add(minute, pipeline, "", RUN[duration_bucket(job.completed_at - job.started_at)])
            if job.run == 1:
                self._add(
                    minute, pipeline, "", WAIT[duration_bucket(job.started_at - max(job.created_at, job.not_before))]
                )
        if job.status is Status.COMPLETED:
            for stage, took in _stage_times(job):
                self._add(minute, pipeline, STAGES, f"{stage}:{duration_bucket(took)}")
            self._judge_estimate(job, minute)

    def _judge_estimate(self, job: Job, minute: int) -> None:
        """Of first runs: a retry keeps what has completed."""
        pipeline = job.plan.pipeline
        past, _ = self._past.get(pipeline, (None, 0.0))
        if past is None and len(self._past) < JUDGED:
            self._past[pipeline] = {}, -inf
        if not past or job.run > 1 or job.started_at is None or job.completed_at is None:
            return
        most = promised_seconds(job, past, job.started_at)
        if most is not None:
            took = job.completed_at - job.started_at
            self._add(minute, pipeline, "", ESTIMATES[duration_bucket(took) <= duration_bucket(most)])

    def _add(self, *key: *Key) -> None:
        count = self._counts.get(key, 0)
        if count or len(self._counts) < MOST:
            self._counts[key] = count + 1

    async def tick(self) -> float:
        await self.flush()
        now = self._store.now()
        for pipeline in [name for name, (_, at) in self._past.items() if now - at >= PAST_FRESH]:
            self._past[pipeline] = await past_durations(self._store, pipeline), now
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


JITTER = 5.0
"""Seconds over which workers spread their sample of a minute: the first one spares the others the work."""


class QueueSampler:
    def __init__(self, store: Store, lease: float) -> None:
        self._store = store
        self._lease = lease

    async def tick(self) -> float:
        at = int(self._store.now() // MINUTE) * MINUTE
        if not any(reading.at == at for reading in await list_readings(self._store, at)):
            survey = await queue_stats(self._store, self._lease)
            await add_reading(self._store, Reading(at, len(survey.live), survey.queues))
        rest = max(0.0, at + MINUTE - self._store.now()) + random.uniform(0.0, JITTER)  # noqa: S311
        return min(rest, MINUTE / 2)  # a background task that has not run for a minute is reported as late
