"""A server that is in use: how the parts of the store read, write and group, and what PostgreSQL can hold."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from functools import cache, wraps
from types import MappingProxyType
from typing import Any, Concatenate, ParamSpec, TypeVar

import asyncpg

from packhorse.errors import StoreError, StoreUnavailable
from packhorse.store import sql_files
from packhorse.store.batching import Group
from packhorse.store.postgres.connection import Address, Clock, Connections, Row, Session
from packhorse.store.postgres.watch import Watch
from packhorse.store.rows import Plans

A = TypeVar("A")
B = TypeVar("B")
H = TypeVar("H", bound="Handle")
P = ParamSpec("P")
T = TypeVar("T")

PARTS = sql_files.load(__package__, "parts")

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

Parts = dict[str, Sequence[Any]]
"""The parts of a statement by name, each with its values."""


class Handle:
    """A server that is in use: its connections, what travels in groups, and what is known about it."""

    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        self.address = address
        self._clock = Clock(clock)
        self._connections = Connections(address, self._clock)
        self._watch = Watch(self._connections, address, self._clock)
        self._plans = Plans()
        # A new connection may lead to another server, after a failover, which lacks the last of what we wrote.
        self._connections.on_connect = self._plans.stored.clear
        self._groups: list[Group[Any, Any]] = []
        self._is_closed = False

    async def close(self) -> None:
        """Answer every request, then disconnect."""
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


def read(
    question: Callable[Concatenate[H, Session, P], Awaitable[T]],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """The method gets a connection to read from."""

    @wraps(question)
    async def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._connections.read(lambda session: question(self, session, *args, **kwargs))
        except asyncpg.PostgresError as error:
            raise describe_error(error) from error

    return method


def keep(
    operation: Callable[Concatenate[H, Session, P], Awaitable[T]],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """The method gets a connection in a transaction, which is committed when it returns. Nobody is woken for it."""

    @wraps(operation)
    async def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return await self._connections.write(lambda session: operation(self, session, *args, **kwargs))
        except asyncpg.PostgresError as error:
            raise describe_error(error) from error

    return method


def write(
    operation: Callable[Concatenate[H, Session, P], Awaitable[T]],
) -> Callable[Concatenate[H, P], Coroutine[Any, Any, T]]:
    """Like `keep`, and watchers are woken."""
    kept = keep(operation)

    @wraps(operation)
    async def method(self: H, /, *args: P.args, **kwargs: P.kwargs) -> T:
        found = await kept(self, *args, **kwargs)
        self._watch.tell()
        return found

    return method


def describe_error(error: Exception) -> StoreError:
    """What nobody foresaw, for the caller of the one change that it is about."""
    said = getattr(error, "message", None) or error  # without the detail that PostgreSQL adds: it is the user's data
    failure = StoreError(f"{type(error).__name__}: {said}")
    failure.__cause__ = error
    return failure


def columns(rows: Iterable[Sequence[Any]]) -> list[Sequence[Any]]:
    """Rows as a statement takes them: a list for each column."""
    return list(zip(*rows, strict=True))


def is_id(text: str) -> bool:
    """Whether it can be the id of a job: asking for anything else would be an error, and there is no such job."""
    return ID.fullmatch(text) is not None


def ids(given: Iterable[str]) -> list[str]:
    return [id for id in given if is_id(id)]


def clean(text: str) -> str:
    """Text as PostgreSQL can hold it: without NUL, and without halves of surrogate pairs."""
    text = text.replace("\x00", "\ufffd")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def is_storable(texts: Iterable[str]) -> bool:
    return all(clean(text) == text for text in texts)


# Statements that are put together from parts


class Outdated(Exception):
    """What was taken for granted does not hold: the group is rolled back, and looks before it writes."""


async def write_parts(
    session: Session, parts: Parts, clock: Clock, counts: Mapping[str, int] = MappingProxyType({}), *,
    is_last: bool = False,
) -> Row | None:  # fmt: skip
    """Write the parts in one statement, if of each in ``counts`` so many rows are found. Raises `Outdated` if not."""
    if not parts:
        return None
    values = (each for given in parts.values() for each in given)
    ask = session.whole if is_last else session.fetch
    try:
        [found] = await ask(_statement(tuple(parts), tuple(counts)), *values, *counts.values())
    except asyncpg.RaiseError as error:
        raise Outdated from error
    clock.adjust(found["now"])
    return found


@cache
def _statement(names: tuple[str, ...], counted: tuple[str, ...]) -> str:
    """Where a count is not what it must be, `expect` raises, and the server takes back the whole statement.

    The first that differs ends it: what comes after has not waited for anybody.
    """
    answered = [name for name in names if f"answer_{name}" in PARTS]
    parts = ", ".join(PARTS.part.format(name=name, query=PARTS[name]) for name in names)
    answers = "".join(PARTS.answer.format(name=name, query=PARTS[f"answer_{name}"]) for name in answered)
    conditions = " AND ".join(PARTS.condition.format(count=_count(name)) for name in counted) or "true"
    return number_values(PARTS.whole.format(parts=parts, conditions=conditions, answers=answers))


def _count(name: str) -> str:
    return PARTS.get(f"count_{name}") or PARTS.count.format(name=name)


def number_values(statement: str) -> str:
    """The statement with its parameters numbered: a % stands for the next one."""
    pieces = statement.split("%")
    return "".join(piece if n == 0 else f"${n}{piece}" for n, piece in enumerate(pieces))
