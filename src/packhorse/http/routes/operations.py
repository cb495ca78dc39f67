"""The deployment: pipelines, statistics, queues, workers, health and ``/metrics``. Tenants share most of these."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated

from litestar import delete, get, post, put
from litestar.params import FromQuery, QueryParameter
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp
from msgspec import Meta, Struct
from prometheus_client import CollectorRegistry, Gauge

from packhorse import metrics
from packhorse.define.options import MOST_AT_LIMIT
from packhorse.errors import BlobUnavailable, Conflict, LimitNotFound, QueueNotFound, StoreError, StoreUnavailable
from packhorse.http.openapi import error_responses, json_body, response_spec
from packhorse.http.requests import HttpRequest, Id, Nothing, read_json
from packhorse.http.services import FromCaller, FromServices, HttpServices
from packhorse.jobs import health, operations, view
from packhorse.jobs.explain import live_workers
from packhorse.jobs.services import LONGEST_REASON
from packhorse.schemas import operations as schemas
from packhorse.store.collections.queues import Reading, list_readings
from packhorse.version import VERSION

FRESH = 180.0
"""Seconds for which `/metrics` shows a reading of the queues."""
PATIENCE = 2.0
"""Seconds that `/metrics` waits for the store; without it, the rest is still useful."""
TEXT = response_spec(str, "text/plain", "Prometheus's text format.")

Window = Annotated[str, QueryParameter(description="How far back the series goes, such as 10m; at most 72h.")]


class Why(Struct):
    """Why a queue is paused, shown to users who wait; or why a limit is changed, shown in its history."""

    reason: Annotated[str, Meta(extra_json_schema={"maxLength": LONGEST_REASON})] = ""


class NewLimit(Struct):
    """``version`` is the one you have seen; 409 if it is not the newest."""

    most: Annotated[int, Meta(ge=0, le=MOST_AT_LIMIT)]
    reason: Annotated[str, Meta(extra_json_schema={"maxLength": LONGEST_REASON})] = ""
    version: int | None = None


@get("/stats", scope="operate", shared=True, responses=error_responses(QueueNotFound))
async def stats(
    services: FromServices,
    window: Window = "1h",
    queue: FromQuery[str | None] = None,
    pipeline: FromQuery[str | None] = None,
) -> schemas.StatsDocument:
    """Current numbers and a series of at most 300 points: of jobs or, if a queue is named, of its attempts."""
    return await operations.stats(services, window, queue=queue, pipeline=pipeline)


@get("/workers", scope="operate", shared=True, responses=error_responses())
async def list_workers(services: FromServices) -> schemas.WorkersPage:
    """The workers, and for a day those that were lost, with the tasks that they were running."""
    return {"items": await operations.list_workers(services), "next": None}


@get("/queues", scope="operate", shared=True, responses=error_responses())
async def list_queues(services: FromServices) -> schemas.QueuesPage:
    """The queues of pipelines and workers: what is ready in each, who serves it, whether it is paused."""
    return {"items": await operations.list_queues(services), "next": None}


@post("/queues/{queue:str}/pause", scope="operate", shared=True, status_code=200, **json_body(Why, QueueNotFound))
async def pause(request: HttpRequest, services: FromServices, caller: FromCaller, queue: Id) -> schemas.QueueDocument:
    """Start no more tasks of this queue; running ones continue. Workers follow within about a second."""
    given = await read_json(request, Why)
    return await operations.pause_queue(services, caller, queue, given.reason)


@post("/queues/{queue:str}/resume", scope="operate", shared=True, status_code=200, **json_body(Nothing, QueueNotFound))
async def resume(request: HttpRequest, services: FromServices, caller: FromCaller, queue: Id) -> schemas.QueueDocument:
    """Resume this queue; if it was not paused, nothing happens."""
    await read_json(request, Nothing)
    return await operations.resume_queue(services, caller, queue)


@get("/limits", scope="operate", shared=True, responses=error_responses())
async def list_limits(services: FromServices, caller: FromCaller) -> schemas.LimitsPage:
    """The limits of all pipelines: their numbers, who holds them, and how many tasks wait for each."""
    return {"items": await operations.list_limits(services, caller), "next": None}


@get("/limits/{limit:str}", scope="operate", shared=True, responses=error_responses(LimitNotFound))
async def get_limit(services: FromServices, caller: FromCaller, limit: Id) -> schemas.LimitDocument:
    """One limit, with the numbers that operators have set and why."""
    return await operations.limit(services, caller, limit)


@put(
    "/limits/{limit:str}", scope="operate", shared=True, status_code=200, **json_body(NewLimit, LimitNotFound, Conflict)
)
async def set_limit(
    request: HttpRequest, services: FromServices, caller: FromCaller, limit: Id
) -> schemas.LimitDocument:
    """Replace the number of a limit for all jobs, now; running tasks continue. 0 starts nothing more."""
    given = await read_json(request, NewLimit)
    return await operations.set_limit(services, caller, limit, given.most, given.reason, given.version)


@delete("/limits/{limit:str}", scope="operate", shared=True, status_code=200, **json_body(Why, LimitNotFound))
async def reset_limit(
    request: HttpRequest, services: FromServices, caller: FromCaller, limit: Id
) -> schemas.LimitDocument:
    """Apply the numbers of the pipelines again."""
    given = await read_json(request, Why)
    return await operations.set_limit(services, caller, limit, None, given.reason)


@get("/pipelines", scope="read", responses=error_responses())
async def pipelines(services: FromServices, caller: FromCaller) -> schemas.PipelinesPage:
    """The pipelines that can be submitted, with the JSON Schemas of their parameters."""
    return {"items": await view.pipelines(services, caller), "next": None}


@get("/health", scope="operate", shared=True, responses=error_responses())
async def findings(services: FromServices) -> schemas.FindingsDocument:
    """The checks of `packhorse doctor`: store, files, workers, background tasks, and jobs that no worker can start."""
    return await operations.findings(services)


@get("/healthz", scope=None, security=[{}], responses=error_responses())
async def healthz() -> schemas.HealthDocument:
    """The process answers."""
    return {"status": "ok", "version": VERSION}


@get("/readyz", scope=None, security=[{}], responses=error_responses(BlobUnavailable))
async def readyz(services: FromServices) -> schemas.ReadyDocument:
    """The store and the object store answer."""
    if not (await health.store_answers(services.store)).is_ok:
        raise StoreUnavailable
    files = await health.files_answer(services.blobs, services.store.now)
    if not files.is_ok:
        raise BlobUnavailable(reason=files.meaning)
    return {"status": "ready", "store": "ok", "blobs": "ok"}


@get("/metrics", scope="operate", shared=True, responses={**error_responses(), 200: TEXT})
async def scrape(services: FromServices) -> ASGIApp:
    """Metrics of this server process, for Prometheus."""
    body = metrics.render_metrics(await _store_metrics(services))
    return ASGIResponse(body=body, media_type=metrics.MEDIA_TYPE, headers={"Cache-Control": "no-store"})


async def _store_metrics(services: HttpServices) -> CollectorRegistry:
    """Only what costs the same however many jobs there are."""
    found = CollectorRegistry()
    up = Gauge("packhorse_store_up", "Whether the store answers.", registry=found)
    try:
        async with asyncio.timeout(PATIENCE):
            live = await live_workers(services.store, services.settings.lease)
            readings = await list_readings(services.store, services.store.now() - FRESH)
    except (StoreError, TimeoutError):
        return found
    up.set(1)
    Gauge("packhorse_workers", "Workers heard of within a lease.", registry=found).set(len(live))
    slots = Gauge("packhorse_queue_slots", "Slots that live workers have for a queue.", ("queue",), registry=found)
    for card in live:
        for queue, count in card.queues.items():
            slots.labels(queue).inc(count)
    _add_queue_gauges(found, readings)
    return found


def _add_queue_gauges(found: CollectorRegistry, readings: Sequence[Reading]) -> None:
    """As a worker measured them last, once a minute."""
    if not readings:
        return
    facts = (
        ("ready", "Tasks that wait in a queue, counted up to 10000."),
        ("oldest_seconds", "Seconds for which the oldest of them has been ready."),
        ("running", "Tasks of a queue that run."),
    )
    gauges = [Gauge(f"packhorse_queue_{name}", meaning, ("queue",), registry=found) for name, meaning in facts]
    for queue, level in readings[-1].queues.items():
        for gauge, value in zip(gauges, (level.ready, level.oldest, level.running), strict=True):
            gauge.labels(queue).set(value)
