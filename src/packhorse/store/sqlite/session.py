"""A handle on a database file: which thread does what. Writes go to one writer, questions to a few readers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import apsw

from packhorse.errors import StoreUnavailable
from packhorse.store.sqlite import commit
from packhorse.store.sqlite.connection import connect, migrate
from packhorse.store.sqlite.counters import CounterFile
from packhorse.store.sqlite.rows import Plans
from packhorse.store.sqlite.writer import Operation, Writer

P = ParamSpec("P")
T = TypeVar("T")

READERS = 2


class Handle:
    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self.path = path
        self.now = clock
        self._plans = Plans()
        self._counters = CounterFile(path)
        self._local = threading.local()
        self._watching = threading.Lock()
        self._connections: list[apsw.Connection] = []
        self._watcher = _opened(path)
        try:
            migrate(self._watcher)
            self._writer = Writer(connect(path), commit.announce)
        except BaseException as error:
            self._watcher.close()
            if isinstance(error, apsw.Error):
                raise StoreUnavailable(f"SQLite cannot migrate {path}: {error}") from error
            raise
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="packhorse-sqlite-reader")
        self._moved_at = 0.0

    @classmethod
    async def open(cls, path: Path, clock: Callable[[], float] = time.time) -> Self:
        return await asyncio.to_thread(cls, path, clock)

    async def close(self) -> None:
        await asyncio.to_thread(self._close)

    def _close(self) -> None:
        self._writer.close()
        self._counters.close()
        self._readers.shutdown()
        for connection in (*self._connections, self._watcher):
            connection.close()

    async def _write(self, operation: Operation[T]) -> T:
        return await self._writer.run(operation)

    async def _read(self, question: Callable[Concatenate[apsw.Connection, P], T], *args: P.args, **kw: P.kwargs) -> T:
        try:
            return await asyncio.get_running_loop().run_in_executor(
                self._readers, lambda: question(self._db(), *args, **kw)
            )
        except (apsw.Error, RuntimeError) as error:
            raise StoreUnavailable(f"SQLite: {error}") from error

    async def _row(self, query: str, *values: str) -> tuple[Any, ...] | None:
        """The first row that a query finds."""
        return await self._read(lambda db: db.execute(query, values).fetchone())

    async def _rows(self, query: str, *values: str) -> list[tuple[Any, ...]]:
        return await self._read(lambda db: db.execute(query, values).fetchall())

    def _db(self) -> apsw.Connection:
        if not hasattr(self._local, "db"):
            self._local.db = connect(self.path, read_only=True)
            self._connections.append(self._local.db)
        db: apsw.Connection = self._local.db
        return db


def _opened(path: Path) -> apsw.Connection:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreUnavailable(f"SQLite cannot open {path}: {error}") from error
    return connect(path)
