"""The PostgreSQL store, put together from its parts, with the migration and the self-check."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from typing import Self

import asyncpg

from packhorse.errors import SchemaTooNew, StoreUnavailable
from packhorse.store import sql_files
from packhorse.store.base import Finding
from packhorse.store.postgres import watch
from packhorse.store.postgres.claim import Queue
from packhorse.store.postgres.commit import Commits
from packhorse.store.postgres.connection import BEGIN, SQL, Session, address_from
from packhorse.store.postgres.counters import Counters, Statistics
from packhorse.store.postgres.failures import Failures
from packhorse.store.postgres.limits import Limits
from packhorse.store.postgres.reads import Reads
from packhorse.store.postgres.records import Records
from packhorse.store.postgres.session import describe_error, keep, read

MIGRATIONS = sql_files.migrations(__package__)
MIGRATING = 600.0
"""Seconds a migration may take."""

CONCURRENTLY = re.compile(r"^-- concurrently[ \t]*$", re.MULTILINE)
INDEX = re.compile(r"CREATE\s+(?:UNIQUE\s+)?INDEX\s+CONCURRENTLY\s+IF\s+NOT\s+EXISTS\s+([a-z_]\w{0,62})\s+ON\s", re.I)

OLDEST = 14
DRIFT = 1.0
"""Seconds that this machine's clock may differ from the server's before somebody should know."""
CLOCKS = "difference between the clocks of server and machine: deadlines use the server's, logs this machine's"
TOO_OLD = f"older than {OLDEST} is not supported"
SAFE = ("on", "remote_apply", "remote_write", "local")
"""What `synchronous_commit` may be."""
UNSAFE = "off: a job whose submit was acknowledged may be lost when the server crashes"
SWITCHES = {
    "fsync": "on: a job survives a power cut",
    "full_page_writes": "off: a power cut can damage a page, unless the disk writes pages atomically",
    "autovacuum": "off: every finished job makes the queue slower",
}
"""Settings that should be on, each with what it means."""


class PostgresStore(Commits, Queue, Limits, Reads, Records, Counters, Failures, Statistics):
    @classmethod
    async def open(cls, url: str, clock: Callable[[], float] | None = None) -> Self:
        """``clock`` stands in for the server's, for tests in which time is the point."""
        store = cls(address_from(url), clock)
        try:
            async with store._connections.session(MIGRATING) as session:
                await migrate(session, store.address.schema)
                await watch.drop_copied(session)
        except BaseException as error:
            await store.close()
            if isinstance(error, asyncpg.PostgresError):
                raise StoreUnavailable(f"PostgreSQL cannot migrate {store.address.shown}: {error}") from error
            raise
        return store

    async def wait_for_change(self, mark: int | None, timeout: float, *, is_working: bool = False) -> int:
        try:
            return await self._watch.wait_for_change(mark, timeout, is_working=is_working)
        except asyncpg.PostgresError as error:
            raise describe_error(error) from error

    @read
    async def changed_jobs(self, session: Session, since: int | None) -> tuple[int, Collection[str] | None]:
        return await watch.changed_jobs(session, since)

    async def trim(self) -> None:
        await self._trim_feed()
        await self._trim_counters()
        await self._trim_tallies()
        await self._trim_limits()

    @keep
    async def _trim_feed(self, session: Session) -> None:
        await watch.trim(session)

    @read
    async def check(self, session: Session) -> list[Finding]:
        """The server's own settings, each with what it means for the promise."""
        found = await session.row(SQL.settings)
        assert found is not None
        before = time.time()
        drift = await session.value(SQL.clock) - (before + time.time()) / 2
        syncs, encoding = found["synchronous_commit"], found["encoding"]
        role = "standby" if found["is_standby"] else "primary"
        used, most = found["used"], found["most"]
        return [
            Finding("PostgreSQL version", found["version"] >= OLDEST * 10_000, found["shown"], TOO_OLD),
            Finding("synchronous_commit", syncs in SAFE, syncs, UNSAFE),
            *(Finding(name, found[name] == "on", found[name], meaning) for name, meaning in SWITCHES.items()),
            Finding("server_encoding", encoding == "UTF8", encoding, "another one cannot hold every name"),
            Finding("role", role == "primary", role, "a standby cannot be written to"),
            Finding("clock", abs(drift) < DRIFT, f"{drift:+.3f} s", CLOCKS),
            Finding("connections", used < 0.9 * most, f"{used} of {most}", "each process of packhorse takes up to six"),
        ]

    async def install(self, package: str, script: str) -> bool:
        """Run the SQL file of an app's package, with the schema for @schema. False if this version has run before.

        One process runs a version once, in one transaction. Indexes below the line ``-- concurrently`` are created one
        by one outside of it, if they are missing, without blocking writers. Raises StoreError, and ValueError for
        another statement below that line.
        """
        filled = re.sub(r"(?<!\w)@schema(\w*)", rf'"{self.address.schema}\1"', script)
        views, *rest = CONCURRENTLY.split(filled, maxsplit=1)
        indexes = _indexes(*rest)
        version = hashlib.sha256(views.strip().encode()).hexdigest()  # indexes may come and go without a new version
        try:
            is_new = await self._script_sum(package) != version and await self._run_script(package, views, version)
            failed = await self._make_indexes(indexes) if indexes else []
        except asyncpg.PostgresError as error:
            raise StoreUnavailable(f"PostgreSQL cannot run the SQL file of {package}: {error}") from error
        if failed:
            raise StoreUnavailable(f"PostgreSQL cannot create all indexes of {package}: {'; '.join(failed)}")
        return is_new

    @read
    async def _script_sum(self, session: Session, package: str) -> str | None:
        """Read before anything is locked or created, so that a role that may only read suffices."""
        if not await session.value(SQL.has_scripts):
            return None
        found: str | None = await session.value(SQL.script, package)
        return found

    async def _run_script(self, package: str, script: str, version: str) -> bool:
        async with self._connections.session(MIGRATING) as session:
            await session.run(BEGIN)
            try:
                await session.value(SQL.lock, self.address.schema)
                await session.run(SQL.limit_lock_wait)
                await session.run(SQL.create_scripts)
                is_new: bool = await session.value(SQL.script, package) != version
                if is_new:
                    await session.connection.execute(script)  # not session.run, which replaces every @
                    await session.value(SQL.set_script, package, version)
                await session.commit()
            except BaseException:
                await session.roll_back()
                raise
        return is_new

    async def _make_indexes(self, indexes: Mapping[str, str]) -> list[str]:
        """Create those that are missing or invalid, one process at a time. Returns a message for each failure."""
        if not await self._missing(list(indexes)):
            return []
        failed: list[str] = []
        async with self._connections.session(MIGRATING) as session:
            # The lock belongs to a transaction, because a pool keeps that on one connection. CREATE INDEX CONCURRENTLY
            # waits for every older snapshot. A query with values keeps its snapshot until the next statement, so
            # `stay_idle` comes last.
            await session.run(BEGIN)
            try:
                is_ours = await session.value(SQL.try_index_lock, self.address.schema)
                await session.run(SQL.stay_idle)
                if is_ours:
                    for name in await self._missing(list(indexes)):
                        failed += await self._make_index(name, indexes[name])
            finally:
                await session.roll_back()
        return failed

    @read
    async def _missing(self, session: Session, names: Sequence[str]) -> list[str]:
        """The indexes that are missing or invalid."""
        return [row[0] for row in await session.fetch(SQL.missing_indexes, self.address.schema, names)]

    async def _make_index(self, name: str, statement: str) -> list[str]:
        drop = SQL.drop_index.format(name=name)
        async with self._connections.session(MIGRATING) as session:
            try:
                await session.run(drop)  # one that was left invalid
                await session.connection.execute(statement)
            except asyncpg.PostgresError as error:
                with suppress(asyncpg.PostgresError):
                    await session.run(drop)
                return [f"{name}: {error}"]
        return []


