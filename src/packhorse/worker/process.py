"""One child process, seen from its supervisor: start it, send it calls, read its output, end it."""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import itertools
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Sequence
from typing import Any, Protocol, cast

import msgspec
import psutil

from packhorse import host
from packhorse.core.redaction import longest_first, redact
from packhorse.errors import DefinitionError
from packhorse.log import log as worker_log
from packhorse.worker.cgroups import MemoryGroup
from packhorse.worker.child import messages
from packhorse.worker.reporter import Throttle

Outcome = messages.Outcome
READ = 64 * 1024
START = 60.0
"""Seconds a child may take to load the user's code; models are loaded then."""
WAIT = 0.05
"""Seconds between checks of a process that no thread can wait for."""
LAST_READS = 16
"""Reads of a pipe at the end of a call. A pipe holds less, unless another process keeps writing."""
LAST_WORDS = 1.0
"""Seconds in which the output of a dead process is still read: another process may hold the pipe open."""


KILL_WAIT = 10.0
"""Seconds for a process to end after SIGKILL. One that hangs in the kernel, as on a dead network disk, does not."""
LOG_RATE = 32 * 1024
"""Bytes per second of output outside any stage that go to the worker's log."""
MOMENT = 60.0
"""Seconds for which the secrets of an ended call are redacted. Processes that it left running are ended long before."""
Born = Callable[["Child"], None]


class ChildDied(Exception):
    """The process ended by itself, without a result."""


class OverMemory(ChildDied):
    """The kernel ended the process because its cgroup reached the memory limit of the stage."""


class ChildStuck(ChildDied):
    """The process does not end even after SIGKILL. It runs no more of the stage's code, but it still exists."""

    def __init__(self, child: Child) -> None:
        super().__init__("cannot be ended: it does not react to SIGKILL")
        self.child = child


class Listener(Protocol):
    """Receives what a child reports of a call while it runs."""

    secrets: tuple[str, ...]
    """Redacted from the output of the call."""

    def on_progress(self, message: messages.Moved) -> None: ...

    def on_artifact(self, message: messages.Made) -> None: ...

    def on_lines(self, lines: Sequence[str], secrets: Sequence[str] = ()) -> None:
        """``secrets`` are those of other calls, which the lines may contain as well."""


Then = Callable[[Outcome | Exception], object]
"""Gets how a call ended. Raises nothing: it is called where messages of the child are read."""


class Call:
    """One stage that a child runs. The caller gives `then`, or waits for the `outcome`."""

    __slots__ = ("_ended", "_outcome", "_then", "began", "listener", "number")

    def __init__(self, number: int, listener: Listener, then: Then | None = None) -> None:
        self.number = number
        self.listener = listener
        self.began = host.clock()
        self._then = then
        self._ended: Outcome | Exception | None = None
        self._outcome: asyncio.Future[Outcome] | None = None
        """Made when somebody waits for it: most calls of async stages end without."""

    @property
    def outcome(self) -> asyncio.Future[Outcome]:
        if self._outcome is None:
            self._outcome = asyncio.get_running_loop().create_future()
            if self._ended is not None:
                _set(self._outcome, self._ended)
        return self._outcome

    def end(self, how: Outcome | Exception) -> None:
        if self._ended is not None:
            return
        self._ended = how
        if self._outcome is not None:
            _set(self._outcome, how)
        if self._then is not None:
            self._then(how)


