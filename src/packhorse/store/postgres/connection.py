"""Connections to the server: a few, replaced when they break, each use of one bounded in time."""

from __future__ import annotations

import asyncio
import random
import re
import select
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from typing import Any, NamedTuple, TypeVar
from urllib.parse import parse_qsl, urlencode, urlsplit, urlunsplit

import asyncpg

from packhorse.crashpoints import reach
from packhorse.errors import SettingError, StoreError, StoreUnavailable, UnknownOutcome
from packhorse.store import sql_files

T = TypeVar("T")

SCHEMA = "packhorse"
NAME = re.compile(r"[a-z_][a-z0-9_]{0,49}")
"""Letters that need no quotes anywhere, and few enough of them to leave room in the name of a channel."""

STATEMENTS = 300
"""Prepared statements kept per connection: more than this adapter has."""

CONNECTIONS = 5
"""Per handle, besides the one that listens: one for commits, one for claims, the others for questions and notes."""
CONNECT = 5.0
PATIENCE = 10.0
"""Seconds that one use of a connection may take, waiting for one included. After that the caller gets an error."""
TRIES = 10
"""Of a transaction that the server gave up for another one's sake: a deadlock, or a key that was just being taken."""

PLANS = {
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    "plan_cache_mode": "force_generic_plan",
    "jit": "off",
}
"""Every question here is answered by an index. A plan that was made while a table was small, and is kept, must not
read the whole of it when it has grown."""

BEGIN = "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE"

ALONE = {"default_transaction_isolation": "read committed", "default_transaction_read_only": "off"}
"""The same for a statement that is a transaction by itself, whatever the database has for a default."""

SILENT = {"idle_in_transaction_session_timeout": f"{PATIENCE:.0f}s"}
"""The server ends a transaction whose client is silent for this long: it is stopped or disconnected. Until then its
locks block others, so no other worker could take over its jobs."""

BEGIN_POOLED = f"{BEGIN}; SET LOCAL idle_in_transaction_session_timeout = '{PATIENCE:.0f}s'"
"""The same behind a pool, which does not pass on what is set when a connection is made. One message, one round trip."""

SQL = sql_files.load(__package__, "server")

Row = asyncpg.Record


class Address(NamedTuple):
    server: str
    """What the driver is given, with the password in it."""
    schema: str
    statements: int
    """0 behind a pool that hands out connections per transaction, such as pgbouncer: it would not find them again."""
    shown: str
    """What people may see."""

    @property
    def is_pooled(self) -> bool:
        return self.statements == 0


def address_from(url: str) -> Address:
    parts = urlsplit(url)
    options = dict(parse_qsl(parts.query))
    schema = options.pop("schema", SCHEMA)
    statements = options.pop("statement_cache_size", str(STATEMENTS))
    shown = urlunsplit(("postgresql", parts.netloc.rpartition("@")[2], parts.path, "", ""))
    if not NAME.fullmatch(schema):
        raise SettingError(f"A schema is named in small letters, digits and _, not {schema!r}.", name="store")
    if not statements.isdecimal():
        raise SettingError(f"statement_cache_size must be a number, not {statements!r}.", name="store")
    server = urlunsplit((parts.scheme, parts.netloc, parts.path, urlencode(options), ""))
    return Address(server, schema, int(statements), shown)


JITTER = 0.1
"""Seconds that an answer may be late without our time going back for it."""


class Clock:
    """The server's clock, as far as this process knows it; in tests, one that they hold."""

    def __init__(self, given: Callable[[], float] | None) -> None:
        self._given = given
        self._offset = 0.0

    def now(self) -> float:
        return self._given() if self._given is not None else time.monotonic() + self._offset

    def parameter(self) -> float | None:
        """What a statement takes for the time: None for the server's own."""
        return self._given() if self._given is not None else None

    def adjust(self, at: float) -> None:
        """The server said what its time was. It was so a moment ago, so we are a little behind it and never ahead."""
        offset = at - time.monotonic()
        if not 0.0 <= self._offset - offset < JITTER:
            self._offset = offset


class Raced(Exception):
    """Another transaction was faster: done again, this one sees what that one wrote."""


class Stale(StoreUnavailable):
    """The connection was cut while nobody used it: nothing was asked, and a new one may do."""


