"""A child that runs async stages side by side in one event loop."""

from __future__ import annotations

import asyncio
import io
import logging
import os
import signal
import socket
import sys
import threading
from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import TextIO, cast

from packhorse.core.redaction import split_redacted
from packhorse.define.registry import Code
from packhorse.worker.child.call import bind_stage, end_with, end_with_error, find_code, print_error
from packhorse.worker.child.context import ChildContext
from packhorse.worker.child.messages import Frames, FromChild, Raised, Ready, Run, Said, Stop, framed, to_child
from packhorse.worker.child.truncate import pieces

LONGEST = 64 * 1024
"""Characters of one line of output; a longer one comes in pieces."""

_running: ContextVar[Run | None] = ContextVar("packhorse_running", default=None)


async def serve(code: Code, link: socket.socket) -> None:
    await Shared(code).serve(link)


class Shared(asyncio.Protocol):
    def __init__(self, code: Code) -> None:
        self._kinds = code.by_kind
        self._frames = Frames()
        self._calls: dict[int, tuple[asyncio.Task[None], ChildContext]] = {}
        self._outbox: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._outputs: tuple[_Attributed, ...] = ()
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()

    async def serve(self, link: socket.socket) -> None:
        loop = self._loop
        link.setblocking(False)
        sys.stdout, sys.stderr = self._outputs = _Attributed(self, sys.stdout), _Attributed(self, sys.stderr)
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
        loop.add_signal_handler(signal.SIGTERM, os._exit, 0)
        await loop.create_connection(lambda: self, sock=link)
        self.send(Ready(tuple(self._kinds)))
        await asyncio.Event().wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, _error: Exception | None) -> None:
        os.killpg(0, signal.SIGKILL)  # the supervisor is gone: nobody would hear us, and nothing we started may stay

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            message = to_child(body)
            match message:
                case Run():
                    context = ChildContext(message, self.send, later=self._later)
                    task = asyncio.get_running_loop().create_task(self._run(message, context))
                    self._calls[message.call] = task, context
                    task.add_done_callback(partial(self._ended, message.call))
                case Stop() if message.call in self._calls:
                    task, context = self._calls[message.call]
                    context.is_cancelled = True
                    task.cancel()

    async def _run(self, run: Run, context: ChildContext) -> None:
        _running.set(run)
        try:
            pipeline, stage = find_code(self._kinds, run)
            outcome = end_with(stage, run, context, await bind_stage(pipeline, stage, run, context)())
        except asyncio.CancelledError:
            outcome = _stopped(run.call)
        except BaseException as error:  # broad: whatever a stage raises, SystemExit too, is how it ended
            print_error(run, error)
            outcome = end_with_error(run, error)
        for output in self._outputs:
            output.end_line()
        context.flush()
        self.send(outcome)
        del self._calls[run.call]

    def _ended(self, call: int, _task: asyncio.Task[None]) -> None:
        """A call that was stopped before it had begun has not answered for itself."""
        if self._calls.pop(call, None) is not None:
            self.send(_stopped(call))

    def send(self, message: FromChild) -> None:
        """Messages of one turn of the loop travel in one write. A stage may report from a thread of its own, too."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.send, message)
            return
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(framed(message))

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, call)

    def _flush(self) -> None:
        data, self._outbox = b"".join(self._outbox), []
        assert self._transport is not None
        self._transport.write(data)


def _stopped(call: int) -> Raised:
    return Raised(call, "STOPPED", "The stage was asked to stop.", False, "")


class _Attributed(io.TextIOBase):
    """Standard output that knows which stage is speaking; what no stage says goes where it always went."""

    def __init__(self, shared: Shared, original: TextIO) -> None:
        self._shared = shared
        self._original = original
        self._rest: dict[int, str] = {}
        self._cut: set[int] = set()
        """Calls whose line was too long to wait for its end."""

    def write(self, text: str) -> int:
        run = _running.get()
        if run is None:
            return self._original.write(text)
        call = run.call
        *lines, rest = (self._rest.pop(call, "") + text).split("\n")
        if call in self._cut and lines:
            self._cut.discard(call)
            lines = lines if lines[0] else lines[1:]  # the line had been told already, all but its end
        if len(rest) > LONGEST:
            told, rest = split_redacted(rest, run.words())
            lines = [*lines, told] if told else lines
            self._cut.add(call)
        for line in lines:
            for piece in pieces(line, LONGEST, run):
                self._shared.send(Said(call, piece))
        if rest:
            self._rest[call] = rest
        return len(text)

    def end_line(self) -> None:
        """The stage is through: what it left without a line end is a line too."""
        run = _running.get()
        if run is None:
            return
        if run.call in self._rest:
            self._shared.send(Said(run.call, self._rest.pop(run.call)))
        self._cut.discard(run.call)

    def flush(self) -> None:
        self._original.flush()

    def writable(self) -> bool:
        return True
