"""Following a job's events over connections that come and go: what to ask next, and when to give up. Sends nothing."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import msgspec

from packhorse.errors import Unreachable

TERMINAL = frozenset({"completed", "failed", "cancelled"})
UNNUMBERED = frozenset({"snapshot", "progress", "log", "gap"})

SILENCE = 40.0
"""Seconds without a byte after which a connection is given up: the server pings every 15."""
TRIES = 8
PAUSE = 0.5
"""Seconds between connections, more each time: 14 in all before we give up, longer than a restart takes."""


class Follow:
    """Whoever drives it waits for `pause`, connects with `asked`, and hands each message to `read` while `goes_on`."""

    def __init__(self, url: str, after: int, *, timeout: float | None = None, log: bool = True) -> None:
        self._url = url
        self._after = after
        self._until = None if timeout is None else time.monotonic() + timeout
        self._asks = {"log": log, "log_after": 0}
        self._last = 0
        """The number of the newest event when the snapshot was made: nothing before it ends the job for good."""
        self._is_over = False
        self._was_there = False
        self._failures = 0

    @property
    def goes_on(self) -> bool:
        return not self._is_over and self._left() > 0

    def pause(self) -> float:
        """Seconds before the next connection, which counts as a failure until something comes: a server that goes
        away may end it properly."""
        pause = max(0.0, min(PAUSE * self._failures, self._left()))
        self._failures += 1
        return pause

    def asked(self) -> dict[str, Any]:
        return {
            "method": "GET",
            "url": self._url,
            "headers": {"Accept": "text/event-stream", "Last-Event-ID": str(self._after)},
            "params": self._asks,
            "timeout": httpx2.Timeout(5.0, read=min(SILENCE, max(0.05, self._left()))),
        }

    def connected(self) -> None:
        self._was_there = True

    def lost(self, error: Unreachable) -> None:
        """Raises the error if trying again makes no sense: nobody was ever there, or too long nobody is."""
        if self._left() > 0 and (not self._was_there or self._failures >= TRIES):
            raise error

    def read(self, message: httpx2.ServerSentEvent) -> dict[str, Any]:
        self._failures = 1
        data = msgspec.json.decode(message.data) if message.data else {}
        if message.event in UNNUMBERED:
            if message.event == "snapshot":
                self._last = data["last_event"]
                self._is_over = data["status"] in TERMINAL and self._after >= self._last
            elif message.event == "log":
                self._asks["log_after"] = data["n"]
            return {"n": None, "type": message.event, "data": data}
        self._after = int(message.id)
        self._is_over = message.event in TERMINAL and self._after >= self._last
        return {"n": self._after, "type": message.event, "data": data}

    def _left(self) -> float:
        return SILENCE if self._until is None else self._until - time.monotonic()