class Session:
    """One connection, on which ``@`` in a statement stands for the schema of this store."""

    def __init__(self, connection: asyncpg.Connection[Row], schema: str, *, is_pooled: bool = False) -> None:
        self.connection = connection
        self.is_committing = False
        self.is_to_begin = False
        """A transaction was requested, and begins with the first statement that is not all of it."""
        self.has_answered = True
        """Since it was last taken up; of a new one that is known."""
        self._schema = f'"{schema}".'
        self._is_pooled = is_pooled
        self._named: dict[str, str] = {}

    async def fetch(self, statement: str, *values: Any) -> list[Row]:
        await self._begin()
        return await self.look(statement, *values)

    async def look(self, statement: str, *values: Any) -> list[Row]:
        """What it finds now: nothing is locked, and no transaction begins for it."""
        if self._is_pooled:  # a statement may take two turns there, and must find itself again
            await self._begin()
        found = await self.connection.fetch(self._name(statement), *values)
        self.has_answered = True
        return found

    async def whole(self, statement: str, *values: Any) -> list[Row]:
        """The last statement of a transaction. If it is also the first, one round trip runs and commits it.

        Not on a connection that may have been cut while it was idle: its outcome would be unknown.
        """
        if not self.is_to_begin or self._is_pooled or _has_news(self.connection):
            return await self.fetch(statement, *values)
        self.is_to_begin = False
        reach("store.write.open")
        self.is_committing = True
        try:
            found = await self.connection.fetch(self._name(statement), *values)
        except REFUSED:
            self.is_committing = False
            raise
        self.is_committing = False
        self.has_answered = True
        return found

    async def row(self, statement: str, *values: Any) -> Row | None:
        found = await self.fetch(statement, *values)
        return found[0] if found else None

    async def value(self, statement: str, *values: Any) -> Any:
        row = await self.row(statement, *values)
        return None if row is None else row[0]

    async def run(self, script: str) -> str:
        """Statements without values, several if need be."""
        said = await self.connection.execute(self._name(script))
        self.has_answered = True
        return said

    async def _begin(self) -> None:
        if self.is_to_begin:
            self.is_to_begin = False
            await self.run(BEGIN_POOLED if self._is_pooled else BEGIN)

    async def commit(self) -> None:
        """If anything was begun."""
        if not self.connection.is_in_transaction():
            return
        reach("store.write.open")
        self.is_committing = True
        said = await self.connection.execute("COMMIT")
        self.is_committing = False
        if said != "COMMIT":  # a transaction that has failed is rolled back, and no error is raised
            raise StoreError(f"PostgreSQL: asked to commit, it said {said}.")

    async def roll_back(self) -> None:
        if not self.connection.is_closed() and self.connection.is_in_transaction():
            await self.connection.execute("ROLLBACK")

    @property
    def is_usable(self) -> bool:
        return not self.connection.is_closed() and not self.connection.is_in_transaction()

    def _name(self, statement: str) -> str:
        named = self._named.get(statement)
        if named is None:
            named = self._named[statement] = statement.replace("@", self._schema)
        return named


