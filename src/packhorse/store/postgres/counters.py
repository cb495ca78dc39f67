"""Counters of rates and quotas, and statistics. Nobody waits for what is written here, so nobody is woken for it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import NamedTuple

from packhorse.core import json
from packhorse.core.models import TaskId
from packhorse.core.plan import Status
from packhorse.store import counters, sql_files
from packhorse.store.batching import Group
from packhorse.store.counters import Buckets, Charge, Counter, Counts, Head, Spent, Tally
from packhorse.store.postgres.connection import Address, Clock, Session
from packhorse.store.postgres.session import Handle, columns, keep, read

SQL = sql_files.load(__package__, "counters")
TALLIES = sql_files.load(__package__, "statistics")


class Ask(NamedTuple):
    """A spend, or the refund of what was spent at that time."""

    charges: Sequence[Charge]
    at: float | None = None


class Counters(Handle):
    """A group of callers locks its counters together, is judged one after the other, and is written at once."""

    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._counts: Group[Ask, Spent] = self._group(self._count_all)

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        self._check_open()
        [spent] = await self._counts([Ask(charges)])
        return spent

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        self._check_open()
        await self._counts([Ask(charges, at)])

    @keep
    async def _count_all(self, session: Session, asks: Sequence[Ask]) -> list[Spent]:
        """The answer for each caller, in order; the answer for a refund means nothing."""
        names = counters.counters_of(charge for ask in asks for charge in ask.charges)
        stored, now = await _lock(session, names, self._clock)
        kept: dict[Counter, Buckets] = {each: json.record(body, Buckets) for each, body in stored.items()}
        answers = [_count_one(kept, ask, now) for ask in asks]
        written = {each: json.encode(buckets) for each, buckets in kept.items()}
        moved = [
            (*each, counters.until(each[1], kept[each]), body) for each, body in written.items() if body != stored[each]
        ]
        if moved:
            await session.fetch(SQL.keep, *columns(moved))
        return answers

    @keep
    async def _trim_counters(self, session: Session) -> None:
        await session.fetch(SQL.trim, self._clock.parameter())


async def _lock(session: Session, names: Sequence[Counter], clock: Clock) -> tuple[dict[Counter, bytes], float]:
    """What is kept of the counters, and the time when the last of them was ours."""
    if not names:
        return {}, clock.now()
    found = await session.fetch(SQL.lock, *columns(names))
    given, now = clock.parameter(), max(row["now"] for row in found)
    return {(row["name"], row["seconds"]): row["buckets"] for row in found}, now if given is None else given


def _count_one(kept: dict[Counter, Buckets], ask: Ask, now: float) -> Spent:
    if ask.at is None:
        return counters.spend(kept, ask.charges, now)
    counters.refund(kept, ask.charges, ask.at)
    return Spent(now, None, (), 0.0)


class Statistics(Handle):
    @keep
    async def tally(self, session: Session, counts: Mapping[Tally, int]) -> None:
        if counts:
            rows = ((each.step, each.at, each.queue, each.pipeline, each.name, count) for each, count in counts.items())
            await session.fetch(TALLIES.add, *columns(rows))

    @read
    async def list_tallies(
        self, session: Session, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        start = counters.first(step, since, self.now())
        found = await session.fetch(TALLIES.counts, step, start, queue, pipeline)
        return [(Tally(step, *key), count) for *key, count in found]

    @read
    async def heads(self, session: Session, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        """Priority by priority, for all queues at once."""
        asked = [(queue, kind, -(2**62)) for queue, names in kinds.items() for kind in names]
        pairs = [queue for queue, _, _ in asked], [kind for _, kind, _ in asked]
        turns = await session.fetch(TALLIES.turns, *pairs, counters.MOST_RANKS)
        found = [Head(row["queue"], str(row["job_id"]), TaskId(row["stage"], row["element"])) for row in turns]
        for _ in range(counters.MOST_RANKS):
            if not asked:
                break
            rows = await session.fetch(TALLIES.heads, *columns(asked))
            found += [Head(row["queue"], str(row["job_id"]), TaskId(row["stage"], row["element"])) for row in rows]
            asked = [(row["queue"], row["kind"], row["rank"]) for row in rows]
        return found

    @read
    async def count_by_status(self, session: Session, most: int, *, tenant: str | None = None) -> Counts:
        if tenant is not None:
            rows = await session.fetch(TALLIES.usage, tenant)
            return Counts(active=rows[0]["jobs"], bytes=rows[0]["bytes"]) if rows else Counts()
        pairs = await session.fetch(TALLIES.pairs, counters.MOST_PAIRS)
        tenants, pipelines = [row["tenant"] for row in pairs], [row["pipeline"] for row in pairs]
        found = {}
        for status in Status:
            found[status.value] = await session.value(TALLIES.count, tenants, pipelines, status.value, most + 1)
        return counters.capped(found, most, is_all=len(pairs) < counters.MOST_PAIRS)

    @keep
    async def _trim_tallies(self, session: Session) -> None:
        kept = [float(seconds + step) for step, seconds in counters.KEPT.items()]
        await session.fetch(TALLIES.trim, self._clock.parameter(), list(counters.KEPT), kept)
