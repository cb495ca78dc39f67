"""The part of the store that governs: who may ask, how much."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

from packhorse.store.base import Charge, Spent
from packhorse.store.batching import Group
from packhorse.store.postgres import counters
from packhorse.store.postgres.address import Address
from packhorse.store.postgres.counters import Ask
from packhorse.store.postgres.session import Handle


class Governing(Handle):
    """Nobody waits for what is written here, so nobody is woken for it: a busy server counts at every request."""

    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._counts: Group[Ask, Spent] = self._group(self._count)

    # Counters

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        self._check_open()
        [spent] = await self._counts([Ask(charges)])
        return spent

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        self._check_open()
        await self._counts([Ask(charges, at)])

    async def _count(self, asks: Sequence[Ask]) -> Sequence[Spent]:
        return await self._keep(partial(counters.count_all, asks=asks, clock=self._clock))
