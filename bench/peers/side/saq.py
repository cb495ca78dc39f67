"""SAQ on Redis; no results kept."""

from __future__ import annotations

from typing import Any

import uvloop
from saq import Job, Queue, Worker

from bench.peers.side.given import IS_SAFE, SLOTS, URL
from bench.peers.side.ledger import STAGES, note, take_long_async

queue = Queue.from_url(URL)
UNKEPT = {"ttl": -1}


async def noop(_: Any, *, i: int) -> None:
    note(i)


async def stage(_: Any, *, i: int, n: int) -> None:
    note(i, STAGES[n])
    if n + 1 < len(STAGES):
        await queue.enqueue("stage", i=i, n=n + 1, **UNKEPT)


async def long(_: Any, *, i: int) -> None:
    await take_long_async(i)


async def connect() -> None:
    await queue.connect()


async def close() -> None:
    await queue.disconnect()


async def put(i: int) -> None:
    await queue.enqueue("noop", i=i, **UNKEPT)


async def put_chain(i: int) -> None:
    await queue.enqueue("stage", i=i, n=0, **UNKEPT)


async def put_long(i: int) -> None:
    await queue.enqueue(Job("long", kwargs={"i": i}, timeout=5, retries=5))


async def work() -> None:
    await queue.connect()
    soon = {"timers": {"sweep": 5}} if IS_SAFE else {}
    await Worker(queue, [noop, stage, long], concurrency=SLOTS or 100, **soon).start()


if __name__ == "__main__":
    uvloop.run(work())
