"""Schemas lent to one test after the other, and emptied in between: a new one with all its tables takes far longer.

Each has a role of its own, by which the server knows who is connected to it. Whoever still is when it is given back,
a process that was killed in the middle of a statement for example, is cut off before it is emptied.
"""

from __future__ import annotations

import asyncio
import atexit
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from packhorse.store.postgres import PostgresStore
from tests.servers import postgres
from tests.servers.postgres import LIMIT, Postgres

CUT_OFF = "SELECT pg_terminate_backend(pid, $2) FROM pg_stat_activity WHERE usename = $1"
WRITTEN = """
SELECT relname, pg_relation_size(oid) > 65536 FROM pg_class
WHERE relnamespace = $1::text::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
"""
"""The tables that have had a row since they were made or last truncated, and whether they are large. A small one is
emptied row by row: to truncate it takes far longer."""
SEQUENCES = "SELECT relname FROM pg_class WHERE relnamespace = $1::text::regnamespace AND relkind = 'S'"


@functools.cache
def shared() -> Schemas:
    """Those of this process."""
    made = Schemas(postgres.server())
    atexit.register(made.close)
    return made


class Schemas:
    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._loop = asyncio.new_event_loop()
        self._connection: asyncpg.Connection[asyncpg.Record] | None = None
        self._idle: list[str] = []
        self._made = 0
        self._first: list[str] = []
        """The tables that a new schema has rows in; they are kept in a schema of this name."""
        self._sequences: list[str] = []

    @contextmanager
    def lent(self) -> Iterator[str]:
        """The address of an empty store, which is nobody else's until this is left. Not inside an event loop."""
        name = self._idle.pop() if self._idle else self._loop.run_until_complete(self._new())
        yield self._url(name)
        self._loop.run_until_complete(self._empty(name))  # not after an error in here: too little is known of it then
        self._idle.append(name)

    def close(self) -> None:
        if self._connection is not None:
            self._connection.terminate()
        self._loop.close()

    def _url(self, name: str) -> str:
        return self._server.url(name, role=name)

    async def _connect(self) -> asyncpg.Connection[asyncpg.Record]:
        """Our own connection, again if a test has killed the server."""
        if self._connection is None or self._connection.is_closed():
            self._connection = await asyncpg.connect(self._server.dsn())
        return self._connection

    async def _new(self) -> str:
        self._made += 1
        name = f"lent{self._made}"
        connection = await self._connect()
        await connection.execute(f"CREATE ROLE {name} SUPERUSER LOGIN")
        store = await PostgresStore.open(self._url(name))
        await store.close()
        if not self._first:
            self._first = [table for table, _ in await connection.fetch(WRITTEN, name)]
            self._sequences = [row[0] for row in await connection.fetch(SEQUENCES, name)]
            copies = (f"CREATE TABLE first.{table} AS TABLE {name}.{table}" for table in self._first)
            await connection.execute(";".join(["CREATE SCHEMA first", *copies]))
        return name

    async def _empty(self, name: str) -> None:
        connection = await self._connect()
        asked = CUT_OFF, name, round(LIMIT * 1000)
        if not all(each[0] for each in await connection.fetch(*asked)):  # some left by themselves meanwhile
            assert not await connection.fetch(*asked), "somebody who was cut off is still there"
        written = await connection.fetch(WRITTEN, name)
        large = ", ".join(f"{name}.{table}" for table, is_large in written if is_large)
        await connection.execute(
            ";".join(
                [
                    *([f"TRUNCATE {large}"] if large else []),
                    *(f"DELETE FROM {name}.{table}" for table, is_large in written if not is_large),
                    *(f"ALTER SEQUENCE {name}.{each} RESTART" for each in self._sequences),
                    *(f"INSERT INTO {name}.{table} TABLE first.{table}" for table in self._first),
                ]
            )
        )
