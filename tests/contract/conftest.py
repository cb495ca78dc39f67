"""One empty store for each test and each sort of store, with as many handles on it as the test asks for."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from packhorse.store.base import Store
from tests.contract.stores import STORES, Clock, Now, OpenStore, lent, open_at, quick_folder

EPOCH = 1_800_000_000.0


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


@pytest.fixture(params=STORES)
def address(request: pytest.FixtureRequest, folder: Path) -> Iterator[str]:
    with lent(request.param, folder) as address:
        yield address


@pytest.fixture
async def open_store(address: str) -> AsyncIterator[OpenStore]:
    handles: list[Store] = []

    async def opened(*, clock: Now = time.time) -> Store:
        handles.append(await open_at(address, clock))
        return handles[-1]

    yield opened
    for handle in handles:
        await handle.close()


@pytest.fixture
def clock() -> Clock:
    """One clock for all handles of a test in which time is the point."""
    return Clock(EPOCH)


@pytest.fixture
async def store(open_store: OpenStore) -> Store:
    return await open_store()


@pytest.fixture
async def other(open_store: OpenStore) -> Store:
    """A second handle on the same state."""
    return await open_store()


@pytest.fixture
async def timed(open_store: OpenStore, clock: Clock) -> Store:
    """A handle whose time stands still until the test moves it."""
    return await open_store(clock=clock)
