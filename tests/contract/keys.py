"""Keys, entries, charges and endpoints for the tests of what governs."""

from __future__ import annotations

import asyncio
from typing import Any

from packhorse.core.models import Job
from packhorse.core.webhooks import Delivery
from packhorse.store.base import Charge, Spent, Store
from packhorse.store.collections.audit import Entry
from packhorse.store.collections.keys import Key, Session
from packhorse.store.collections.webhooks import Endpoint, add_endpoint, list_endpoints, take_deliveries
from tests.contract.builders import completed

MINUTE = 60.0
"""A window whose buckets are a second each."""


def key(n: int = 1, **options: Any) -> Key:
    """The n-th key: a greater number is a younger one."""
    facts = {"digest": f"{n:064x}", "tenant": "default", "scopes": ("submit", "read"), "created_at": float(n)}
    return Key(f"{n:020x}", **{**facts, **options})


def session(n: int = 1, ends_at: float = 1.0) -> Session:
    return Session(f"{n:020x}", f"{n:064x}", key().id, created_at=0.5, ends_at=ends_at)


def entry(event: str = "key.accepted", at: float = 1.0, **options: Any) -> Entry:
    return Entry(at, event, **options)


def charge(amount: int = 1, limit: int = 10, *, name: str = "ratelimit:a", window: float = MINUTE) -> Charge:
    return Charge(name, amount, limit, window)


def endpoint(id: str = "e1", **options: Any) -> Endpoint:
    facts = {"tenant": "default", "url": "https://example.org/hook", "created_at": 1.0}
    return Endpoint(id, **{**facts, **options})


async def told(store: Store, *endpoints: str) -> Job:
    """A job that has ended, with a message waiting for each of these endpoints."""
    for id in endpoints:
        if id not in [each.id for each in await list_endpoints(store)]:
            await add_endpoint(store, endpoint(id))
    return await completed(store, webhooks=endpoints)


async def spend_each(store: Store, times: int, one: Charge) -> list[Spent]:
    """The charge, so many times at once."""
    return await asyncio.gather(*(store.spend([one]) for _ in range(times)))


async def take_all(store: Store, most: int) -> list[Delivery]:
    """Take in small steps until nothing is left."""
    found: list[Delivery] = []
    while taken := await take_deliveries(store, most, 3_600.0):
        found += taken
    return found
