"""An empty store for each test: `store` is SQLite, `pg` is PostgreSQL."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from packhorse.store.postgres import PostgresStore
from packhorse.store.sqlite import SqliteStore
from tests.contract.stores import Clock, quick_folder
from tests.servers import postgres
from tests.store.inside_postgres import Raw, connected

EPOCH = 1_800_000_000.0


@pytest.fixture
def path() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder / "store.db"


@pytest.fixture
def clock() -> Clock:
    return Clock(EPOCH)


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path, clock)
    yield opened
    await opened.close()


@pytest.fixture
def url() -> str:
    return postgres.server().url()


@pytest.fixture
async def pg(url: str) -> AsyncIterator[PostgresStore]:
    opened = await PostgresStore.open(url)
    yield opened
    await opened.close()


@pytest.fixture
async def timed(url: str, clock: Clock) -> AsyncIterator[PostgresStore]:
    """A PostgreSQL store whose time stands still until the test moves it."""
    opened = await PostgresStore.open(url, clock)
    yield opened
    await opened.close()


@pytest.fixture
async def raw(url: str, pg: PostgresStore) -> AsyncIterator[Raw]:
    """A connection of our own to the same tables."""
    async with connected(url) as connection:
        yield connection
