"""How many streams of events each client has open here: they cost little, but a connection each."""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import aclosing

from packhorse.auth.caller import Caller
from packhorse.errors import TooManyStreams


class Streams:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._open: Counter[str] = Counter()

    def check(self, caller: Caller) -> None:
        """Raises TooManyStreams. Where nobody needs a key, nobody is counted."""
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
