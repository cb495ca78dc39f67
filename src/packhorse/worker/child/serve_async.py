"""Serves async stages side by side, in one event loop."""

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

from packhorse.define.registry import Code
from packhorse.worker.child.call import bind_stage, end_with, end_with_error, find_code, print_error
from packhorse.worker.child.context import ChildContext
from packhorse.worker.child.messages import Frames, FromChild, Lines, Raised, Ready, Run, Said, Stop, to_child, to_frame
from packhorse.worker.child.serve import LOG_FORMAT, OWN, end_fork

LONGEST = 64 * 1024
"""Characters of one line of output; a longer one comes in pieces."""

_running: ContextVar[Run | None] = ContextVar("packhorse_running", default=None)


class Shared(asyncio.Protocol):
    """Runs async stages side by side in one event loop."""

    _loop: asyncio.AbstractEventLoop

    def __init__(self, code: Code, link: socket.socket) -> None:
        self._kinds = code.by_kind
        self._link = link
        self._frames = Frames()
        self._calls: dict[int, tuple[asyncio.Task[None], ChildContext]] = {}
        self._outbox: list[bytes] = []
        self._transport: asyncio.WriteTransport | None = None
        self._outputs: tuple[_Attributed, ...] = ()
        self._thread = threading.get_ident()

    async def serve(self) -> None:
        loop = self._loop = asyncio.get_running_loop()
        self._link.setblocking(False)
        sys.stdout, sys.stderr = self._outputs = _Attributed(self, sys.stdout), _Attributed(self, sys.stderr)
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
        loop.add_signal_handler(signal.SIGTERM, os._exit, 0)
        await loop.create_connection(lambda: self, sock=self._link)
        self.send(Ready())
        await asyncio.Event().wait()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)

    def connection_lost(self, _error: Exception | None) -> None:
        if os.getpid() == OWN:  # in a fork the connection is closed
            os.killpg(0, signal.SIGKILL)  # the supervisor is gone: end ourselves and everything we started

    def data_received(self, data: bytes) -> None:
        for body in self._frames.feed(data):
            message = to_child(body)
            match message:
                case Run():
                    context = ChildContext(message, self.send, later=self._later)
                    task = self._loop.create_task(self._run(message, context))
                    self._calls[message.call] = task, context
                    task.add_done_callback(partial(self._on_done, message.call))
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
            outcome = _stop_outcome(run.call)
        except BaseException as error:  # broad: whatever a stage raises, SystemExit too, is how it ended
            print_error(run, error)
            outcome = end_with_error(run, error)
        end_fork(outcome)
        for output in self._outputs:
            output.end_line()
        context.flush()
        self.send(outcome)
        del self._calls[run.call]

    def _on_done(self, call: int, _task: asyncio.Task[None]) -> None:
        """A call that was stopped before it began has not sent its outcome."""
        if self._calls.pop(call, None) is not None:
            self.send(_stop_outcome(call))

    def send(self, message: FromChild) -> None:
        """Messages of one iteration of the loop are sent in one write. A stage may also report from a thread."""
        if threading.get_ident() != self._thread:
            self._loop.call_soon_threadsafe(self.send, message)
            return
        if not self._outbox:
            self._loop.call_soon(self._flush)
        self._outbox.append(to_frame(message))

    def _later(self, seconds: float, call: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(self._loop.call_later, seconds, call)

    def _flush(self) -> None:
        data, self._outbox = b"".join(self._outbox), []
        assert self._transport is not None
        self._transport.write(data)


def _stop_outcome(call: int) -> Raised:
    return Raised(call, "STOPPED", "The stage was asked to stop.", False, "")


class _Attributed(io.TextIOBase):
    """Standard output that knows which stage writes. Output of no stage goes to the original stream."""

    def __init__(self, shared: Shared, original: TextIO) -> None:
        self._shared = shared
        self._original = original
        self._lines: dict[int, Lines] = {}

    def write(self, text: str) -> int:
        run = _running.get()
        if run is None:
            return self._original.write(text)
        if (lines := self._lines.get(run.call)) is None:
            lines = self._lines[run.call] = Lines(LONGEST)
        said: list[str] = []
        size = 0
        for line in lines.feed(text, run.words):
            for piece in run.pieces(line, LONGEST):
                if size + len(piece) > LONGEST:
                    self._shared.send(Said(run.call, "\n".join(said)))
                    said, size = [], 0
                said.append(piece)
                size += len(piece) + 1
        if said:
            self._shared.send(Said(run.call, "\n".join(said)))
        return len(text)

    def end_line(self) -> None:
        """At the end of a stage: what it left without a line end is a line, too."""
        run = _running.get()
        if run is not None and (lines := self._lines.pop(run.call, None)) is not None:
            for line in lines.end():
                self._shared.send(Said(run.call, line))

    def flush(self) -> None:
        self._original.flush()

    def writable(self) -> bool:
        return True
