"""A server that asks for keys, and callers that have some."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from packhorse.auth import keys
from packhorse.store.base import Store
from packhorse.store.collections import audit
from packhorse.store.collections.audit import Entry
from tests.http.processes import Place
from tests.http.unserved import Http, unserved
from tests.journey.site import until

BASE = "http://packhorse.example/api/v1/"


def bearer(text: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {text}"}


async def key(store: Store, tenant: str = "acme", *scopes: str, user: str | None = None) -> dict[str, str]:
    """The header that shows a new key."""
    _, text = await keys.create(store, tenant, scopes or ("submit", "read"), by="cli", user=user)
    return bearer(text)


@asynccontextmanager
async def asking(place: Place) -> AsyncIterator[Http]:
    async with unserved(place.settings, BASE) as http:
        yield http


async def audited(store: Store, count: int, tenant: str | None = None) -> list[Entry]:
    """The entries, oldest first, once there are so many: they are written beside the requests."""

    async def look() -> list[Entry] | None:
        found = await audit.tail(store, *([] if tenant is None else [tenant]), limit=200)
        return found[::-1] if len(found) >= count else None

    return await until(look, 40, lambda: f"there are not {count} entries")
