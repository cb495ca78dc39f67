"""A request's body as it comes in, with a limit to patience."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from litestar.types import Receive

from packhorse.errors import Malformed, PackhorseError, TooLarge, TooSlow
from packhorse.settings import Settings

DRAINED = 4 * 1024 * 1024
"""Bytes of a refused body that are read all the same: who has sent everything is sure to see the answer."""
DRAINING = 1.0


class Body:
    def __init__(self, receive: Receive, settings: Settings) -> None:
        """Who is silent for too long is given up; so is who is slow on the whole: a few could hold every connection."""
        self._receive = receive
        self._silence = settings.body_silence
        self._rate = settings.body_rate
        self._size = 0
        self._began = time.monotonic()
        self._is_over = False
        self.is_begun = False
        self._timer: asyncio.TimerHandle | None = None
        self._waiting: asyncio.Task[Any] | None = None
        self._waits_since = 0.0
        self._is_silent = False

    async def read(self) -> bytes | None:
        """The next piece, None after the last."""
        while not self._is_over:
            piece = await self._next()
            if piece:
                return piece
        return None

    async def whole(self, limit: int) -> bytes:
        pieces = []
        while piece := await self.read():
            if self._size > limit:
                raise TooLarge(field="body", limit=limit)
            pieces.append(piece)
        return b"".join(pieces)

    async def drain(self) -> None:
        """Read on for a while without keeping anything."""
        until = self._size + DRAINED
        try:
            async with asyncio.timeout(DRAINING):
                while self._size < until and await self.read():
                    pass
        except (TimeoutError, PackhorseError):  # whatever was wrong with the rest, the answer is on its way
            pass

    async def _next(self) -> bytes:
        self.is_begun = True
        message = await self._message()
        if message["type"] != "http.request":
            self._end()
            raise Malformed(reason="the connection ended before the body did")
        piece: bytes = message.get("body", b"")
        if not message.get("more_body", False):
            self._end()
        self._size += len(piece)
        took = time.monotonic() - self._began
        if took > self._silence and self._size < self._rate * (took - self._silence):
            raise TooSlow(seconds=took)
        return piece

    async def _message(self) -> Any:
        task = asyncio.current_task()
        assert task is not None
        before = task.cancelling()
        self._waiting, self._waits_since, self._is_silent = task, time.monotonic(), False
        if self._timer is None:
            self._look_after(self._silence)
        try:
            return await self._receive()
        except asyncio.CancelledError:
            if not self._is_silent or task.uncancel() > before:  # else it was nobody but us
                raise
            self._end()
            raise TooSlow(seconds=self._silence) from None
        finally:
            if self._waiting is task:  # else somebody else reads on already
                self._waiting = None

    def _look_after(self, seconds: float) -> None:
        """One timer for the whole body, moved on as it comes: one for each piece costs as much as the piece."""
        self._timer = asyncio.get_running_loop().call_later(seconds, self._look)

    def _look(self) -> None:
        self._timer = None
        if self._waiting is None:  # whoever reads on sets it anew
            return
        left = self._silence - (time.monotonic() - self._waits_since)
        if left > 0:
            self._look_after(left)
            return
        self._is_silent = True
        self._waiting.cancel()

    def _end(self) -> None:
        self._is_over = True
        if self._timer is not None:
            self._timer.cancel()
