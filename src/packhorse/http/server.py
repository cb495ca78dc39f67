"""Serves an application in this process until a signal stops it."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
import os
import resource
import signal
from typing import Any

import uvloop
from granian.constants import HTTPModes, Interfaces
from granian.http import HTTP1Settings
from granian.server.embed import Server
from litestar import Litestar
from litestar.types import ASGIApp, Receive, Scope, Send

from packhorse.auth.authenticate import is_local
from packhorse.errors import PackhorseError, SettingError
from packhorse.host import require_free_port
from packhorse.http.app import prepare
from packhorse.log import log
from packhorse.settings import Settings

GRACE = 1.5
"""Seconds that requests have to end by themselves when the server stops."""
LAST_GRACE = 0.6
"""Seconds in which the server closes the rest before the process exits."""

CONNECTIONS = 10_000
"""Concurrent connections; each watcher of a job holds one. Granian's default is 128, and further ones hang."""
BACKLOG = 1024
"""Connections waiting to be accepted."""

GARBAGE = 20_000
"""Allocated objects before the garbage collector runs. Python's default is 700."""

KNOCK = 0.02
"""Seconds between attempts to connect to ourselves while we start."""


def serve(settings: Settings, app: Litestar) -> None:
    """Serve the application until SIGTERM or SIGINT. Raises SettingError for an address that cannot be served."""
    check_address(settings)
    logging.getLogger("python_multipart").setLevel(logging.ERROR)  # it warns about every malformed request
    _allow_connections()
    _collect_rarely()
    uvloop.run(_serve(settings, app))


def _allow_connections() -> None:
    """Each needs a file descriptor, and the soft limit is usually lower than the hard one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS + 1000
    if soft != resource.RLIM_INFINITY and soft < wanted:
        most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))


def _collect_rarely() -> None:
    """Existing objects stay for ever, and a request leaves hardly any cycles: the default costs a tenth of its time."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(GARBAGE, 20, 20)


def check_address(settings: Settings) -> None:
    if settings.keyless and not is_local(settings.host):
        raise SettingError(
            f"packhorse would be open to everybody who can reach {settings.host}: without keys it serves this machine "
            "only. Set PACKHORSE_HOST to 127.0.0.1, or PACKHORSE_KEYLESS to no.",
            name="host",
            value=settings.host,
        )
    # Granian sets SO_REUSEPORT, and would share the port, and the requests, with another server.
    require_free_port(settings.host, settings.port)


async def _serve(settings: Settings, app: Litestar) -> None:
    prepare(app, settings)
    requests = _Requests(app)
    server = Server(
        requests,
        address="127.0.0.1" if settings.host == "localhost" else settings.host,  # Granian takes no names
        port=settings.port,
        interface=Interfaces.ASGI,
        http=HTTPModes.http1,
        http1_settings=HTTP1Settings(header_read_timeout=10_000),
        backlog=BACKLOG,
        backpressure=CONNECTIONS,
        websockets=False,
        log_enabled=False,
    )
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    serving = asyncio.create_task(server.serve())
    announcing = asyncio.create_task(_announce(app.state.is_open, settings))
    await asyncio.wait([serving, asyncio.create_task(stop.wait())], return_when=asyncio.FIRST_COMPLETED)
    announcing.cancel()
    if serving.done():
        error = serving.exception() or PackhorseError("The server ended by itself.")
        raise app.state.get("failure", error)
    server.stop()  # type: ignore[no-untyped-call]
    if "services" in app.state:
        app.state.services.feed.close()
    await requests.end()
    await asyncio.wait([serving], timeout=LAST_GRACE)
    if not serving.done():
        os._exit(0)  # a connection that will not close; everything acknowledged is durable
    serving.result()


async def _announce(is_open: asyncio.Event, settings: Settings) -> None:
    """Log the address once connections are accepted: Granian does not say when it listens."""
    await is_open.wait()
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection(settings.host, settings.port)
            writer.close()
            break
        await asyncio.sleep(KNOCK)
    log.serving(settings.host, settings.port)


class _Requests:
    """Tracks open requests, so that a stop does not wait for the slowest reader."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._open: set[asyncio.Task[Any]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        task = asyncio.current_task()
        if scope["type"] == "lifespan" or task is None:  # type: ignore[comparison-overlap]
            await self._app(scope, receive, send)
            return
        self._open.add(task)
        try:
            await self._app(scope, receive, send)
        finally:
            self._open.discard(task)

    async def end(self) -> None:
        if self._open:
            await asyncio.wait(self._open, timeout=GRACE)
        if self._open:
            log.requests_cut(len(self._open))
            for task in self._open:
                task.cancel()
            await asyncio.wait(self._open, timeout=LAST_GRACE)
