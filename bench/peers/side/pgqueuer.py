"""PGQueuer on asyncpg, a hundred jobs at a time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import asyncpg
import uvloop
from pgqueuer import PgQueuer, Queries
from pgqueuer.db import AsyncpgDriver

from bench.peers.side.given import IS_SAFE, SLOTS, URL
from bench.peers.side.ledger import STAGES, note, take_long_async

queries: Any = None


async def setup() -> None:
    await connect()
    await queries.install()


async def connect() -> None:
    global queries
    queries = Queries(AsyncpgDriver(await asyncpg.connect(URL)))


async def put(i: int) -> None:
    await queries.enqueue("noop", b"%d" % i)


async def put_many(ids: Sequence[int]) -> None:
    await queries.enqueue(["noop"] * len(ids), [b"%d" % i for i in ids], [0] * len(ids))


async def put_chain(i: int) -> None:
    await queries.enqueue("stage", b"%d 0" % i)


async def put_long(i: int) -> None:
    await queries.enqueue("long", b"%d" % i)


async def work() -> None:
    await connect()
    worker = PgQueuer(AsyncpgDriver(await asyncpg.connect(URL)))

    @worker.entrypoint("noop")
    async def noop(job: Any) -> None:
        note(int(job.payload))

    @worker.entrypoint("stage")
    async def stage(job: Any) -> None:
        i, n = (int(word) for word in job.payload.split())
        note(i, STAGES[n])
        if n + 1 < len(STAGES):
            await queries.enqueue("stage", b"%d %d" % (i, n + 1))

    @worker.entrypoint("long", concurrency_limit=SLOTS)
    async def long(job: Any) -> None:
        await take_long_async(int(job.payload))

    if IS_SAFE:
        soon = timedelta(seconds=5)
        await worker.run(batch_size=10, heartbeat_timeout=soon, dequeue_timeout=soon)
    else:
        await worker.run(batch_size=100)


if __name__ == "__main__":
    uvloop.run(work())
