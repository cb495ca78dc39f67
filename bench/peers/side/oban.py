"""oban, which needs Python 3.12; a queue of a hundred."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

import uvloop
from oban import Oban, worker
from oban.schema import install
from psycopg_pool import AsyncConnectionPool

from bench.peers.side.given import IS_SAFE, SLOTS, URL
from bench.peers.side.ledger import STAGES, note, take_long_async

oban: Any = None
pool: Any = None


@worker(queue="bench")
class Noop:
    async def process(self, job: Any) -> None:
        note(job.args["i"])


@worker(queue="bench")
class Stage:
    async def process(self, job: Any) -> None:
        i, n = job.args["i"], job.args["n"]
        note(i, STAGES[n])
        if n + 1 < len(STAGES):
            await _enqueue(Stage, i=i, n=n + 1)


@worker(queue="bench")
class Long:
    async def process(self, job: Any) -> None:
        await take_long_async(job.args["i"])


async def setup() -> None:
    await connect()
    await install(pool)


async def connect(**options: Any) -> None:
    global oban, pool
    pool = AsyncConnectionPool(URL, min_size=4, max_size=20, open=False)
    await pool.open()
    oban = Oban(pool=pool, **options)


async def close() -> None:
    await pool.close()


async def put(i: int) -> None:
    await _enqueue(Noop, i=i)


async def put_many(ids: Sequence[int]) -> None:
    noop: Any = Noop
    await oban.enqueue_many([noop.new({"i": i}) for i in ids])


async def put_chain(i: int) -> None:
    await _enqueue(Stage, i=i, n=0)


async def put_long(i: int) -> None:
    await _enqueue(Long, i=i)


async def _enqueue(kind: Any, **arguments: int) -> None:
    await kind.enqueue(arguments)


async def work() -> None:
    soon = {"lifeline": {"interval": 5.0, "rescue_after": 5.0}} if IS_SAFE else {}
    await connect(queues={"bench": SLOTS or 100}, **soon)
    async with oban:
        await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(work())
