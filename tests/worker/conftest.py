"""For each test an empty store whose time stands still, an empty object store, and both again with faults to order."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from packhorse.blobs.base import Blobs
from packhorse.blobs.local import Folder
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store
from packhorse.store.sqlite import SqliteStore
from tests.contract.stores import Clock, quick_folder
from tests.worker.builders import EPOCH
from tests.worker.faulty import Faults, wrapped


@pytest.fixture
def folder() -> Iterator[Path]:
    with quick_folder() as path:
        yield path


@pytest.fixture
def clock() -> Clock:
    return Clock(EPOCH)


@pytest.fixture
async def store(folder: Path, clock: Clock) -> AsyncIterator[Store]:
    opened = await SqliteStore.open(folder / "store.db", clock)
    yield opened
    await opened.close()


@pytest.fixture
async def blobs(folder: Path) -> AsyncIterator[Blobs]:
    opened = Folder(folder / "objects")
    yield opened
    await opened.close()


@pytest.fixture
def faults() -> Faults:
    """Of the store."""
    return Faults()


@pytest.fixture
def shaky(store: Store, faults: Faults) -> Store:
    """The same store by way of the faults."""
    return wrapped(store, faults)


@pytest.fixture
def blob_faults() -> Faults:
    return Faults()


@pytest.fixture
def shaky_blobs(blobs: Blobs, blob_faults: Faults) -> Blobs:
    return wrapped(blobs, blob_faults)


@pytest.fixture
def transact(shaky: Store) -> Transactor:
    return Transactor(shaky)
