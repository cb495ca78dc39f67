"""The part of the store that governs: who may ask, how much."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.store.base import Charge, Spent
from packhorse.store.sqlite.session import Handle


class Governing(Handle):
    # Counters

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        return await self._counting.spend(charges)

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        await self._counting.refund(charges, at)
