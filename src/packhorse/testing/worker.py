"""The worker of a bench: runs what is due in the thread of the test, and moves the clock to what is due next."""

from __future__ import annotations

import asyncio
import copy
import math
import random
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from packhorse.background.janitor import Janitor
from packhorse.background.reaper import Reaper
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.limits import uses_of
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import TaskStatus
from packhorse.define.pipelines import Pipeline
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Claim, Lease, Report, Store
from packhorse.testing.environment import Clock, Fault, Moment, Place, Script
from packhorse.testing.inline import (
    Code,
    InlineAttempt,
    InlineContext,
    InlinePool,
    Interrupt,
    call_alone,
    call_shared,
    capture_output,
    run_attempt,
)
from packhorse.worker.attempt import Attempt, Resources, StopReason
from packhorse.worker.child.call import Outcome
from packhorse.worker.child.messages import Run
from packhorse.worker.process import Call, ChildDied
from packhorse.worker.reporter import Reporter

T = TypeVar("T")

NAME = "bench"
AFTER = 0.001  # seconds after the end of a rate's window, which includes its ends
MAX_CALLS = 100  # Maximum calls of one task while the clock stands still. Such a stage would be called again for ever.


class InlineWorker:
    def __init__(self, place: Place, clock: Clock, script: Script, seed: int) -> None:
        store, blobs = place.wait_for(place.open())
        settings = place.settings
        self.reporter = Recorder(store, log_limit=settings.log_limit, samples=settings.samples)
        self._place = place
        self._store = store
        self._blobs = blobs
        self._clock = clock
        self._script = script
        self._luck = random.Random(seed).random  # noqa: S311 (the jitter of a backoff)
        self._transact = Transactor(store)
        # With a lease of 0: on a bench there are no outages, after which the reaper would have to wait.
        self._reaper = Reaper(store, self._transact, 0.0, clock)
        self._janitor = Janitor(store, blobs, self._transact, settings.orphan_after, settings.sweep)
        self._code: dict[str, Code] = {}
        self._queues: dict[str, None] = {}
        self._active: set[str] = set()
        self._running: dict[Lease, InlineAttempt] = {}
        self._lost: dict[Lease, float] = {}
        """Leases of attempts whose worker has died, and when they end."""
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def learn(self, pipeline: Pipeline[Any]) -> None:
        """Run its stages from now on, like a worker that was started with them."""
        for stage in pipeline.stages.values():
            self._code[stage.plan.kind] = pipeline, stage
            self._queues[stage.plan.queue] = None

    def watch(self, job_id: str) -> None:
        """Move the clock to what is due for this job, until it has ended."""
        self._active.add(job_id)

    def work(self, is_enough: Callable[[], bool] = lambda: False, until: float = math.inf) -> None:
        """Run all that is due, then move the clock to what is due next, up to ``until`` or until ``is_enough``."""
        while True:
            self._run_due()
            if is_enough():
                return
            due = self._wait(self._next_due())
            if min(due, until) == math.inf:
                return
            self._set_clock(min(due, until))
            if due > until:
                return

    def tidy(self) -> None:
        """Purge expired jobs and unreferenced files."""
        self._wait(self._janitor.tick())

    def close(self) -> None:
        self._runner.close()

    # Time.

    async def _next_due(self) -> float:
        """The next time at which something happens by itself."""
        now = self._clock.now
        jobs = [job for job in await self._store.get(list(self._active)) if job and not job.status.is_terminal]
        self._active = {job.id for job in jobs}
        moments = [*self._lost.values(), *(at for each in self._running.values() for at in each.limits().values())]
        for job in jobs:
            if job.deadline_at is not None and job.stopping is None:
                moments.append(job.deadline_at)
            tasks = (task for stage in job.stages for task in stage.tasks or () if task.status is TaskStatus.PENDING)
            moments += [task.ready_at for task in tasks if task.ready_at is not None and task.ready_at > now]
        moments += await self._rates_free(jobs)
        return min(moments, default=math.inf)

    async def _rates_free(self, jobs: Iterable[Job]) -> list[float]:
        """When rates that stop tasks of these jobs have room again."""
        limited = [(job, stage) for job in jobs for stage in job.plan.stages if stage.limits]
        uses = [use for job, stage in limited for use in uses_of(job, TaskId(stage.name))]
        keys = list({use.key for use in uses if use.window})
        states = await self._store.limit_states(keys) if keys else []
        return [state.free_at + AFTER for state in states if state.parked and state.free_at is not None]

    def _set_clock(self, to: float) -> None:
        """Move the clock, then do what a worker would have done in that time: limits, renewals, the reaper."""
        self._clock.now = max(self._clock.now, to)
        for running in list(self._running.values()):
            overdue = [why for why, at in running.limits().items() if at <= self._clock.now]
            if overdue:
                self._wait(running.stop(overdue[0]))
        self._wait(self._renew())
        self._wait(self._reaper.tick())
        self._lost = {lease: until for lease, until in self._lost.items() if until > self._clock.now}
        self._stop_ended()

    async def _renew(self) -> None:
        lease = self._place.settings.lease
        alive = [running for running in self._running.values() if running.attempt.why is not StopReason.LOST]
        if alive:
            await self._store.renew([running.attempt.lease for running in alive], lease)
            for running in alive:
                running.until = self._clock.now + lease

    def _stop_ended(self) -> None:
        """Stop attempts that have lost their lease, or whose job is being stopped."""
        if self._running:
            renewed = self._wait(self._store.renew(list(self._running), None))
            for leases, why in ((renewed.lost, StopReason.LOST), (renewed.stopping, StopReason.STOPPED)):
                for lease in leases:
                    self._wait(self._running[lease].stop(why))

    # One attempt.

    def _run_due(self) -> None:
        calls: Counter[tuple[str, TaskId]] = Counter()
        while (claim := self._wait(self._claim())) is not None:
            self._transact.learn([claim.job])
            self._run_claim(claim)
            calls[claim.job.id, claim.task] += 1
            if calls[claim.job.id, claim.task] == MAX_CALLS:
                raise AssertionError(
                    f"{claim.task.stage} was called {MAX_CALLS} times and no time has passed: does it return Later(0)?"
                )

    async def _claim(self) -> Claim | None:
        """One at a time, because the thread of the test runs one stage at a time."""
        for queue in self._queues:
            for claim in await self._store.claim({queue: 1}, self._code.keys(), self._start):
                return claim
        return None

    def _start(self, job: Job, task: TaskId) -> Change:
        lease, token = self._place.settings.lease, secrets.token_hex(8)
        return lifecycle.start(job, task, token=token, worker=NAME, lease=lease, now=self._clock.now)

    def _run_claim(self, claim: Claim) -> None:
        pool = InlinePool()
        attempt = Attempt(claim, self._resources(pool))
        running = InlineAttempt(attempt, pool.child, self._clock.now, self._place.settings.lease)
        self._running[attempt.lease] = running
        ending = self._place.begin(run_attempt(attempt))
        call = pool.child.next_call(ending)
        outcome: Outcome | ChildDied = ChildDied("was interrupted by the test")
        try:
            if call is not None:
                outcome = self._perform(running, call[0])
        except Interrupt as interrupt:
            raise interrupt.error from None
        finally:
            if call is not None:
                self._wait(self._answer(call[1], outcome))
            ending.result()
            del self._running[attempt.lease]
            self._wait(self.reporter.flush())
        self._run_hooks(running, Moment.AFTER)

    def _resources(self, pool: InlinePool) -> Resources:
        settings = replace(self._place.settings, log_rate=sys.maxsize)  # the clock stands still
        return Resources(
            store=self._store,
            blobs=self._blobs,
            transact=self._transact,
            pool=pool,
            reporter=self.reporter,
            settings=settings,
            scratch=Path(settings.scratch),
            luck=self._luck,
        )

    async def _answer(self, call: Call, outcome: Outcome | ChildDied) -> None:
        await self.reporter.flush()  # before the lease ends: later reports are dropped
        call.end(outcome)

    def _perform(self, running: InlineAttempt, run: Run) -> Outcome | ChildDied:
        """Do what a child process would do with the call."""
        pipeline, stage = self._code[run.kind]
        context = InlineContext(run, running, lambda: self._on_report(running))
        self._run_hooks(running, Moment.BEFORE)
        if running.child.is_stopping:
            return ChildDied("was ended before the stage was called")
        fault = self._script.next_fault(run.kind, run.element)
        if isinstance(fault, Fault):
            return self._apply(running, fault)
        self._script.reports.setdefault(run.kind, 0)
        stage = copy.copy(stage)
        stage.function = self._script.replacements.get(run.kind, stage.function) if fault is None else _raise(fault)
        with capture_output(lambda line: running.attempt.on_lines((line,))):
            try:
                if running.child.is_shared:
                    return self._run(call_shared((pipeline, stage), run, context, running.child))
                return call_alone((pipeline, stage), run, context, running.child, self._run)
            except ChildDied as died:
                return died

    def _apply(self, running: InlineAttempt, fault: Fault) -> ChildDied:
        limits = running.limits()
        match fault:
            case Fault.CRASH:
                return ChildDied("was killed by SIGKILL")
            case Fault.LOSE:
                self._lost[running.attempt.lease] = running.until
                self._wait(running.stop(StopReason.LOST))
            case Fault.STALL:
                self.work(lambda: running.child.is_stopping, until=min(limits.values()))
            case Fault.TIME_OUT:
                running.moved_at = math.inf
                self.work(lambda: running.child.is_stopping, until=limits[StopReason.TIMEOUT])
        return ChildDied("was ended")

    def _on_report(self, running: InlineAttempt) -> None:
        running.moved_at = self._clock.now
        running.reports += 1
        kind = running.plan.kind
        self._script.reports[kind] = max(self._script.reports.get(kind, 0), running.reports)
        try:
            self._run_hooks(running, Moment.DURING)
        except BaseException as error:  # broad: a hook's failure is the test's, and must not look like the stage's
            raise Interrupt(error) from error

    def _run_hooks(self, running: InlineAttempt, moment: Moment) -> None:
        reports = running.reports if moment is Moment.DURING else 0
        lease = running.attempt.lease
        hooks = self._script.next_hooks(moment, reports, running.plan.kind, lease.task.element)
        if hooks:
            self._wait(self.reporter.flush())
            for hook in hooks:
                hook(lease.job_id)
            self._stop_ended()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run async stages in one event loop, as in a worker; a stage inside another stage gets its own."""
        if self._runner.get_loop().is_running():
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                return runner.run(work)
        return self._runner.run(work)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._place.wait_for(work)


class Recorder(Reporter):
    """Also keeps every report: the store has only the latest."""

    def __init__(self, store: Store, *, log_limit: int, samples: int) -> None:
        super().__init__(store, log_limit=log_limit, samples=samples)
        self.reports: list[Report] = []

    def report(self, report: Report) -> None:
        self.reports.append(report)
        super().report(report)


def _raise(error: BaseException) -> Callable[..., Any]:
    def stage(*_: Any, **__: Any) -> Any:
        raise error.with_traceback(None)

    return stage
