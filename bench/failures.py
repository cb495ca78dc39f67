"""Many failures of few kinds: what it costs to record one, and to list their groups without reading them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any, Protocol

import apsw
import asyncpg
from msgspec.structs import replace
from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey

from bench import jobs
from bench.book import Book, at_most
from bench.peers.places import commands
from bench.sizes import Sizes
from packhorse.core import json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Failure
from packhorse.store.base import Claim, FailureFilter, Store
from packhorse.store.postgres import PostgresStore
from packhorse.store.redis import RedisStore
from packhorse.store.sqlite import SqliteStore
from packhorse.store.sqlite.connection import connect

SECTION = "failures"
KINDS = ("no answer from the server", "the model has no input", "the disk is full")
USERS = 100
BATCH = 500
FLAT = at_most(2.0, of_ratio=True)
"""Groups are counted as failures come: to list them costs the same however many there are."""
READ = at_most(100.0)
"""Rows, or commands of the server, that a list of three groups takes."""
PLAN = jobs.plan("bench")


class Kept(Protocol):
    """A store, and a way to tell how much a question reads."""

    counted: str

    @property
    def store(self) -> Store: ...

    async def read(self) -> int: ...

    async def close(self) -> None: ...


class InSqlite:
    counted = "steps of the statement"

    def __init__(self, path: Path, store: SqliteStore) -> None:
        self.path, self.store = path, store

    async def read(self) -> int:
        """Every row that the statement steps over costs it a few of its steps."""
        db, steps = connect(self.path, read_only=True), [0]

        def heard(event: dict[str, Any]) -> None:
            steps[0] += event["stmt_status"]["SQLITE_STMTSTATUS_VM_STEP"]

        db.trace_v2(apsw.SQLITE_TRACE_PROFILE, heard)
        query = "SELECT body FROM failure_groups WHERE tenant = ? AND seen < ? ORDER BY seen DESC LIMIT ?"
        db.execute(query, ("default", "~", 50)).fetchall()
        db.close()
        return steps[0]

    async def close(self) -> None:
        await self.store.close()


class InPostgres:
    counted = "rows"

    def __init__(self, store: PostgresStore) -> None:
        self.store = store

    async def read(self) -> int:
        schema = self.store.address.schema
        query = (
            f'EXPLAIN (ANALYZE, FORMAT JSON) SELECT body FROM "{schema}".failure_groups'
            " WHERE tenant = 'default' AND seen < '~' ORDER BY seen DESC LIMIT 50"
        )
        raw = await asyncpg.connect(self.store.address.server)
        try:
            await raw.execute("SET enable_seqscan = off")
            [[plan]] = await raw.fetch(query)
        finally:
            await raw.close()
        return _rows(json.decode(plan)[0]["Plan"])

    async def close(self) -> None:
        await self.store.close()


def _rows(plan: dict[str, Any]) -> int:
    own = plan["Actual Rows"] + plan.get("Rows Removed by Filter", 0)
    return int(own) + sum(_rows(each) for each in plan.get("Plans", ()))


class InRedis:
    counted = "commands"

    def __init__(self, server: Valkey, store: RedisStore) -> None:
        self.server, self.store = server, store

    def size(self) -> int:
        """Bytes of all that is kept about failures."""
        client: Any = self.server.client()
        return sum(client.memory_usage(key, samples=0) for key in client.scan_iter("*failures*"))

    async def read(self) -> int:
        client: Any = self.server.client()
        before = commands(client.info("commandstats"))
        await self.store.failure_groups("default")
        return commands(client.info("commandstats")) - before - 1  # our own question

    async def close(self) -> None:
        await self.store.close()


class FailuresSection:
    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._kept: dict[str, tuple[Kept, Kept]] = {}
        self._postgresql: Postgres | None = None
        self._ends: list[Callable[[], object]] = []

    async def round(self, book: Book) -> None:
        if not self._kept:
            await self._seed(book)
        for name, (few, many) in self._kept.items():
            await self._look(book, name, few, many)

    async def close(self) -> None:
        for pair in self._kept.values():
            for each in pair:
                await each.close()
        for end in self._ends:
            end()

    async def _seed(self, book: Book) -> None:
        for name, opened in {"sqlite": self._sqlite, "postgresql": self._postgres, "redis": self._redis}.items():
            few, many = await opened("few"), await opened("many")
            await fail(few.store, 100)
            began = time.monotonic()
            await fail(many.store, self._sizes.failures)
            rate = self._sizes.failures / (time.monotonic() - began)
            book.note(SECTION, "jobs submitted, started and failed", rate, "/s", of=name)
            if isinstance(many, InRedis):
                book.note(SECTION, "memory of a failure", many.size() / self._sizes.failures, "bytes", of=name)
            self._kept[name] = few, many

    async def _look(self, book: Book, name: str, few: Kept, many: Kept) -> None:
        count = f"{self._sizes.failures:,} failures"
        page = FailureFilter("default")

        def groups(store: Store) -> Callable[[], Awaitable[Any]]:
            return lambda: store.failure_groups("default")

        short, long = await self._timed(groups(few.store)), await self._timed(groups(many.store))
        found = await many.store.failure_groups("default")
        assert sum(group.count for group in found) == self._sizes.failures, found
        assert len(found) == len(KINDS)
        book.note(SECTION, f"groups of {count}", long, "ms", of=name, ratio=long / short, to="x of 100", bound=FLAT)
        book.note(SECTION, f"{many.counted} read for it", await many.read(), "", of=name, bound=READ)
        took = await self._timed(lambda: many.store.failures(page))
        book.note(SECTION, f"a page of {count}", took, "ms", of=name)

    async def _timed(self, ask: Callable[[], Awaitable[Any]]) -> float:
        taken = []
        for _ in range(self._sizes.looks):
            began = time.perf_counter()
            await ask()
            taken.append(1000 * (time.perf_counter() - began))
        return statistics.median(taken)

    async def _sqlite(self, which: str) -> Kept:
        path = self._folder / f"{which}.db"
        return InSqlite(path, await SqliteStore.open(path))

    async def _postgres(self, _which: str) -> Kept:
        if self._postgresql is None:
            self._postgresql = await asyncio.to_thread(Postgres)
            self._ends.append(self._postgresql.close)
        return InPostgres(await PostgresStore.open(self._postgresql.url()))

    async def _redis(self, which: str) -> Kept:
        folder = self._folder / f"redis-{which}"
        folder.mkdir(parents=True)
        server = Valkey("--dir", str(folder), "--appendfsync", "everysec").start()
        self._ends.append(server.remove)
        return InRedis(server, await RedisStore.open(f"redis://127.0.0.1:{server.port}/0"))


async def fail(store: Store, count: int) -> None:
    """So many jobs that fail in three ways, for a hundred users."""
    done = 0
    while done < count:
        size = min(BATCH, count - done)
        now = store.now()
        await jobs.commit(store, [jobs.submit(PLAN, now, user=f"user{(done + n) % USERS}") for n in range(size)])
        claims = await jobs.claim(store, [PLAN], size)
        await jobs.commit(store, [_failing(each, done + n, store.now()) for n, each in enumerate(claims)])
        done += size


def _failing(claim: Claim, n: int, now: float) -> Change:
    error = Failure("BROKEN", f"{KINDS[n % len(KINDS)]} after {n} ms", permanent=True)
    change = lifecycle.fail(claim.job, claim.task, token=claim.token, error=error, luck=0.0, now=now)
    return replace(change, id=claim.token)
