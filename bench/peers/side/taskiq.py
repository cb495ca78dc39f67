"""taskiq on Redis streams, the broker of taskiq-redis that acknowledges."""

from __future__ import annotations

from taskiq_redis import RedisStreamBroker

from bench.peers.side.given import IS_SAFE, URL
from bench.peers.side.ledger import STAGES, note, take_long_async

SOON = {"idle_timeout": 5_000, "unacknowledged_lock_timeout": 5} if IS_SAFE else {}

broker = RedisStreamBroker(URL, xread_count=100, **SOON)


@broker.task(task_name="noop")
async def noop(i: int) -> None:
    note(i)


@broker.task(task_name="stage")
async def stage(i: int, n: int) -> None:
    note(i, STAGES[n])
    if n + 1 < len(STAGES):
        await stage.kiq(i, n + 1)


@broker.task(task_name="long")
async def long(i: int) -> None:
    await take_long_async(i)


async def connect() -> None:
    await broker.startup()


async def close() -> None:
    await broker.shutdown()


async def put(i: int) -> None:
    await noop.kiq(i)


async def put_chain(i: int) -> None:
    await stage.kiq(i, 0)


async def put_long(i: int) -> None:
    await long.kiq(i)
