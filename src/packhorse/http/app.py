"""The API as an application: every route, with authentication, errors and the OpenAPI file."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from litestar import Litestar, Request, Response, Router
from litestar.di import Provide
from litestar.handlers import HTTPRouteHandler
from litestar.openapi.config import OpenAPIConfig
from litestar.openapi.spec import Components, SecurityScheme
from litestar.types import ControllerRouterHandler

from packhorse.factory import destinations_from, inputs_from, open_both
from packhorse.http import problems
from packhorse.http.middleware import AppMiddleware, AuthMiddleware, TelemetryMiddleware
from packhorse.http.openapi import OpenApiFile
from packhorse.http.requests import check_query
from packhorse.http.routes import (
    batch,
    events,
    failures,
    job_config,
    jobs,
    keys,
    operations,
    results,
    schedules,
    submit,
    webhooks,
)
from packhorse.http.services import HttpServices, provide_caller, provide_services
from packhorse.log import log
from packhorse.settings import Settings
from packhorse.store.collections import keys as key_records
from packhorse.version import VERSION

BASE = "/api/v1"
KEY = SecurityScheme(type="http", scheme="bearer", description="A key (`ph_…`), or the token of one job.")

UNVERSIONED = [operations.healthz, operations.readyz, operations.scrape, events.live]
"""Routes outside `BASE`."""
ROUTES = [
    each
    for module in (submit, batch, events, jobs, keys, results, failures, operations, webhooks, schedules, job_config)
    for each in vars(module).values()
    if isinstance(each, HTTPRouteHandler) and each not in UNVERSIONED
]


async def open_services(app: Litestar) -> None:
    """Open what the routes work with."""
    settings: Settings = app.state.settings
    try:
        destinations, inputs = destinations_from(settings), inputs_from(settings)
        store, blobs = await open_both(settings)
    except Exception as error:
        app.state.failure = error  # the server only knows that it did not start
        raise
    services = app.state.services = HttpServices(settings, store, blobs, destinations, inputs)
    if not settings.keyless and not await key_records.list_newest(store, None, limit=1):
        log.no_keys()
    app.state.background = asyncio.create_task(services.run())
    app.state.is_open.set()


async def close_services(app: Litestar) -> None:
    services: HttpServices = app.state.services
    app.state.background.cancel()
    await asyncio.gather(app.state.background, return_exceptions=True)
    await services.close()
    await services.store.close()
    await services.blobs.close()
    for destination in services.destinations.values():
        await destination.close()
    await services.inputs.close()


@contextlib.asynccontextmanager
async def lifespan(app: Litestar) -> AsyncIterator[None]:
    await open_services(app)
    try:
        yield
    finally:
        await close_services(app)


def build(
    settings: Settings,
    routes: Sequence[ControllerRouterHandler] = (),
    on_error: Callable[[Request[Any, Any, Any], Exception], Response[bytes]] = problems.problem,
) -> Litestar:
    """The API with further routes. It opens the store and the files when it is started."""
    api = Router(BASE, route_handlers=ROUTES)
    app = Litestar(
        [api, *UNVERSIONED, *routes],
        dependencies={
            "services": Provide(provide_services, sync_to_thread=False),
            "caller": Provide(provide_caller, sync_to_thread=False),
        },
        before_request=check_query,
        exception_handlers={Exception: on_error},
        middleware=[AuthMiddleware],
        lifespan=[lifespan],
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
    app.asgi_handler = TelemetryMiddleware(AppMiddleware(app.asgi_handler))
    prepare(app, settings)
    return app


def prepare(app: Litestar, settings: Settings) -> None:
    """Before each start: remove what an earlier start has left."""
    for left in ("failure", "services", "background"):
        app.state.pop(left, None)
    app.state.settings = settings
    app.state.is_open = asyncio.Event()
