"""Ways into a PostgreSQL store that only its own tests may take."""

from __future__ import annotations

import asyncio
import inspect
import json
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, urlsplit

import asyncpg

from packhorse.store.postgres import PostgresStore
from packhorse.store.postgres.connection import CONNECTIONS, Session

LIMIT = 30.0

if TYPE_CHECKING:
    Raw = asyncpg.Connection[asyncpg.Record]
else:
    Raw = asyncpg.Connection  # only its stubs know what it is a connection of


def schema_of(url: str) -> str:
    return parse_qs(urlsplit(url).query)["schema"][0]


@asynccontextmanager
async def connected(url: str) -> AsyncIterator[Raw]:
    """A connection of our own, on which the store's tables are found by their names."""
    connection = await asyncpg.connect(url.partition("?")[0], server_settings={"search_path": schema_of(url)})
    try:
        yield connection
    finally:
        await connection.close()


async def until(condition: Callable[[], Awaitable[object]]) -> None:
    deadline = time.monotonic() + LIMIT
    while not await condition():
        assert time.monotonic() < deadline
        await asyncio.sleep(0.005)


async def somebody_waits_for(raw: Raw) -> None:
    """Until a transaction waits for one that this connection has open."""
    asked = "SELECT EXISTS (SELECT FROM pg_locks WHERE NOT granted AND pg_backend_pid() = ANY(pg_blocking_pids(pid)))"
    await until(lambda: raw.fetchval(asked))


async def backends(raw: Raw, query: str = "%") -> list[int]:
    """The server's processes for the connections of stores, whose last statement is like this."""
    found = await raw.fetch(
        "SELECT pid FROM pg_stat_activity WHERE application_name = 'packhorse' AND query LIKE $1", query
    )
    return [row["pid"] for row in found]


UNASKED = re.compile(r"\s*(SELECT pg_notify|WITH RECURSIVE typeinfo_tree|SELECT\s+current_setting\('jit'\))")
"""Hints, sent when it comes to that; and what the driver asks about types on a connection that it has not used."""


class Recorder:
    """The statements that a store sends."""

    def __init__(self) -> None:
        self.statements: list[tuple[str, tuple[Any, ...]]] = []

    def note(self, record: Any) -> None:
        if not UNASKED.match(record.query):
            self.statements.append((record.query, record.args))


@asynccontextmanager
async def recorded(store: PostgresStore) -> AsyncIterator[Recorder]:
    """What is sent on any of the connections that the store has at hand, once nobody uses one of them."""
    recorder = Recorder()

    async def are_all_idle() -> bool:
        return store._connections._free._value == CONNECTIONS

    await until(are_all_idle)
    with ExitStack() as hung:
        for session in store._connections._idle:
            hung.enter_context(session.connection.query_logger(recorder.note))
        yield recorder


async def call(method: Callable[..., Any], session: Session, *args: Any, **kwargs: Any) -> Any:
    """What a method of a store does with a connection of its own, done with this one."""
    return await inspect.unwrap(method)(method.__self__, session, *args, **kwargs)  # type: ignore[attr-defined]


async def blocks(store: PostgresStore, act: Callable[[Session], Awaitable[object]]) -> int:
    """How many pages the server looks at for it. What it writes is taken back."""
    recorder = Recorder()
    async with store._connections.session() as session:
        await session.run("BEGIN")
        with session.connection.query_logger(recorder.note):
            await act(session)
        await session.run("ROLLBACK")
        await session.run("BEGIN")
        found = [
            json.loads(await session.connection.fetchval(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {query}", *values))
            for query, values in recorder.statements
        ]
        await session.run("ROLLBACK")
    return sum(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"] for [plan] in found)