class Child:
    """Started with `Child.start`; `run` as often as you like; `end` once."""

    def __init__(self, process: subprocess.Popen[bytes], is_shared: bool, log: Callable[[str], None]) -> None:
        self.process = process
        self._log = log
        self.is_shared = is_shared
        self.calls: dict[int, Call] = {}
        self.runs = 0
        self.owner = ""
        """The tenant or job whose stages alone it runs; empty if any."""
        self.mark = ""
        """Inherited by every process it starts, whatever sessions and parents those have."""
        self.memory = 0
        """Bytes of it and its descendants, when last measured."""
        self.group: MemoryGroup | None = None
        self.is_ending = False
        self.is_stuck = False
        """Whether it did not end after SIGKILL. It may still end one day."""
        self.has_ended = asyncio.Event()
        self.ready: asyncio.Future[messages.Ready] = asyncio.get_running_loop().create_future()
        self.transport: asyncio.WriteTransport | None = None
        self._output: _Output | None = None
        self._numbers = itertools.count(1)
        self._listener: Listener | None = None
        self._remembered = SecretCache()
        self._throttle = Throttle(LOG_RATE)
        """Of what is printed outside any stage."""
        self._outbox: list[bytes] = []
        self._watching: asyncio.Task[None] | None = None
        self._tree: dict[int, psutil.Process] = {}

    @classmethod
    async def start(
        cls,
        app: str,
        *,
        shared: bool,
        log: Callable[[str], None],
        mark: str = "",
        born: Born = lambda _child: None,
        user: host.StageUser | None = None,
    ) -> Child:
        """A fresh interpreter with the app loaded; DefinitionError if it cannot be, OSError if there is no process.

        ``born`` is called as soon as the process exists.
        """
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        mode = "shared" if shared else "single"
        try:
            # Not asyncio's: its wait() also waits for every process that inherited the pipe, daemons included.
            process = subprocess.Popen(  # noqa: ASYNC220 (a few milliseconds)
                [sys.executable, "-m", "packhorse.worker.child", str(theirs.fileno()), mode, app],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env=host.child_environment(mark) | ({} if user is None else user.environment()),
                **({} if user is None else user.popen()),
            )
        except BaseException:
            ours.close()
            raise
        finally:
            theirs.close()
        child = cls(process, shared, log)
        child.mark = mark
        child._watching = asyncio.create_task(child._watch())
        born(child)
        try:
            await child._connect(ours)
            async with asyncio.timeout(START):
                await asyncio.shield(child.ready)
        except TimeoutError:
            await child.end(0)
            raise DefinitionError(f"{app} took longer than {START:.0f} s to load.") from None
        except BaseException:
            await child.end(0)
            raise
        return child

    async def _connect(self, ours: socket.socket) -> None:
        pipe = self.process.stdout
        assert pipe is not None
        try:
            await asyncio.get_running_loop().create_connection(lambda: _Wire(self), sock=ours)
        except BaseException:
            pipe.close()
            raise
        output = self._output = _Output(self, pipe.fileno())
        await asyncio.get_running_loop().connect_read_pipe(lambda: output, pipe)

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def is_warm(self) -> bool:
        return not self.is_ending and not self.has_ended.is_set()

    def run(self, message: messages.Run, listener: Listener, then: Then | None = None) -> Call:
        self.send(message)  # before anything is noted: what cannot be encoded leaves nothing behind
        call = Call(message.call, listener, then)
        self.calls[call.number] = call
        if not self.is_shared:
            self._listener = listener
        self.runs += 1
        if self.group is not None:
            self.group.limit(message.memory)
        return call

    def number(self) -> int:
        return next(self._numbers)

    def send(self, message: messages.Run | messages.Stop) -> None:
        """Messages of one iteration of the loop are sent in one write."""
        frame = messages.to_frame(message)
        if not self._outbox:
            asyncio.get_running_loop().call_soon(self._flush)
        self._outbox.append(frame)

    def _flush(self) -> None:
        data, self._outbox = b"".join(self._outbox), []
        if self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def receive(self, message: messages.FromChild) -> None:
        match message:
            case messages.Ready():
                _set(self.ready, message)
            case messages.Broken():
                _set(self.ready, DefinitionError(message.message))
            case _ if (call := self.calls.get(message.call)) is not None:
                self._dispatch(call, message)

    def _dispatch(self, call: Call, message: messages.Moved | messages.Made | messages.Said | Outcome) -> None:
        match message:
            case messages.Returned() | messages.Raised() | messages.Postponed() | messages.Skipped():
                del self.calls[call.number]
                self._remembered.add(call.listener.secrets)
                if self._output is not None and not self.is_shared:
                    self._output.end()
                call.end(message)
            case messages.Moved():
                call.listener.on_progress(message)
            case messages.Made():
                call.listener.on_artifact(message)
            case messages.Said():
                call.listener.on_lines(message.text.split("\n"))

    async def end(self, grace: float) -> None:
        """SIGTERM to the process group, SIGKILL after ``grace``. No process of the group is left on return.

        Unless the system cannot end it: then its calls end with `ChildStuck`.
        """
        self.is_ending = True
        if self.is_stuck:
            return
        self._signal(signal.SIGTERM)
        await wait_at_most(self.has_ended.wait(), grace)
        self._signal(signal.SIGKILL)
        await wait_at_most(self.has_ended.wait(), KILL_WAIT)
        if not self.has_ended.is_set() and not self.is_stuck:
            self.is_stuck = True
            worker_log.process_stuck(self.pid)
            self._end_calls(ChildStuck(self))

    def tree(self) -> list[psutil.Process]:
        """The process and its descendants, the same objects each time: they measure CPU since their last call."""
        try:
            root = psutil.Process(self.pid)
            found = {process.pid: process for process in [root, *root.children(recursive=True)]}
        except psutil.Error:
            return []
        self._tree = {pid: self._tree.get(pid, process) for pid, process in found.items()}
        return list(self._tree.values())

    def _signal(self, number: signal.Signals) -> None:
        if self.process.returncode is None:  # else another process may have its pid
            _signal_group(self.pid, number)

    async def _watch(self) -> None:
        code = await _wait_for_exit(self.process)
        if self.transport is not None:
            self.transport.close()
        self.has_ended.set()
        _set(self.ready, DefinitionError(f"The process that loads the app {_describe_exit(code)}."))
        is_over = self.group is not None and self.group.is_over()
        self._end_calls((OverMemory if is_over else ChildDied)(_describe_exit(code)))
        if self.group is not None:
            self.group.remove()
        await asyncio.sleep(LAST_WORDS)
        if self._output is not None:
            self._output.close()
        for line in self._throttle.remainder():
            self._log(line)

    def _end_calls(self, died: ChildDied) -> None:
        calls, self.calls = list(self.calls.values()), {}
        for call in calls:
            self._remembered.add(call.listener.secrets)
            call.end(died)

    def on_printed(self, lines: Sequence[str]) -> None:
        """All lines of one read at once: a flood must cost little per line, or it delays the renewal of leases.

        Output belongs to the call that runs; in a shared process, where that is unknown, to the worker.

        Lines that come after the result still belong to the last call. They may also come from a process that an
        earlier call has left running, so the secrets of all recent calls are redacted.
        """
        secrets = self.secrets()
        if self._listener is not None:
            self._listener.on_lines(lines, secrets)
            return
        for line in self._throttle.admit(lines):
            self._log(redact(line, secrets))

    def secrets(self) -> tuple[str, ...]:
        """Of all calls that run or ended a moment ago."""
        return self._remembered.words(call.listener.secrets for call in self.calls.values())


