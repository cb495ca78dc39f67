"""The audit log: callers record an entry without waiting; a background task writes entries in batches."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from math import inf
from typing import Any

from msgspec.structs import replace

from packhorse.auth.access import Caller
from packhorse.core import json
from packhorse.errors import StoreError
from packhorse.log import log, trace_id
from packhorse.store.base import Store
from packhorse.store.collections import audit
from packhorse.store.collections.audit import Entry

FOLDED = frozenset(
    {
        *("key.accepted", "key.missing", "key.malformed", "key.wrong", "key.ended", "key.blocked", "session.wrong"),
        "trigger.wrong",
        *("api.refused", "api.forbidden", "download.refused", "download.unavailable", "job.submitted"),
    }
)
"""Events that a client can cause at will: the first is written at once, equal ones are counted.

A submit costs the store no write of its own, and does not push out what is rarer: the job says who submitted it.
"""
MADE_UP = frozenset({"name", "fingerprint"})
"""Details ignored in the comparison: otherwise a client that makes up names could flood the log."""
FOLDING = 60.0
"""Seconds for which equal entries are counted."""
MOST = 10_000
"""Entries held while the store is unavailable, and distinct entries counted; more are dropped, with a log line."""
BATCH = 500
PAUSE = 1.0
"""Seconds before the next try to write to the store."""
LAST_TRY = 1.0
"""Seconds to write the rest when the process ends."""


class Auditor:
    def __init__(self, store: Store, *, keep: int, age: float = inf) -> None:
        self._store = store
        self._keep = keep
        self._age = age
        self._waiting: list[Entry] = []
        self._folding: dict[bytes, Entry] = {}
        """The first of equal entries, with the number of later ones."""
        self._told = asyncio.Event()
        self._turn = asyncio.Lock()
        self._left_out = 0

    def tell(self, event: str, caller: Caller, *, job_id: str = "", **details: Any) -> None:
        self._tell(event, caller, job_id, 1, details)

    def tell_many(self, event: str, caller: Caller, count: int, *, job_id: str = "") -> None:
        """Several equal events; the job is that of the first."""
        self._tell(event, caller, job_id, count, {})

    def _tell(self, event: str, caller: Caller, job_id: str, count: int, details: Mapping[str, Any]) -> None:
        entry = Entry(
            at=self._store.now(),
            event=event,
            tenant=caller.tenant,
            actor=caller.key_id,
            address=caller.address,
            job_id=job_id,
            trace_id=trace_id(),
            count=count,
            details=details,
        )
        if event in FOLDED and self._is_counted(entry):
            return
        self._wait(entry)

    async def run(self) -> None:
        """Write entries as they come."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(FOLDING if self._folding else None):
                    await self._told.wait()
            self._unfold(self._store.now() - FOLDING)
            try:
                await self.flush()
            except StoreError as error:
                log.background_failed("the audit", error)
                await asyncio.sleep(PAUSE)

    async def flush(self) -> None:
        """Write all entries recorded so far."""
        async with self._turn:
            while self._waiting:
                writing = asyncio.ensure_future(self._write(self._waiting[:BATCH]))
                try:
                    await asyncio.shield(writing)
                except asyncio.CancelledError:  # otherwise the batch would be written twice
                    await writing
                    raise
            self._told.clear()
            if self._left_out:
                log.audit_lost(self._left_out)
                self._left_out = 0

    async def _write(self, batch: list[Entry]) -> None:
        await audit.append(self._store, batch, keep=self._keep, age=self._age)
        del self._waiting[: len(batch)]

    async def close(self) -> None:
        """Write the rest; give up after a short time."""
        self._unfold(float("inf"))
        try:
            async with asyncio.timeout(LAST_TRY):
                await self.flush()
        except (StoreError, TimeoutError):
            log.audit_lost(len(self._waiting) + self._left_out)

    def _is_counted(self, entry: Entry) -> bool:
        details = {name: value for name, value in entry.details.items() if name not in MADE_UP}
        same = json.encode(replace(entry, at=0.0, trace_id="", job_id="", count=1, details=details))
        first = self._folding.get(same)
        if first is not None and entry.at - first.at < FOLDING:
            self._folding[same] = replace(first, count=first.count + entry.count)
            return True
        if first is not None:
            self._emit_count(same, first)
        if len(self._folding) < MOST:
            self._folding[same] = replace(entry, count=0)
        return False

    def _unfold(self, before: float) -> None:
        """Write the counts of entries whose first was recorded before then."""
        for same, first in [(same, first) for same, first in self._folding.items() if first.at <= before]:
            self._emit_count(same, first)

    def _emit_count(self, same: bytes, first: Entry) -> None:
        del self._folding[same]
        if first.count:
            self._wait(first)

    def _wait(self, entry: Entry) -> None:
        if len(self._waiting) < MOST:
            self._waiting.append(entry)
        else:
            self._left_out += 1
        self._told.set()
