"""Frees the stages of expired leases and of dead workers, ends runs past their deadline, and records lost workers."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from packhorse import host
from packhorse.core import lifecycle
from packhorse.core.models import Job, TaskId
from packhorse.errors import Conflict, Refused, StoreError, StoreUnavailable, UnknownOutcome
from packhorse.jobs.transact import Transactor
from packhorse.log import log, traced
from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import MOST_NAMED, Lost, Work, WorkerCard, put_bookmark

BATCH = 100
WATCH = "reaper"
MOST_COUNTED = 1000
"""Tasks of a lost worker that are counted."""
PERIOD = 0.5
"""Seconds between checks of the other workers."""
LONG_GONE = 20
"""Leases after which a silent worker of another host, whose process we cannot check, is forgotten."""


class StuckJobs:
    """Collects errors about single jobs: one that cannot be changed must not keep the others from it."""

    def __init__(self) -> None:
        self._errors: list[StoreError] = []

    @contextmanager
    def collect(self) -> Iterator[None]:
        try:
            yield
        except (StoreUnavailable, UnknownOutcome):  # about the store: the next job would have to wait for it too
            raise
        except StoreError as error:
            self._errors.append(error)

    def raise_first(self) -> None:
        if self._errors:
            raise self._errors[0]


class Reaper:
    """After a gap of its own, or a jump of the clock, it takes no lease away for one lease period.

    Otherwise the first reaper after an outage would find all leases expired and cost every stage an attempt, a moment
    before the workers renew.
    """

    def __init__(
        self, store: Store, transact: Transactor, lease: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._transact = transact
        self._lease = lease
        self._monotonic = monotonic
        self._watching_since = monotonic()
        self._last: tuple[float, float] | None = None

    async def tick(self) -> float:
        # A write: in a store that can only be read, as on a full disk, nobody can renew either.
        await put_bookmark(self._store, WATCH, "")
        overdue = await self._store.overdue(BATCH)
        self._check_clock()  # after the read: had the clock jumped before it, all leases would be overdue
        found = 0
        stuck = StuckJobs()
        if self._monotonic() - self._watching_since >= self._lease:
            for job, task in overdue:  # one may be renewed or finished since: the change is guarded by "still overdue"
                with stuck.collect(), traced(job.trace_id):
                    if await self._transact.end_attempt(job, task, lifecycle.lose):
                        log.lease_overdue(job.id, task.stage)
            found = len(overdue)
        expired = await self._store.expired(BATCH)
        for job in expired:
            with stuck.collect(), suppress(Conflict, Refused):
                await self._transact(job.id, lambda job: lifecycle.expire(job, now=self._store.now()))
        stuck.raise_first()
        return 0.0 if BATCH in (found, len(expired)) else self._lease / 10

    def _check_clock(self) -> None:
        wall, steady = self._store.now(), self._monotonic()
        if self._last is not None:
            gap = steady - self._last[1]
            jump = (wall - self._last[0]) - gap
            if abs(jump) > self._lease / 3:
                log.clock_jumped(jump)
            if gap > self._lease / 2 or abs(jump) > self._lease / 3:
                self._watching_since = steady
        self._last = wall, steady


class DeadWorkers:
    """Frees the stages of dead workers of this host at once, and records workers that have fallen silent."""

    def __init__(
        self,
        store: Store,
        transact: Transactor,
        me: WorkerCard,
        lease: float,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._transact = transact
        self._me = me
        self._lease = lease
        self._silence = Silence(lease, monotonic)

    async def tick(self) -> float:
        cards = [card for card in await workers.list_all(self._store) if card.id != self._me.id]
        silent = self._silence.find(cards)
        stuck = StuckJobs()
        for card in cards:
            if self._can_see(card) and not host.is_alive(card.pid, card.born):
                with stuck.collect():
                    await self._free_stages(card)
                continue
            if card.id in silent:
                await self._record_loss(card)
                self._silence.mark_reported(card)
            if not self._can_see(card) and self._store.now() - card.seen_at > LONG_GONE * self._lease:
                await workers.dismiss(self._store, card.id)
        stuck.raise_first()
        return PERIOD

    def _can_see(self, card: WorkerCard) -> bool:
        """Same boot and same pid namespace. A host name would not do: containers share it and machines reuse it."""
        return (card.boot, card.pid_space) == (self._me.boot, self._me.pid_space)

    async def _free_stages(self, card: WorkerCard) -> None:
        """Free its stages before removing its card: without the card, no worker would find what it held."""
        await self._record_loss(card)
        stuck = StuckJobs()
        freed, before = 0, -1
        while freed > before and (held := await self._store.held_by(card.id, BATCH)):
            before = freed
            for job, task in held:
                with stuck.collect():
                    freed += await self._transact.end_attempt(job, task, lifecycle.lose, witnessed=True)
        stuck.raise_first()
        if card.scratch:
            await asyncio.to_thread(shutil.rmtree, card.scratch, ignore_errors=True)
        await workers.dismiss(self._store, card.id)
        log.worker_lost(card.id, freed)

    async def _record_loss(self, card: WorkerCard) -> None:
        """Record what it held before the stages are freed, so that health can show what became of it."""
        held = await self._store.held_by(card.id, MOST_COUNTED)
        work = tuple(work_of(job, task) for job, task in held[:MOST_NAMED])
        facts = (card.id, card.host, card.pid, card.version, card.seen_at)
        await workers.report_lost(self._store, Lost(*facts, self._store.now(), self._me.id, len(held), work))


class Silence:
    """Finds workers without a heartbeat for one lease. A period in which we did not poll does not count."""

    def __init__(self, lease: float, monotonic: Callable[[], float]) -> None:
        self._lease = lease
        self._monotonic = monotonic
        self._heard: dict[str, tuple[float, float]] = {}
        """By worker: its last heartbeat, and since when, by our own clock, there was no later one."""
        self._reported: set[str] = set()
        self._last = monotonic()

    def find(self, cards: list[WorkerCard]) -> set[str]:
        """Those that have fallen silent and are not reported yet."""
        now = self._monotonic()
        known = self._heard if now - self._last <= max(self._lease / 2, 3 * PERIOD) else {}
        self._last = now
        self._heard = {
            card.id: known[card.id] if known.get(card.id, (0.0, 0.0))[0] == card.seen_at else (card.seen_at, now)
            for card in cards
        }
        silent = {id for id, (_, since) in self._heard.items() if now - since > self._lease}
        self._reported &= silent
        return silent - self._reported

    def mark_reported(self, card: WorkerCard) -> None:
        self._reported.add(card.id)


def work_of(job: Job, at: TaskId) -> Work:
    task = job.task(at)
    return Work(job.id, at, 0.0 if task is None else task.started_at or 0.0)
