"""The part of the store that observes: how it goes, and who is well. Nobody waits for it, so nobody is woken."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from packhorse.store.postgres import statistics
from packhorse.store.postgres.governing import Governing
from packhorse.store.statistics import Counts, Head, Tally, first


class Observing(Governing):
    # Statistics

    async def tally(self, counts: Mapping[Tally, int]) -> None:
        await self._keep(statistics.tally, counts)

    async def tallied(
        self, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        return await self._read(statistics.tallied, step, first(step, since, self.now()), queue, pipeline)

    async def heads(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        return await self._read(statistics.heads, kinds)

    async def counted(self, most: int) -> Counts:
        return await self._read(statistics.counted, most)
