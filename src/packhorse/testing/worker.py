"""The worker of a bench: carries what is due in the thread of the test, and sets the clock to what is due next."""

from __future__ import annotations

import asyncio
import copy
import math
import random
import secrets
import sys
from collections import Counter
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from packhorse.background.janitor import Janitor
from packhorse.background.reaper import Reaper
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Status
from packhorse.define.pipelines import Pipeline
from packhorse.define.stages import Stage
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Claim, Lease, Report, Store
from packhorse.testing.capture import capture_output
from packhorse.testing.environment import Clock, Place
from packhorse.testing.faults import Mishap, Moment, Script
from packhorse.testing.inline import (
    Code,
    InlineAttempt,
    InlineContext,
    InlinePool,
    Interrupt,
    call_alone,
    call_shared,
    carry,
)
from packhorse.worker.attempt import Attempt, Resources, StopReason
from packhorse.worker.child.call import Outcome
from packhorse.worker.child.messages import Run
from packhorse.worker.process import Call, ChildDied
from packhorse.worker.reporter import Reporter

T = TypeVar("T")

NAME = "bench"
CALLS = 100
"""Of one task while the clock stands still. A stage that comes so far asks to be called again for ever."""


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
        # Of a lease of no length, because here is no outage after which it would have to be careful.
        self._reaper = Reaper(store, self._transact, 0.0, clock)
        self._janitor = Janitor(store, blobs, self._transact, settings.orphan_after, settings.sweep)
        self._codes: dict[str, Code] = {}
        self._queues: dict[str, None] = {}
        self._active: set[str] = set()
        self._running: dict[Lease, InlineAttempt] = {}
        self._lost: dict[Lease, float] = {}
        """Leases of attempts whose worker has died, until when they hold."""
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def learn(self, pipeline: Pipeline[Any]) -> None:
        """Take over its stages, as a worker that has just been started with them."""
        for stage in pipeline.stages.values():
            self._codes[stage.plan.kind] = pipeline, stage
            self._queues[stage.plan.queue] = None

    def watch(self, job_id: str) -> None:
        """The job is active: what is due for it counts when time moves."""
        self._active.add(job_id)

    def work(self, is_enough: Callable[[], bool] = lambda: False, until: float = math.inf) -> None:
        """Do all that is due, then set the clock to what is due next, up to ``until`` or until ``is_enough``."""
        while True:
            self._carry_all()
            if is_enough():
                return
            ahead = self._wait(self._ahead())
            if min(ahead, until) == math.inf:
                return
            self._set_clock(min(ahead, until))
            if ahead > until:
                return

    def tidy(self) -> None:
        """Purge what is past its time, and remove what nothing refers to."""
        self._wait(self._janitor.tick())

    def close(self) -> None:
        self._runner.close()

    # Time.

    async def _ahead(self) -> float:
        """The next moment at which something happens by itself."""
        now = self._clock.now
        jobs = [job for job in await self._store.get(list(self._active)) if job and not job.status.is_terminal]
        self._active = {job.id for job in jobs}
        moments = [*self._lost.values(), *(at for each in self._running.values() for at in each.limits().values())]
        for job in jobs:
            if job.deadline_at is not None and job.stopping is None:
                moments.append(job.deadline_at)
            moments += [at for at in _waits(job) if at > now]
        return min(moments, default=math.inf)

    def _set_clock(self, to: float) -> None:
        """Let it become so late, and have everybody look who would have looked meanwhile."""
        self._clock.now = max(self._clock.now, to)
        for carried in list(self._running.values()):
            why = carried.overdue(self._clock.now)
            if why is not None:
                self._wait(carried.stop(why))
        self._wait(self._renew())
        self._wait(self._reaper.tick())
        self._lost = {lease: until for lease, until in self._lost.items() if until > self._clock.now}
        self._heed()

    async def _renew(self) -> None:
        alive = {
            lease: carried for lease, carried in self._running.items() if carried.attempt.why is not StopReason.LOST
        }
        if alive:
            await self._store.renew(list(alive), self._place.settings.lease)
            for carried in alive.values():
                carried.until = self._clock.now + self._place.settings.lease

    def _heed(self) -> None:
        """Stop what has lost its lease, or whose job is being stopped."""
        if self._running:
            told = self._wait(self._store.renew(list(self._running), None))
            for leases, why in ((told.lost, StopReason.LOST), (told.stopping, StopReason.STOPPED)):
                for lease in leases:
                    self._wait(self._running[lease].stop(why))

    # One attempt.

    def _carry_all(self) -> None:
        calls: Counter[tuple[str, TaskId]] = Counter()
        while (claim := self._wait(self._claim())) is not None:
            self._transact.learn([claim.job])
            self._carry(claim)
            calls[claim.job.id, claim.task] += 1
            if calls[claim.job.id, claim.task] == CALLS:
                raise AssertionError(
                    f"{claim.task.stage} was called {CALLS} times and no time has passed: does it return Later(0)?"
                )

    async def _claim(self) -> Claim | None:
        """One at a time: what else is due waits, and nothing is begun that nobody carries."""
        for queue in self._queues:
            for claim in await self._store.claim({queue: 1}, self._codes.keys(), self._start):
                return claim
        return None

    def _start(self, job: Job, task: TaskId) -> Change:
        lease, token = self._place.settings.lease, secrets.token_hex(8)
        return lifecycle.start(job, task, token=token, worker=NAME, lease=lease, now=self._clock.now)

    def _carry(self, claim: Claim) -> None:
        hands = InlinePool()
        attempt = Attempt(claim, self._resources(hands))
        carried = InlineAttempt(attempt, hands.hand, self._clock.now, self._place.settings.lease)
        self._running[attempt.lease] = carried
        carrying = self._place.begin(carry(attempt))
        given = hands.hand.take(carrying)
        outcome: Outcome | ChildDied = ChildDied("was interrupted by the test")
        try:
            if given is not None:
                outcome = self._perform(carried, given[0])
        except Interrupt as interrupt:
            raise interrupt.error from None
        finally:
            if given is not None:
                self._wait(self._answer(given[1], outcome))
            carrying.result()
            del self._running[attempt.lease]
            self._wait(self.reporter.flush())
        self._meet(carried, Moment.AFTER)

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
        await self.reporter.flush()  # before the lease ends: what is reported without one is dropped
        if isinstance(outcome, ChildDied):
            call.outcome.set_exception(outcome)
        else:
            call.outcome.set_result(outcome)

    def _perform(self, carried: InlineAttempt, run: Run) -> Outcome | ChildDied:
        """What a process would do with the call, and how it ends there."""
        pipeline, stage = self._codes[run.kind]
        context = InlineContext(run, carried, lambda: self._reported(carried))
        self._meet(carried, Moment.BEFORE)
        if not carried.hand.is_asked:
            mishap = self._script.mishap(run.kind, run.element)
            if isinstance(mishap, Mishap):
                return self._befall(carried, mishap)
            function = self._script.function(stage) if mishap is None else _raising(mishap)
            return self._call(carried, run, (pipeline, _with(stage, function)), context)
        return ChildDied("was ended before the stage was called")

    def _call(self, carried: InlineAttempt, run: Run, code: Code, context: InlineContext) -> Outcome | ChildDied:
        with capture_output(carried.attempt.on_line):
            try:
                if carried.hand.is_shared:
                    return self._run(call_shared(code, run, context, carried.hand))
                return call_alone(code, run, context, carried.hand, self._run)
            except ChildDied as died:
                return died

    def _befall(self, carried: InlineAttempt, mishap: Mishap) -> ChildDied:
        limits = carried.limits()
        match mishap:
            case Mishap.CRASH:
                return ChildDied("was killed by SIGKILL")
            case Mishap.LOSE:
                self._lost[carried.attempt.lease] = carried.until
                self._wait(carried.stop(StopReason.LOST))
            case Mishap.STALL:
                self.work(lambda: carried.hand.is_asked, until=min(limits.values()))
            case Mishap.TIME_OUT:
                carried.moved_at = math.inf
                self.work(lambda: carried.hand.is_asked, until=limits[StopReason.TIMEOUT])
        return ChildDied("was ended")

    def _reported(self, carried: InlineAttempt) -> None:
        carried.moved_at = self._clock.now
        carried.reports += 1
        try:
            self._meet(carried, Moment.DURING)
        except BaseException as error:  # broad: a hook's failure is the test's, and must not look like the stage's
            raise Interrupt(error) from error

    def _meet(self, carried: InlineAttempt, moment: Moment) -> None:
        reports = carried.reports if moment is Moment.DURING else 0
        hooks = self._script.hooks(moment, reports, carried.plan.kind, carried.element)
        if hooks:
            self._wait(self.reporter.flush())
            for hook in hooks:
                hook(carried.attempt.lease.job_id)
            self._heed()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        """In one loop for all of them, as in a worker; in one of its own inside another stage."""
        if self._runner.get_loop().is_running():
            with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
                return runner.run(work)
        return self._runner.run(work)

    def _wait(self, work: Coroutine[Any, Any, T]) -> T:
        return self._place.wait_for(work)


class Recorder(Reporter):
    """Keeps every report besides: the store has only the latest."""

    def __init__(self, store: Store, *, log_limit: int, samples: int) -> None:
        super().__init__(store, log_limit=log_limit, samples=samples)
        self.reports: list[Report] = []

    def report(self, report: Report) -> None:
        self.reports.append(report)
        super().report(report)


def _waits(job: Job) -> list[float]:
    """When its tasks become due that wait for nothing but the time."""
    tasks = [task for stage in job.stages for task in stage.tasks or () if task.status is Status.PENDING]
    return [task.ready_at for task in tasks if task.ready_at is not None]


def _with(stage: Stage[..., Any], function: Callable[..., Any]) -> Stage[..., Any]:
    changed = copy.copy(stage)
    changed.function = function
    return changed


def _raising(error: BaseException) -> Callable[..., Any]:
    def stage(*_: Any, **__: Any) -> Any:
        raise error.with_traceback(None)

    return stage
