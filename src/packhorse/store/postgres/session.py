"""A handle on the server: its connections, what travels in groups, and what goes one by one."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar

import asyncpg

from packhorse.errors import StoreUnavailable
from packhorse.store.batching import Group
from packhorse.store.postgres import commit
from packhorse.store.postgres.address import Address, address_from
from packhorse.store.postgres.connection import Clock, Connections, Session
from packhorse.store.postgres.migrate import MIGRATING, migrate
from packhorse.store.postgres.rows import Plans
from packhorse.store.postgres.watch import Watch

A = TypeVar("A")
B = TypeVar("B")
P = ParamSpec("P")
T = TypeVar("T")


class Handle:
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        self.address = address
        self._clock = Clock(clock)
        self._connections = Connections(address, self._clock)
        self._watch = Watch(self._connections, address, self._clock)
        self._plans = Plans()
        self._groups: list[Group[Any, Any]] = []
        self._is_closed = False

    @classmethod
    async def open(cls, url: str, clock: Callable[[], float] | None = None) -> Self:
        """``clock`` stands in for the server's, for tests in which time is the point."""
        store = cls(address_from(url), clock)
        try:
            async with store._connections.session(MIGRATING) as session:
                await migrate(session, store.address.schema)
        except BaseException as error:
            await store.close()
            if isinstance(error, asyncpg.PostgresError):
                raise StoreUnavailable(f"PostgreSQL cannot migrate {store.address.shown}: {error}") from error
            raise
        return store

    async def close(self) -> None:
        """Answer what was asked for, then hang up."""
        self._is_closed = True
        await asyncio.gather(*(group.close() for group in self._groups))
        await self._watch.close()
        await self._connections.close()

    def now(self) -> float:
        return self._clock.now()

    def _group(self, send: Callable[[list[A]], Awaitable[Sequence[B]]]) -> Group[A, B]:
        """What waits for it travels together, and is answered before the handle is closed."""
        group = Group(send)
        self._groups.append(group)
        return group

    def _check_open(self) -> None:
        if self._is_closed:
            raise StoreUnavailable("The store is closed.")

    async def _read(
        self, question: Callable[Concatenate[Session, P], Awaitable[T]], *args: P.args, **kw: P.kwargs
    ) -> T:
        try:
            return await self._connections.read(lambda session: question(session, *args, **kw))
        except asyncpg.PostgresError as error:
            raise commit.describe_error(error) from error

    async def _write(
        self, operation: Callable[Concatenate[Session, P], Awaitable[T]], *args: P.args, **kw: P.kwargs
    ) -> T:
        """Commit it, and wake who watches."""
        found = await self._keep(operation, *args, **kw)
        self._watch.tell()
        return found

    async def _keep(
        self, operation: Callable[Concatenate[Session, P], Awaitable[T]], *args: P.args, **kw: P.kwargs
    ) -> T:
        """Commit it, and wake nobody."""
        try:
            return await self._connections.write(lambda session: operation(session, *args, **kw))
        except asyncpg.PostgresError as error:
            raise commit.describe_error(error) from error
