"""Frees the stages of expired leases and of dead workers, ends runs past their deadline, and records lost workers."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Generic, TypeVar

from packhorse import host
from packhorse.background.steady_clock import DOUBT, SteadyClock
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Status
from packhorse.errors import Conflict, Refused, StoreError, StoreUnavailable, UnknownOutcome
from packhorse.jobs.transact import Transactor, Verb
from packhorse.log import log, traced
from packhorse.store.base import Filter, Lease, Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import MOST_NAMED, Lost, Work, WorkerCard, put_bookmark

K = TypeVar("K", bound=Hashable)
_Key = tuple[str, TaskId, str | None]
"""An attempt: its job, task and token."""

BATCH = 100
MOST = 20 * BATCH
"""Read at a time, at most. If so many cannot be changed, those behind them have to wait."""
WATCH = "reaper"
AHEAD = 60.0
"""Seconds by which a worker's clock may be ahead of the store's before the reaper restarts its delays."""
LONG, TIMES = 3600.0, 10
"""Seconds, and lease periods. A lease that ends later than both from now was granted by a clock that was ahead."""
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

    def log(self, work: str) -> None:
        for error in self._errors[:1]:
            log.background_failed(work, error)


class Reaper:
    """After a gap of its own, or a jump of the clock, it takes no lease away for one lease period.

    Otherwise the first reaper after an outage would find all leases expired and cost every stage an attempt, a moment
    before the workers renew. Each lease is seen overdue twice before it is taken: a claim that the store made late may
    be overdue when it appears, and its worker, which had given it up, hands it back without costing an attempt.
    """

    def __init__(
        self,
        store: Store,
        transact: Transactor,
        lease: float,
        monotonic: Callable[[], float] = time.monotonic,
        clock: SteadyClock | None = None,
    ) -> None:
        self._store = store
        self._transact = transact
        self._lease = lease
        self._monotonic = monotonic
        self._clock = clock or SteadyClock(lease, monotonic)
        self._overdue = _Pages[_Key](monotonic, lease / 20, lease)
        self._expired = _Pages[str](monotonic, 0.0, lease)
        self._future = _Pages[_Key](monotonic, 0.0, lease)
        self._long_leases = _Pages[_Key](monotonic, lease, lease)
        self._next_check = self._next_correction = monotonic() + lease
        self._checked_until: str | None = None
        """The job after which the next page of the check begins."""

    async def tick(self) -> float:
        # A write: in a store that can only be read, as on a full disk, nobody can renew either.
        await put_bookmark(self._store, WATCH, "")
        asked = self._clock.monotonic()
        overdue = await self._store.overdue(self._overdue.limit())
        self._clock.observe(overdue.now, asked)  # of the same read: after a jump before it, all would be overdue
        found = {(job.id, task, _token(job, task)): (job, task) for job, task in overdue.tasks}
        ripe = self._overdue.ripe(found)
        has_more = False
        stuck = StuckJobs()
        if self._clock.steady_for() >= self._lease:
            await self._lose({key: found[key] for key in ripe}, stuck)
            has_more = self._overdue.has_more
        if (now := self._clock.now(after=self._lease)) is not None:
            has_more = await self._expire(now, stuck) or has_more
            has_more = await self._correct_times(now, stuck) or has_more
        await self._check_leases(stuck)
        stuck.raise_first()
        return 0.0 if has_more else self._lease / 10

    async def _lose(self, overdue: Mapping[_Key, tuple[Job, TaskId]], stuck: StuckJobs) -> None:
        for key, (job, task) in overdue.items():
            with stuck.collect(), self._overdue.set_aside(key), traced(job.trace_id):
                # It may be renewed or finished since: the change is guarded by "still overdue".
                if await self._transact.end_attempt(job, task, lifecycle.lose):
                    log.lease_overdue(job.id, task.stage)
                elif key[2] is None:
                    await self._repair(job, partial(lifecycle.drop_lease, at=task, now=self._store.now()))
                else:
                    self._overdue.rest(key)

    async def _expire(self, now: float, stuck: StuckJobs) -> bool:
        """By the time that was observed, and not by what the store says next: that read may be the wrong one."""
        found = {job.id: job for job in await self._store.expired(self._expired.limit())}
        for job_id in self._expired.ripe(found):
            with stuck.collect(), self._expired.set_aside(job_id):
                if not await self._change(job_id, partial(lifecycle.expire, now=now)):
                    self._expired.rest(job_id)
        return self._expired.has_more

    async def _correct_times(self, now: float, stuck: StuckJobs) -> bool:
        """Once per lease, correct what was written while the store's clock was ahead, maybe for a moment."""
        if self._monotonic() < self._next_correction:
            return False
        await self._shorten_leases(now, stuck)
        has_more = await self._restart_delays(now, stuck)
        if not has_more:
            self._next_correction = self._monotonic() + self._lease
        return has_more

    async def _shorten_leases(self, now: float, stuck: StuckJobs) -> None:
        """Let leases that end far in the future end in one lease, unless their worker renews them, as it would anyway.

        If a worker dies in the moment in which the clock is days ahead, its leases would last for days.
        """
        late = await self._store.overdue(self._long_leases.limit(), leased_after=now + max(LONG, TIMES * self._lease))
        found = {(job.id, task, _token(job, task)): (job, task) for job, task in late.tasks}
        ripe = self._long_leases.ripe(found)
        held = [Lease(job_id, task, token) for job_id, task, token in ripe if token is not None]
        if held:
            await self._store.renew(held, self._lease)
            log.leases_shortened(len(held))
        for key in ripe:
            if key[2] is None:
                job, task = found[key]
                with stuck.collect(), self._long_leases.set_aside(key):
                    await self._repair(job, partial(lifecycle.drop_lease, at=task, now=self._store.now()))

    async def _restart_delays(self, now: float, stuck: StuckJobs) -> bool:
        """Restart the delay of tasks that were queued in the future: the store's clock was ahead, maybe for a moment.

        A retry that waits for seconds would otherwise wait until the clock says again what it said then.
        """
        late = await self._store.overdue(self._future.limit(), queued_after=now + AHEAD)
        found: dict[_Key, tuple[Job, TaskId]] = {(job.id, task, None): (job, task) for job, task in late.tasks}
        for key in self._future.ripe(found):
            job, task = found[key]
            with stuck.collect(), self._future.set_aside(key), traced(job.trace_id):
                if await self._change(job.id, partial(lifecycle.restart_delay, at=task, now=now)):
                    log.delay_restarted(job.id, task.stage)
                else:
                    self._future.rest(key, DOUBT)  # as it is, unless the clock jumps
        return self._future.has_more

    async def _check_leases(self, stuck: StuckJobs) -> None:
        """Return tasks to the queue that run under a token without a lease, which nothing else ends. A page per call.

        Records and leases are written together, so this takes a fault of the store, such as a failover that went wrong.
        """
        if self._monotonic() < self._next_check:
            return
        self._next_check = self._monotonic() + self._lease
        page = await self._store.find(Filter(status=Status.RUNNING), before=self._checked_until, limit=BATCH)
        self._checked_until = page[-1].id if len(page) == BATCH else None
        held = {
            Lease(job.id, at, token): job for job in page for at in job.running_tasks() if (token := _token(job, at))
        }
        for lease in (await self._store.renew(list(held), None)).lost if held else ():
            with stuck.collect():
                verb = partial(lifecycle.repair, at=lease.task, token=lease.token, now=self._store.now())
                await self._repair(held[lease], verb)

    async def _repair(self, job: Job, verb: Verb) -> None:
        """Only if the job is as it was when its lease was looked up: the two change together."""

        def decide(found: Job) -> Change | None:
            return verb(found) if (found.version, found.lineage) == (job.version, job.lineage) else None

        if await self._change(job.id, decide):
            log.lease_repaired(job.id)

    async def _change(self, job_id: str, verb: Verb) -> bool:
        """Whether the verb has changed the job; False if there was nothing to do, or somebody else was faster."""
        change: Change | None = None

        def decide(found: Job) -> Change | None:
            nonlocal change
            change = verb(found)
            return change

        with suppress(Conflict, Refused):
            await self._transact(job_id, decide)
            return change is not None
        return False


