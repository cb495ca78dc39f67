"""Removes objects that are no longer needed (of expired jobs, superseded attempts, and uploads without a job), and
publishes the files of jobs that ask for a path of their own.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial

import uuid_utils

from packhorse.background.loop import AFTER_FAILURE, name_of
from packhorse.blobs.base import Blobs
from packhorse.core import failures, lifecycle, publish_path
from packhorse.core.changes import Change
from packhorse.core.models import Job, Result, TaskId
from packhorse.core.plan import Status
from packhorse.crashpoints import reach
from packhorse.errors import BlobError, Conflict, CorruptRecord, PackhorseError, Refused, SchemaTooNew
from packhorse.jobs import artifacts, deployment
from packhorse.jobs.artifacts import Publisher
from packhorse.jobs.deployment import PublishDestination
from packhorse.jobs.transact import Transactor
from packhorse.log import log
from packhorse.store.base import Store
from packhorse.store.collections.failures import drop_orders
from packhorse.store.collections.webhooks import drop_endpoints
from packhorse.store.collections.workers import get_bookmark, put_bookmark

BATCH = 100
MOST = 20 * BATCH
"""Jobs read at a time, at most. If so many cannot be cleared, those behind them have to wait."""
SWEEP = "orphans"
COMPARED = 25
"""Jobs whose outputs are compared per tick: each costs a request to the object store."""
LAP = "outputs"
PUBLISHED = "published"
ENDED_KEPT = 30 * 86_400.0
"""Seconds for which a webhook that was switched off is still listed, with the reason."""
RESTING = "rested since "
FAILURES_KEEP = 30 * 86_400.0

_Page = tuple[dict[str, PackhorseError], str]
"""The errors of a page, and where the next one begins; empty after the last."""
_Done = tuple[int, list[PackhorseError]]
"""How many a part has tried, and the errors."""
_Part = Callable[[], Awaitable[_Done]]


class Janitor:
    """Purges, publishes and tidies on every tick, and checks a page of the object store for orphans."""

    def __init__(
        self,
        store: Store,
        blobs: Blobs,
        transact: Transactor,
        orphan_after: float,
        period: float,
        failures_keep: float = FAILURES_KEEP,
        trusted_now: Callable[[], float | None] | None = None,
        destination: PublishDestination | None = None,
    ) -> None:
        """``destination`` is where published files go, if not to ``blobs``.

        ``trusted_now`` is the time by which something may be deleted; None while the clock cannot be trusted. By
        default the store's clock, trusted blindly: a worker must not do that.
        """
        self._store = store
        self._blobs = blobs
        self._transact = transact
        self._orphan_after = orphan_after
        self._period = period
        self.after_failure = max(AFTER_FAILURE, period)
        """Seconds to wait if the last tick failed: an error may last, and each tick asks the object store a lot."""
        self._failures_keep = failures_keep
        self._trusted_now = trusted_now or store.now
        self._now = 0.0
        """The time by which something is old enough to be deleted in this tick; 0 while no clock is trusted."""
        self._destination = destination
        self._publisher = Publisher(blobs, destination)
        self._purging = _Cleanup(store.purgeable, self._purge)
        self._tidying = _Cleanup(store.jobs_with_litter, self._tidy)

    async def tick(self) -> float:
        """Every part runs, even if an earlier one failed; then the first error is raised."""
        errors: list[Exception] = []
        is_busy = False
        now = self._trusted_now()
        is_trusted = now is not None
        self._now = 0.0 if now is None else now
        parts = await self._parts_with_files(errors, is_trusted=is_trusted)
        for part in (*parts, self._trim, self._forget, self._drop_ended) if is_trusted else parts:
            try:
                count, stuck = await part()
                is_busy = is_busy or (is_trusted and len(stuck) < count == BATCH)
                errors += stuck
            except Exception as error:  # broad: whatever one part meets, the others must continue
                errors.append(error)
        self.after_failure = AFTER_FAILURE if is_busy else max(AFTER_FAILURE, self._period)
        if errors:
            for other in errors[1:]:
                log.background_failed(f"another part of the {name_of(self)}", other)
            raise errors[0]
        return 0.0 if is_busy else self._period

    async def _parts_with_files(self, errors: list[Exception], *, is_trusted: bool) -> Sequence[_Part]:
        """None of them, and an error, if the files are not those of this store.

        Without a clock that is trusted, only those that go by no age: a purge that was begun is finished.
        """
        try:
            await deployment.check(self._store, self._blobs)
        except Exception as error:
            errors.append(error)
            return ()
        if not is_trusted:
            return (self._purging.do, self._tidying.do)
        return (
            self._purging.do,
            self._tidying.do,
            self._sweep,
            partial(self._lap, LAP, self._compare_page),
            partial(self._lap, PUBLISHED, self._withdraw_page),
            self._abandon,
        )

    async def _trim(self) -> _Done:
        await self._store.trim()
        return 0, []

    async def _forget(self) -> _Done:
        """Failures have their own retention: they stay when their job is purged. Orders about them stay as long."""
        until = self._now - self._failures_keep
        await drop_orders(self._store, failures.first_id(until), BATCH)
        return await self._store.forget_failures(until, BATCH), []

    async def _drop_ended(self) -> _Done:
        await drop_endpoints(self._store, self._now - ENDED_KEPT)
        return 0, []

    async def _sweep(self) -> _Done:
        orphans = await self._orphans()
        if orphans:  # again: a store that was emptied a moment ago knows none of the jobs
            await deployment.check(self._store, self._blobs)
        return 0, list((await _each(orphans, self._blobs.delete_all)).values())

    async def _abandon(self) -> _Done:
        if self._trusted_now() is not None:  # again: it goes by this host's clock as it is now
            await self._blobs.abandon(self._orphan_after)
            if self._destination is not None:
                await (await self._destination.open()).abandon(self._orphan_after, everywhere=True)
        return 0, []

    async def _purge(self, job: Job) -> None:
        """Mark, delete the objects, delete the record. A retry in between finds the mark, not half a job."""
        with suppress(Conflict, Refused):
            marked = await self._transact(job.id, lambda job: lifecycle.purge(job, now=self._now))
            if not marked.is_purging:  # a retry was faster
                return
            reach("purge.marked")
            if (folder := publish_path.publish_folder(marked)) is not None:
                await self._publisher.withdraw(folder, job.id)
            await self._blobs.delete_all(f"jobs/{job.id}")
            reach("purge.objects.gone")
            await self._store.erase(job.id)

    async def _tidy(self, job: Job) -> None:
        """Delete outputs that no result refers to, unless a retry has begun while we read.

        A new run publishes objects before any result refers to them. After a run has ended, nothing publishes.
        """

        def tidy(found: Job) -> Change | None:
            now = self._store.now()
            return lifecycle.tidy(found, now=now, stored=stored) if found.version == job.version else None

        found = await artifacts.all_keys(self._blobs, f"jobs/{job.id}/output")
        results = (await self._store.results([job.id])).get(job.id, {})
        kept = artifacts.referenced_keys(results)
        [now] = await self._store.get([job.id])
        if now is None or now.version != job.version:
            return
        if job.has_litter and job.status is Status.COMPLETED:
            await self._publish(job, results)
        await self._blobs.delete([key for key in found if key not in kept])
        stored = await self._stored_bytes(job, results)
        if job.has_litter:
            with suppress(Conflict, Refused):
                await self._transact(job.id, tidy)

    async def _stored_bytes(self, job: Job, results: Mapping[TaskId, Result]) -> int | None:
        """Of its inputs and of what its results refer to, if they count towards a quota."""
        if job.counted is None or not job.has_litter:
            return None
        specs = await self._store.specs([job.id])
        files = [each.file for spec in specs.values() for each in spec.inputs]
        return sum(each.size for each in (*files, *(a.file for r in results.values() for a in r.artifacts)))

    async def _publish(self, job: Job, results: Mapping[TaskId, Result]) -> None:
        if (folder := publish_path.publish_folder(job)) is None:
            return
        await self._publisher.publish(job, results)
        [now] = await self._store.get([job.id])
        if now is None or now.is_purging:  # the purge may have missed what was published after it
            await self._publisher.withdraw(folder, job.id)

    async def _orphans(self) -> list[str]:
        """Objects without a job, of submits that were refused or interrupted. Oldest first, from the bookmark on."""
        after = await get_bookmark(self._store, SWEEP) or ""
        old, cursor = await self._old_folders(after, BATCH)
        known = await self._store.existing_ids(old)
        if cursor != after:
            await put_bookmark(self._store, SWEEP, cursor)
        return [f"jobs/{job_id}" for job_id in old if job_id not in known]

    async def _old_folders(self, after: str, limit: int) -> tuple[list[str], str]:
        """One page of job ids that are old enough to be checked, and where the next page begins.

        That is the beginning once young ones are reached. Folders without an age do not count.
        """
        folders = await self._blobs.folders("jobs", after=after or None, limit=limit)
        ages = {name: self._age(name) for name in folders}
        old = [name for name, age in ages.items() if age is not None and age > self._orphan_after]
        is_young = any(age is not None and age <= self._orphan_after for age in ages.values())
        return old, folders[-1] if len(folders) == limit and not is_young else ""

    async def _lap(self, bookmark: str, check_page: Callable[[str], Awaitable[_Page]]) -> _Done:
        """Check a page of all objects. After the last page, rest for ``orphan_after``."""
        mark = await get_bookmark(self._store, bookmark) or ""
        if mark.startswith(RESTING):
            if self._now - float(mark.removeprefix(RESTING)) < self._orphan_after:
                return 0, []
            mark = ""
        stuck, cursor = await check_page(mark)
        await put_bookmark(self._store, bookmark, cursor or f"{RESTING}{self._now}")
        return 0, list(stuck.values())

    async def _compare_page(self, after: str) -> _Page:
        """Compare the outputs of ended jobs with what their results refer to, once per ``orphan_after`` for each.

        A worker that was suspended, replaced, resumed and killed at the wrong moment publishes after its job was
        tidied, and nothing marks that job again. So every job is checked from time to time: rarely, because each check
        is a request to the object store, and only when it is old, because young ones are tidied by their mark.
        """
        old, cursor = await self._old_folders(after, COMPARED)
        return await _each(old, self._compare), cursor

    async def _withdraw_page(self, after: str) -> _Page:
        """Withdraw what jobs published that no longer exist: a killed worker may have left it."""
        found, cursor = await self._publisher.strays(self._store, after)
        if found:
            await deployment.check(self._store, self._blobs)
        return await _each(found, self._publisher.withdraw_stray), cursor

    async def _compare(self, job_id: str) -> None:
        with suppress(SchemaTooNew):  # a newer worker will
            [job] = await self._store.get([job_id])
            if job is not None and job.status.is_terminal and not job.is_purging and not job.has_litter:
                await self._tidy(job)

    def _age(self, job_id: str) -> float | None:
        """By the time in the id. A young one may be an upload in progress."""
        try:
            return self._now - uuid_utils.UUID(job_id).timestamp / 1000
        except ValueError:
            return None


class _Cleanup:
    """Clears jobs. Those that failed before come last, so that a page of them does not block the others."""

    def __init__(
        self, find: Callable[[int], Awaitable[Sequence[Job]]], clear: Callable[[Job], Awaitable[None]]
    ) -> None:
        self._find = find
        self._clear = clear
        self._stuck: dict[str, int] = {}
        """The turn in which each was last tried."""
        self._turn = 0

    async def do(self) -> _Done:
        """Clear up to a batch; return how many were tried, and the errors."""
        self._turn += 1
        found = {job.id: job for job in await self._find(min(BATCH + len(self._stuck), MOST))}
        page = sorted(found, key=lambda job_id: self._stuck.get(job_id, 0))[:BATCH]
        stuck = await _each(page, lambda job_id: self._clear(found[job_id]))
        left = {job_id: turn for job_id, turn in self._stuck.items() if job_id in found and job_id not in page}
        self._stuck = left | dict.fromkeys(stuck, self._turn)
        return len(page), list(stuck.values())


async def _each(found: Iterable[str], clear: Callable[[str], Awaitable[None]]) -> dict[str, PackhorseError]:
    """Clear each, and return the errors: one that fails must not block all others."""
    stuck: dict[str, PackhorseError] = {}
    for one in found:
        try:
            await clear(one)
        except (BlobError, CorruptRecord) as error:
            stuck[one] = error
    return stuck
