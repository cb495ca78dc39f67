"""One attempt carried inline: the worker's own code around it, and the stage called in the thread of the test."""

from __future__ import annotations

import asyncio
import inspect
import math
import sys
from bdb import BdbQuit
from collections.abc import Callable
from concurrent.futures import Future
from queue import SimpleQueue
from typing import Any

from packhorse.core.plan import StagePlan
from packhorse.define.pipelines import Pipeline
from packhorse.define.stages import Stage
from packhorse.worker.attempt import Attempt, StopReason
from packhorse.worker.child.call import Outcome, Stopped, bind_stage, end_with, end_with_error, print_error
from packhorse.worker.child.context import ChildContext
from packhorse.worker.child.messages import FromChild, Made, Moved, Raised, Run, Stop
from packhorse.worker.pool import Pool
from packhorse.worker.process import Call, Child, ChildDied, Listener


class Interrupt(BaseException):
    """Carries what a hook has raised through the stage that it interrupts, to the test."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


def is_the_tests(error: BaseException) -> bool:
    """Whether it is not the stage's, though raised inside it: a failed hook, ``pytest.fail()``, a person's Ctrl-C."""
    pytest = sys.modules.get("pytest")
    own = () if pytest is None else (pytest.fail.Exception, pytest.skip.Exception)
    return isinstance(error, (Interrupt, KeyboardInterrupt, BdbQuit, *own))


class InlineChild(Child):
    """Stands where an attempt expects a process. It is none: nothing is set up of what speaks to one."""

    def __init__(self) -> None:
        self.is_shared = False
        self.is_ending = False
        self.is_asked = False
        """Whether the attempt has been told to stop, for whatever reason."""
        self.context: ChildContext | None = None
        self.task: asyncio.Task[Any] | None = None
        self._asked = asyncio.Event()
        self._given: SimpleQueue[tuple[Run, Call] | None] = SimpleQueue()

    def number(self) -> int:
        return 1

    def run(self, message: Run, listener: Listener) -> Call:
        call = Call(message.call, listener)
        self._given.put((message, call))
        return call

    def send(self, message: Run | Stop) -> None:  # noqa: ARG002 (an attempt sends nothing but Stop)
        self.ask()

    def ask(self) -> None:
        self.is_asked = True
        self._asked.set()
        if self.context is not None:
            self.context.is_cancelled = True
        if self.task is not None:
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    async def wait_until_asked(self) -> None:
        await self._asked.wait()

    def take(self, carrying: Future[None]) -> tuple[Run, Call] | None:
        """What the attempt wants run, None if it has ended without running anything."""
        carrying.add_done_callback(lambda _: self._given.put(None))
        return self._given.get()


class InlinePool(Pool):
    """Stands where an attempt expects the processes of its worker, and has one hand for it."""

    def __init__(self) -> None:
        self.hand = InlineChild()

    async def single(self) -> Child:
        return self.hand

    async def shared(self) -> Child:
        self.hand.is_shared = True
        return self.hand

    def give_back(self, child: Child) -> None:
        pass

    async def end(self, child: Child) -> None:  # noqa: ARG002 (there is only one)
        self.hand.ask()


async def carry(attempt: Attempt) -> None:
    """All steps of an attempt that nothing follows: each stage is claimed."""
    try:
        await attempt.settle(await attempt.run())
    finally:
        await attempt.close()


class InlineAttempt:
    """An attempt under way: since when, how far, and what limits it."""

    def __init__(self, attempt: Attempt, hand: InlineChild, now: float, lease: float) -> None:
        self.attempt = attempt
        self.hand = hand
        self.began = self.moved_at = now
        self.until = now + lease
        """The end of its lease."""
        self.reports = 0

    @property
    def plan(self) -> StagePlan:
        return self.attempt.plan

    @property
    def element(self) -> int:
        return self.attempt.lease.task.element

    def limits(self) -> dict[StopReason, float]:
        """When it will be ended, and why, unless it has been asked to end already."""
        if self.attempt.why is not None:
            return {}
        stall = math.inf if self.plan.stall is None else self.plan.stall
        return {StopReason.STALLED: self.moved_at + stall, StopReason.TIMEOUT: self.began + self.plan.timeout}

    def overdue(self, now: float) -> StopReason | None:
        return next((why for why, at in self.limits().items() if at <= now), None)

    async def stop(self, why: StopReason) -> None:
        """Returns when the stage has been told."""
        self.attempt.stop(why)
        await self.hand.wait_until_asked()


class InlineContext(ChildContext):
    """Lets every report through, and is where a stage hears that it has to stop."""

    def __init__(self, run: Run, carried: InlineAttempt, reported: Callable[[], None]) -> None:
        super().__init__(run, self._heard)
        self._carried = carried
        self._reported = reported
        self._has_heard = False
        carried.hand.context = self
        self.is_cancelled = carried.hand.is_asked

    def progress(self, current: float, total: float | None = None, message: str = "") -> None:
        self._sent_at = -math.inf  # none is held back: what a test sees must not depend on how fast it runs
        super().progress(current, total, message)
        self._reported()
        self._heed()

    def artifact(self, name: str, content: Any) -> None:
        super().artifact(name, content)
        self._heed()

    def _heed(self) -> None:
        """A process is sent a signal, once and at any point; we can only speak up where the stage comes by."""
        if self._carried.hand.is_asked and not self._carried.hand.is_shared and not self._has_heard:
            self._has_heard = True
            raise Stopped

    def _heard(self, message: FromChild) -> None:
        match message:
            case Moved():
                self._carried.attempt.on_progress(message)
            case Made():
                self._carried.attempt.on_artifact(message)


Code = tuple[Pipeline[Any], Stage[..., Any]]
Runs = Callable[[Any], Any]
"""Runs a coroutine to its end, in an event loop for the stages of this bench."""


def call_alone(code: Code, run: Run, context: InlineContext, hand: InlineChild, runs: Runs) -> Outcome:
    """Call the stage as a process of its own would. Raises `ChildDied` if it was ended."""
    pipeline, stage = code
    try:
        value = bind_stage(pipeline, stage, run, context)()
        if inspect.isawaitable(value) and stage.is_async:
            value = runs(value)
        if hand.is_asked:  # a process would have been ended, wherever it was
            raise Stopped
        return end_with(stage, run, context, value)
    except Stopped:
        raise ChildDied("was ended") from None
    except BaseException as error:  # broad: whatever a stage raises, SystemExit too, is how it ended
        if is_the_tests(error):
            raise
        print_error(run, error)
        return end_with_error(run, error)


async def call_shared(code: Code, run: Run, context: InlineContext, hand: InlineChild) -> Outcome:
    """Call the stage as the process does in which async stages run side by side."""
    pipeline, stage = code
    hand.task = asyncio.current_task()
    try:
        value = bind_stage(pipeline, stage, run, context)()
        return end_with(stage, run, context, await value if inspect.isawaitable(value) else value)
    except asyncio.CancelledError:
        return Raised(run.call, "STOPPED", "The stage was asked to stop.", False, "")
    except BaseException as error:  # broad: whatever a stage raises, SystemExit too, is how it ended
        if is_the_tests(error):
            raise
        print_error(run, error)
        return end_with_error(run, error)
    finally:
        hand.task = None
