"""What the run before returned: the memory of a job that a schedule runs again and again."""

from __future__ import annotations

import asyncio

from packhorse.core import json
from packhorse.core.models import Job
from packhorse.errors import CorruptRecord, SchemaTooNew, StoreError
from packhorse.schemas.job import result_of
from packhorse.store.base import Store

RUNS = 50
"""How far we look back for a run that went well."""
PATIENCE = 1.0
"""Seconds between tries while the store is away."""

NOTHING = b""


async def recalled(store: Store, job: Job) -> bytes:
    """JSON of what the newest completed run before this tick returned, under the same version of the schedule.

    Nothing for a job that no schedule has made, after an edit, and when that job is purged. A store that is away is
    waited for: what is forgotten would make some stages do all of their work again.
    """
    while True:
        try:
            return await _recalled(store, job)
        except (CorruptRecord, SchemaTooNew):
            return NOTHING
        except StoreError:
            await asyncio.sleep(PATIENCE)


async def _recalled(store: Store, job: Job) -> bytes:
    if job.firing is None:
        return NOTHING
    schedule, tick = job.firing.schedule, job.firing.tick
    mine = await store.run(job.tenant, schedule, tick)
    runs = [] if mine is None else await store.runs(job.tenant, schedule, before=tick, limit=RUNS)
    last = next((run for run in runs if run.status == "completed" and run.job_id), None)
    if mine is None or last is None or last.version != mine.version or last.job_id is None:
        return NOTHING
    [found] = await store.get([last.job_id])
    if found is None or found.is_purging:
        return NOTHING
    return json.encode(result_of(found, (await store.results([found.id])).get(found.id, {})))
