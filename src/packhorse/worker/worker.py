"""The supervisor: claims due tasks, lets child processes run them, renews their leases. It runs no user code itself."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import shutil
import time
from collections import Counter
from collections.abc import Collection, Coroutine, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from packhorse import host, metrics
from packhorse.background.alerts import Alerts
from packhorse.background.failures import AutoRetry, BulkActions
from packhorse.background.health import HealthCheck
from packhorse.background.janitor import Janitor
from packhorse.background.loop import BackgroundTask, run_forever
from packhorse.background.reaper import DeadWorkers, Reaper
from packhorse.background.redis_views import RedisViews
from packhorse.background.replacements import Replacements
from packhorse.background.scheduler import Scheduler, declare
from packhorse.background.stats import QueueSampler, StatsCounter
from packhorse.background.steady_clock import SteadyClock
from packhorse.background.webhooks import WebhookSender, outbound_for
from packhorse.blobs.base import Blobs
from packhorse.crashpoints import reach
from packhorse.errors import StoreError
from packhorse.host import StageUser
from packhorse.jobs.deployment import PublishDestination
from packhorse.jobs.encryption import get_encryptor
from packhorse.jobs.transact import Transactor
from packhorse.log import log, trace, traced
from packhorse.settings import FILE_SCHEME, Settings, without_secrets
from packhorse.store.base import Claim, Lease, Renewal, Starter, Store
from packhorse.store.collections import workers
from packhorse.store.collections.limits import apply_limits
from packhorse.store.collections.queues import list_pauses
from packhorse.store.collections.workers import WorkerCard, publish_definitions
from packhorse.worker.attempt import LOST, Attempt, Outcome, Resources, StopReason
from packhorse.worker.child.memory import is_enforced
from packhorse.worker.claims import Handoffs, Orphans, Slots, limit_total, tokens
from packhorse.worker.file_cache import FileCache
from packhorse.worker.limits import Limits, past_start
from packhorse.worker.pool import Description, Pool, check_reachable
from packhorse.worker.process import Child
from packhorse.worker.reporter import Reporter
from packhorse.worker.status import Heartbeat, WorkerInfo, check_queues, new_card

POLL = 0.25
"""Seconds after which a worker claims even if no commit woke it: a delay ends without a commit."""
RELOAD = 1.0
"""Seconds between tries to load an app that could not be loaded."""
PAUSES = 0.5
"""Seconds between reads of which queues are paused."""
RETRY = 0.5
"""Seconds between tries while the store is away."""
TRUSTED_AFTER = 2
"""Leases for which the clocks must have run evenly before anything is deleted by its age."""
GC_THRESHOLD = 20_000
"""New objects before a collection of cycles. Python's 700 cost a supervisor a fifth of its time."""


