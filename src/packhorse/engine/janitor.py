"""Removes what nobody will ask for again: expired jobs, files of superseded attempts, uploads that became no job."""

from __future__ import annotations

from contextlib import suppress

import uuid_utils

from packhorse.blob.base import Blobs
from packhorse.core import lifecycle
from packhorse.core.model import Job
from packhorse.crashpoints import passing
from packhorse.engine import artifacts
from packhorse.engine.settle import Settle
from packhorse.errors import Conflict, Refused
from packhorse.store.base import Store

BATCH = 100
SWEEP = "orphans"


class Janitor:
    """Purges and tidies on every tick, and walks a page of the object store for orphans."""

    def __init__(self, store: Store, blobs: Blobs, settle: Settle, orphan_after: float, period: float) -> None:
        self._store = store
        self._blobs = blobs
        self._settle = settle
        self._orphan_after = orphan_after
        self._period = period

    async def tick(self) -> float:
        purged = await self._store.purgeable(BATCH)
        for job in purged:
            await self._purge(job)
        littered = await self._store.littered(BATCH)
        for job in littered:
            await self._tidy(job)
        await self._sweep()
        await self._blobs.abandon(self._orphan_after)
        await self._store.trim()
        return 0.0 if BATCH in (len(purged), len(littered)) else self._period

    async def _purge(self, job: Job) -> None:
        """Mark, delete the objects, delete the record: a retry that comes between finds the mark, not half a job."""
        with suppress(Conflict, Refused):
            marked = await self._settle(job.id, lambda job: lifecycle.purge(job, now=self._store.now()))
            if not marked.is_purging:  # a retry was faster
                return
            passing("purge.marked")
            await self._blobs.delete_all(f"jobs/{job.id}")
            passing("purge.objects.gone")
            await self._store.erase(job.id)

    async def _tidy(self, job: Job) -> None:
        """Delete outputs that no result refers to. The run has ended: nobody is publishing any more."""
        results = (await self._store.results([job.id])).get(job.id, {})
        kept = artifacts.referenced(results)
        found = await self._blobs.keys(f"jobs/{job.id}/output", limit=10_000)
        await self._blobs.delete([key for key in found if key not in kept])
        with suppress(Conflict, Refused):
            await self._settle(job.id, lambda now: lifecycle.tidied(now, now=self._store.now()))

    async def _sweep(self) -> None:
        """Objects without a job: an upload whose submit was refused or cut off. Oldest first, from where we stopped."""
        after = await self._store.bookmark(SWEEP)
        folders = await self._blobs.folders("jobs", after=after, limit=BATCH)
        old = [job_id for job_id in folders if self._is_old(job_id)]
        known = await self._store.known(old)
        for job_id in old:
            if job_id not in known:
                await self._blobs.delete_all(f"jobs/{job_id}")
        # The next page, or from the start again once the young ones are reached.
        cursor = old[-1] if len(old) == BATCH else ""
        if cursor != (after or ""):
            await self._store.set_bookmark(SWEEP, cursor)

    def _is_old(self, job_id: str) -> bool:
        """The id says when it was made. What is young may be an upload under way."""
        try:
            made_at = uuid_utils.UUID(job_id).timestamp / 1000
        except ValueError:
            return False
        return self._store.now() - made_at > self._orphan_after
