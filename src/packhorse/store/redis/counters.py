"""Limits, quotas and statistics. Charges that wait travel together; counts over time expire by themselves."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from packhorse.errors import StoreError
from packhorse.store.base import Charge, Spent
from packhorse.store.batching import Group
from packhorse.store.counters import KEPT, MINUTE, MOST_RANKS, Counts, Head, Tally, first
from packhorse.store.redis import keys
from packhorse.store.redis.client import Address
from packhorse.store.redis.session import Session, pack, pack_effects

MANY = 128
"""Charges in one script at most: about 5 ms in which the server answers nobody else."""
WORDS = 1000
"""Names and numbers in one effect."""


class Ask(NamedTuple):
    """A spend, or the refund of what was spent at that time."""

    charges: Sequence[Charge]
    at: float | None = None

    def flat(self) -> list[Any]:
        parts = [part for c in self.charges for part in (c.name, repr(float(c.window)), c.amount, c.limit)]
        return ["" if self.at is None else repr(self.at), *parts]


class CounterStore(Session):
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._asks: Group[Ask, Any] = Group(self._send, MANY)
        self._closing.insert(0, self._asks.close)

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        at, refused, wait, *left = await self._charge(Ask(charges))
        return Spent(float(at), None if refused < 0 else refused, tuple(map(int, left)), float(wait))

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        await self._charge(Ask(charges, at))

    async def _charge(self, ask: Ask) -> Any:
        self._open()
        [answer] = await self._asks([ask])
        if isinstance(answer, bytes):
            raise StoreError(f"Redis: {answer.decode()}")
        return answer

    async def _send(self, asks: list[Ask]) -> list[Any]:
        answers: list[Any] = await self._link.run("spend", self.now.argument(), pack([ask.flat() for ask in asks]))
        return answers

    # Statistics

    async def tally(self, counts: Mapping[Tally, int]) -> None:
        found: dict[tuple[int, int], list[str]] = {}
        for each, count in counts.items():
            words = found.setdefault((each.step, each.at), [])
            words += (f"{each.pipeline} {each.queue} {each.name}", str(count))
        effects = [
            ["tally", _tally_key(step, at), str(KEPT[step] + 2 * step), *words[start : start + WORDS]]
            for (step, at), words in found.items()
            for start in range(0, len(words), WORDS)
        ]
        await self._write.put(*([pack_effects(*effects)] if counts else []))

    async def list_tallies(
        self, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        """Also the stretch after this one: the clock of who counted may be a little ahead."""
        now = self.now()
        times = range(first(step, since, now), int(now) + step + 1, step)
        answers = await self._link.ask([["HGETALL", _tally_key(step, at)] for at in times])
        found = (item for at, flat in zip(times, answers, strict=True) for item in _tallies(step, at, flat))
        return [
            (each, count) for each, count in found if queue in (None, each.queue) and pipeline in (None, each.pipeline)
        ]

    async def heads(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        """Priority by priority, for all queues at once."""
        self._open()
        asked = [(queue, kind, "-inf") for queue, names in kinds.items() for kind in names]
        found: list[Head] = []
        for _ in range(MOST_RANKS):
            answers = await self._link.ask(
                [
                    ["ZRANGEBYSCORE", keys.ready(queue, kind), above, "+inf", "WITHSCORES", "LIMIT", "0", "1"]
                    for queue, kind, above in asked
                ]
            )
            there = [(*pair, flat) for pair, flat in zip(asked, answers, strict=True) if flat]
            found += [Head(queue, *keys.entry_from(flat[0].decode())) for queue, _, _, flat in there]
            asked = [(queue, kind, f"({flat[1].decode()}") for queue, kind, _, flat in there]
            if not asked:
                break
        return found + await self._first_turns(kinds)

    async def _first_turns(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        """The first tasks of the shares whose turns are next."""
        pairs = [(queue, kind) for queue, names in kinds.items() for kind in names]
        shares = await self._link.ask([["ZRANGE", keys.lanes(*pair), "0", str(MOST_RANKS - 1)] for pair in pairs])
        lanes = [(*pair, each.decode()) for pair, found in zip(pairs, shares, strict=True) for each in found]
        firsts = await self._link.ask([["ZRANGE", keys.turns(*lane), "0", "0"] for lane in lanes])
        return [
            Head(lane[0], *keys.entry_from(first[0].decode()))
            for lane, first in zip(lanes, firsts, strict=True)
            if first
        ]

    async def count_by_status(self, most: int, *, tenant: str | None = None) -> Counts:  # noqa: ARG002 (the indexes know)
        if tenant is not None:
            [used] = await self._link.ask([["HMGET", keys.usage(tenant), "jobs", "bytes"]])
            return Counts(active=int(used[0] or 0), bytes=int(used[1] or 0))
        return Counts(*(await self._link.ask([["ZCARD", keys.index(name)] for name in keys.WHOLE])))


def _tally_key(step: int, at: int) -> str:
    return f"stats:{'minute' if step == MINUTE else 'quarter'}:{at}"


def _tallies(step: int, at: int, flat: Sequence[bytes]) -> Iterator[tuple[Tally, int]]:
    for i in range(0, len(flat), 2):
        pipeline, queue, name = flat[i].decode().split(" ", 2)
        yield Tally(step, at, pipeline, queue, name), int(flat[i + 1])
