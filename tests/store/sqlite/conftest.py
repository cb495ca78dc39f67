"""An empty SQLite store for each test, whose time stands still until the test moves it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from packhorse.store.sqlite import SqliteStore
from tests.contract.stores import Clock, quick_folder


@pytest.fixture
def path() -> Iterator[Path]:
    with quick_folder() as folder:
        yield folder / "store.db"


@pytest.fixture
async def store(path: Path, clock: Clock) -> AsyncIterator[SqliteStore]:
    opened = await SqliteStore.open(path, clock)
    yield opened
    await opened.close()
