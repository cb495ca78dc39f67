"""Webhooks: the addresses that get a message when a job has ended, and the outbox of what waits to be sent.

What was sent, and what the receiver answered, is a log for each endpoint. It has nothing of the message itself, which
would outlive its job.

An open endpoint has a record of its own (`OPEN_ENDPOINT`) that every delivery needs. Ending an endpoint drops it first,
so nothing is added behind the clearing of its deliveries.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import suppress
from weakref import WeakKeyDictionary

from msgspec import Struct
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.records import Drop, IndexEntry, LogEntry, Put, Record, time_place
from packhorse.core.webhooks import DAY, DELIVERY, OPEN_ENDPOINT, Delivery, job_delivery, put_delivery
from packhorse.errors import Conflict, JobNotFound
from packhorse.store.base import Records, Store
from packhorse.store.collections.base import AFTER_ALL, readable, readable_page

ENDPOINT = "endpoint"
FRESH = 1.0
"""Seconds for which webhooks are cached. A job that is submitted sooner after a webhook was created may miss it."""
ATTEMPTS = "webhook_attempts"
"""A log, with the endpoint as the topic."""
ATTEMPTS_KEPT = 200  # about so many of each endpoint
ATTEMPTS_AGE = 30 * DAY  # seconds after which one is dropped when the next is added
PAGE = 500


class Endpoint(Struct, frozen=True, omit_defaults=True):
    """An address of a tenant that gets a message when a job has ended."""

    id: str
    tenant: str
    url: str
    created_at: float
    created_by: str = ""
    ended_at: float | None = None
    reason: str = ""
    """Why it has ended."""


class Attempt(Struct, frozen=True, omit_defaults=True):
    """One request to a receiver, and its answer."""

    id: str
    """Of the message: its ``webhook-id`` header."""
    endpoint: str
    at: float
    seconds: float
    bytes: int
    job_id: str = ""
    """Empty for a test."""
    run: int = 0
    status: int | None = None
    error: str = ""
    answer: str = ""
    """The beginning of what it answered."""


async def record_attempt(store: Records, attempt: Attempt) -> None:
    entry = LogEntry(json.encode(attempt), attempt.endpoint, at=attempt.at)
    await store.append(ATTEMPTS, [entry], keep=ATTEMPTS_KEPT, since=max(0.0, attempt.at - ATTEMPTS_AGE))


async def list_attempts(store: Records, endpoint_id: str, limit: int = 50) -> list[Attempt]:
    """Newest first; without what cannot be read."""
    return await readable_page(
        lambda most: store.tail(ATTEMPTS, topic=endpoint_id, limit=most),
        limit,
        lambda each: json.record(each.body, Attempt),
    )


async def redeliver(store: Records, job_id: str, run: int, endpoint_id: str) -> None:
    """Send the message about a run again, or, if it still waits for its next attempt, now. It keeps its id."""
    wanted = job_delivery(job_id, run, endpoint_id, store.now())
    await post_deliveries(store, [wanted])
    [found] = await store.fetch(DELIVERY, [wanted.id])
    if found is not None:
        waiting = _delivery(found)
        await settle_delivery(store, waiting, next_at=store.now(), error=waiting.error)


async def add_endpoint(store: Records, endpoint: Endpoint) -> None:
    """Raises `Conflict` if the id is taken."""
    await store.put(_put_endpoint(endpoint, stamp=0), quiet=True)


async def list_endpoints(store: Records, tenant: str | None = None, *, only_open: bool = False) -> list[Endpoint]:
    """Those of the tenant, or all, oldest first; ended ones too, unless only open ones are wanted.

    One that cannot be read is logged and left out: it must not stop every submit.
    """
    index = "open" if only_open else "all"
    if tenant is not None:
        index = f"{index}/{tenant}"
    most = PAGE
    while len(found := await store.scan(ENDPOINT, index, limit=most)) == most:
        most *= 2  # by pages would need the place of the last one, which its body tells
    return readable(found, _endpoint)


async def end_endpoint(store: Records, endpoint_id: str, at: float, reason: str) -> Endpoint | None:
    """Send nothing there any more, and drop what waits for it. The first end stays. None if it is unknown."""
    while True:
        [found] = await store.fetch(ENDPOINT, [endpoint_id])
        if found is None:
            return None
        endpoint = _endpoint(found)
        if endpoint.ended_at is not None:
            break  # the process that ended it may have failed before all deliveries were dropped
        endpoint = replace(endpoint, ended_at=at, reason=reason)
        with suppress(Conflict):
            await store.put(_put_endpoint(endpoint, stamp=found.stamp), quiet=True)
            break
    await _drop_deliveries(store, endpoint_id)
    return endpoint


async def drop_endpoints(store: Records, ended_before: float) -> None:
    """Delete those that had ended by then, and what still waits for them. Once ended, an endpoint never changes."""
    while page := await store.scan(ENDPOINT, "ended", before=time_place(ended_before, AFTER_ALL), limit=PAGE):
        for each in page:
            await _drop_deliveries(store, each.id)
        await store.put([Drop(ENDPOINT, each.id) for each in page], quiet=True)


async def post_deliveries(store: Records, deliveries: Sequence[Delivery]) -> None:
    """Add messages to the outbox, except to endpoints that have ended. One that is there already is left as it is."""
    for delivery in deliveries:
        with suppress(Conflict, JobNotFound):
            await store.put([put_delivery(delivery)], quiet=True)


async def take_deliveries(store: Records, limit: int, seconds: float) -> list[Delivery]:
    """Those due by the store's clock, longest due first, each counted and put off by ``seconds`` in the same step.

    Two takers never receive the same attempt. What a taker that died has not settled is due again by itself.
    One that cannot be read is logged and left out.
    """
    return readable(await store.take(DELIVERY, "", limit, seconds), _delivery)


async def settle_delivery(store: Records, delivery: Delivery, *, next_at: float | None, error: str = "") -> None:
    """Drop it (None), or try again then. Ignored if another taker has it since, or its endpoint has ended."""
    write: Put | Drop = Drop(DELIVERY, delivery.id, stamp=delivery.stamp)
    if next_at is not None:
        write = put_delivery(replace(delivery, next_at=next_at, error=error))
    with suppress(Conflict, JobNotFound):
        await store.put([write], quiet=True)


async def list_deliveries(store: Records, endpoint_id: str, limit: int = 50) -> list[Delivery]:
    """What waits for the endpoint, newest first; without what cannot be read."""
    index = f"endpoint/{endpoint_id}"
    return await readable_page(lambda most: store.scan(DELIVERY, index, limit=most, newest=True), limit, _delivery)


async def _drop_deliveries(store: Records, endpoint_id: str) -> None:
    while waiting := await store.scan(DELIVERY, f"endpoint/{endpoint_id}", limit=PAGE):
        await store.put([Drop(DELIVERY, each.id) for each in waiting], quiet=True)


def _put_endpoint(endpoint: Endpoint, stamp: int) -> list[Put | Drop]:
    is_open = endpoint.ended_at is None
    names = ("all", "open") if is_open else ("all",)
    index = [IndexEntry(each, _place(endpoint)) for name in names for each in (name, f"{name}/{endpoint.tenant}")]
    if endpoint.ended_at is not None:
        index.append(IndexEntry("ended", time_place(endpoint.ended_at, endpoint.id)))
    gate = Put(OPEN_ENDPOINT, endpoint.id, b"1") if is_open else Drop(OPEN_ENDPOINT, endpoint.id)
    return [Put(ENDPOINT, endpoint.id, json.encode(endpoint), stamp=stamp, index=tuple(index)), gate]


def _place(endpoint: Endpoint) -> str:
    return time_place(endpoint.created_at, endpoint.id)


def _endpoint(found: Record) -> Endpoint:
    return json.record(found.body, Endpoint)


def _delivery(found: Record) -> Delivery:
    delivery = json.record(found.body, Delivery)
    return replace(delivery, attempts=found.attempts, next_at=found.due_at or 0.0, stamp=found.stamp)


class WebhookTargets:
    """The endpoints that want messages about ended jobs, cached: every submit needs them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: Sequence[Endpoint] | None = None
        self._until = 0.0

    async def all(self) -> Sequence[Endpoint]:
        """Every endpoint that has not ended. During a read, other callers get the cached ones."""
        if self._open is None or time.monotonic() >= self._until:
            self._until = time.monotonic() + FRESH
            return await self.refresh()
        return self._open

    async def refresh(self) -> Sequence[Endpoint]:
        self._open = await list_endpoints(self._store, only_open=True)
        return self._open

    async def of(self, tenant: str) -> tuple[str, ...]:
        return tuple(each.id for each in await self.all() if each.tenant == tenant)


_by_store: WeakKeyDictionary[Store, WebhookTargets] = WeakKeyDictionary()


def webhook_targets(store: Store) -> WebhookTargets:
    """One per store handle."""
    if (found := _by_store.get(store)) is None:
        found = _by_store[store] = WebhookTargets(store)
    return found
