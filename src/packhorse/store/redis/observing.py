"""The part of the store that observes: how it goes, and who is well."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from packhorse.store.redis import statistics
from packhorse.store.redis.governing import Governing
from packhorse.store.statistics import Counts, Head, Tally, first


class Observing(Governing):
    # Statistics

    async def tally(self, counts: Mapping[Tally, int]) -> None:
        await self._write.put(*([statistics.tally(counts)] if counts else []))

    async def tallied(
        self, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        at, now = first(step, since, self.now()), self.now()
        return await statistics.tallied(self._link, step, at, now, queue, pipeline)

    async def heads(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        self._open()
        return await statistics.heads(self._link, kinds)

    async def counted(self, most: int) -> Counts:  # noqa: ARG002 (nothing has to be counted here)
        return await statistics.counted(self._link)
