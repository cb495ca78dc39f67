"""The part of the store that observes: how it goes, and who is well. Nobody waits for it, so nobody is woken."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from packhorse.store.base import Finding
from packhorse.store.health import Lost
from packhorse.store.postgres import statistics
from packhorse.store.postgres.governing import Governing
from packhorse.store.statistics import Counts, Head, Reading, Tally, first, first_minute


class Observing(Governing):
    # Statistics

    async def tally(self, counts: Mapping[Tally, int]) -> None:
        await self._keep(statistics.tally, counts)

    async def tallied(
        self, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        return await self._read(statistics.tallied, step, first(step, since, self.now()), queue, pipeline)

    async def read(self, reading: Reading) -> bool:
        return await self._keep(statistics.read, reading)

    async def readings(self, since: float) -> list[Reading]:
        return await self._read(statistics.readings, first_minute(since, self.now()))

    async def heads(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        return await self._read(statistics.heads, kinds)

    async def counted(self, most: int) -> Counts:
        return await self._read(statistics.counted, most)

    # Vitals

    async def note(self, findings: Sequence[Finding]) -> None:
        await self._keep(statistics.note, findings)

    async def noted(self) -> list[Finding]:
        return await self._read(statistics.noted)

    async def miss(self, lost: Lost) -> None:
        await self._keep(statistics.miss, lost)

    async def lost(self) -> list[Lost]:
        return await self._read(statistics.lost, self.now())