class _Output(asyncio.Protocol):
    """Splits the output of a child into lines."""

    def __init__(self, child: Child, fd: int) -> None:
        self._child = child
        self._fd = fd
        self._text = codecs.getincrementaldecoder("utf-8")("replace")
        self._lines = messages.Lines(READ)
        self._transport: asyncio.ReadTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._take(data)
        if len(data) >= READ:
            self._pause()

    def connection_lost(self, _error: Exception | None) -> None:
        # A stage may have closed its end. The descriptor's number may be reused, and is not ours to read.
        self._fd = -1
        self._end_line()

    def end(self) -> None:
        """Read everything that a finished call has written, with a line end or without.

        Otherwise it would appear in the log of the next job on this child.
        """
        with contextlib.suppress(OSError):
            for _ in range(LAST_READS):
                self._take(os.read(self._fd, READ))
        self._end_line()

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()

    def _take(self, data: bytes) -> None:
        if lines := self._lines.feed(self._text.decode(data), self._child.secrets):
            self._child.on_printed(lines)

    def _end_line(self) -> None:
        if lines := self._lines.end():
            self._child.on_printed(lines)

    def _pause(self) -> None:
        """Read no more for a moment: one that prints a lot must not hold up the others."""
        assert self._transport is not None
        self._transport.pause_reading()
        asyncio.get_running_loop().call_later(0.001, self._go_on)

    def _go_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()


