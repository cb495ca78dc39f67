"""``Prefer: wait=30`` (RFC 7240): answer when the job has ended, or after that many seconds."""

from __future__ import annotations

import asyncio
import re
import time
from contextlib import suppress

from litestar.types import Receive

from packhorse.core.models import Job
from packhorse.http.services import Tools

WAIT = re.compile(r'wait\s*=\s*"?(\d{1,9})"?\s*(?:;.*)?', re.IGNORECASE)


def wanted(prefer: str, limit: float) -> float | None:
    """Seconds, at most the limit; None if the header has no valid `wait`: preferences may be ignored."""
    for preference in prefer.split(","):
        if found := WAIT.fullmatch(preference.strip()):
            return min(float(found[1]), limit)
    return None


async def ended(tools: Tools, job_id: str, seconds: float, receive: Receive) -> Job | None:
    """The job when it has ended, or its state after ``seconds``, or when the client leaves or the server stops.

    None if it has been deleted.
    """
    waiting = asyncio.create_task(_wait_for_end(tools, job_id, time.monotonic() + seconds))
    gone = asyncio.create_task(_wait_for_disconnect(receive))
    try:
        await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in (waiting, gone):
            task.cancel()
        await asyncio.gather(waiting, gone, return_exceptions=True)
    with suppress(asyncio.CancelledError):
        return waiting.result()
    return await _read(tools, job_id)


async def _wait_for_end(tools: Tools, job_id: str, end: float) -> Job | None:
    with tools.feed.watch(job_id, wants_log=False) as watcher:
        job: Job | None = None
        while not watcher.is_closed:
            if watcher.is_behind:
                watcher.catch_up()
                job = await _read(tools, job_id)
                watcher.reached(0 if job is None else job.events, 0)
            left = end - time.monotonic()
            if job is None or job.status.is_terminal or left <= 0:
                return job
            moved = await watcher.next(left)
            job = job if moved is None else moved.job
    return await _read(tools, job_id)


async def _read(tools: Tools, job_id: str) -> Job | None:
    [job] = await tools.store.get([job_id])
    return None if job is None or job.is_purging else job


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
