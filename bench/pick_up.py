"""How soon an idle worker starts a job: from just before the submit call to the first line of the stage."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from bench.site import Site
from packhorse.define.pipelines import Pipeline


async def pick_ups(site: Site, pipeline: Pipeline[Any], count: int, gap: float) -> list[float]:
    """Milliseconds of each of so many jobs, submitted so many seconds apart."""
    asked: dict[int, int] = {}
    began = time.monotonic()
    for i in range(count):
        await asyncio.sleep(max(0.0, began + i * gap - time.monotonic()))
        at = time.monotonic_ns()
        submitted = await site.submit(pipeline)
        asked[submitted.n] = at
    started = await site.noted(pipeline.name, set(asked))
    if len(started) < count:
        raise TimeoutError(f"{count - len(started)} of {count} jobs were not picked up.")
    return [(started[n] - asked[n]) / 1e6 for n in asked]
