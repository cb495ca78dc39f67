"""How much: counters. What waits travels together, in one script."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from packhorse.errors import StoreError
from packhorse.store.base import Charge, Spent
from packhorse.store.batching import Group
from packhorse.store.redis.client import Link, ServerClock

MANY = 128
"""Asks in one script at most: about 5 ms in which the server answers nobody else."""

_pack = msgspec.msgpack.Encoder().encode


class Ask(NamedTuple):
    """A spend, or the refund of what was spent at that time."""

    charges: Sequence[Charge]
    at: float | None = None

    def packed(self) -> list[Any]:
        flat = [part for c in self.charges for part in (c.name, repr(float(c.window)), c.amount, c.limit)]
        return ["" if self.at is None else repr(self.at), *flat]


class Counting:
    def __init__(self, link: Link, clock: ServerClock) -> None:
        self._link = link
        self._clock = clock
        self._asks: Group[Ask, Any] = Group(self._send, MANY)

    async def __call__(self, ask: Ask) -> Any:
        [said] = await self._asks([ask])
        if isinstance(said, bytes):
            raise StoreError(f"Redis: {said.decode()}")
        return said

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        at, refused, wait, *left = await self(Ask(charges))
        return Spent(float(at), None if refused < 0 else refused, tuple(map(int, left)), float(wait))

    async def close(self) -> None:
        await self._asks.close()

    async def _send(self, asks: list[Ask]) -> list[Any]:
        said: list[Any] = await self._link.run("spend", self._clock.argument(), _pack([ask.packed() for ask in asks]))
        return said
