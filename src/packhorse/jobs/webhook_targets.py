"""Who wants to be told of ended jobs, remembered for a moment: every admission asks."""

from __future__ import annotations

import time
from collections.abc import Sequence
from weakref import WeakKeyDictionary

from packhorse.store.base import Store
from packhorse.store.collections.webhooks import Endpoint, list_endpoints

FRESH = 1.0
"""Seconds for which an answer is good. A job that is submitted sooner after a webhook was made may not know of it."""


class WebhookTargets:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._open: Sequence[Endpoint] | None = None
        self._until = 0.0

    async def all(self) -> Sequence[Endpoint]:
        """Every endpoint that has not ended. While one asks, the others go by what was known."""
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
    """One for all who use the same handle."""
    if (found := _by_store.get(store)) is None:
        found = _by_store[store] = WebhookTargets(store)
    return found
