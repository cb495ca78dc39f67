"""Follows a job's events across lost connections: what to request next, and when to give up. Sends nothing itself."""

from __future__ import annotations

import time
from typing import Any

import httpx2
import msgspec

from packhorse.errors import Unreachable

TERMINAL = frozenset({"completed", "failed", "cancelled"})
UNNUMBERED = frozenset({"snapshot", "progress", "log", "gap"})

SILENCE = 40.0
"""Seconds without a byte after which the client reconnects; the server pings every 15."""
TRIES = 8
PAUSE = 0.5
"""Seconds between connections, growing each time: 14 in all before giving up, longer than a restart takes."""


class Follow:
    """The client waits for `pause`, connects with `request`, and passes each message to `read` while `goes_on`."""

    def __init__(self, url: str, after: int, *, timeout: float | None = None, log: bool = True) -> None:
        self._url = url
        self._after = after
        self._until = None if timeout is None else time.monotonic() + timeout
        self._query = {"log": log, "log_after": 0}
        self._last = 0
        """Number of the newest event in the snapshot. An end before it was followed by a retry."""
        self._is_over = False
        self._was_there = False
        self._failures = 0

    @property
    def goes_on(self) -> bool:
        return not self._is_over and self._left() > 0

    def pause(self) -> float:
        """Seconds before the next connection. It counts as a failure until a message arrives: a server that shuts
        down may end it without an error."""
        pause = max(0.0, min(PAUSE * self._failures, self._left()))
        self._failures += 1
        return pause

    def request(self) -> dict[str, Any]:
        return {
            "method": "GET",
            "url": self._url,
            "headers": {"Accept": "text/event-stream", "Last-Event-ID": str(self._after)},
            "params": self._query,
            "timeout": httpx2.Timeout(5.0, read=min(SILENCE, max(0.05, self._left()))),
        }

    def connected(self) -> None:
        self._was_there = True

    def connection_lost(self, error: Unreachable) -> None:
        """Raises the error if no connection ever succeeded, or after too many failures in a row."""
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
                self._query["log_after"] = data["n"]
            return {"n": None, "type": message.event, "data": data}
        self._after = int(message.id)
        self._is_over = message.event in TERMINAL and self._after >= self._last
        return {"n": self._after, "type": message.event, "data": data}

    def _left(self) -> float:
        return SILENCE if self._until is None else self._until - time.monotonic()
