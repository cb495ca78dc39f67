"""packhorse itself: async stages, or sync ones in processes of their own. Many at once share a commit."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from typing import Any

from bench.peers.side import ours_app
from packhorse.define.pipelines import Pipeline
from packhorse.define.submit import Options
from packhorse.errors import PackhorseError
from packhorse.runtime import Runtime

IS_SYNC = os.environ.get("BENCH_SYNC") == "1"
JOB: Pipeline[Any] = (ours_app.plain if IS_SYNC else ours_app.noop).pipeline
CHAIN: Pipeline[Any] = ours_app.plain_chain if IS_SYNC else ours_app.chain
LONG: Pipeline[Any] = ours_app.long.pipeline

runtime = Runtime()


async def connect() -> None:
    await runtime.open()


async def close() -> None:
    await asyncio.to_thread(runtime.close)


async def put(i: int) -> None:
    await _submit(JOB, i)


async def put_many(ids: Sequence[int]) -> None:
    outcomes = await runtime.a_submit_many(JOB, [(JOB.params(n=i), {"user": "ann"}) for i in ids])
    for each in outcomes:
        if isinstance(each, PackhorseError):
            raise each


async def put_chain(i: int) -> None:
    await _submit(CHAIN, i)


async def put_long(i: int) -> None:
    await _submit(LONG, i)


async def _submit(pipeline: Pipeline[Any], i: int) -> None:
    await runtime.a_submit(pipeline, pipeline.params(n=i), Options(user="ann"))
