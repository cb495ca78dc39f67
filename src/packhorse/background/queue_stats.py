"""How the queues stand: asked by whoever wants to know, and read down once a minute by whichever worker comes first."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from msgspec import Struct

from packhorse.jobs.explain import is_live
from packhorse.jobs.tolerant_reads import plans_of, readable
from packhorse.store.base import Definition, Store, WorkerCard
from packhorse.store.statistics import MINUTE, Level, Reading

MOST_COUNTED = 10_000
"""Tasks in a queue that are counted; a number as high as this means at least so many."""
JITTER = 5.0
"""Seconds over which workers spread their look at a new minute: the first to come spares the others the work."""


class Survey(Struct, frozen=True):
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


async def surveyed(store: Store, lease: float) -> Survey:
    """Costs the same however many jobs there are."""
    now = store.now()
    live = [card for card in await store.workers() if is_live(card, now, lease)]
    kinds = kinds_of(await store.definitions())
    for queue in (queue for card in live for queue in card.queues):
        kinds.setdefault(queue, set())
    ready = await store.ready(kinds, limit=MOST_COUNTED)
    oldest = await _oldest(store, kinds, now)
    return Survey(
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
    jobs = await readable(store, list({head.job_id for head in heads}))
    found: dict[str, float] = {}
    for head in heads:
        job = jobs.get(head.job_id)
        task = None if job is None else job.task(head.task)
        if task is not None and task.ready_at is not None:
            found[head.queue] = max(found.get(head.queue, 0.0), now - task.ready_at)
    return found


class Surveyor:
    def __init__(self, store: Store, lease: float) -> None:
        self._store = store
        self._lease = lease

    async def tick(self) -> float:
        at = int(self._store.now() // MINUTE) * MINUTE
        if not any(reading.at == at for reading in await self._store.readings(at)):
            survey = await surveyed(self._store, self._lease)
            await self._store.read(Reading(at, len(survey.live), survey.queues))
        return max(0.0, at + MINUTE - self._store.now()) + random.uniform(0.0, JITTER)  # noqa: S311
