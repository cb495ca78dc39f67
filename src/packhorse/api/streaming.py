"""An answer sent piece by piece, for as long as there is somebody who takes it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from litestar.types import Receive, Scope, Send

from packhorse.telemetry import log

STALLED = 60.0
"""Seconds in which a reader must take a piece."""


class Streamed:
    """The server neither raises nor waits when a reader has vanished, so we listen for it beside.

    Whatever ends the pieces before their end, the connection is cut: a reader can tell that something is missing.
    """

    def __init__(self, pieces: AsyncGenerator[bytes], headers: Mapping[str, str]) -> None:
        self._pieces = pieces
        self._headers = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
        self._is_started = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        gone = asyncio.create_task(_gone(receive))
        sent = asyncio.create_task(self._send(send))
        try:
            await asyncio.wait([gone, sent], return_when=asyncio.FIRST_COMPLETED)
        finally:
            gone.cancel()
            sent.cancel()
            await asyncio.gather(gone, sent, return_exceptions=True)
        error = None if sent.cancelled() else sent.exception()
        if error is None:
            return
        if not self._is_started:
            raise error
        log.stream_cut(scope["path"], error)

    async def _send(self, send: Send) -> None:
        async with aclosing(self._pieces) as pieces:
            first = await anext(pieces, None)  # before the headers: what fails now can still be said properly
            start: Any = {"type": "http.response.start", "status": 200, "headers": self._headers}
            self._is_started = True
            await send(start)
            if first is not None:
                await _piece(send, first)
                async for piece in pieces:
                    await _piece(send, piece)
        await _piece(send, b"", is_last=True)


async def _piece(send: Send, piece: bytes, *, is_last: bool = False) -> None:
    message: Any = {"type": "http.response.body", "body": piece, "more_body": not is_last}
    async with asyncio.timeout(STALLED):
        await send(message)


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
