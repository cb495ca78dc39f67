"""What a worker publishes about itself: its identity, what it runs, and how its host is. Also its heartbeat."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path

import psutil
from msgspec.structs import replace

from packhorse import host
from packhorse.errors import SettingError
from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import MOST_NAMED, Machine, Work, WorkerCard
from packhorse.version import VERSION
from packhorse.worker.attempt import Attempt


def new_card(queues: dict[str, int], kinds: Collection[str], scratch: Path) -> WorkerCard:
    name = f"{socket.gethostname()}-{os.getpid()}-{secrets.token_hex(4)}"
    born = host.born(os.getpid())
    assert born is not None
    return WorkerCard(
        id=name,
        host=socket.gethostname(),
        boot=host.boot(),
        pid_space=host.pid_space(),
        pid=os.getpid(),
        born=born,
        version=VERSION,
        queues=queues,
        scratch=str(scratch.absolute() / name),
        kinds=tuple(sorted(kinds)),
    )


def check_queues(wanted: Mapping[str, int], known: Sequence[str]) -> None:
    """Raises SettingError for a misspelt queue, which would never get a job."""
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SettingError(
            f"No stage of this app uses the queue {unknown[0]!r}; they use {', '.join(known)}.",
            name="queues",
            value=wanted,
        )


PERIOD = 4.0
"""Seconds between heartbeats, however long a lease is: the usage of a host is shown as fresh for ten."""


class WorkerInfo:
    def __init__(self, card: WorkerCard, now: Callable[[], float]) -> None:
        self.beats: dict[str, float] = {}
        """When each background task last did a step without an error, by the monotonic clock."""
        self._card = replace(card, started_at=now())
        self._now = now
        psutil.cpu_percent(None)  # the next call measures since this one

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


class Heartbeat:
    """Publishes the card between renewals, where leases are so long that renewals are too rare."""

    def __init__(self, store: Store, card: Callable[[], WorkerCard], lease: float) -> None:
        self._store = store
        self._card = card
        self._is_needed = lease / 3 > PERIOD

    async def tick(self) -> float:
        if self._is_needed:
            await workers.enroll(self._store, self._card())
        return PERIOD


def _work(attempt: Attempt) -> Work:
    claim = attempt.claim
    task = claim.job.task(claim.task)
    return Work(claim.job.id, claim.task, 0.0 if task is None else task.started_at or 0.0)


def _machine(now: float) -> Machine:
    memory = psutil.virtual_memory()
    used, cores = psutil.cpu_percent(None) / 100, psutil.cpu_count() or 1
    return Machine(now, used, cores, memory.total - memory.available, memory.total)
