"""A child that runs one stage at a time, in its main thread."""

from __future__ import annotations

import asyncio
import logging
import os
import queue
import signal
import socket
import sys
import threading
from collections.abc import Callable

from packhorse.define.registry import Code
from packhorse.worker.child.call import Stopped, bind_stage, end_with, end_with_error, find_code, print_error
from packhorse.worker.child.context import ChildContext
from packhorse.worker.child.messages import Frames, FromChild, Ready, Run, framed, to_child


class Single:
    def __init__(self, link: socket.socket, code: Code) -> None:
        self._link = link
        self._kinds = code.by_kind
        self._sending = threading.Lock()
        self._inbox: queue.SimpleQueue[Run] = queue.SimpleQueue()
        self._current: ChildContext | None = None

    def serve(self) -> None:
        signal.signal(signal.SIGTERM, self._asked_to_end)
        logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s", stream=sys.stderr)
        threading.Thread(target=self._read, name="packhorse-link", daemon=True).start()
        self._send(Ready(tuple(self._kinds)))
        try:
            while True:
                self._run(self._inbox.get())
        except Stopped:
            os._exit(0)

    def _run(self, run: Run) -> None:
        context = self._current = ChildContext(run, self._send, later=_later)
        try:
            pipeline, stage = find_code(self._kinds, run)
            call = bind_stage(pipeline, stage, run, context)
            value = call()
            if stage.is_async:  # it died in company once, so now it runs alone
                value = asyncio.run(value)
            outcome = end_with(stage, run, context, value)
        except Stopped:
            raise
        except BaseException as error:  # broad: whatever a stage raises, SystemExit too, is how it ended
            print_error(run, error)
            outcome = end_with_error(run, error)
        sys.stdout.flush()
        sys.stderr.flush()
        context.flush()
        self._send(outcome)

    def _asked_to_end(self, _number: int, _frame: object) -> None:
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
            # The supervisor is gone or not to be understood: nobody would hear us, and nothing we started may stay.
            os.killpg(0, signal.SIGKILL)

    def _send(self, message: FromChild) -> None:
        with self._sending:
            self._link.sendall(framed(message))


def _later(seconds: float, call: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, call)
    timer.daemon = True
    timer.start()
