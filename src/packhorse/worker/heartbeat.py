"""What a worker says of itself, as a sign of life: what it has in hand, what its duties do, and how its host is."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping

import psutil
from msgspec.structs import replace

from packhorse.store.base import Store, WorkerCard
from packhorse.store.health import MOST_NAMED, Machine, Work
from packhorse.worker.attempt import Attempt

PERIOD = 4.0
"""Seconds after which it is said again, however long a lease is: what a host uses is shown as fresh for ten."""


class Presence:
    def __init__(self, card: WorkerCard, now: Callable[[], float]) -> None:
        self.beats: dict[str, float] = {}
        """When each duty last did a step without fault, by the steady clock."""
        self._card = replace(card, started_at=now())
        self._now = now
        psutil.cpu_percent(None)  # what is told next is what was used since

    def card(
        self, queues: Mapping[str, int], busy: Counter[str], running: Collection[Attempt], *, is_draining: bool
    ) -> WorkerCard:
        now, steady = self._now(), time.monotonic()
        return replace(
            self._card,
            queues=queues,
            is_draining=is_draining,
            busy={queue: count for queue, count in busy.items() if count},
            work=tuple(_work(attempt) for attempt in list(running)[:MOST_NAMED]),
            duties={name: now - (steady - at) for name, at in self.beats.items()},
            machine=_machine(now),
        )


class Sign:
    """Says it in between, where leases are so long that their renewal says it too seldom."""

    def __init__(self, store: Store, card: Callable[[], WorkerCard], lease: float) -> None:
        self._store = store
        self._card = card
        self._is_needed = lease / 3 > PERIOD

    async def tick(self) -> float:
        if self._is_needed:
            await self._store.enroll(self._card())
        return PERIOD


def _work(attempt: Attempt) -> Work:
    claim = attempt.claim
    task = claim.job.task(claim.task)
    return Work(claim.job.id, claim.task, 0.0 if task is None else task.started_at or 0.0)


def _machine(now: float) -> Machine:
    memory = psutil.virtual_memory()
    used, cores = psutil.cpu_percent(None) / 100, psutil.cpu_count() or 1
    return Machine(now, used, cores, memory.total - memory.available, memory.total)
