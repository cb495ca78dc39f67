"""The part of the store that observes: how it goes, and who is well."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from packhorse.store.base import Finding
from packhorse.store.health import Lost
from packhorse.store.redis import statistics
from packhorse.store.redis.governing import Governing
from packhorse.store.statistics import Counts, Head, Reading, Tally, first, first_minute


class Observing(Governing):
    # Statistics

    async def tally(self, counts: Mapping[Tally, int]) -> None:
        await self._write.put(*([statistics.tally(counts)] if counts else []))

    async def tallied(
        self, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        at, now = first(step, since, self.now()), self.now()
        return await statistics.tallied(self._link, step, at, now, queue, pipeline)

    async def read(self, reading: Reading) -> bool:
        return not await self._write.told(statistics.read(reading))

    async def readings(self, since: float) -> list[Reading]:
        return await statistics.readings(self._link, first_minute(since, self.now()), self.now())

    async def heads(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        self._open()
        return await statistics.heads(self._link, kinds)

    async def counted(self, most: int) -> Counts:  # noqa: ARG002 (nothing has to be counted here)
        return await statistics.counted(self._link)

    # Vitals

    async def note(self, findings: Sequence[Finding]) -> None:
        await self._write.put(*([statistics.note(findings)] if findings else []))

    async def noted(self) -> list[Finding]:
        return await statistics.noted(self._link)

    async def miss(self, lost: Lost) -> None:
        await statistics.miss(self._link, self._write, lost)

    async def lost(self) -> list[Lost]:
        return await statistics.lost(self._link, self.now())
