"""Ways into a SQLite store that only its own tests may take."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from typing import Any

import apsw

from packhorse.store.sqlite import SqliteStore
from packhorse.store.sqlite.connection import Session
from tests.store.blocked import LIMIT, until


async def write(store: SqliteStore, sql: str, *bindings: Any) -> None:
    """Change a row behind the store's back."""
    await store._writer.run(lambda db: db.execute(sql, bindings).fetchall())


def call(method: Callable[..., Any], db: Session, *args: Any, **kwargs: Any) -> Any:
    """What a method of a store does on one of its threads, done here with this connection."""
    return inspect.unwrap(method)(method.__self__, db, *args, **kwargs)  # type: ignore[attr-defined]


@asynccontextmanager
async def stopped(store: SqliteStore, first: Callable[[apsw.Connection], object] = id) -> AsyncIterator[None]:
    """The writer stands still inside a transaction, after it has done this much in it."""
    begun, go_on = threading.Event(), threading.Event()

    def slow(db: apsw.Connection) -> None:
        first(db)
        begun.set()
        assert go_on.wait(LIMIT)

    asked = asyncio.create_task(store._writer.run(slow))
    await until(begun.is_set)
    try:
        yield
    finally:
        go_on.set()
        await asked


async def together(store: SqliteStore, asked: Sequence[Coroutine[Any, Any, Any]]) -> list[Any]:
    """The outcomes of what waited for the writer at the same time, an exception being one of them."""
    async with stopped(store):
        waiting = [asyncio.create_task(each) for each in asked]
        await until(lambda: store._writer._inbox.qsize() >= len(asked))
    return await asyncio.gather(*waiting, return_exceptions=True)
