"""Takes away expired leases, so that their stages can be claimed again, and ends runs past their deadline."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from packhorse.core import lifecycle
from packhorse.core.models import Job, TaskId
from packhorse.errors import Conflict, Refused
from packhorse.jobs.transact import Transactor
from packhorse.log import log, traced
from packhorse.store.base import Store
from packhorse.store.collections.workers import put_bookmark

BATCH = 100
WATCH = "reaper"


class Reaper:
    """After a gap of its own, or a jump of the clock, it takes no lease away for one lease period.

    Otherwise the first reaper after an outage would find all leases expired and cost every stage an attempt, a moment
    before the workers renew.
    """

    def __init__(
        self, store: Store, transact: Transactor, lease: float, monotonic: Callable[[], float] = time.monotonic
    ) -> None:
        self._store = store
        self._transact = transact
        self._lease = lease
        self._monotonic = monotonic
        self._watching_since = monotonic()
        self._last: tuple[float, float] | None = None

    async def tick(self) -> float:
        # A write: in a store that can only be read, as on a full disk, nobody can renew either.
        await put_bookmark(self._store, WATCH, "")
        overdue = await self._store.overdue(BATCH)
        self._check_clock()  # after the read: had the clock jumped before it, all leases would be overdue
        found = 0
        if self._monotonic() - self._watching_since >= self._lease:
            for job, task in overdue:
                await self._lose(job, task)
            found = len(overdue)
        expired = await self._store.expired(BATCH)
        for job in expired:
            with suppress(Conflict, Refused):
                await self._transact(job.id, lambda job: lifecycle.expire(job, now=self._store.now()))
        return 0.0 if BATCH in (found, len(expired)) else self._lease / 10

    def _check_clock(self) -> None:
        wall, steady = self._store.now(), self._monotonic()
        if self._last is not None:
            gap = steady - self._last[1]
            jump = (wall - self._last[0]) - gap
            if abs(jump) > self._lease / 3:
                log.clock_jumped(jump)
            if gap > self._lease / 2 or abs(jump) > self._lease / 3:
                self._watching_since = steady
        self._last = wall, steady

    async def _lose(self, job: Job, task: TaskId) -> None:
        held = job.task(task)
        if held is None or held.token is None:
            return
        verb = partial(lifecycle.lose, at=task, token=held.token, now=self._store.now())
        with suppress(Conflict, Refused):  # renewed or finished since: the change is guarded by "still overdue"
            await self._transact(job.id, verb)
            with traced(job.trace_id):
                log.lease_overdue(job.id, task.stage)
