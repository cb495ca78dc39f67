"""Counts what this process has done, in memory, and adds it to the store's statistics every few seconds.

A process that is killed takes the counts of its last seconds along: they are statistics, nothing is decided by them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from packhorse.core.histogram import LAST, bucket
from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.errors import StoreError, UnknownOutcome
from packhorse.jobs.estimate import STAGES
from packhorse.store.base import Claim, Store
from packhorse.store.statistics import MINUTE, QUARTER, Tally

PERIOD = 3.0
"""Seconds between writes, and what a killed process has counted for nothing."""
MOST = 10_000
"""Counts that wait for a store that is away; those that come behind are not begun."""

WAIT = [f"wait:{n}" for n in range(LAST + 1)]
RUN = [f"run:{n}" for n in range(LAST + 1)]
"""Names of the buckets, made once."""

Key = tuple[int, str, str, str]
"""The minute, pipeline, queue and name."""


class Tallies:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._counts: dict[Key, int] = {}

    def began(self, claim: Claim, queue: str) -> None:
        """An attempt was started, after its task had been ready for so long."""
        task = claim.job.task(claim.task)
        if task is not None and task.ready_at is not None:
            now = self._store.now()
            self._add(_minute(now), claim.job.plan.pipeline, queue, WAIT[bucket(now - task.ready_at)])

    def carried(self, claim: Claim, queue: str, outcome: str, seconds: float) -> None:
        """An attempt has ended so, after so long in its slot."""
        minute, pipeline = _minute(self._store.now()), claim.job.plan.pipeline
        self._add(minute, pipeline, queue, outcome)
        self._add(minute, pipeline, queue, RUN[bucket(seconds)])

    def ended(self, job: Job) -> None:
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
