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

from packhorse.auth.access import Caller
from packhorse.errors import TooManyStreams
from packhorse.log import log

STALLED = 60.0
"""Seconds in which a reader must take a piece."""


class Ending(StrEnum):
    """How a response ended."""

    COMPLETED = "completed"
    ABORTED = "aborted"
    """The reader disconnected."""
    TIMED_OUT = "timed_out"
    REVOKED = "revoked"
    """The key or session of the caller ended."""
    FAILED = "failed"
    """Reading the next piece failed."""


class Streamed:
    """A streamed response. The server does not report a reader that has left, so a task listens for the disconnect.

    If the pieces end early, the connection is cut, so that the reader can tell that something is missing. It is also
    cut when ``ended`` is set, and after ``limit`` seconds.
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
        """When sending the current piece began."""
        self.is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.send_to(scope, receive, send)

    async def send_to(self, scope: Scope, receive: Receive, send: Send) -> Ending:
        """Send the response and return how that ended. Raises what fails before anything was sent."""
        sending = asyncio.create_task(self._send(send))
        watching: dict[asyncio.Task[Any], Ending] = {
            asyncio.create_task(wait_for_disconnect(receive)): Ending.ABORTED,
            asyncio.create_task(self._wait_for_stall(scope["path"])): Ending.TIMED_OUT,
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
            first = await anext(pieces, None)  # before the headers: an error can still become a problem document
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

    async def _wait_for_stall(self, path: str) -> None:
        """Returns when the reader has stalled. One task polls: a timer per piece costs too much."""
        left = STALLED
        while left > 0:
            await asyncio.sleep(left)
            left = STALLED - self._waited
        log.stream_cut(path, TimeoutError("the reader takes nothing more"))

    @property
    def _waited(self) -> float:
        return 0.0 if self._waiting_since is None else time.monotonic() - self._waiting_since


async def wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class Streams:
    """Limits how many event streams each client has open, and each token by itself: each costs a connection."""

    def __init__(self, limit: int, token_limit: int = 0) -> None:
        self._limit = limit
        self._token_limit = token_limit
        self._open: Counter[str] = Counter()

    def check(self, caller: Caller) -> None:
        """Raises `TooManyStreams`. Without keys there is no limit."""
        for name, limit in ((caller.client, self._limit), (caller.token, self._token_limit)):
            if name and limit and self._open[name] >= limit:
                raise TooManyStreams(limit=limit)

    async def count(self, caller: Caller, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
        names = [caller.client, caller.token] if caller.token else [caller.client]
        self._open.update(names)
        try:
            async with aclosing(pieces):
                async for piece in pieces:
                    yield piece
        finally:
            self._open.subtract(names)
            for name in names:
                if not self._open[name]:
                    del self._open[name]
