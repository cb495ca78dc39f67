"""The API as an application: every route, with authentication, errors and the OpenAPI file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from litestar import Litestar, Request, Response, Router
from litestar.di import Provide
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ControllerRouterHandler

from packhorse.factory import destinations_from, open_both
from packhorse.http.auth_middleware import Gate
from packhorse.http.middleware import Observed
from packhorse.http.openapi import OpenApiFile
from packhorse.http.requests import query
from packhorse.http.responses import problems
from packhorse.http.routes import (
    bulk,
    events,
    failures,
    jobs,
    keys,
    operations,
    prometheus,
    results,
    schedule_edits,
    schedules,
    submit,
    system,
    webhooks,
)
from packhorse.http.services import Tools, caller_of, tools_of
from packhorse.log import log
from packhorse.settings import Settings
from packhorse.store.collections import keys as key_records
from packhorse.version import VERSION

BASE = "/api/v1"
KEY = SecurityScheme(type="http", scheme="bearer", description="A key (`ph_…`), or the token of one job.")

ROUTES = [
    submit.submit,
    jobs.list_jobs,
    *bulk.ROUTES,
    *keys.ROUTES,
    jobs.get_job,
    jobs.explain,
    jobs.estimate,
    jobs.history,
    jobs.cancel,
    jobs.retry,
    jobs.delete_job,
    jobs.log,
    jobs.metrics,
    events.events,
    results.artifacts,
    results.artifact,
    results.result,
    *failures.ROUTES,
    *operations.ROUTES,
    jobs.promote,
    jobs.destinations,
    system.pipelines,
    system.findings,
    webhooks.list_webhooks,
    webhooks.add_webhook,
    webhooks.remove_webhook,
    webhooks.list_deliveries,
    webhooks.try_webhook,
    *schedules.ROUTES,
    *schedule_edits.ROUTES,
]


async def wake(app: Litestar) -> None:
    """Open what the routes work with."""
    settings: Settings = app.state.settings
    try:
        destinations = destinations_from(settings)
        store, blobs = await open_both(settings)
    except Exception as error:
        app.state.failure = error  # the server only knows that it did not start
        raise
    tools = app.state.tools = Tools(settings, store, blobs, destinations)
    if not settings.keyless and not await key_records.list_newest(store, None, limit=1):
        log.no_keys()
    app.state.beside = asyncio.create_task(tools.run())
    app.state.is_open.set()


async def rest(app: Litestar) -> None:
    tools: Tools = app.state.tools
    app.state.beside.cancel()
    await asyncio.gather(app.state.beside, return_exceptions=True)
    await tools.close()
    await tools.store.close()
    await tools.blobs.close()
    for destination in tools.destinations.values():
        await destination.close()


@contextlib.asynccontextmanager
async def living(app: Litestar) -> AsyncIterator[None]:
    await wake(app)
    try:
        yield
    finally:
        await rest(app)


def build(
    settings: Settings,
    routes: Sequence[ControllerRouterHandler] = (),
    on_error: Callable[[Request[Any, Any, Any], Exception], Response[bytes]] = problems.problem,
) -> Litestar:
    """The API, and whatever else is served beside it. It opens store and files when it is started."""
    api = Router(BASE, route_handlers=ROUTES)
    app = Litestar(
        [api, system.healthz, system.readyz, prometheus.scrape, events.live, *routes],
        dependencies={
            "tools": Provide(tools_of, sync_to_thread=False),
            "caller": Provide(caller_of, sync_to_thread=False),
        },
        before_request=query.check,
        exception_handlers={Exception: on_error},
        middleware=[Gate],
        lifespan=[living],
        openapi_config=OpenAPIConfig(
            title="packhorse",
            version=VERSION,
            openapi_router=Router("/openapi.json", route_handlers=[], include_in_schema=False, opt={"scope": None}),
            render_plugins=[OpenApiFile(path="/")],  # the others load scripts from a CDN
            use_handler_docstrings=True,
            components=Components(security_schemes={"key": KEY}),
            security=[{"key": []}],
        ),
        logging_config=None,
    )
    app.asgi_handler = Observed(app.asgi_handler)
    prepare(app, settings)
    return app


def prepare(app: Litestar, settings: Settings) -> None:
    """Before each start: nothing of an earlier life is left."""
    for left in ("failure", "tools", "beside"):
        app.state.pop(left, None)
    app.state.settings = settings
    app.state.is_open = asyncio.Event()
