"""Schemas lent to one test after the other, and emptied in between: a new one with all its tables takes far longer.

Each has a role of its own, by which the server knows who is connected to it. Whoever still is when it is given back,
a process that was killed in the middle of a statement for example, is cut off before it is emptied.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Iterator
from contextlib import contextmanager

import asyncpg

from packhorse.store.postgres import PostgresStore
from tests.servers import postgres
from tests.servers.postgres import LIMIT, Postgres

CUT_OFF = "SELECT pg_terminate_backend(pid, $2) FROM pg_stat_activity WHERE usename = $1"
WRITTEN = """
SELECT relname FROM pg_class
WHERE relnamespace = $1::text::regnamespace AND relkind = 'r' AND pg_relation_size(oid) > 0
"""
"""The tables that have ever had a row since they were made or last emptied."""


@functools.cache
def shared() -> Schemas:
    """Those of this process."""
    return Schemas(postgres.server())


class Schemas:
    def __init__(self, server: Postgres) -> None:
        self._server = server
        self._idle: list[str] = []
        self._made = 0
        self._first: list[str] = []
        """The tables that a new schema has rows in; they are kept in a schema of this name."""

    @contextmanager
    def lent(self) -> Iterator[str]:
        """The address of an empty store, which is nobody else's until this is left. Not inside an event loop."""
        name = self._idle.pop() if self._idle else asyncio.run(self._new())
        yield self._url(name)
        asyncio.run(self._emptied(name))  # not after an error in here: what is known of it then is too little
        self._idle.append(name)

    def _url(self, name: str) -> str:
        return self._server.url(name, role=name)

    async def _new(self) -> str:
        self._made += 1
        name = f"lent{self._made}"
        connection = await asyncpg.connect(self._server.dsn())
        await connection.execute(f"CREATE ROLE {name} SUPERUSER LOGIN")
        store = await PostgresStore.open(self._url(name))
        await store.close()
        if not self._first:
            self._first = await _written(connection, name)
            copies = (f"CREATE TABLE first.{table} AS TABLE {name}.{table}" for table in self._first)
            await connection.execute(";".join(["CREATE SCHEMA first", *copies]))
        await connection.close()
        return name

    async def _emptied(self, name: str) -> None:
        connection = await asyncpg.connect(self._server.dsn())
        ended = await connection.fetch(CUT_OFF, name, round(LIMIT * 1000))
        assert all(each[0] for each in ended), "somebody who was cut off is still there"
        tables = ", ".join(f"{name}.{table}" for table in await _written(connection, name))
        refilled = (f"INSERT INTO {name}.{table} TABLE first.{table}" for table in self._first)
        await connection.execute(";".join([f"TRUNCATE {tables} RESTART IDENTITY", *refilled]))
        await connection.close()


async def _written(connection: asyncpg.Connection[asyncpg.Record], schema: str) -> list[str]:
    return [row[0] for row in await connection.fetch(WRITTEN, schema)]
