"""Counts over time, readings, health, and what there is of jobs. What is past its time the server drops by itself."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

from packhorse.core import json
from packhorse.store.health import LOST_KEPT, Finding, Lost
from packhorse.store.redis import commit, keys
from packhorse.store.redis.client import Link
from packhorse.store.redis.commit import Member
from packhorse.store.redis.writer import Writer
from packhorse.store.statistics import KEPT, MINUTE, MOST_RANKS, READINGS_KEPT, Counts, Head, Reading, Tally

DAY = 86_400
HEALTH = "60"
"""Seconds after which what was found of a part, or said by a worker, is not shown as current any more."""
NAMES = {MINUTE: "minute"}


def tallied_in(step: int, at: int) -> str:
    return f"stats:{NAMES.get(step, 'quarter')}:{at}"


def _readings_of(at: int) -> str:
    """A key per day, so that it can go as a whole."""
    return f"stats:readings:{time.strftime('%Y-%m-%d', time.gmtime(at))}"


def tally(counts: Mapping[Tally, int]) -> Member:
    ops = [
        ["HINCRBY", tallied_in(each.step, each.at), f"{each.pipeline} {each.queue} {each.name}", str(count)]
        for each, count in counts.items()
    ]
    lasts = {(each.step, each.at) for each in counts}
    ops += [["EXPIRE", tallied_in(step, at), str(KEPT[step] + 2 * step)] for step, at in lasts]
    return commit.plain(*ops)


async def tallied(
    link: Link, step: int, at: int, now: float, queue: str | None, pipeline: str | None
) -> list[tuple[Tally, int]]:
    """Also the stretch after this one: the clock of who counted may be a little ahead."""
    times = range(at, int(now) + step + 1, step)
    answers = await link.ask([["HGETALL", tallied_in(step, each)] for each in times])
    found = (item for each, flat in zip(times, answers, strict=True) for item in _stats(step, each, flat))
    return [(each, count) for each, count in found if queue in (None, each.queue) and pipeline in (None, each.pipeline)]


def _stats(step: int, at: int, flat: Sequence[bytes]) -> Iterator[tuple[Tally, int]]:
    for i in range(0, len(flat), 2):
        pipeline, queue, name = flat[i].decode().split(" ", 2)
        yield Tally(step, at, pipeline, queue, name), int(flat[i + 1])


def read(reading: Reading) -> Member:
    key = _readings_of(reading.at)
    ops = (["HSET", key, str(reading.at), json.encode(reading).decode()], ["EXPIRE", key, str(READINGS_KEPT + DAY)])
    return commit.plain(*ops, guards=[["fresh", key, str(reading.at)]])


async def readings(link: Link, at: int, now: float) -> list[Reading]:
    days = dict.fromkeys(_readings_of(each) for each in (*range(at, int(now) + MINUTE, DAY), int(now) + MINUTE))
    answers = await link.ask([["HGETALL", key] for key in days])
    found = (flat[i + 1] for flat in answers for i in range(0, len(flat), 2) if int(flat[i]) >= at)
    return sorted((json.record(body, Reading) for body in found), key=lambda reading: reading.at)


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


def note(findings: Iterable[Finding]) -> Member:
    """Each part in a field, and whether all is well in a key of its own, for who reads nothing else."""
    found = list(findings)
    worst = next((each for each in found if not each.is_ok), None)
    current = {"status": "ok" if worst is None else "bad", "part": "" if worst is None else worst.part}
    at = max((each.measured_at or 0.0 for each in found), default=0.0)
    ops = [["HSET", "health:services", each.part, json.encode(each).decode()] for each in found]
    ops += [
        ["EXPIRE", "health:services", HEALTH],
        ["SET", "health:current", json.encode({**current, "measured_at": at}).decode(), "EX", HEALTH],
    ]
    return commit.plain(*ops)


async def noted(link: Link) -> list[Finding]:
    [bodies] = await link.ask([["HVALS", "health:services"]])
    return sorted((json.record(body, Finding) for body in bodies), key=lambda each: each.part)


async def miss(link: Link, write: Writer, lost: Lost) -> None:
    """Read, decide, write if it is still as it was read; look again if somebody was faster."""
    body = json.encode(lost).decode()
    while True:
        [kept, *bodies] = await link.ask([["HGET", "workers:lost", lost.id], ["HVALS", "workers:lost"]])
        if kept is not None and json.record(kept, Lost).seen_at >= lost.seen_at:
            return
        guard = ["fresh", "workers:lost", lost.id]
        if kept is not None:
            guard = ["same", "workers:lost", lost.id, kept.decode()]
        old = [each.id for each in _lost(bodies[0]) if each.missed_at <= lost.missed_at - LOST_KEPT]
        ops = [["HSET", "workers:lost", lost.id, body], ["EXPIRE", "workers:lost", str(int(LOST_KEPT))]]
        ops += [["HDEL", "workers:lost", *old]] if old else []
        if not await write.told(commit.plain(*ops, guards=[guard])):
            return


async def lost(link: Link, now: float) -> list[Lost]:
    [bodies] = await link.ask([["HVALS", "workers:lost"]])
    found = [each for each in _lost(bodies) if each.missed_at > now - LOST_KEPT]
    return sorted(found, key=lambda each: (-each.missed_at, each.id))


def _lost(bodies: Iterable[bytes]) -> list[Lost]:
    return [json.record(body, Lost) for body in bodies]
