"""One attempt, inline: the worker's own code around it, and the stage called and captured in the test's thread."""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
import sys
from bdb import BdbQuit
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from queue import SimpleQueue
from typing import Any, Literal, TextIO, cast

from packhorse.core.plan import StagePlan
from packhorse.define.pipelines import Pipeline
from packhorse.define.stages import Stage
from packhorse.worker.attempt import Attempt, StopReason
from packhorse.worker.child.call import Outcome, Stopped, bind_stage, end_with, end_with_error, print_error
from packhorse.worker.child.context import ChildContext
from packhorse.worker.child.messages import FromChild, Made, Moved, Raised, Run, Stop
from packhorse.worker.pool import Pool
from packhorse.worker.process import Call, Child, ChildDied, Listener, Then

FORMAT = "%(levelname)s %(name)s: %(message)s"  # as in a worker's process, and so is the level

Say = Callable[[str], None]


class Interrupt(BaseException):
    """Carries an error of a hook through the stage that it interrupts, to the test."""

    def __init__(self, error: BaseException) -> None:
        self.error = error


class InlineChild(Child):
    """Takes the place of a child process. Nothing that a process needs is set up."""

    def __init__(self) -> None:
        self.is_shared = False
        self.is_ending = False
        self.is_stopping = False
        """Whether the attempt has to stop, for any reason."""
        self.context: ChildContext | None = None
        self.task: asyncio.Task[Any] | None = None
        self._stopping = asyncio.Event()
        self._calls: SimpleQueue[tuple[Run, Call] | None] = SimpleQueue()

    def number(self) -> int:
        return 1

    def run(self, message: Run, listener: Listener, then: Then | None = None) -> Call:
        call = Call(message.call, listener, then)
        self._calls.put((message, call))
        return call

    def send(self, message: Run | Stop) -> None:  # noqa: ARG002 (an attempt sends nothing but Stop)
        self.stop()

    def stop(self) -> None:
        self.is_stopping = True
        self._stopping.set()
        if self.context is not None:
            self.context.is_cancelled = True
        if self.task is not None:
            self.task.get_loop().call_soon_threadsafe(self.task.cancel)

    async def wait_until_stopping(self) -> None:
        await self._stopping.wait()

    def next_call(self, attempt: Future[None]) -> tuple[Run, Call] | None:
        """What the attempt wants to run, None if it ends without running anything."""
        attempt.add_done_callback(lambda _: self._calls.put(None))
        return self._calls.get()


class InlinePool(Pool):
    """Takes the place of the pool of child processes, and has one child."""

    def __init__(self) -> None:
        self.child = InlineChild()

    async def single(self, owner: str = "") -> Child:  # noqa: ARG002 (each attempt has its own)
        return self.child

    async def shared(self) -> Child:
        self.child.is_shared = True
        return self.child

    def give_back(self, child: Child) -> None:
        pass

    async def end(self, child: Child) -> None:  # noqa: ARG002 (there is only one)
        self.child.stop()


async def run_attempt(attempt: Attempt) -> None:
    """All steps of an attempt without a hand-off: each stage is claimed."""
    try:
        await attempt.settle(await attempt.run())
    finally:
        await attempt.close()


class InlineAttempt:
    """A running attempt: since when, how far, and its limits."""

    def __init__(self, attempt: Attempt, child: InlineChild, now: float, lease: float) -> None:
        self.attempt = attempt
        self.child = child
        self.began = self.moved_at = now
        self.until = now + lease
        """The end of its lease."""
        self.reports = 0

    @property
    def plan(self) -> StagePlan:
        return self.attempt.plan

    def limits(self) -> dict[StopReason, float]:
        """When it will be ended, and why, unless it is stopping already."""
        if self.attempt.why is not None:
            return {}
        stall = math.inf if self.plan.stall is None else self.plan.stall
        return {StopReason.STALLED: self.moved_at + stall, StopReason.TIMEOUT: self.began + self.plan.timeout}

    async def stop(self, why: StopReason) -> None:
        """Returns when the stage knows."""
        self.attempt.stop(why)
        await self.child.wait_until_stopping()


class InlineContext(ChildContext):
    """Sends every report, and raises `Stopped` inside the stage when it has to stop."""

    def __init__(self, run: Run, running: InlineAttempt, on_report: Callable[[], None]) -> None:
        super().__init__(run, self._on_message)
        self._running = running
        self._on_report = on_report
        self._was_stopped = False
        running.child.context = self
        self.is_cancelled = running.child.is_stopping

    def progress(self, current: float, total: float | None = None, message: str = "") -> None:
        self._sent_at = -math.inf  # send every report: what a test sees must not depend on how fast it runs
        super().progress(current, total, message)
        self._on_report()
        self._check_stop()

    def artifact(self, name: str, content: Any) -> None:
        super().artifact(name, content)
        self._check_stop()

    def _check_stop(self) -> None:
        """A process gets a signal, once and anywhere; inline, only a call of the context can interrupt the stage."""
        if self._running.child.is_stopping and not self._running.child.is_shared and not self._was_stopped:
            self._was_stopped = True
            raise Stopped

    def _on_message(self, message: FromChild) -> None:
        match message:
            case Moved():
                self._running.attempt.on_progress(message)
            case Made():
                self._running.attempt.on_artifact(message)