class _Wire(asyncio.Protocol):
    def __init__(self, child: Child) -> None:
        self.child = child
        self._frames = messages.Frames()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.child.transport = cast(asyncio.WriteTransport, transport)  # uvloop's does not declare its type

    def data_received(self, data: bytes) -> None:
        try:
            for body in self._frames.feed(data):
                self.child.receive(messages.from_child(body))
        except msgspec.DecodeError:
            self.child._signal(signal.SIGKILL)  # its messages are damaged: nothing more of it can be trusted


async def wait_at_most(work: Coroutine[Any, Any, Any], seconds: float) -> None:
    """Usable for cleaning up in a task that is being cancelled.

    In the first versions of Python 3.11, asyncio.timeout would cancel that task itself when it expires.
    """
    waiting = asyncio.ensure_future(work)
    try:
        await asyncio.wait([waiting], timeout=seconds)
    finally:
        waiting.cancel()


async def _wait_for_exit(process: subprocess.Popen[bytes]) -> int:
    """Its status, when all processes of its group have ended.

    It waits in a thread of its own, so that any number of children can be waited for at once.
    """
    loop = asyncio.get_running_loop()
    status: asyncio.Future[int] = loop.create_future()

    def wait() -> None:
        if hasattr(os, "waitid"):
            with contextlib.suppress(ChildProcessError):
                os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        else:
            process.wait()
        code = _reap(process)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(_set, status, code)

    try:
        threading.Thread(target=wait, name=f"packhorse-wait-{process.pid}", daemon=True).start()
    except RuntimeError:  # no thread can be started
        while host.born(process.pid) is not None:  # noqa: ASYNC110 (nobody could set an event)
            await asyncio.sleep(WAIT)
        return _reap(process)
    return await status


def _reap(process: subprocess.Popen[bytes]) -> int:
    """The status of an ended process. Until it is read, no other group can get the number of its group."""
    _signal_group(process.pid, signal.SIGKILL)  # grandchildren that outlived it
    return process.wait()


def _signal_group(pid: int, number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, number)


def _set(future: asyncio.Future[Any], value: object) -> None:
    if future.done():
        return
    if isinstance(value, Exception):
        future.set_exception(value)
        future.exception()  # nobody has to ask for it
    else:
        future.set_result(value)


def _describe_exit(code: int) -> str:
    if code >= 0:
        return f"exited with status {code} and no result"
    with contextlib.suppress(ValueError):
        return f"was killed by {signal.Signals(-code).name}"
    return f"was killed by signal {-code}"


class SecretCache:
    """The secrets of calls that ended a moment ago."""

    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until: dict[tuple[str, ...], float] = {}

    def add(self, secrets: tuple[str, ...]) -> None:
        if secrets:
            self._until = {each: self._until[each] for each in self._fresh()} | {secrets: self._monotonic() + MOMENT}

    def words(self, running: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
        """Together with those of the running calls."""
        return longest_first(word for secrets in {*running, *self._fresh()} for word in secrets)

    def _fresh(self) -> list[tuple[str, ...]]:
        now = self._monotonic()
        return [secrets for secrets, until in self._until.items() if until > now]
