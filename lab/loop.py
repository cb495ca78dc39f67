"""An event loop without a clock, files or threads: a seed picks what runs next, and time passes when nothing can.

Everything that is scheduled belongs to a machine: the one that was running when it was scheduled. A machine that is
killed is never resumed, at whatever await it was. One that is stopped is resumed later, with all that came in since.
"""

from __future__ import annotations

import asyncio
import contextvars
import hashlib
import heapq
import random
import struct
from asyncio import events
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar, cast

from lab.clock import EPOCH
from lab.faults import Stream

T = TypeVar("T")
BEGIN = 1000.0
"""The monotonic clock when a simulation begins."""
STEP_COST = 20e-6
"""Seconds that a step takes: without it, two tasks that only yield to each other would stop time."""
FORGET = 2000
"""Tasks between looks for those that are done."""

_record = struct.Struct("<HBd").pack


class Machine:
    """A process that can be killed and stopped."""

    def __init__(self, number: int, name: str, host: str = "") -> None:
        self.number = number
        self.name = name
        self.host = host or name
        self.is_alive = True
        self.is_stopped = False
        self.clock_error = 0.0
        """Seconds by which its time of day is ahead."""
        self.healthy_since = 0.0
        """Since when it has been running, and every call to the store was answered."""
        self.hurt_until = 0.0
        """Until when it had a fault of its own, not one of the server."""
        self.waiting: list[Handle] = []
        """What came in while it was stopped."""
        self.children: list[Machine] = []
        self.faults = Stream(name)
        """Where its process can be hit."""

    def __repr__(self) -> str:
        return self.name


class Handle:
    """What the loop will call. It has as much of `asyncio.TimerHandle` as asyncio uses."""

    __slots__ = ("args", "at", "callback", "context", "is_cancelled", "is_step", "machine", "number")

    def __init__(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context,
        machine: Machine,
        number: int,
        at: float = 0.0,
    ) -> None:
        self.callback = callback
        self.args = args
        self.context = context
        self.machine = machine
        self.number = number
        self.at = at
        self.is_cancelled = False
        self.is_step = isinstance(getattr(callback, "__self__", None), asyncio.Task)

    def cancel(self) -> None:
        self.is_cancelled = True

    def cancelled(self) -> bool:
        return self.is_cancelled

    def when(self) -> float:
        return self.at


