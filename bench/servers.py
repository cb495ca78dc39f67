"""Real servers on the disk under test, for sections that measure one store: an empty store for each measurement."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey


class Server(Protocol):
    def __init__(self, folder: Path) -> None: ...

    async def empty(self, number: int) -> str:
        """The URL of an empty store."""

    async def close(self) -> None: ...


class SqliteFolder:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._folder = folder

    async def empty(self, number: int) -> str:
        return f"sqlite://{self._folder / str(number)}.db"

    async def close(self) -> None:
        pass


class ValkeyServer:
    """Every write is synced, as for the other stores."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._server = Valkey("--dir", str(folder)).start()

    async def empty(self, number: int) -> str:
        with self._server.client() as client:
            client.flushall()
        return self._server.url(f"bench{number}:")

    async def close(self) -> None:
        self._server.remove()


class PostgresServer:
    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True)
        self._server = Postgres(folder, shared_buffers="512MB", max_wal_size="4GB", checkpoint_timeout="30min")

    async def empty(self, number: int) -> str:
        return self._server.url(f"bench{number}")

    async def close(self) -> None:
        self._server.close()


STORES: Mapping[str, type[Server]] = {
    "sqlite": SqliteFolder,
    "postgresql": PostgresServer,
    "redis": ValkeyServer,
}
