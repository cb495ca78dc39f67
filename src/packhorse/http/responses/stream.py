"""Responses sent piece by piece until the reader leaves, and a limit on how many a client has open."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from enum import StrEnum
from typing import Any

from litestar.types import Receive, Scope, Send

from packhorse.auth.caller import Caller
from packhorse.errors import TooManyStreams
from packhorse.log import log

STALLED = 60.0
"""Seconds in which a reader must take a piece."""


class Ending(StrEnum):
    """How an answer came to its end."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    """The reader has gone."""
    TIMED_OUT = "timed_out"
    REVOKED = "revoked"
    """Whoever asked may not any more."""
    FAILED = "failed"
    """There were no more pieces to be had."""


class Streamed:
    """The server neither raises nor waits when a reader has vanished, so we listen for it beside.

    Whatever ends the pieces before their end, the connection is cut: a reader can tell that something is missing.
    It is cut too when ``ended`` is set, and after ``limit`` seconds.
    """

    def __init__(
        self,
        pieces: AsyncGenerator[bytes],
        headers: Mapping[str, str],
        *,
        status: int = 200,
        ended: asyncio.Event | None = None,
        limit: float | None = None,
    ) -> None:
        self._pieces = pieces
        self._headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        self._status = status
        self._ended = ended
        self._limit = limit
        self._waiting_since: float | None = None
        """Of the piece that is being taken."""
        self.is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.sent(scope, receive, send)

    async def sent(self, scope: Scope, receive: Receive, send: Send) -> Ending:
        """Send it, and say how that ended. What fails before anything was sent is raised."""
        sending = asyncio.create_task(self._send(send))
        watching: dict[asyncio.Task[Any], Ending] = {
            asyncio.create_task(_gone(receive)): Ending.ABORTED,
            asyncio.create_task(self._stalled(scope["path"])): Ending.TIMED_OUT,
        }
        if self._ended is not None:
            watching[asyncio.create_task(self._ended.wait())] = Ending.REVOKED
        tasks = [sending, *watching]
        try:
            done, _ = await asyncio.wait(tasks, timeout=self._limit, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        if sending not in done:
            return next((ending for task, ending in watching.items() if task in done), Ending.TIMED_OUT)
        error = sending.exception()
        if error is None:
            return Ending.COMPLETED
        if not self.is_started:
            raise error
        log.stream_cut(scope["path"], error)
        return Ending.FAILED

    async def _send(self, send: Send) -> None:
        async with aclosing(self._pieces) as pieces:
            first = await anext(pieces, None)  # before the headers: what fails now can still be said properly
            start: Any = {"type": "http.response.start", "status": self._status, "headers": self._headers}
            self.is_started = True
            await send(start)
            if first is not None:
                await self._piece(send, first)
                async for piece in pieces:
                    await self._piece(send, piece)
        await self._piece(send, b"", is_last=True)

    async def _piece(self, send: Send, piece: bytes, *, is_last: bool = False) -> None:
        message: Any = {"type": "http.response.body", "body": piece, "more_body": not is_last}
        self._waiting_since = time.monotonic()
        await send(message)
        self._waiting_since = None

    async def _stalled(self, path: str) -> None:
        """Until the reader has left one piece lying for too long. Seen from beside: a timer for each costs too much."""
        left = STALLED
        while left > 0:
            await asyncio.sleep(left)
            left = STALLED - self._waited
        log.stream_cut(path, TimeoutError("the reader takes nothing more"))

    @property
    def _waited(self) -> float:
        return 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Streams:
    """Limits how many event streams each client has open: each costs a connection."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def check(self, caller: Caller) -> None:
        """Raises `TooManyStreams`. Without keys there is no limit."""
        if caller.client and self._limit and self._open[caller.client] >= self._limit:
            raise TooManyStreams(limit=self._limit)

    async def counted(self, caller: Caller, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        self._open[caller.client] += 1
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        finally:
            self._open[caller.client] -= 1
            if not self._open[caller.client]:
                del self._open[caller.client]
