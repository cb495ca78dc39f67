"""The audit: who did what with which key. Told without waiting, written a few times a second.

Equal entries within a minute are folded into one with a count: the first is written at once, the others when the
minute is over. So whoever knocks ten thousand times fills two lines, and not the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from msgspec.structs import replace

from packhorse.api.callers import Caller
from packhorse.errors import StoreError
from packhorse.store.base import Entry, Store
from packhorse.telemetry import log, trace_id

PAUSE = 0.2
"""Seconds between writes."""
FOLDED = frozenset(
    {"key.accepted", "key.missing", "key.malformed", "key.wrong", "key.ended", "key.blocked", "rate.refused"}
)
MINUTE = 60.0
MOST = 10_000
"""Entries held while the store is away. Past that the oldest are dropped, with a line in the log."""

Folded = tuple[str, str, str, str]


class Auditor:
    def __init__(self, store: Store, keep: int, clock: Callable[[], float] | None = None) -> None:
        self._store = store
        self._keep = keep
        self._clock = clock or store.now
        self._waiting: list[Entry] = []
        self._folds: dict[Folded, Entry] = {}
        """What has been told of each in this minute; a count of nothing once the first was written."""
        self._turn = asyncio.Lock()

    def tell(self, event: str, caller: Caller, *, job_id: str = "", **details: Any) -> None:
        entry = Entry(
            at=self._clock(),
            event=event,
            tenant=caller.tenant,
            actor=caller.key_id,
            address=caller.address,
            job_id=job_id,
            trace_id=trace_id(),
            details=details,
        )
        if event in FOLDED:
            self._fold(entry)
        else:
            self._waiting.append(entry)

    async def flush(self) -> None:
        """Write what was told until now."""
        async with self._turn:
            self._end_minutes()
            waiting, self._waiting = self._waiting, []
            if not waiting:
                return
            try:
                await self._store.audit(waiting, keep=self._keep)
            except StoreError as error:
                self._waiting = waiting + self._waiting
                if len(self._waiting) > MOST:
                    log.audit_dropped(len(self._waiting) - MOST, error)
                    del self._waiting[: len(self._waiting) - MOST]

    async def run(self) -> None:
        while True:
            await asyncio.sleep(PAUSE)
            await self.flush()

    async def close(self) -> None:
        self._waiting += [entry for entry in self._folds.values() if entry.count]
        self._folds.clear()
        await self.flush()

    def _fold(self, entry: Entry) -> None:
        key = (entry.event, entry.actor, entry.address, str(entry.details.get("fingerprint", "")))
        known = self._folds.get(key)
        if known is not None:
            self._folds[key] = replace(known, count=known.count + 1)
            return
        self._waiting.append(entry)
        if len(self._folds) < MOST:
            self._folds[key] = replace(entry, count=0)

    def _end_minutes(self) -> None:
        before = self._clock() - MINUTE
        for key in [key for key, entry in self._folds.items() if entry.at < before]:
            entry = self._folds.pop(key)
            if entry.count:
                self._waiting.append(entry)
