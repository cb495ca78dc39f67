"""A handle on the server: the way to it, its clock, and what every write goes through."""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from typing import Self

from packhorse.errors import StoreUnavailable
from packhorse.settings import REDIS_PREFIX
from packhorse.store.redis import check
from packhorse.store.redis.address import Address, address
from packhorse.store.redis.client import Link, ServerClock
from packhorse.store.redis.rows import Plans
from packhorse.store.redis.writer import Writer


class Handle:
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        self.now = ServerClock(clock)
        self._link = Link(address)
        self._plans = Plans()
        self._write = Writer(self._link, self.now)
        self._closing: list[Callable[[], Awaitable[None]]] = [self._write.close]
        """What has to be done before the link is closed, in this order."""

    @classmethod
    async def open(cls, url: str, prefix: str = REDIS_PREFIX, clock: Callable[[], float] | None = None) -> Self:
        """A handle on the server at the URL, whose ``?prefix=`` wins over the one given. Its clock is the server's."""
        store = cls(address(url, prefix), clock)
        try:
            await store._greet()
        except BaseException:
            await store.close()
            raise
        return store

    async def _greet(self) -> None:
        info = await check.facts(self._link)
        self._link.prefix = self._link.address.prefix_in(is_cluster=info.get("cluster_enabled") == "1")
        sent = time.monotonic()
        seconds, micros = await self._link.call("TIME")
        self.now.learn(int(seconds) + int(micros) / 1e6, sent)

    async def close(self) -> None:
        """Finish what was asked for, then leave."""
        for close in self._closing:
            await close()
        await self._link.close()

    def _open(self) -> None:
        """What asks nothing when it is given nothing must still say that the store is closed."""
        if self._link.is_closed:
            raise StoreUnavailable("The store is closed.")