def _indexes(section: str = "") -> dict[str, str]:
    """The statements below ``-- concurrently``, by the name of their index. Raises ValueError."""
    code = "\n".join(line for line in section.splitlines() if not line.lstrip().startswith("--"))
    found = {}
    for statement in filter(None, map(str.strip, code.split(";"))):
        match = INDEX.match(statement)
        if match is None:
            raise ValueError(
                "Below '-- concurrently' each statement must begin with CREATE INDEX CONCURRENTLY IF NOT EXISTS name ON"
            )
        found[match[1]] = statement
    return found


async def migrate(session: Session, schema: str, scripts: Sequence[tuple[int, str]] = MIGRATIONS) -> int:
    """Bring an older schema up to this one; refuse a newer one. Returns the version it found."""
    known = scripts[-1][0]
    found = await _version(session, schema)
    if found < known:
        await session.run(BEGIN)
        try:
            # The lock before looking: two processes that start together migrate one after the other.
            await session.value(SQL.lock, schema)
            found = await _version(session, schema)
            if found == 0:
                # The schema may have been made for us by somebody who does not let us make any.
                if not await session.value(SQL.has_schema, schema):
                    await session.run(SQL.create_schema.format(schema=schema))
                await session.run(SQL.create_version)
            for version, script in scripts:
                if version > found:
                    await session.run(script)
                    await session.value(SQL.set_version, version)
            await session.commit()
        except BaseException:
            await session.roll_back()
            raise
    if found > known:
        raise SchemaTooNew(found=found, known=known)
    return found


async def _version(session: Session, schema: str) -> int:
    return int(await session.value(SQL.version)) if await session.value(SQL.has_version, schema) else 0
