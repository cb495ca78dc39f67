"""Records what a worker finds in a self-check."""

from __future__ import annotations

from msgspec.structs import replace

from packhorse.blobs.base import Blobs
from packhorse.jobs.explain import is_live
from packhorse.jobs.health import background_findings, files_answer, store_answers
from packhorse.settings import Settings
from packhorse.store.base import Finding, Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import list_findings, save_findings

PERIOD = 20.0
"""Seconds between self-checks of a worker."""


class HealthCheck:
    """Stores what a worker sees, for processes that only read: in Redis, under ``health:``."""

    def __init__(self, store: Store, blobs: Blobs, settings: Settings, me: str) -> None:
        self._store = store
        self._blobs = blobs
        self._settings = settings
        self._me = me

    async def tick(self) -> float:
        latest = max((each.measured_at or 0.0 for each in await list_findings(self._store)), default=0.0)
        if self._store.now() - latest >= PERIOD * 3 / 4:  # otherwise another worker has just done it
            await save_findings(self._store, await self._check())
        return PERIOD

    async def _check(self) -> list[Finding]:
        store, now = await store_answers(self._store), self._store.now()
        files = await files_answer(self._blobs, self._store.now)
        cards = await workers.list_all(self._store)
        live = [card for card in cards if is_live(card, now, self._settings.lease)]
        silent = [card.id for card in cards if card not in live]
        count = f"{len(live)} alive" + (f", {len(silent)} silent" if silent else "")
        late = [each.name for each in background_findings(live, now, self._settings) if not each.is_ok]
        return [
            *(replace(each, meaning=f"{each.meaning}, checked by worker {self._me}") for each in (store, files)),
            Finding("workers", not silent, count, ", ".join(silent) or "all report", "workers", now),
            Finding(
                "background tasks",
                not late,
                f"{len(late)} late",
                ", ".join(late) or "all on time",
                "background tasks",
                now,
            ),
        ]
