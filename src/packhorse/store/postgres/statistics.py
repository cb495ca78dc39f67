"""Counts over time, and of the jobs there are. Nobody waits for them, so nobody is woken."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from packhorse.core.models import TaskId
from packhorse.core.plan import Status
from packhorse.store import counters, sql_files
from packhorse.store.counters import KEPT, MOST_PAIRS, MOST_RANKS, Counts, Head, Tally, first
from packhorse.store.postgres.connection import Session
from packhorse.store.postgres.session import Handle

SQL = sql_files.load(__package__, "statistics")


class Statistics(Handle):
    async def tally(self, counts: Mapping[Tally, int]) -> None:
        if counts:
            rows = [(each.step, each.at, each.queue, each.pipeline, each.name, count) for each, count in counts.items()]
            await self._keep(Session.fetch, SQL.add, *zip(*rows, strict=True))

    async def tallied(
        self, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        start = first(step, since, self.now())
        found = await self._read(Session.fetch, SQL.counts, step, start, queue, pipeline)
        return [(Tally(step, at, of, name, what), count) for at, of, name, what, count in found]

    async def heads(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        """Priority by priority, for all queues at once."""
        asked = [(queue, kind, -(2**62)) for queue, names in kinds.items() for kind in names]
        found: list[Head] = []
        for _ in range(MOST_RANKS):
            if not asked:
                break
            rows = await self._read(Session.fetch, SQL.heads, *zip(*asked, strict=True))
            found += [Head(row["queue"], str(row["job_id"]), TaskId(row["stage"], row["element"])) for row in rows]
            asked = [(row["queue"], row["kind"], row["rank"]) for row in rows]
        return found

    async def counted(self, most: int) -> Counts:
        pairs = await self._read(Session.fetch, SQL.pairs, MOST_PAIRS)
        tenants, pipelines = [row["tenant"] for row in pairs], [row["pipeline"] for row in pairs]
        found = {}
        for status in Status:
            asked = (tenants, pipelines, status.value, most + 1)
            found[status.value] = await self._read(Session.value, SQL.count, *asked)
        return counters.capped(found, most, is_all=len(pairs) < MOST_PAIRS)

    async def _trim_tallies(self) -> None:
        kept = [float(seconds + step) for step, seconds in KEPT.items()]
        await self._keep(Session.fetch, SQL.trim, self._clock.parameter(), list(KEPT), kept)
