"""What is told to the audit is in the store soon, once, and in nobody's way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from packhorse.auth import audit_log
from packhorse.auth.access import LOCAL
from packhorse.auth.audit_log import Auditor
from packhorse.errors import StoreUnavailable
from packhorse.factory import open_store
from packhorse.store.base import Store
from packhorse.store.collections import audit as audit_records
from packhorse.store.collections.audit import Entry
from tests.journey.site import until


@pytest.fixture
async def store(anywhere: str) -> AsyncIterator[Store]:
    store = await open_store(anywhere)
    yield store
    await store.close()


@asynccontextmanager
async def auditor(store: Any, keep: int = 1000) -> AsyncIterator[Auditor]:
    audit = Auditor(store, keep=keep)
    running = asyncio.create_task(audit.run())
    yield audit
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await audit.close()


async def written(store: Store, count: int) -> list[tuple[str, int]]:
    """The entries, oldest first, once there are so many."""

    async def look() -> list[Entry] | None:
        found = await audit_records.tail(store)
        return found[::-1] if len(found) >= count else None

    return [(entry.event, entry.count) for entry in await until(look, 40, lambda: f"there are not {count} entries")]


async def test_what_is_told_is_written_at_once_with_all_its_facts(store: Store) -> None:
    async with auditor(store) as audit:
        audit.tell("download.started", LOCAL, job_id="j", bytes=5)

        assert await written(store, 1) == [("download.started", 1)]

    [entry] = await audit_records.tail(store)
    assert (entry.tenant, entry.job_id, entry.details) == ("default", "j", {"bytes": 5})
    assert abs(entry.at - store.now()) < 60


async def test_equal_refusals_are_written_once_and_counted(store: Store) -> None:
    async with auditor(store) as audit:
        for _ in range(5):
            audit.tell("download.refused", LOCAL, why="rate")
        audit.tell("download.refused", LOCAL, why="quota")

        assert await written(store, 2) == [("download.refused", 1)] * 2

    assert await written(store, 3) == [("download.refused", 1), ("download.refused", 1), ("download.refused", 4)]


async def test_equal_ones_are_written_when_their_minute_is_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "FOLDING", 0.2)
    async with auditor(store) as audit:
        for _ in range(3):
            audit.tell("key.accepted", LOCAL)

        assert await written(store, 2) == [("key.accepted", 1), ("key.accepted", 2)]


async def test_what_really_happened_is_never_folded(store: Store) -> None:
    async with auditor(store) as audit:
        for _ in range(3):
            audit.tell("download.completed", LOCAL, bytes=1)

    assert await written(store, 3) == [("download.completed", 1)] * 3


class Away:
    """A store that cannot be written to until it is back."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.is_away = True
        self.refused = asyncio.Event()

    def now(self) -> float:
        return self.store.now()

    async def append(self, log: str, entries: Any, *, keep: int, since: float) -> None:
        if self.is_away:
            self.refused.set()
            raise StoreUnavailable
        await self.store.append(log, entries, keep=keep, since=since)


async def test_an_outage_is_waited_out(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit_log, "PAUSE", 0.01)
    away = Away(store)
    async with auditor(away) as audit:
        audit.tell("download.started", LOCAL)
        await away.refused.wait()
        audit.tell("download.completed", LOCAL)

        away.is_away = False

        assert await written(store, 2) == [("download.started", 1), ("download.completed", 1)]


class Slow(Away):
    """A store that has written long before it answers."""

    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self.is_away = False
        self.has_written = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def append(self, log: str, entries: Any, *, keep: int, since: float) -> None:
        await super().append(log, entries, keep=keep, since=since)
        self.has_written.set()
        await self.may_answer.wait()


async def test_a_flush_that_is_cancelled_writes_nothing_twice(store: Store) -> None:
    slow = Slow(store)
    audit = Auditor(slow, keep=1000)  # type: ignore[arg-type]
    audit.tell("download.started", LOCAL)
    flushing = asyncio.create_task(audit.flush())
    await slow.has_written.wait()

    flushing.cancel()
    await asyncio.sleep(0)
    slow.may_answer.set()
    await asyncio.gather(flushing, return_exceptions=True)
    await audit.close()

    assert await written(store, 1) == [("download.started", 1)]


async def test_what_cannot_be_kept_is_left_out_with_a_word(
    store: Store, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(audit_log, "MOST", 2)
    monkeypatch.setattr(audit_log, "LAST_TRY", 0.05)
    async with auditor(Away(store)) as audit:
        for _ in range(5):
            audit.tell("download.started", LOCAL)

    assert "5 audit entries could not be stored" in caplog.text
