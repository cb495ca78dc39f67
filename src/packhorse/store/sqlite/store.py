"""The SQLite store, put together from its parts, with the watch and the self-check."""

from __future__ import annotations

import asyncio
import shutil
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path

import apsw

from packhorse.core import json
from packhorse.errors import StoreUnavailable
from packhorse.store.base import Finding
from packhorse.store.sqlite.claim import Queue
from packhorse.store.sqlite.commit import Commits
from packhorse.store.sqlite.connection import Session
from packhorse.store.sqlite.counters import Counters, Statistics
from packhorse.store.sqlite.failures import Failures
from packhorse.store.sqlite.limits import Limits
from packhorse.store.sqlite.reads import Reads
from packhorse.store.sqlite.records import Records
from packhorse.store.sqlite.session import SQL, Handle, read, write

EAGER, PATIENT = 0.002, 0.02
"""Seconds between looks at another process's commits: while things happen, and after a quiet second."""
QUIET = 1.0

FEED = 10_000
"""Transactions kept in the feed for watchers that are a little behind. One that is further behind reads everything."""
MANY = 1_000
"""Transactions past which it is cheaper to look at what one watches than at what has moved."""


class Watch(Handle):
    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(path, clock)
        self._watching = threading.Lock()
        self._moved_at = 0.0

    async def wait_for_change(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:  # noqa: ARG002
        """The mark is the data version as this connection sees it: it moves with every commit of any other."""
        deadline = time.monotonic() + timeout
        while (found := self._data_version()) == mark and (left := deadline - time.monotonic()) > 0:
            is_quiet = time.monotonic() - self._moved_at > QUIET
            await asyncio.sleep(min(left, PATIENT if is_quiet else EAGER))
        if found != mark:
            self._moved_at = time.monotonic()
        return found

    def _data_version(self) -> int:
        """Asked as a pragma, which looks at the file; apsw's own data_version() says what this connection last saw."""
        try:
            with self._watching:  # one connection, asked from whatever loop waits
                version = self._watcher.pragma("data_version")
        except apsw.Error as error:
            raise StoreUnavailable(f"SQLite: {error}") from error
        assert isinstance(version, int)
        return version

    @read
    def changed_jobs(self, db: Session, since: int | None) -> tuple[int, Collection[str] | None]:
        first, last = db.row(SQL.ends)
        if since is None or since + 1 < first or last - since > MANY:
            return last, None
        found = db.execute(SQL.touched, (since, last))
        return last, {job_id for (body,) in found for job_id in json.record(body, list[str])}

    @write
    def _trim_feed(self, db: Session) -> None:
        db.execute(SQL.trim, (FEED,))


class SqliteStore(Commits, Queue, Limits, Reads, Watch, Records, Counters, Failures, Statistics):
    async def trim(self) -> None:
        await self._trim_feed()
        await self._trim_tallies()
        await self._trim_counters()
        await self._trim_limits()

    @read
    def check(self, db: Session) -> list[Finding]:
        version = apsw.sqlite_lib_version()
        is_current = tuple(map(int, version.split("."))) >= (3, 51, 3)
        mode, syncs, free = db.pragma("journal_mode"), db.pragma("synchronous"), 0
        with suppress(OSError):
            free = _free_bytes(self.path)
        return [
            Finding(
                "SQLite version",
                is_current,
                version,
                "before 3.51.3, a WAL reset during a read can corrupt data",
            ),
            Finding("journal_mode", mode == "wal", str(mode), "wal: reads do not wait for writes"),
            Finding("synchronous", syncs == 2, str(syncs), "2: an acknowledged job survives a power cut"),
            Finding(
                "free disk",
                free > 512 * 1024 * 1024,
                f"{free // 1024 // 1024} MiB",
                "if it is full, submits fail",
            ),
        ]


def _free_bytes(path: Path) -> int:
    return shutil.disk_usage(path.parent).free
