"""The stores that the contract is held against, and how any process opens one by its address."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Protocol

from packhorse.store.base import Store
from packhorse.store.sqlite import SqliteStore

Now = Callable[[], float]

STORES = ["sqlite"]


class OpenStore(Protocol):
    async def __call__(self, *, clock: Now = ...) -> Store:
        """Another handle on the same state."""


class Clock:
    """A store's clock that moves when it is told to."""

    def __init__(self, now: float) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now

    def forward(self, seconds: float) -> None:
        self.now += seconds


@contextlib.contextmanager
def quick_folder() -> Iterator[Path]:
    """In memory where the system offers that: hundreds of stores are made, and what a sync costs is not asked here."""
    memory = Path("/dev/shm")
    place = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=place, prefix="packhorse-") as name:
        yield Path(name)


def fresh_address(name: str, folder: Path) -> str:
    """Where a new, empty store of this sort is."""
    return {"sqlite": f"sqlite://{folder}/store.db"}[name]


async def open_at(address: str, clock: Now = time.time) -> Store:
    scheme, _, rest = address.partition("://")
    assert scheme == "sqlite"
    return await SqliteStore.open(Path(rest), clock)
