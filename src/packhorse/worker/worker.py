"""The supervisor: claims due tasks, has children run them, keeps their leases, and runs no user code itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import shutil
import time
from collections import Counter
from collections.abc import Collection, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from packhorse import metrics
from packhorse.background.alerts import Alerts
from packhorse.background.auto_retry import AutoRetry
from packhorse.background.bulk_actions import BulkActions
from packhorse.background.dead_workers import DeadWorkers
from packhorse.background.declared_schedules import declare
from packhorse.background.health import HealthCheck
from packhorse.background.janitor import Janitor
from packhorse.background.loop import BackgroundTask, run_forever
from packhorse.background.reaper import Reaper
from packhorse.background.scheduler import Scheduler
from packhorse.background.stats import QueueSampler, StatsCounter
from packhorse.background.webhooks import WebhookSender, outbound_for
from packhorse.blobs.base import Blobs
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Definition
from packhorse.core.schedules import Declared
from packhorse.errors import StoreError
from packhorse.jobs.encryption import encryptor
from packhorse.jobs.transact import Transactor
from packhorse.log import log, trace
from packhorse.settings import Settings
from packhorse.store.base import Claim, Lease, Renewal, Store, WorkerCard
from packhorse.worker.attempt import Attempt, Tools, Why
from packhorse.worker.claims import hand_back_orphans, tokens
from packhorse.worker.describe import Description
from packhorse.worker.handoff import Heir, heir
from packhorse.worker.inputs import previous_result
from packhorse.worker.limits import Limits, settled_in
from packhorse.worker.pool import Pool
from packhorse.worker.reporter import Reporter
from packhorse.worker.worker_info import Heartbeat, WorkerInfo, check_queues, new_card

POLL = 0.25
"""Seconds after which a worker looks for due tasks even if nothing told it to: a delay ends without a commit."""
RELOAD = 1.0
"""Seconds between tries to load an app that cannot be loaded any more."""
PAUSES = 0.5
"""Seconds between looks at which queues are paused."""
RETRY = 0.5
"""Seconds between tries while the store is away."""
GC_THRESHOLD = 20_000
"""New objects before a collection of cycles. Python's 700 cost a supervisor a fifth of its time."""


