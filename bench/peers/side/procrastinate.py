"""Procrastinate, told by LISTEN; stalled jobs are retried by the periodic task that its manual has for that."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import procrastinate
import uvloop

from bench.peers.side.given import IS_SAFE, SLOTS, URL
from bench.peers.side.ledger import STAGES, note, take_long_async

app = procrastinate.App(connector=procrastinate.PsycopgConnector(conninfo=URL, min_size=4, max_size=20))


@app.task(name="noop")
async def noop(i: int) -> None:
    note(i)


@app.task(name="stage")
async def stage(i: int, n: int) -> None:
    note(i, STAGES[n])
    if n + 1 < len(STAGES):
        await stage.defer_async(i=i, n=n + 1)


@app.task(name="long")
async def long(i: int) -> None:
    await take_long_async(i)


if IS_SAFE:

    @app.periodic(cron="* * * * * */5")
    @app.task(name="rescue", queueing_lock="rescue", pass_context=True)
    async def rescue(_: Any, timestamp: int) -> None:  # noqa: ARG001 (it is given by name)
        for job in await app.job_manager.get_stalled_jobs(seconds_since_heartbeat=5):
            await app.job_manager.retry_job(job)


async def setup() -> None:
    async with app.open_async():
        await app.schema_manager.apply_schema_async()


async def connect() -> None:
    await app.open_async()


async def close() -> None:
    await app.close_async()


async def put(i: int) -> None:
    await noop.defer_async(i=i)


async def put_many(ids: Sequence[int]) -> None:
    await noop.batch_defer_async(*({"i": i} for i in ids))


async def put_chain(i: int) -> None:
    await stage.defer_async(i=i, n=0)


async def put_long(i: int) -> None:
    await long.defer_async(i=i)


async def work() -> None:
    soon = {"update_heartbeat_interval": 2, "stalled_worker_timeout": 5} if IS_SAFE else {}
    async with app.open_async():
        await app.run_worker_async(concurrency=SLOTS or 20, **soon)


if __name__ == "__main__":
    uvloop.run(work())
