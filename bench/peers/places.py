"""The stores that contenders meet in: real servers on the disk under test, emptied before each, with their counters."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path
from typing import Any, Protocol

import asyncpg
import redis
from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey

from bench.peers.contenders import Contender, Store


class Place(Protocol):
    counted: str
    """What `calls` counts; empty if it cannot."""
    durability: str
    """The setting that all contenders share, as people call it."""

    async def emptied(self, contender: Contender, n: int = 0) -> str:
        """The address of an empty store. Those with different ``n`` live side by side."""

    async def calls(self) -> int:
        """So far, by all clients of the store."""

    async def size(self) -> int:
        """Bytes the store holds now."""

    async def close(self) -> None: ...


class RedisPlace:
    counted = "commands"
    durability = "appendonly yes, appendfsync everysec"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._server = Valkey("--dir", str(folder), "--appendfsync", "everysec").start()
        self._client: Any = self._server.client()

    async def emptied(self, contender: Contender, n: int = 0) -> str:
        if n == 0:
            self._client.flushall()
        else:
            with redis.Redis(port=self._server.port, db=n) as client:
                client.flushdb()
        self._client.config_set("appendfsync", contender.appendfsync)
        return f"redis://127.0.0.1:{self._server.port}/{n}"

    async def calls(self) -> int:
        """What scripts call inside the server is counted, too."""
        return commands(self._client.info("commandstats"))

    async def size(self) -> int:
        return int(self._client.info("memory")["used_memory"])

    async def close(self) -> None:
        self._client.close()
        self._server.remove()


def commands(stats: dict[str, dict[str, Any]]) -> int:
    """Calls in ``INFO commandstats``, without the question itself."""
    return sum(int(each["calls"]) for name, each in stats.items() if name != "cmdstat_info")


class PostgresPlace:
    counted = "commits"
    durability = "fsync on, synchronous_commit on"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        if not _is_open(folder):
            folder = Path(tempfile.gettempdir())
            self.durability += f"; its data is in {folder}, since nobody but root gets into the folder of the others"
        self._server = Postgres(folder, shared_buffers="512MB", max_wal_size="4GB", checkpoint_timeout="30min")
        self._used: list[str] = []
        self._count = 0

    async def emptied(self, contender: Contender, n: int = 0) -> str:
        if n == 0:
            for name in self._used:
                await self._ask(f"DROP DATABASE {name} WITH (FORCE)")
            self._used = []
        self._count += 1
        name = f"{contender.module}_{self._count}"
        self._used.append(name)
        await self._ask(f"CREATE DATABASE {name}")
        return self._url(name)

    async def calls(self) -> int:
        return int(await self._ask("SELECT xact_commit FROM pg_stat_database WHERE datname = $1", self._used[-1]))

    async def size(self) -> int:
        return int(await self._ask("SELECT pg_database_size($1)", self._used[-1]))

    async def close(self) -> None:
        self._server.close()

    def _url(self, name: str) -> str:
        return f"postgresql://postgres@127.0.0.1:{self._server.port}/{name}"

    async def _ask(self, query: str, *values: object) -> Any:
        link = await asyncpg.connect(self._url("postgres"))
        try:
            return await link.fetchval(query, *values)
        finally:
            await link.close()


def _is_open(folder: Path) -> bool:
    """Whether PostgreSQL gets in, which root has to run as somebody else."""
    return os.geteuid() != 0 or all(part.stat().st_mode & 0o001 for part in (folder, *folder.parents))


class SqlitePlace:
    counted = ""
    durability = "synchronous FULL; DBOS has a rollback journal, the others WAL"

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder
        self._path = folder / "queue.db"

    async def emptied(self, contender: Contender, n: int = 0) -> str:
        if n == 0:
            shutil.rmtree(self._folder)
            self._folder.mkdir()
        self._path = self._folder / f"queue{n}.db"
        for path in self._folder.glob(f"{self._path.name}*"):
            path.unlink()
        slashes = "///" if contender.module == "dbos" else "//"  # SQLAlchemy's way of writing it has one more
        return f"sqlite:{slashes}{self._path}"

    async def calls(self) -> int:
        return 0

    async def size(self) -> int:
        return sum(path.stat().st_size for path in self._folder.glob(f"{self._path.name}*"))

    async def close(self) -> None:
        pass


PLACES: dict[Store, type[RedisPlace] | type[PostgresPlace] | type[SqlitePlace]] = {
    "redis": RedisPlace,
    "postgresql": PostgresPlace,
    "sqlite": SqlitePlace,
}