class Worker:
    def __init__(self, store: Store, blobs: Blobs, settings: Settings, described: Description) -> None:
        self._store = store
        self._blobs = blobs
        self._settings = settings
        self._kinds = described.kinds
        self._kinds_of = {queue: tuple(kinds) for queue, kinds in described.queues.items()}
        self._sharing = described.sharing
        self._definitions: Sequence[Definition] = described.definitions
        self._schedules: Sequence[Declared] = described.schedules
        check_queues(settings.queues, list(described.queues))
        self._queues = settings.queues or dict.fromkeys(described.queues, settings.slots)
        self._tokens = tokens()
        self._running: dict[Lease, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._busy: Counter[str] = Counter()
        self._exhausted: set[str] = set()
        """Queues whose last claim found less than there were slots for."""
        self._wake = asyncio.Event()
        self._claiming_now = asyncio.Lock()
        self._paused: frozenset[str] = frozenset()
        self._is_draining = False
        self._is_away = False
        self._is_unsure = False
        """A claim has failed: it may have been made all the same."""
        self._claimed_at = time.monotonic()
        self.card = new_card(self._queues, self._kinds, Path(settings.scratch))
        self._info = WorkerInfo(self.card, store.now)
        self._stats = StatsCounter(store)
        self._transact = Transactor(store, self._stats.ended)
        self._webhooks = WebhookSender(store, outbound_for(settings), settings.secret_key)
        self._reporter = Reporter(store, log_limit=settings.log_limit, samples=settings.samples)
        self._pool = Pool(
            settings.app,
            recycle=settings.recycle,
            memory=settings.recycle_memory,
            grace=settings.grace,
            scratch=Path(self.card.scratch),
            said=log.printed,
        )
        self._limits = Limits(self._running, self._pool, self._reporter, store.now)
        self._tools = Tools(
            blobs=blobs,
            transact=self._transact,
            pool=self._pool,
            reporter=self._reporter,
            scratch=Path(self.card.scratch),
            now=store.now,
            luck=random.random,
            grace=settings.grace,
            result_limit=settings.result_limit,
            log_rate=settings.log_rate,
            encryptor=encryptor(settings.secret_key),
            heir=self._heir,
            begin=self._begin,
            recall=partial(previous_result, store),
        )

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> None:
        """Work until ``stop`` is set, then drain: finish what can be finished in time, hand back the rest.

        ``hurry`` ends the draining: the rest is handed back at once.
        """
        Path(self.card.scratch).mkdir(parents=True)  # noqa: ASYNC240 (once, at the start)
        await self._pool.open()
        await self._store.publish(self._definitions)
        await declare(self._store, self._schedules, self._definitions, encryptor(self._settings.secret_key))
        await self._store.enroll(self._card_now())
        await self._look_at_pauses()
        log.worker_started(self.card.id, self._queues)
        loops = [asyncio.create_task(loop) for loop in self._loops()]
        stopped: asyncio.Task[Any] = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*loops, stopped], return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop.done() and not stop.is_set():
                    loop.result()  # a loop never ends by itself: raise what ended it
            await self._drain(hurry or asyncio.Event())
        finally:
            for loop in [*loops, stopped]:
                loop.cancel()
            await asyncio.gather(*loops, stopped, return_exceptions=True)
            await self._leave()

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    def claim_age(self) -> float:
        """Seconds since the loop that claims has last moved."""
        return time.monotonic() - self._claimed_at

    def slots(self) -> list[tuple[str, int, int]]:
        """By queue: in use, and in all."""
        return [(queue, self._busy[queue], slots) for queue, slots in self._queues.items()]

    def _loops(self) -> list[Coroutine[Any, Any, None]]:
        hold = 2 * self._settings.lease  # of errands: what a dead worker had is taken up as soon as its stages are
        duties: list[BackgroundTask] = [
            Reaper(self._store, self._transact, self._settings.lease),
            DeadWorkers(self._store, self._transact, self.card, self._settings.lease),
            self._janitor(),
            self._webhooks,
            Scheduler(self._store, self._blobs, self._settings, self._transact),
            BulkActions(self._store, self._transact, hold),
            AutoRetry(self._store, self._transact, hold),
            Alerts(self._store, self._settings.alert_command, hold),
            self._stats,
            QueueSampler(self._store, self._settings.lease),
            HealthCheck(self._store, self._blobs, self._settings, self.card.id),
            Heartbeat(self._store, self._card_now, self._settings.lease),
        ]
        loops = [self._claiming(), self._reloading(), self._watching(), self._renewing(), self._limits.limits()]
        return [
            *loops,
            self._pausing(),
            self._limits.samples(),
            self._reporter.work(),
            *(run_forever(duty, self._info.beats) for duty in duties),
        ]

    def _janitor(self) -> Janitor:
        given = self._settings
        return Janitor(self._store, self._blobs, self._transact, given.orphan_after, given.sweep, given.failures_keep)

    # Claiming.

    async def _claiming(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._is_draining:
                return
            try:
                async with self._claiming_now:
                    if self._is_unsure:
                        running = {lease.job_id for lease in self._running}
                        await hand_back_orphans(self._store, self._transact, self.card.id, running)
                        self._is_unsure = False
                    has_more = await self._claim()
                self._claimed_at = time.monotonic()
            except StoreError as error:
                self._is_unsure = True
                await self._away(error)
                self._wake.set()
                continue
            if has_more:
                self._wake.set()

    def _free(self) -> dict[str, int]:
        """Slots by queue; none in one that is paused."""
        return {
            queue: 0 if queue in self._paused else max(0, slots - self._busy[queue])
            for queue, slots in self._queues.items()
        }

    async def _claim(self) -> bool:
        """Take on what there is a slot and a process for; whether to ask again at once.

        What no process can be started for would be handed back, only to be claimed again at once.
        """
        room = self._pool.room()
        if room is None:
            return await self._take(self._free(), self._kinds)
        has_more = room.is_shared and await self._take(self._free(), self._sharing)
        waiting = sum(not attempt.is_sent for attempt in self._running.values())  # who is idle may be meant for them
        alone = _within(self._free(), room.alone - waiting)
        return await self._take(alone, self._kinds - self._sharing) or has_more

    async def _take(self, wants: Mapping[str, int], kinds: Collection[str]) -> bool:
        """Whether a queue had as much as was wanted, and has a slot that became free meanwhile."""
        if not any(wants.values()):
            return False
        claims = await self._store.claim(wants, kinds, self._start)
        self._transact.learn(claim.job for claim in claims)
        found = Counter(self._begin(claim).plan.queue for claim in claims)
        asked = [queue for queue, want in wants.items() if want > 0]
        short = {queue for queue in asked if found[queue] < wants[queue]}
        self._exhausted = self._exhausted.difference(asked) | short
        free = self._free()
        return any(free[queue] > 0 for queue in asked if queue not in short)

    async def _reloading(self) -> None:
        """In a loop of its own: an app may take a minute to fail, and who is warm can take on stages meanwhile."""
        while True:
            await asyncio.sleep(RELOAD)
            if self._pool.room() is not None and any(self._free().values()):
                await self._pool.reload()
                self._wake.set()

    def _start(self, job: Job, task: TaskId) -> Change:
        return lifecycle.start(
            job,
            task,
            token=next(self._tokens),
            worker=self.card.id,
            lease=self._settings.lease,
            now=self._store.now(),
        )

    def _heir(self, claim: Claim) -> Heir | None:
        at = heir(claim, self._kinds_of)
        if at is None:
            return None
        queue = claim.job.plan.stage(at.stage).queue
        return Heir(
            claim,
            at,
            kinds=self._kinds_of[queue],
            token=next(self._tokens),
            worker=self.card.id,
            lease=self._settings.lease,
            now=self._store.now,
            may_start=partial(self._may_start, queue),
        )

    def _may_start(self, queue: str) -> bool:
        return not self._is_draining and queue not in self._paused

    def _begin(self, claim: Claim) -> Attempt:
        attempt = Attempt(claim, self._tools)
        self._running[attempt.lease] = attempt
        self._busy[attempt.plan.queue] += 1
        self._tasks.add(asyncio.create_task(self._carry(attempt)))
        metrics.attempts_started_at(claim.job.plan.pipeline, attempt.plan.name).inc()
        self._stats.began(claim, attempt.plan.queue)
        return attempt

    async def _carry(self, attempt: Attempt) -> None:
        began = time.monotonic()
        try:
            trace(attempt.claim.job.trace_id)
            log.attempt_began(attempt.lease, attempt.number)
            await attempt.carry(partial(self._free_slot, attempt.plan.queue))
            log.attempt_ended(attempt.lease, attempt.outcome, time.monotonic() - began, attempt.fault)
        finally:
            metrics.attempts_ended_as(attempt.claim.job.plan.pipeline, attempt.plan.name, attempt.outcome).inc()
            self._stats.carried(attempt.claim, attempt.plan.queue, attempt.outcome, time.monotonic() - began)
            del self._running[attempt.lease]
            if attempt.task is not None:
                self._tasks.discard(attempt.task)  # nobody waits for one that has come so far
            if attempt.leaves_more:
                self._wake.set()

    def _free_slot(self, queue: str) -> None:
        """What has come since the last claim of an exhausted queue is told by `_watching`, a free slot or not."""
        self._busy[queue] -= 1
        if queue not in self._exhausted or self._pool.room() is not None:
            self._wake.set()

    async def _pausing(self) -> None:
        while True:
            await asyncio.sleep(PAUSES)
            try:
                await self._look_at_pauses()
            except StoreError as error:  # what was paused stays so until we hear otherwise
                await self._away(error)

    async def _look_at_pauses(self) -> None:
        """A queue that is paused is claimed from no more; what runs, runs on."""
        paused = frozenset(pause.queue for pause in await self._store.pauses())
        if self._paused - paused:
            self._wake.set()
        self._paused = paused

    async def _watching(self) -> None:
        """Somebody committed something: there may be work, or a job of ours may have to stop."""
        mark: int | None = None
        cursor: int | None = None
        seen: set[Lease] = set()
        while True:
            try:
                mark = await self._store.changed(mark, POLL, is_working=True)
                self._wake.set()
                if settled_in(self._running.values()):
                    cursor, touched = await self._store.touched(cursor)
                    seen = await self._look(touched, seen)
            except StoreError as error:
                await self._away(error)

    async def _look(self, touched: Collection[str] | None, seen: Collection[Lease]) -> set[Lease]:
        """Look at those that were touched, and at all that were not seen before; return who is seen now.

        The cursor has moved past whatever befell an attempt before it had settled in.
        """
        here = [attempt.lease for attempt in settled_in(self._running.values())]
        leases = [each for each in here if touched is None or each.job_id in touched or each not in seen]
        if leases:
            self._heed(await self._store.standing(leases))
        return set(here)

    # Keeping.

    async def _renewing(self) -> None:
        """Never from anything that runs user code, and all leases in one call."""
        while True:
            await asyncio.sleep(self._settings.lease / 3)
            try:
                if self._running:
                    self._heed(await self._store.renew(list(self._running), self._settings.lease))
                await self._store.enroll(self._card_now())
                if self._is_away:
                    self._is_away = False
                    log.store_back()
            except StoreError as error:
                await self._away(error)

    def _card_now(self) -> WorkerCard:
        """Without slots while no process can be started: who asks why a job waits shall not be told to be patient."""
        queues = self._queues if self._pool.room() is None else dict.fromkeys(self._queues, 0)
        return self._info.card(queues, self._busy, self._running.values(), is_draining=self._is_draining)

    def _heed(self, renewal: Renewal) -> None:
        for leases, why in ((renewal.lost, Why.LOST), (renewal.stopping, Why.STOPPED)):
            for lease in leases:
                if lease in self._running:
                    self._running[lease].stop(why)

    async def _away(self, error: StoreError) -> None:
        metrics.store_errors.inc()
        if not self._is_away:
            self._is_away = True
            log.store_away(error)
        await asyncio.sleep(RETRY)

    # Leaving.

    async def _drain(self, hurry: asyncio.Event) -> None:
        self._is_draining = True
        log.worker_drains(len(self._running), self._settings.drain)
        async with self._claiming_now:  # what is being claimed at this moment is ours, too, and must not be stranded
            pass
        ends: list[asyncio.Future[Any]] = [asyncio.gather(*self._tasks, return_exceptions=True)]
        ends.append(asyncio.ensure_future(hurry.wait()))
        await asyncio.wait(ends, timeout=self._settings.drain, return_when=asyncio.FIRST_COMPLETED)
        ends[-1].cancel()
        for attempt in self._running.values():
            attempt.stop(Why.LEAVING)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=self._settings.grace + self._settings.lease)

    async def _leave(self) -> None:
        await self._pool.close()
        await self._webhooks.close()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await self._reporter.flush()
            await self._stats.flush()
            await self._store.dismiss(self.card.id)
        shutil.rmtree(self.card.scratch, ignore_errors=True)
        log.worker_stopped()


def tune_gc() -> None:
    """Call once, when everything is loaded. A supervisor makes hardly any reference cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])


def _within(wants: Mapping[str, int], most: int) -> dict[str, int]:
    """No more than that many in all, the first queues first."""
    given: dict[str, int] = {}
    for queue, want in wants.items():
        given[queue] = max(0, min(want, most - sum(given.values())))
    return given