class Connections:
    def __init__(self, address: Address, clock: Clock) -> None:
        self._address = address
        self._clock = clock
        self._idle: list[Session] = []
        self._free = asyncio.Semaphore(CONNECTIONS)
        self._is_closed = False
        self.on_connect: Callable[[], None] = lambda: None
        """Called when there is a new connection."""

    async def connect(self) -> Session:
        """A new connection, which is the caller's."""
        settings = {"application_name": "packhorse", **({} if self._address.is_pooled else PLANS | ALONE | SILENT)}
        connection = await asyncpg.connect(
            self._address.server,
            timeout=CONNECT,
            statement_cache_size=self._address.statements,
            max_cached_statement_lifetime=0,
            server_settings=settings,
        )
        try:
            self._clock.adjust(await connection.fetchval(SQL.clock))
        except BaseException:
            connection.terminate()
            raise
        self.on_connect()
        return Session(connection, self._address.schema, is_pooled=self._address.is_pooled)

    @asynccontextmanager
    async def session(self, patience: float | None = None) -> AsyncIterator[Session]:
        """A connection for a while. Its errors are translated into those of the contract."""
        lent: list[Session] = []
        try:
            async with asyncio.timeout(PATIENCE if patience is None else patience):
                async with self._lend() as session:
                    lent.append(session)
                    yield session
        except LOST as error:
            raise self._describe_loss(error, *lent) from error

    @asynccontextmanager
    async def _lend(self) -> AsyncIterator[Session]:
        if self._is_closed:
            raise StoreUnavailable("The store is closed.")
        async with self._free:
            session = self._reuse_idle() or await self.connect()
            try:
                yield session
            except BaseException as error:
                if not isinstance(error, Exception) or not session.is_usable:  # cancelled: an answer is still to come
                    session.connection.terminate()
                raise
            finally:
                if session.is_usable:
                    self._idle.append(session)

    def _reuse_idle(self) -> Session | None:
        """One that lay idle, unless it is known to have been cut meanwhile."""
        while self._idle:
            session = self._idle.pop()
            if session.is_usable:
                session.is_committing = session.has_answered = session.is_to_begin = False
                return session
        return None

    @asynccontextmanager
    async def transaction(self) -> AsyncIterator[Session]:
        """What is done in it is made whole, and durable when this is left."""
        async with self.session() as session:
            reach("store.write.before")
            session.is_to_begin = True
            try:
                yield session
            except Exception:  # broad: whatever it was, nothing of it may stay
                await session.roll_back()
                raise
            finally:
                session.is_to_begin = False
            await session.commit()
            reach("store.write.after")

    async def read(self, question: Callable[[Session], Awaitable[T]]) -> T:
        """What the question finds."""
        while True:
            with suppress(Stale):
                async with self.session() as session:
                    session.is_to_begin = self._address.is_pooled
                    found = await question(session)
                    await session.roll_back()
                    return found

    async def write(self, operation: Callable[[Session], Awaitable[T]]) -> T:
        """Commit what the operation does. It is done again where the server gave it up for another one's sake."""
        for _ in range(TRIES):
            with suppress(Stale, *AGAIN):
                async with self.transaction() as session:
                    return await operation(session)
            await asyncio.sleep(random.uniform(0.0, 0.01))  # noqa: S311
        raise StoreUnavailable("PostgreSQL: others were faster every time.")

    async def close(self) -> None:
        """Wait for running operations, then disconnect."""
        self._is_closed = True
        with suppress(TimeoutError):
            async with asyncio.timeout(PATIENCE):
                for _ in range(CONNECTIONS):
                    await self._free.acquire()
        while self._idle:
            await hang_up(self._idle.pop())
        self._free = asyncio.Semaphore(CONNECTIONS)

    def _describe_loss(self, error: BaseException, *lent: Session) -> StoreError:
        reason = str(error) or type(error).__name__
        if any(session.is_committing for session in lent):
            return UnknownOutcome(f"PostgreSQL: the answer to a commit was lost: {reason}")
        is_stale = any(not session.has_answered for session in lent) and not isinstance(error, TimeoutError)
        return (Stale if is_stale else StoreUnavailable)(f"PostgreSQL at {self._address.shown}: {reason}")


def _has_news(connection: asyncpg.Connection[Row]) -> bool:
    """Whether there is something to be read on an idle connection, which is mostly its end.

    Asked of the system, for the event loop may not have looked since.
    """
    looking = select.poll()
    looking.register(connection._transport.get_extra_info("socket").fileno(), select.POLLIN)  # type: ignore[attr-defined]
    return bool(looking.poll(0))


async def hang_up(session: Session) -> None:
    with suppress(*LOST):
        await session.connection.close(timeout=CONNECT)


LOST = (
    OSError,  # TimeoutError is one
    asyncpg.InterfaceError,
    asyncpg.InternalClientError,
    asyncpg.PostgresConnectionError,
    asyncpg.OperatorInterventionError,
    asyncpg.IdleInTransactionSessionTimeoutError,
    asyncpg.InsufficientResourcesError,
    asyncpg.InvalidAuthorizationSpecificationError,
    asyncpg.InvalidCatalogNameError,
    asyncpg.ReadOnlySQLTransactionError,
)
"""The server is not there, not well, or not to be written to: nothing that the caller could have done differently."""

REFUSED = (
    asyncpg.DataError,
    asyncpg.IntegrityConstraintViolationError,
    asyncpg.TransactionRollbackError,
    asyncpg.ReadOnlySQLTransactionError,
    asyncpg.InsufficientResourcesError,
    asyncpg.RaiseError,
)
"""Errors of a statement that the server has not executed, and after which it continues."""

AGAIN = (asyncpg.DeadlockDetectedError, asyncpg.SerializationError, Raced)