Code = tuple[Pipeline[Any], Stage[..., Any]]
RunCoroutine = Callable[[Any], Any]  # runs a coroutine to its end, in the event loop for the stages of this bench


def call_alone(code: Code, run: Run, context: InlineContext, child: InlineChild, wait_for: RunCoroutine) -> Outcome:
    """Call the stage as a process of its own would. Raises `ChildDied` if it was ended."""
    pipeline, stage = code
    try:
        value = bind_stage(pipeline, stage, run, context)()
        if inspect.isawaitable(value) and stage.is_async:
            value = wait_for(value)
        if child.is_stopping:  # a process would have been ended, wherever it was
            raise Stopped
        return end_with(stage, run, context, value)
    except Stopped:
        raise ChildDied("was ended") from None
    except BaseException as error:  # broad: whatever a stage raises, SystemExit too, is how it ended
        return _outcome_of_error(run, error)


async def call_shared(code: Code, run: Run, context: InlineContext, child: InlineChild) -> Outcome:
    """Call the stage as the process does in which async stages run side by side."""
    pipeline, stage = code
    child.task = asyncio.current_task()
    try:
        value = bind_stage(pipeline, stage, run, context)()
        return end_with(stage, run, context, await value if inspect.isawaitable(value) else value)
    except asyncio.CancelledError:
        return Raised(run.call, "STOPPED", "The stage was asked to stop.", False, "")
    except BaseException as error:  # broad: whatever a stage raises, SystemExit too, is how it ended
        return _outcome_of_error(run, error)
    finally:
        child.task = None


def _outcome_of_error(run: Run, error: BaseException) -> Outcome:
    """Raises an error that is the test's, not the stage's: a failed hook, ``pytest.fail()``, Ctrl-C, a debugger."""
    pytest = sys.modules.get("pytest")
    of_pytest = () if pytest is None else (pytest.fail.Exception, pytest.skip.Exception)
    if isinstance(error, (Interrupt, KeyboardInterrupt, BdbQuit, *of_pytest)):
        raise error
    print_error(run, error)
    return end_with_error(run, error)


@contextmanager
def capture_output(say: Say) -> Iterator[None]:
    """Call ``say`` with each line that is printed or logged in the block. It still goes to the original output.

    If a hook of one stage runs another stage, blocks are nested: then the inner one gets the lines.
    """
    root, handler = logging.getLogger(), _Handler(say)
    level, outer = root.level, [each for each in root.handlers if isinstance(each, _Handler)]
    streams = _Stream("stdout", say), _Stream("stderr", say)
    for each in outer:
        root.removeHandler(each)
    root.addHandler(handler)
    root.setLevel(min(level, logging.INFO))
    try:
        yield
    finally:
        for stream in streams:
            stream.restore()
        root.setLevel(level)
        root.removeHandler(handler)
        for each in outer:
            root.addHandler(each)


class _Stream:
    """Replaces a stream of `sys`. What is written to it after the block goes to the original only."""

    def __init__(self, name: Literal["stdout", "stderr"], say: Say) -> None:
        self._name = name
        self._say: Say | None = say
        self._rest = ""
        self._replaced: TextIO | _Stream = getattr(sys, name)
        self._original: TextIO = self._replaced._original if isinstance(self._replaced, _Stream) else self._replaced
        setattr(sys, name, cast(TextIO, self))

    def write(self, text: str) -> int:
        if self._say is not None:
            *lines, self._rest = (self._rest + text).split("\n")
            for line in lines:
                self._say(line)
        return self._original.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._original, name)

    def restore(self) -> None:
        if self._rest and self._say is not None:
            self._say(self._rest)
        self._say = None
        if getattr(sys, self._name) is self:  # else a debugger has put its own there
            setattr(sys, self._name, self._replaced)


class _Handler(logging.Handler):
    def __init__(self, say: Say) -> None:
        super().__init__(logging.INFO)
        self.setFormatter(logging.Formatter(FORMAT))
        self._say = say

    def emit(self, record: logging.LogRecord) -> None:
        if record.name.partition(".")[0] != "packhorse":  # packhorse's own log is not the stage's
            for line in self.format(record).splitlines():
                self._say(line)
