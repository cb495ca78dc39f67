"""An empty PostgreSQL store for each test, in a schema of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from packhorse.store.postgres import PostgresStore
from tests.contract.stores import Clock
from tests.servers import postgres
from tests.store.postgres.inside import Raw, connected


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
