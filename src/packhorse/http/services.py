"""What the routes work with, opened once per process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from typing import Any

from litestar.datastructures import State
from litestar.types import Scope

from packhorse.auth.audit_log import Auditor
from packhorse.auth.authenticate import Door
from packhorse.auth.caller import Caller
from packhorse.auth.keyring import Keyring
from packhorse.background.loop import AFTER_FAILURE, run_forever
from packhorse.background.stats import MOST_COUNTED, StatsCounter
from packhorse.background.webhooks import outbound_for
from packhorse.blobs.base import Blobs
from packhorse.core.models import Job
from packhorse.errors import CorruptRecord, SchemaTooNew, StoreError
from packhorse.http.feed import Feed
from packhorse.http.responses.download_limits import Downloads
from packhorse.http.responses.stream import Streams
from packhorse.jobs.catalog import Catalog
from packhorse.jobs.estimate import Past, past
from packhorse.jobs.promote import Destination
from packhorse.jobs.transact import Transactor
from packhorse.log import log
from packhorse.schemas.jobs import JobDocument, jobs_to_json
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.store.statistics import Counts

COUNTED = 2.0
"""Seconds for which jobs are not counted again: in a store that does not know the number it takes some milliseconds."""

REMEMBERED = 10.0
"""Seconds for which it is not added up again how long stages took."""


class Tools:
    def __init__(
        self, settings: Settings, store: Store, blobs: Blobs, destinations: Mapping[str, Destination] | None = None
    ) -> None:
        self.settings = settings
        self.store = store
        self.blobs = blobs
        self.destinations = destinations or {}
        """Where results are promoted to, the usual one first."""
        self.stats = StatsCounter(store)
        self.transact = Transactor(store, self.stats.run_ended)
        self.catalog = Catalog(store)
        self.feed = Feed(store)
        self.keyring = Keyring(store)
        self.audit = Auditor(store, keep=settings.audit_keep)
        self.door = Door(settings, store, self.keyring, self.audit)
        self.downloads = Downloads(settings, store, self.audit)
        self.streams = Streams(settings.streams_limit)
        self.outbound = outbound_for(settings)
        self._counts: tuple[Counts, float] | None = None
        self._past: dict[str, tuple[Past, float]] = {}

    async def run(self) -> None:
        """What goes on beside the requests."""
        beside = [self.feed.run, self.keyring.run, self.audit.run, self._tally]
        if self.door.rates is not None:
            beside.append(self.door.rates.run)
        await asyncio.gather(*(_kept(each) for each in beside))

    async def _tally(self) -> None:
        await run_forever(self.stats)

    async def close(self) -> None:
        self.feed.close()
        with suppress(StoreError):
            await self.stats.flush()
        await self.audit.close()
        if self.door.rates is not None:
            await self.door.rates.give_back()

    async def counts(self) -> tuple[Counts, float]:
        """How many jobs there are, as it was counted a moment ago, and when that was."""
        if self._counts is None or self.store.now() - self._counts[1] > COUNTED:
            self._counts = await self.store.counted(MOST_COUNTED), self.store.now()
        return self._counts

    async def past(self, pipeline: str) -> Past:
        """How long the stages of a pipeline took, as it was added up a moment ago: who watches asks again and again."""
        now = self.store.now()
        known = self._past.get(pipeline)
        if known is None or now - known[1] > REMEMBERED:
            self._past = {name: each for name, each in self._past.items() if now - each[1] <= REMEMBERED}
            known = self._past[pipeline] = await past(self.store, pipeline), now
        return known[0]

    def ended(self, caller: Caller) -> asyncio.Event | None:
        """Set when the caller's key has ended: what is streamed to it is cut then."""
        return self.keyring.end_of(caller.key_id) if caller.key_id else None

    async def job(self, caller: Caller, job_id: str) -> Job:
        """A job whose purge has begun is as good as gone: its files may be already."""
        [job] = [None] if "\0" in job_id else await self.store.get([job_id])
        return caller.check(job, job_id)

    async def listed(self, jobs: Sequence[Job]) -> list[JobDocument]:
        """As `shown`; what cannot be read of one job leaves that one out, with a line in the log."""
        try:
            return await self.shown(jobs)
        except (CorruptRecord, SchemaTooNew) as error:
            if len(jobs) > 1:
                return [shape for job in jobs for shape in await self.listed([job])]
            log.job_unreadable(jobs[0].id, error)
            return []

    async def shown(self, jobs: Sequence[Job]) -> list[JobDocument]:
        return await jobs_to_json(self.store, jobs)


async def _kept(run: Callable[[], Awaitable[None]]) -> None:
    """Whatever it stumbles over, it goes on: nobody would notice that it had ended."""
    while True:
        try:
            await run()
        except Exception as error:
            log.duty_failed(run.__qualname__, error)
            await asyncio.sleep(AFTER_FAILURE)


def tools_of(state: State) -> Any:
    return state.tools


def tools_and_caller(scope: Scope) -> tuple[Tools, Caller]:
    """For a route that is not handed them."""
    return scope["litestar_app"].state.tools, scope["state"]["caller"]
