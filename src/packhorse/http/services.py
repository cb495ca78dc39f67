"""What the routes work with, opened once per process."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from litestar import Request
from litestar.datastructures import State
from litestar.di import NamedDependency

from packhorse.auth.access import Caller
from packhorse.auth.authenticate import Authenticator
from packhorse.auth.rate_limits import token_share
from packhorse.background.loop import AFTER_FAILURE, run_forever
from packhorse.background.stats import StatsCounter
from packhorse.background.webhooks import outbound_for
from packhorse.blobs.base import Blobs
from packhorse.errors import StoreError
from packhorse.http.download import Downloads
from packhorse.http.feed import Feed
from packhorse.http.stream import Streams
from packhorse.jobs.input_paths import InputPaths
from packhorse.jobs.promote import Destination
from packhorse.jobs.services import Services
from packhorse.jobs.transact import Transactor
from packhorse.log import log
from packhorse.settings import Settings
from packhorse.store.base import Store


class HttpServices(Services):
    """The services of the use cases, and what only a server has: authentication, live events and limits."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        blobs: Blobs,
        destinations: Mapping[str, Destination] | None = None,
        inputs: InputPaths | None = None,
    ) -> None:
        self.stats = StatsCounter(store)
        super().__init__(settings, store, blobs, destinations, Transactor(store, self.stats.run_ended))
        self.inputs = inputs or InputPaths()
        self.feed = Feed(store)
        self.authenticator = Authenticator(settings, store, self.keyring, self.audit)
        self.downloads = Downloads(settings, store, self.audit)
        self.streams = Streams(settings.streams_limit, token_share(settings.streams_limit, settings))
        self.outbound = outbound_for(settings)

    async def run(self) -> None:
        """The background tasks of a server."""
        tasks = [self.feed.run, self.keyring.run, self.audit.run, self.keep_current, self._tally]
        if self.authenticator.rates is not None:
            tasks.append(self.authenticator.run_rates)
        await asyncio.gather(*(_run_forever(each) for each in tasks))

    async def _tally(self) -> None:
        await run_forever(self.stats)

    async def close(self) -> None:
        self.feed.close()
        with suppress(StoreError):
            await self.stats.flush()
        await self.audit.close()
        await self.authenticator.close()

    def key_end(self, caller: Caller) -> asyncio.Event | None:
        """Set when the caller's key or session has ended: what is streamed to it is cut then."""
        return self.keyring.end_of(caller.key_id, caller.session) if caller.key_id else None


FromServices = NamedDependency[HttpServices]
FromCaller = NamedDependency[Caller]


async def _run_forever(run: Callable[[], Awaitable[None]]) -> None:
    """After any error, log it and start again: nobody would notice a task that ended."""
    while True:
        try:
            await run()
        except Exception as error:
            log.background_failed(run.__qualname__, error)
            await asyncio.sleep(AFTER_FAILURE)


def provide_services(state: State) -> Any:
    return state.services


def provide_caller(request: Request[Any, Any, Any], services: NamedDependency[Any]) -> Caller:  # noqa: ARG001
    """Takes the services only for speed: Litestar provides independent values in a task group, which costs 60 us."""
    found: Caller = request.scope["state"]["caller"]
    return found
