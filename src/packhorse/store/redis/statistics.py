"""Counts over time, and of the jobs there are. The server drops by itself what is past its time."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence

from packhorse.store.counters import KEPT, MINUTE, MOST_RANKS, Counts, Head, Tally
from packhorse.store.redis import commit, keys
from packhorse.store.redis.client import Link
from packhorse.store.redis.commit import Member

NAMES = {MINUTE: "minute"}


def tally_key(step: int, at: int) -> str:
    return f"stats:{NAMES.get(step, 'quarter')}:{at}"


def tally(counts: Mapping[Tally, int]) -> Member:
    ops = [
        ["HINCRBY", tally_key(each.step, each.at), f"{each.pipeline} {each.queue} {each.name}", str(count)]
        for each, count in counts.items()
    ]
    lasts = {(each.step, each.at) for each in counts}
    ops += [["EXPIRE", tally_key(step, at), str(KEPT[step] + 2 * step)] for step, at in lasts]
    return commit.plain(*ops)


async def tallied(
    link: Link, step: int, at: int, now: float, queue: str | None, pipeline: str | None
) -> list[tuple[Tally, int]]:
    """Also the stretch after this one: the clock of who counted may be a little ahead."""
    times = range(at, int(now) + step + 1, step)
    answers = await link.ask([["HGETALL", tally_key(step, each)] for each in times])
    found = (item for each, flat in zip(times, answers, strict=True) for item in _stats(step, each, flat))
    return [(each, count) for each, count in found if queue in (None, each.queue) and pipeline in (None, each.pipeline)]


def _stats(step: int, at: int, flat: Sequence[bytes]) -> Iterator[tuple[Tally, int]]:
    for i in range(0, len(flat), 2):
        pipeline, queue, name = flat[i].decode().split(" ", 2)
        yield Tally(step, at, pipeline, queue, name), int(flat[i + 1])


async def heads(link: Link, kinds: Mapping[str, Collection[str]]) -> list[Head]:
    """Priority by priority, for all queues at once."""
    asked = [(queue, kind, "-inf") for queue, names in kinds.items() for kind in names]
    found: list[Head] = []
    for _ in range(MOST_RANKS):
        answers = await link.ask(
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
    return found


async def counted(link: Link) -> Counts:
    """The indexes know their size."""
    return Counts(*(await link.ask([["ZCARD", keys.index(name)] for name in keys.WHOLE])))
