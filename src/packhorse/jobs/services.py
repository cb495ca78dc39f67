"""What the use cases work with, opened once per process: store, object store, settings, pipelines, keys, audit log."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Generic, TypeVar

from packhorse.auth import access
from packhorse.auth.access import Caller
from packhorse.auth.audit_log import Auditor
from packhorse.auth.keys import Keyring
from packhorse.blobs.base import Blobs
from packhorse.core.models import Job
from packhorse.define.validation import NOT_VALID, NUL, invalid
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.jobs import health
from packhorse.jobs.catalog import Catalog
from packhorse.jobs.explain import past_durations, read_fleet
from packhorse.jobs.promote import Destination
from packhorse.jobs.stats import MOST_COUNTED, count_ended, queue_stats, series, worst_groups
from packhorse.jobs.transact import Transactor
from packhorse.log import log
from packhorse.schemas.jobs import JobDocument, jobs_to_json, public_job
from packhorse.settings import Settings
from packhorse.store.base import Finding, Store

COUNTED = 2.0
"""Seconds for which a count of all jobs is used again: some stores need several milliseconds for it."""
REFRESHED = 5.0
"""Seconds between two reads of what the overview page shows every operator. A server reads it, not its viewers."""
SHOWN_FIRST = ("3600.0", "")  # the last hour, of all queues
OUTDATED = 3 * REFRESHED
"""Seconds after which a viewer reads it, because the server has not."""
CHECKED = 60.0
"""Seconds for which the self-check uses the store's check of its own settings again."""
REMEMBERED = 10.0
"""Seconds for which the durations of earlier runs are used again."""
FLEET_FRESH = 1.0
"""Seconds for which the live workers and the paused queues are used again."""
LONGEST_REASON = 500

T = TypeVar("T")
V = TypeVar("V")


class Cached(Generic[T]):
    """A value by key that is read again once it is older than ``seconds``. Callers at the same time share one read."""

    def __init__(self, read: Callable[..., Awaitable[T]], seconds: float, now: Callable[[], float]) -> None:
        self._read = read
        self._seconds = seconds
        self._now = now
        self._found: dict[tuple[str, ...], tuple[T, float]] = {}
        self._reads: dict[tuple[str, ...], asyncio.Task[tuple[T, float]]] = {}

    async def __call__(self, *key: str) -> tuple[T, float]:
        """The value, and when it was read."""
        oldest = self._now() - self._seconds
        self._found = {name: each for name, each in self._found.items() if each[1] >= oldest}
        return self._found[key] if key in self._found else await self.refresh(*key)

    async def value(self, *key: str) -> T:
        found, _ = await self(*key)
        return found

    def forget(self) -> None:
        """Read it again at the next use: it was changed here."""
        self._found.clear()

    async def refresh(self, *key: str) -> tuple[T, float]:
        """Read it now, unless somebody is reading it."""
        if key not in self._reads:
            self._reads[key] = asyncio.create_task(self._read_again(key))
            self._reads[key].add_done_callback(partial(self._end_read, key))
        read = self._reads[key]
        await asyncio.wait([read])  # not shield: new Pythons log an error of the read if a caller was cancelled
        return read.result()

    async def _read_again(self, key: tuple[str, ...]) -> tuple[T, float]:
        self._found[key] = found = await self._read(*key), self._now()
        return found

    def _end_read(self, key: tuple[str, ...], read: asyncio.Task[tuple[T, float]]) -> None:
        del self._reads[key]
        if not read.cancelled():
            read.exception()  # marks it as retrieved: every caller may have been cancelled


def check_reason(reason: str, *, if_missing: str = "") -> None:
    """Raises InvalidInput, with ``if_missing`` as its message if that is given and the reason is empty."""
    message = if_missing if not reason.strip() else ""
    if len(reason) > LONGEST_REASON:
        message = f"It has more than {LONGEST_REASON} characters"
    elif "\0" in reason:
        message = NUL
    if message:
        raise invalid(NOT_VALID, [{"field": "reason", "message": message}])


def read_field(name: str, read: Callable[[V], T], value: V) -> T:
    """Raises InvalidInput where ``read`` raises ValueError."""
    try:
        return read(value)
    except ValueError as error:
        raise invalid(NOT_VALID, [{"field": name, "message": str(error)}]) from error


async def read_readable(read: Callable[[Sequence[Job]], Awaitable[list[T]]], jobs: Sequence[Job]) -> list[T]:
    """Leaves out jobs with unreadable parts; the log names those."""
    try:
        return await read(jobs)
    except (CorruptRecord, SchemaTooNew) as error:
        if len(jobs) > 1:
            return [found for job in jobs for found in await read_readable(read, [job])]
        log.job_unreadable(jobs[0].id, error)
        return []


class Services:
    def __init__(
        self,
        settings: Settings,
        store: Store,
        blobs: Blobs,
        destinations: Mapping[str, Destination] | None = None,
        transact: Transactor | None = None,
    ) -> None:
        self.settings = settings
        self.store = store
        self.blobs = blobs
        self.destinations = destinations or {}
        """Where results can be promoted to, the default first."""
        self.transact = transact or Transactor(store)
        self.catalog = Catalog(store, settings.default_pipeline)
        self.keyring = Keyring(store, idle=settings.session_idle)
        self.audit = Auditor(store, keep=settings.audit_keep, age=settings.audit_age)
        self.counts = Cached(lambda: store.count_by_status(MOST_COUNTED), COUNTED, store.now)
        self.survey = Cached(lambda: queue_stats(store, settings.lease), OUTDATED, store.now)
        self.checked = Cached(lambda: store.check(), CHECKED, store.now)
        self.findings = Cached(self._find_bad, OUTDATED, store.now)
        self.ended = Cached(lambda: count_ended(store), OUTDATED, store.now)
        self.worst_groups = Cached(partial(worst_groups, store), OUTDATED, store.now)
        """Of a tenant."""
        self.activity = Cached(
            lambda window, queue: series(store, float(window), queue=queue or None, with_levels=False),
            OUTDATED,
            store.now,
        )
        """By number of seconds, and by queue; an empty name means all jobs."""
        self.past_durations = Cached(partial(past_durations, store), REMEMBERED, store.now)
        """Of the stages of a pipeline: pages that watch a job ask again and again."""
        self.fleet = Cached(lambda: read_fleet(store, settings.lease), FLEET_FRESH, store.now)
        """What the explanations of all jobs have in common."""

    async def keep_current(self) -> None:
        """Read what the overview page shows every operator, again and again."""
        while True:
            await self.survey.refresh()
            await self.ended.refresh()
            await self.worst_groups.refresh(access.LOCAL.tenant)
            await self.activity.refresh(*SHOWN_FIRST)
            await self.findings.refresh()
            await asyncio.sleep(REFRESHED)

    async def _find_bad(self) -> list[Finding]:
        survey, _ = await self.survey()
        checked, _ = await self.checked()
        return await health.find_bad(self.store, self.blobs, self.settings, survey.cards, checked)

    async def job(self, caller: Caller, job_id: str) -> Job:
        """Raises JobNotFound, also for a job of somebody else."""
        [job] = [None] if "\0" in job_id else await self.store.get([job_id])
        return access.job(caller, job, job_id)

    async def documents(self, jobs: Sequence[Job]) -> list[JobDocument]:
        return await read_readable(partial(jobs_to_json, self.store), jobs)

    async def document(self, job: Job, caller: Caller | None = None) -> JobDocument:
        """The job; for a token, what an end user may see of it."""
        [document] = await jobs_to_json(self.store, [job])
        return document if caller is None or caller.job_id is None else public_job(document)
