"""How much: counters, which a group of callers locks together, judges one after the other and writes at once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from packhorse.core import json
from packhorse.store import counters, sql_files
from packhorse.store.base import Charge, Spent
from packhorse.store.batching import Group
from packhorse.store.counters import Buckets, Counter
from packhorse.store.postgres.address import Address
from packhorse.store.postgres.connection import Clock, Session
from packhorse.store.postgres.session import Handle

SQL = sql_files.load(__package__, "counters")


class Ask(NamedTuple):
    """A spend, or the refund of what was spent at that time."""

    charges: Sequence[Charge]
    at: float | None = None


class Counters(Handle):
    """Nobody waits for what is written here, so nobody is woken for it: a busy server counts at every request."""

    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._counts: Group[Ask, Spent] = self._group(self._count)

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        self._check_open()
        [spent] = await self._counts([Ask(charges)])
        return spent

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        self._check_open()
        await self._counts([Ask(charges, at)])

    async def _count(self, asks: Sequence[Ask]) -> Sequence[Spent]:
        return await self._keep(count_all, asks, self._clock)

    async def _trim_counters(self) -> None:
        await self._keep(Session.fetch, SQL.trim, self._clock.parameter())


async def count_all(session: Session, asks: Sequence[Ask], clock: Clock) -> list[Spent]:
    """What each caller is told, who comes first first; of a refund that is nothing of interest."""
    stored, now = await _lock(session, counters.counters_of(charge for ask in asks for charge in ask.charges), clock)
    kept: dict[Counter, Buckets] = {each: json.record(body, Buckets) for each, body in stored.items()}
    answers = [_count_one(kept, ask, now) for ask in asks]
    written = {each: json.encode(buckets) for each, buckets in kept.items()}
    moved = [
        (*each, counters.until(each[1], kept[each]), body) for each, body in written.items() if body != stored[each]
    ]
    if moved:
        await session.fetch(SQL.keep, *zip(*moved, strict=True))
    return answers


async def _lock(session: Session, names: Sequence[Counter], clock: Clock) -> tuple[dict[Counter, bytes], float]:
    """What is kept of the counters, and the time when the last of them was ours."""
    if not names:
        return {}, clock.now()
    found = await session.fetch(SQL.lock, *zip(*names, strict=True))
    given, now = clock.parameter(), max(row["now"] for row in found)
    return {(row["name"], row["seconds"]): row["buckets"] for row in found}, now if given is None else given


def _count_one(kept: dict[Counter, Buckets], ask: Ask, now: float) -> Spent:
    if ask.at is None:
        return counters.spend(kept, ask.charges, now)
    counters.refund(kept, ask.charges, ask.at)
    return Spent(now, None, (), 0.0)