class _Task(asyncio.Task[T]):
    """Hashed by its number: asyncio and packhorse keep tasks in sets, whose order must not depend on addresses."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class _Future(asyncio.Future[T]):
    number = 0

    def __hash__(self) -> int:
        return self.number


class Loop:
    """It has as much of `asyncio.AbstractEventLoop` as tasks, locks and sleeps use."""

    def __init__(self, seed: int, *, is_fair: bool) -> None:
        """``is_fair``: a machine runs its callbacks in the order in which they came, as asyncio does.

        Otherwise any of them may be next: correct code does not depend on it.
        """
        self._rng = random.Random(f"schedule {seed}")
        self._is_fair = is_fair
        self._now = BEGIN
        self._ready: list[Handle] = []
        self._timers: list[tuple[float, int, Handle]] = []
        self._numbers = 0
        self._tasks: list[asyncio.Task[Any]] = []
        self._hash = hashlib.blake2b(digest_size=8)
        self.server = Machine(0, "server")
        self.current = self.server
        self.steps = 0
        self.handles = 0
        self.is_halted = False
        self.before_step: Callable[[Machine], None] = lambda _machine: None
        """Is called before a task of a machine is resumed; it may kill or stop the machine."""
        self.errors: list[BaseException] = []
        """Exceptions that nobody handled."""

    # The clock.

    def time(self) -> float:
        return self._now

    def monotonic(self) -> float:
        return self._now

    def wall(self) -> float:
        return EPOCH + self._now + self.current.clock_error

    def warp(self, seconds: float) -> None:
        """Let so much time pass at once, for everybody."""
        self._now += seconds

    # Scheduling.

    def call_soon(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = self._handle(callback, args, context, self.current, 0.0)
        self._ready.append(handle)
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        return self.call_at(self._now + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[..., object], *args: Any, context: contextvars.Context | None = None
    ) -> Handle:
        handle = self._handle(callback, args, context, self.current, when)
        heapq.heappush(self._timers, (handle.at, handle.number, handle))
        return handle

    def call_on(self, machine: Machine, delay: float, callback: Callable[..., object], *args: Any) -> Handle:
        """Let a machine call it: if it is dead by then, nothing is called; if it is stopped, later."""
        handle = self._handle(callback, args, None, machine, self._now + delay)
        heapq.heappush(self._timers, (handle.at, handle.number, handle))
        return handle

    def spawn(self, machine: Machine, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """Start a task on a machine."""
        before, self.current = self.current, machine
        try:
            return contextvars.Context().run(self.create_task, work)
        finally:
            self.current = before

    def _handle(
        self,
        callback: Callable[..., object],
        args: tuple[Any, ...],
        context: contextvars.Context | None,
        machine: Machine,
        at: float,
    ) -> Handle:
        self._numbers += 1
        own = (
            contextvars.copy_context() if context is None else context
        )  # an empty one is false, and still a task's own
        return Handle(callback, args, own, machine, self._numbers, at)

    def create_future(self) -> asyncio.Future[Any]:
        self._numbers += 1
        future: _Future[Any] = _Future(loop=as_loop(self))
        future.number = self._numbers
        return future

    def create_task(
        self, coro: Any, *, name: str | None = None, context: contextvars.Context | None = None
    ) -> asyncio.Task[Any]:
        self._numbers += 1
        task: _Task[Any] = _Task.__new__(_Task)
        task.number = self._numbers
        asyncio.Task.__init__(task, coro, loop=as_loop(self), name=name or f"t{self._numbers}", context=context)
        task._log_destroy_pending = False  # type: ignore[attr-defined]
        self._tasks.append(task)  # the tasks of a dead machine must not be collected: that would run their `finally`
        if len(self._tasks) % FORGET == 0:
            self._tasks = [task for task in self._tasks if not task.done()]
        return task

    def run_in_executor(self, _executor: Any, func: Callable[..., T], *args: Any) -> asyncio.Future[T]:
        """Inline, and answered a little later."""
        future = self.create_future()
        try:
            self.call_later(0.001, _set_result, future, func(*args))
        except Exception as error:  # broad: it is the caller's
            self.call_later(0.001, _set_exception, future, error)
        return future

    # Running.

    def run_until(self, is_done: Callable[[], bool], seconds: float) -> bool:
        """Run until it is done or so much time has passed; whether it is done."""
        deadline = self._now + seconds
        events._set_running_loop(as_loop(self))
        try:
            while not self.is_halted and self._now < deadline:
                if is_done():
                    return True
                if not self._run_one(deadline):
                    break
        finally:
            events._set_running_loop(None)
        return is_done()

    def _run_one(self, deadline: float) -> bool:
        if self._timers and self._timers[0][0] <= self._now:
            self._wake()
        if not self._ready:
            while self._timers and self._timers[0][2].is_cancelled:
                heapq.heappop(self._timers)
            if not self._timers:
                return False
            self._now = min(deadline, max(self._now, self._timers[0][0]))
            return True
        handle = self._pick()
        machine = handle.machine
        if handle.is_cancelled or not machine.is_alive:
            return True
        if handle.is_step:
            self.steps += 1
            self.before_step(machine)
        if not machine.is_alive:
            return True
        if machine.is_stopped:
            machine.waiting.append(handle)
            return True
        self.handles += 1
        self._now += STEP_COST
        self._hash.update(_record(machine.number, handle.is_step, self._now))
        self.current = machine
        try:
            handle.context.run(handle.callback, *handle.args)
        except Exception as error:  # broad: asyncio would log it
            self.errors.append(error)
        finally:
            self.current = self.server
        return True

    def _wake(self) -> None:
        while self._timers and self._timers[0][0] <= self._now:
            handle = heapq.heappop(self._timers)[2]
            if not handle.is_cancelled and handle.machine.is_alive:
                self._ready.append(handle)

    def _pick(self) -> Handle:
        ready = self._ready
        at = int(self._rng.random() * len(ready))
        if self._is_fair:
            machine = ready[at].machine
            at = next(i for i, handle in enumerate(ready) if handle.machine is machine)
            return ready.pop(at)
        handle = ready[at]
        ready[at] = ready[-1]
        ready.pop()
        return handle

    # Machines.

    def kill(self, machine: Machine) -> None:
        """Nothing of it is ever resumed: no `finally`, no cancellation."""
        machine.is_alive = False
        for child in machine.children:
            self.kill(child)

    def stop(self, machine: Machine) -> None:
        machine.is_stopped = True

    def resume(self, machine: Machine) -> None:
        if machine.is_stopped:
            machine.is_stopped = False
            self._ready += machine.waiting
            machine.waiting = []

    # What asyncio asks for beside that.

    def trace(self) -> str:
        """A hash of everything that ran, when, and on which machine."""
        return self._hash.hexdigest()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if isinstance(error, BaseException):
            self.errors.append(error)

    def get_debug(self) -> bool:
        return False

    def is_running(self) -> bool:
        return True

    def is_closed(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: Handle) -> None: ...


def _set_result(future: asyncio.Future[Any], value: object) -> None:
    if not future.done():
        future.set_result(value)


def _set_exception(future: asyncio.Future[Any], error: BaseException) -> None:
    if not future.done():
        future.set_exception(error)


set_result, set_exception = _set_result, _set_exception


def as_loop(loop: Loop) -> asyncio.AbstractEventLoop:
    return cast(asyncio.AbstractEventLoop, loop)