class Worker:
    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        settings: Settings,
        described: Description,
        published: PublishDestination | None = None,
    ) -> None:
        """``published`` is where published files go, if not to ``blobs``."""
        check_queues(settings.queues, list(described.queues))
        self._store = store
        self._blobs = blobs
        self._published = published
        self._settings = settings
        self._described = described
        self._user = StageUser.find(settings.stage_user)
        self._kinds = described.kinds
        self._slots = Slots(settings.queues or dict.fromkeys(described.queues, settings.slots))
        self._tokens = tokens()
        self._running: dict[Lease, Attempt] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._has_ended = asyncio.Event()
        """Set when an attempt ends."""
        self._has_left = False
        self._stuck: set[asyncio.Task[None]] = set()
        """One task for each slot that is lost to a process that the system could not end."""
        self._wake = asyncio.Event()
        self._claiming_now = asyncio.Lock()
        self._is_away = False
        self._claimed_at = time.monotonic()
        self.card = new_card(self._slots.sizes, self._kinds, Path(settings.scratch))
        scratch = Path(self.card.scratch)
        self._info = WorkerInfo(self.card, store.now)
        self._stats = StatsCounter(store)
        self._transact = Transactor(store, self._stats.run_ended, sum(self._slots.sizes.values()))
        self._webhooks = WebhookSender(store, outbound_for(settings), settings.secret_key)
        self._reporter = Reporter(store, log_limit=settings.log_limit, samples=settings.samples)
        self._pool = Pool(
            settings.app,
            recycle=settings.recycle,
            memory=settings.recycle_memory,
            grace=settings.grace,
            scratch=scratch,
            user=self._user,
        )
        self._limits = Limits(self._running, self._pool, self._reporter, store.now)
        self._handoffs = Handoffs(
            self._slots, described.queues, self._tokens, worker=self.card.id, lease=settings.lease, now=store.now
        )
        self._starter = Starter(self._tokens, self.card.id, settings.lease, store.now)
        self._orphans = Orphans(store, self._transact, self.card.id, settings.lease, self._own_tokens)
        self._resources = Resources(
            store=store,
            blobs=blobs,
            transact=self._transact,
            pool=self._pool,
            reporter=self._reporter,
            settings=settings,
            scratch=scratch,
            luck=random.random,
            user=self._user,
            cache=self._open_cache(scratch),
        )

    async def run(self, stop: asyncio.Event, hurry: asyncio.Event | None = None) -> None:
        """Work until ``stop`` is set, then drain: finish what can be finished in time, and hand back the rest.

        ``hurry`` ends the draining early.
        """
        self._make_scratch()
        await self._pool.open()
        self._info.set_isolation(self._isolation())
        described, encryptor = self._described, get_encryptor(self._settings.secret_key)
        await publish_definitions(self._store, described.definitions)
        await declare(self._store, described.schedules, described.definitions, encryptor)
        await apply_limits(self._store)
        await workers.enroll(self._store, self._current_card())
        await self._read_pauses()
        log.worker_started(self.card.id, self._slots.sizes, without_secrets(self._settings.store))
        loops = [asyncio.create_task(loop) for loop in self._loops()]
        stopped: asyncio.Task[Any] = asyncio.create_task(stop.wait())
        try:
            await asyncio.wait([*loops, stopped], return_when=asyncio.FIRST_COMPLETED)
            for loop in loops:
                if loop.done() and not stop.is_set():
                    loop.result()  # a loop ends only by an error: raise it
            await self._drain(hurry or asyncio.Event())
        finally:
            for loop in [*loops, stopped]:
                loop.cancel()
            await asyncio.gather(*loops, stopped, return_exceptions=True)
            await self._leave()

    def _open_cache(self, scratch: Path) -> FileCache | None:
        """A local folder needs none."""
        limit = 0 if self._settings.blobs.startswith(FILE_SCHEME) else self._settings.file_cache
        return FileCache(self._blobs, scratch, limit) if limit else None

    def _isolation(self) -> tuple[str, ...]:
        active = (
            is_enforced(),
            self._pool.has_groups,
            host.hides_memory(),
            self._user is not None,
            self._settings.process_per != "worker",
        )
        return tuple(name for name, is_active in zip(workers.ISOLATION, active, strict=True) if is_active)

    def _make_scratch(self) -> None:
        """Only this user can read inputs and results of jobs, whatever the umask is.

        The user that stages run as can enter it, but not put anything in place of the folder of an attempt.
        """
        scratch, user = Path(self.card.scratch), self._user
        scratch.parent.mkdir(parents=True, exist_ok=True, mode=0o700 if user is None else 0o711)
        scratch.mkdir(mode=0o700)
        if user is not None:
            scratch.chmod(0o711)
            check_reachable(scratch, user)

    @property
    def is_draining(self) -> bool:
        return self._slots.is_draining

    def claim_age(self) -> float:
        """Seconds since the claim loop last went round."""
        return time.monotonic() - self._claimed_at

    def slots(self) -> list[tuple[str, int, int]]:
        """By queue: in use, and in all."""
        return [(queue, self._slots.busy[queue], size) for queue, size in self._slots.sizes.items()]

    def _loops(self) -> list[Coroutine[Any, Any, None]]:
        store, blobs, transact = self._store, self._blobs, self._transact
        settings, lease = self._settings, self._settings.lease
        clock = SteadyClock(lease)
        hold = 2 * lease  # of actions: those of a dead worker are taken over as soon as its stages are
        background: list[BackgroundTask] = [
            Reaper(store, transact, lease, clock=clock),
            DeadWorkers(store, transact, self.card, lease),
            Janitor(
                store,
                blobs,
                transact,
                settings.orphan_after,
                settings.sweep,
                settings.failures_keep,
                partial(clock.now, after=TRUSTED_AFTER * lease),
                self._published,
            ),
            self._webhooks,
            Scheduler(store, blobs, settings, transact),
            BulkActions(store, transact, hold),
            AutoRetry(store, transact, hold),
            Replacements(store),
            Alerts(store, settings.alert_command, hold),
            self._stats,
            QueueSampler(store, lease),
            HealthCheck(store, blobs, settings, self.card.id),
            Heartbeat(store, self._current_card, lease),
        ]
        if settings.redis_views:
            background.append(RedisViews(store, settings.redis_views, self.card.id))
        return [
            self._claim_loop(),
            self._reload_loop(),
            self._watch_loop(),
            self._renew_loop(),
            self._limits.watch_time(),
            self._pause_loop(),
            self._limits.watch_memory(),
            self._reporter.work(),
            *(run_forever(task, self._info.beats, self._info.errors) for task in background),
        ]

    # Claiming.

    async def _claim_loop(self) -> None:
        while True:
            await self._wake.wait()
            self._wake.clear()
            if self._slots.is_draining:
                return
            try:
                async with self._claiming_now:
                    await self._orphans.hand_back()
                    has_more = await self._claim()
                self._claimed_at = time.monotonic()
            except StoreError as error:
                self._orphans.note_failed_claim(error)
                await self._report_outage(error)
                self._wake.set()
                continue
            if has_more:
                self._wake.set()

    def _own_tokens(self) -> set[str]:
        return {token for attempt in self._running.values() for token in attempt.tokens}

    async def _claim(self) -> bool:
        """Claim what there is a slot and a process for; return whether to claim again at once.

        A stage for which no process can be started would be handed back, only to be claimed again at once.
        """
        room = self._pool.room()
        if room is None:
            return await self._take(self._slots.free(), self._kinds)
        has_more = room.is_shared and await self._take(self._slots.free(), self._described.sharing)
        waiting = sum(not attempt.is_sent for attempt in self._running.values())  # they may get those that are idle
        alone = limit_total(self._slots.free(), room.alone - waiting)
        return await self._take(alone, self._kinds - self._described.sharing) or has_more

    async def _take(self, wanted: Mapping[str, int], kinds: Collection[str]) -> bool:
        if not any(wanted.values()):
            return False
        claims = await self._store.claim(wanted, kinds, self._starter)
        self._transact.learn(claim.job for claim in claims)
        return self._slots.note_claim(wanted, Counter(self._begin(claim).plan.queue for claim in claims))

    async def _reload_loop(self) -> None:
        """In a loop of its own: an app may take a minute to fail, and warm processes can run stages meanwhile."""
        while True:
            await asyncio.sleep(RELOAD)
            if self._pool.room() is not None and any(self._slots.free().values()):
                await self._pool.reload()
                self._wake.set()

    def _begin(self, claim: Claim) -> Attempt:
        attempt = Attempt(claim, self._resources, self._handoffs.after(claim))
        self._running[attempt.lease] = attempt
        self._slots.busy[attempt.plan.queue] += 1
        metrics.attempts_started_at(claim.job.plan.pipeline, attempt.plan.name).inc()
        self._stats.attempt_started(claim, attempt.plan.queue)
        with traced(claim.job.trace_id):
            log.attempt_began(attempt.lease, attempt.number)
        if not attempt.begin(partial(self._on_return, attempt)):
            self._spawn(attempt)
        return attempt

    def _spawn(self, attempt: Attempt) -> None:
        """A task carries the attempt on from where it is."""
        self._tasks.add(asyncio.create_task(self._carry(attempt)))

    def _on_return(self, attempt: Attempt) -> None:
        with traced(attempt.claim.job.trace_id):
            ending = attempt.end()
        if ending is None:
            self._spawn(attempt)
            return
        if ending.handoff is None:
            self._free_slot(attempt)
        attempt.post(ending, partial(self._on_answer, attempt))

    def _on_answer(self, attempt: Attempt, outcome: Outcome | None) -> None:
        if self._has_left:
            return
        if outcome is None:
            self._spawn(attempt)
            return
        try:
            self._free_slot(attempt)
            if outcome.following is not None:
                self._begin(outcome.following)
            reach("attempt.settled", attempt)
            self._log_end(attempt, outcome)
        except Exception as error:  # broad: the commit has other members, whose turn comes after this one
            log.attempt_broke(attempt.lease, error)
        finally:
            self._conclude(attempt, outcome)

    async def _carry(self, attempt: Attempt) -> None:
        outcome = Outcome(LOST)
        try:
            trace(attempt.claim.job.trace_id)
            outcome = await self._run(attempt)
            self._log_end(attempt, outcome)
        finally:
            if attempt.task is not None:
                self._tasks.discard(attempt.task)  # nobody waits for one that has come so far
            self._conclude(attempt, outcome)

    @staticmethod
    def _log_end(attempt: Attempt, outcome: Outcome) -> None:
        with traced(attempt.claim.job.trace_id):
            log.attempt_ended(attempt.lease, outcome.name, time.monotonic() - attempt.claimed_at, outcome.fault)

    def _conclude(self, attempt: Attempt, outcome: Outcome) -> None:
        metrics.attempts_ended_as(attempt.claim.job.plan.pipeline, attempt.plan.name, outcome.name).inc()
        took = time.monotonic() - attempt.claimed_at
        self._stats.attempt_ended(attempt.claim, attempt.plan.queue, outcome.name, took)
        del self._running[attempt.lease]
        self._has_ended.set()
        if not outcome.is_written:
            self._orphans.note_unwritten(attempt.lease.token)
        if outcome.leaves_more:
            self._wake.set()

    async def _run(self, attempt: Attempt) -> Outcome:
        """Free the slot as early as possible: before the commit, unless the commit may start the next stage in it."""
        try:
            ending = await attempt.run()
            if ending.handoff is None:
                self._free_slot(attempt)
            outcome = await attempt.settle(ending)
            if outcome.following is not None:  # without an await in between: nothing else may get the slot
                self._free_slot(attempt)
                self._begin(outcome.following)
            return outcome
        finally:
            self._free_slot(attempt)
            await attempt.close()

    def _free_slot(self, attempt: Attempt) -> None:
        """New tasks of an exhausted queue come with a commit, for which `_watch_loop` wakes the claim loop."""
        if not attempt.has_slot:
            return
        attempt.has_slot = False
        if attempt.stuck is not None:
            self._stuck.add(asyncio.create_task(self._free_when_ended(attempt, attempt.stuck)))
            return
        queue = attempt.plan.queue
        self._slots.busy[queue] -= 1
        if queue not in self._slots.exhausted or self._pool.room() is not None:
            self._wake.set()

    async def _free_when_ended(self, attempt: Attempt, child: Child) -> None:
        """A process that the system cannot end still uses memory and devices: nothing else gets its slot."""
        await child.has_ended.wait()
        attempt.stuck, attempt.has_slot = None, True
        self._free_slot(attempt)
        await attempt.close()

    def lost_slots(self) -> int:
        """Slots held by processes that the system could not end."""
        self._stuck = {task for task in self._stuck if not task.done()}
        return len(self._stuck)

    async def _pause_loop(self) -> None:
        while True:
            await asyncio.sleep(PAUSES)
            try:
                await self._read_pauses()
            except StoreError as error:  # paused queues stay paused meanwhile
                await self._report_outage(error)

    async def _read_pauses(self) -> None:
        paused = frozenset(pause.queue for pause in await list_pauses(self._store))
        if self._slots.paused - paused:
            self._wake.set()
        self._slots.paused = paused

    async def _watch_loop(self) -> None:
        """After each commit of anybody: there may be work, or a job of ours may have to stop."""
        mark: int | None = None
        cursor: int | None = None
        seen: set[Lease] = set()
        while True:
            try:
                mark = await self._store.wait_for_change(mark, POLL, is_working=True)
                self._wake.set()
                cursor, seen = await self._check_leases(cursor, seen)
            except StoreError as error:
                await self._report_outage(error)

    async def _check_leases(self, cursor: int | None, seen: set[Lease]) -> tuple[int | None, set[Lease]]:
        """Check the attempts whose jobs were touched since ``cursor``, and all that are not in ``seen``.

        The cursor is past whatever happened to an attempt before it had settled in.
        """
        here = [attempt.lease for attempt in past_start(self._running.values())]
        if not here:
            return cursor, seen
        cursor, touched = await self._store.changed_jobs(cursor)
        leases = [each for each in here if touched is None or each.job_id in touched or each not in seen]
        if leases:
            self._stop_attempts(await self._store.renew(leases, None))
        return cursor, set(here)

    # Keeping.

    async def _renew_loop(self) -> None:
        """All leases in one call, and never from a process that runs user code."""
        while True:
            await asyncio.sleep(self._settings.lease / 3)
            try:
                if self._running:
                    self._stop_attempts(await self._store.renew(list(self._running), self._settings.lease))
                await workers.enroll(self._store, self._current_card())
                if self._is_away:
                    self._is_away = False
                    log.store_back()
            except StoreError as error:
                await self._report_outage(error)

    def _current_card(self) -> WorkerCard:
        """With no slots while no process can be started, so that the explanation of a waiting job says so."""
        slots = self._slots
        queues = slots.sizes if self._pool.room() is None else dict.fromkeys(slots.sizes, 0)
        return self._info.card(
            queues, slots.busy, self._running.values(), is_draining=slots.is_draining, lost=self.lost_slots()
        )

    def _stop_attempts(self, renewal: Renewal) -> None:
        for leases, why in ((renewal.lost, StopReason.LOST), (renewal.stopping, StopReason.STOPPED)):
            for lease in leases:
                if lease in self._running:
                    self._running[lease].stop(why)

    async def _report_outage(self, error: StoreError) -> None:
        metrics.store_errors.inc()
        if not self._is_away:
            self._is_away = True
            log.store_away(error)
        await asyncio.sleep(RETRY)

    # Leaving.

    async def _drain(self, hurry: asyncio.Event) -> None:
        self._slots.is_draining = True
        log.worker_drains(len(self._running), self._settings.drain)
        async with self._claiming_now:  # a running claim is ours, too, and must not be stranded
            pass
        orphans = asyncio.create_task(self._hand_back_orphans())
        ends: list[asyncio.Future[Any]] = [asyncio.gather(orphans, self._all_ended(), return_exceptions=True)]
        ends.append(asyncio.ensure_future(hurry.wait()))
        await asyncio.wait(ends, timeout=self._settings.drain, return_when=asyncio.FIRST_COMPLETED)
        for end in ends:
            end.cancel()
        for attempt in list(self._running.values()):
            attempt.stop(StopReason.LEAVING)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._settings.grace + self._settings.lease):
                await self._all_ended()

    async def _all_ended(self) -> None:
        while self._running:
            self._has_ended.clear()
            await self._has_ended.wait()

    async def _hand_back_orphans(self) -> None:
        """Until no claim that was given up can be made any more: nobody else knows that it was not run."""
        while self._orphans.is_unsure:
            with contextlib.suppress(StoreError):
                await self._orphans.hand_back()
            await asyncio.sleep(POLL)

    async def _leave(self) -> None:
        await self._pool.close()
        await self._webhooks.close()
        if self._resources.cache is not None:
            self._resources.cache.close()
        ending, self._has_left = [*self._tasks, *self._stuck], True
        for task in ending:
            task.cancel()
        await asyncio.gather(*ending, return_exceptions=True)
        with contextlib.suppress(StoreError):
            await self._reporter.flush()
            await self._stats.flush()
            await workers.dismiss(self._store, self.card.id)
        shutil.rmtree(self.card.scratch, ignore_errors=True)
        log.worker_stopped()


def tune_gc() -> None:
    """Call once, when everything is loaded. A supervisor makes hardly any reference cycles."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GC_THRESHOLD, *gc.get_threshold()[1:])