class _Pages(Generic[K]):
    """Which of the items that a sweep finds to act on, a batch at a time.

    An item is acted on once it has been found for ``grace`` seconds. One that cannot be changed waits for ``rest``
    seconds: a page of them must not hide those behind it.
    """

    def __init__(self, monotonic: Callable[[], float], grace: float, rest: float) -> None:
        self._monotonic = monotonic
        self._grace = grace
        self._rest = rest
        self._not_before: dict[K, float] = {}
        """When each that was found may be acted on."""
        self._limit = 0
        self.has_more = False
        """Whether to look again at once: there was more than fits in a batch."""

    def limit(self) -> int:
        """How many to look for."""
        self._limit = min(BATCH + len(self._not_before), MOST)
        return self._limit

    def ripe(self, found: Collection[K]) -> list[K]:
        now = self._monotonic()
        is_new = any(key not in self._not_before for key in found)
        self._not_before = {key: self._not_before.get(key, now + self._grace) for key in found}
        ripe = [key for key in found if self._not_before[key] <= now]
        self.has_more = len(ripe) > BATCH or (len(found) == self._limit < MOST and (is_new or bool(ripe)))
        return ripe[:BATCH]

    def rest(self, key: K, times: int = 1) -> None:
        self._not_before[key] = self._monotonic() + times * self._rest

    @contextmanager
    def set_aside(self, key: K) -> Iterator[None]:
        """Let it rest if it cannot be changed."""
        try:
            yield
        except StoreError:
            self.rest(key)
            raise


def _token(job: Job, task: TaskId) -> str | None:
    held = job.task(task)
    return None if held is None else held.token


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
        freed = 0
        tried: set[_Key] = set()
        while held := await self._next_held(card, tried):
            for job, task in held:
                with stuck.collect():
                    freed += await self._transact.end_attempt(job, task, lifecycle.lose, witnessed=True)
        stuck.raise_first()
        if card.scratch:
            await asyncio.to_thread(shutil.rmtree, card.scratch, ignore_errors=True)
        await workers.dismiss(self._store, card.id)
        log.worker_lost(card.id, freed)

    async def _next_held(self, card: WorkerCard, tried: set[_Key]) -> list[tuple[Job, TaskId]]:
        """A page of what it holds, without those that were tried, which must not hide the rest. Adds to ``tried``."""
        found = await self._store.held_by(card.id, BATCH + len(tried))
        fresh = [(job, task) for job, task in found if (job.id, task, _token(job, task)) not in tried]
        tried |= {(job.id, task, _token(job, task)) for job, task in fresh}
        return fresh

    async def _record_loss(self, card: WorkerCard) -> None:
        """Record what it held before the stages are freed, so that health can show their outcome."""
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
