"""Serves stages one at a time, in the main thread of the child. It loads no event loop: most stages need none."""

from __future__ import annotations

import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable

from packhorse.define.registry import Code
from packhorse.worker.child.call import Outcome, Stopped, bind_stage, end_with, end_with_error, find_code, print_error
from packhorse.worker.child.context import ChildContext
from packhorse.worker.child.memory import limit_memory
from packhorse.worker.child.messages import Frames, FromChild, Raised, Ready, Run, to_child, to_frame

LOG_FORMAT = "%(levelname)s %(name)s: %(message)s"

OWN = os.getpid()
"""This process. Any other that runs this code was forked by a stage."""


class Single:
    """Runs one stage at a time, in the main thread of its process."""

    def __init__(self, code: Code, link: socket.socket) -> None:
        self._kinds = code.by_kind
        self._link = link
        self._sending = threading.Lock()
        self._inbox: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._current: ChildContext | None = None

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self._stop)
        logging.basicConfig(level=logging.INFO, format=LOG_FORMAT, stream=sys.stderr)
        threading.Thread(target=self._read, name="packhorse-link", daemon=True).start()
        self._send(Ready())
        try:
            while True:
                self._run(self._inbox.get())
        except Stopped:
            os._exit(0)

    def _run(self, run: Run) -> None:
        context = self._current = ChildContext(run, self._send, later=_later)
        try:
            pipeline, stage = find_code(self._kinds, run)
            with limit_memory(run.memory):
                value = bind_stage(pipeline, stage, run, context)()
                if stage.is_async:  # it died in the shared process once, so now it runs alone
                    import asyncio

                    value = asyncio.run(value)
                outcome = end_with(stage, run, context, value)
        except Stopped:
            raise
        except BaseException as error:  # broad: whatever a stage raises, SystemExit too, is how it ended
            print_error(run, error)
            outcome = end_with_error(run, error)
        sys.stdout.flush()
        sys.stderr.flush()
        end_fork(outcome)
        context.flush()
        self._send(outcome)

    def _stop(self, _number: int, _frame: object) -> None:
        if self._current is not None:
            self._current.is_cancelled = True
        raise Stopped

    def _read(self) -> None:
        try:
            frames = Frames()
            while data := self._link.recv(65536):
                for body in frames.feed(data):
                    message = to_child(body)
                    if isinstance(message, Run):
                        self._inbox.put(message)
                    elif self._current is not None:
                        self._current.is_cancelled = True
        finally:
            # The supervisor is gone or sends garbage: end ourselves and everything we started.
            os.killpg(0, signal.SIGKILL)

    def _send(self, message: FromChild) -> None:
        with self._sending:
            self._link.sendall(to_frame(message))


def end_fork(outcome: Outcome) -> None:
    """End this process here if a stage forked it: only the child itself answers for the stage."""
    if os.getpid() != OWN:
        os._exit(1 if isinstance(outcome, Raised) else 0)


def _later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
