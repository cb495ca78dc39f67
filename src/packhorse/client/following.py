"""Following a job's events over connections that come and go."""

from __future__ import annotations

import time
from collections.abc import Generator
from typing import Any

import httpx2
import msgspec

from packhorse.client.problems import error_of, reaching
from packhorse.errors import Unreachable

TERMINAL = frozenset({"completed", "failed", "cancelled"})
UNNUMBERED = frozenset({"snapshot", "progress", "log", "gap"})

SILENCE = 40.0
"""Seconds without a byte after which a connection is given up: the server pings every 15."""
TRIES = 8
PAUSE = 0.5
"""Seconds between connections, more each time: 14 in all before we give up, longer than a restart takes."""


class Follow:
    def __init__(
        self, http: httpx2.Client, path: str, after: int, *, until: float | None = None, log: bool = True
    ) -> None:
        self._http = http
        self._path = path
        self._after = after
        self._until = until
        self._asks = {"log": log, "log_after": 0}
        self._last = 0
        """The number of the newest event when the snapshot was made: nothing before it ends the job for good."""
        self._is_over = False
        self._was_there = False

    def events(self) -> Generator[dict[str, Any]]:
        failures = 0
        while not self._is_over and self._left() > 0:
            time.sleep(max(0.0, min(PAUSE * failures, self._left())))
            failures += 1  # also when a server that is going away ends it properly
            try:
                for event in self._connection():
                    failures = 1
                    yield event
            except Unreachable:
                if self._left() > 0 and (not self._was_there or failures >= TRIES):
                    raise

    def _connection(self) -> Generator[dict[str, Any]]:
        headers = {"Accept": "text/event-stream", "Last-Event-ID": str(self._after)}
        timeout = httpx2.Timeout(5.0, read=min(SILENCE, max(0.05, self._left())))
        with (
            reaching(str(self._http.base_url)),
            self._http.stream("GET", self._path, headers=headers, params=self._asks, timeout=timeout) as response,
        ):
            if not response.is_success:
                response.read()
                raise error_of(response)
            self._was_there = True
            for message in httpx2.EventSource(response, max_event_size=None):
                yield self._read(message)
                if self._is_over or self._left() <= 0:
                    return

    def _read(self, message: httpx2.ServerSentEvent) -> dict[str, Any]:
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
