"""``/metrics``: what this process has counted, and what the store can say at no cost."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

from litestar import get
from litestar.di import NamedDependency
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp
from prometheus_client import CollectorRegistry, Gauge

from packhorse import metrics
from packhorse.errors import StoreError
from packhorse.http.openapi import answering, refusing
from packhorse.http.services import Tools
from packhorse.jobs.explain import is_live
from packhorse.store.collections import workers
from packhorse.store.collections.queues import Reading, list_readings
from packhorse.store.collections.workers import WorkerCard

FRESH = 180.0
"""Seconds for which a reading is told: after that it is better to say nothing."""
PATIENCE = 2.0
"""Seconds for the store: whoever scrapes wants the rest of it all the same."""

TEXT = answering(str, "text/plain", "Prometheus's text format.")


@get("/metrics", scope="operate", shared=True, responses={**refusing(), 200: TEXT})
async def scrape(tools: NamedDependency[Tools]) -> ASGIApp:
    """What this server process has done and is doing, for Prometheus."""
    body = metrics.render_metrics(await _of_the_store(tools))
    return ASGIResponse(body=body, media_type=metrics.MEDIA_TYPE, headers={"Cache-Control": "no-store"})


async def _of_the_store(tools: Tools) -> CollectorRegistry:
    """Nothing that costs more the more jobs there are."""
    found = CollectorRegistry()
    up = Gauge("packhorse_store_up", "Whether the store answers.", registry=found)
    try:
        async with asyncio.timeout(PATIENCE):
            cards = await workers.list_all(tools.store)
            readings = await list_readings(tools.store, tools.store.now() - FRESH)
    except (StoreError, TimeoutError):
        return found
    up.set(1)
    now = tools.store.now()
    live = [card for card in cards if is_live(card, now, tools.settings.lease)]
    Gauge("packhorse_workers", "Workers heard of within a lease.", registry=found).set(len(live))
    slots = Gauge("packhorse_queue_slots", "Slots that live workers have for a queue.", ("queue",), registry=found)
    for queue, count in _slots(live).items():
        slots.labels(queue).set(count)
    _levels(found, readings)
    return found


def _levels(found: CollectorRegistry, readings: Sequence[Reading]) -> None:
    """As they were when a worker last looked, once a minute."""
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


def _slots(live: list[WorkerCard]) -> dict[str, int]:
    slots: dict[str, int] = {}
    for card in live:
        for queue, count in card.queues.items():
            slots[queue] = slots.get(queue, 0) + count
    return slots
