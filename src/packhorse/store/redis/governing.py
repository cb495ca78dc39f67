"""The part of the store that governs: who may ask, how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packhorse.store.base import Charge, Spent
from packhorse.store.redis.address import Address
from packhorse.store.redis.counters import Ask, Counting
from packhorse.store.redis.session import Handle


class Governing(Handle):
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._counting = Counting(self._link, self.now)
        self._closing.insert(0, self._counting.close)

    # Counters

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        self._open()
        return await self._counting.spend(charges)

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        self._open()
        await self._counting(Ask(charges, at))
