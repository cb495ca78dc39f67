"""The stores that the contract is held against, and how any process opens one by its address."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NamedTuple, Protocol

from lab.model_store import State, open_model

from packhorse.store.base import Store
from packhorse.store.postgres import PostgresStore
from packhorse.store.redis import RedisStore
from packhorse.store.sqlite import SqliteStore
from tests.servers import postgres, schemas, valkey

Now = Callable[[], float]


class Sort(NamedTuple):
    fresh: Callable[[Path], str]
    """Where a new, empty store is, if it may use this folder."""
    open: Callable[[str, Now], Awaitable[Store]]


def _file(address: str) -> Path:
    return Path(address.removeprefix("sqlite://"))


def _own(clock: Now) -> Now | None:
    """A store behind a network has a clock of its own, which only a test in which time is the point takes from it."""
    return None if clock is time.time else clock


def _redis(address: str, clock: Now) -> Awaitable[Store]:
    return RedisStore.open(address, clock=_own(clock))


_models: dict[str, State] = {}


def _new_model(_folder: Path) -> str:
    address = f"model://{len(_models)}"
    _models[address] = State()
    return address


async def _open_model(address: str, clock: Now) -> Store:
    return open_model(_models[address], clock)


STORES: dict[str, Sort] = {
    "model": Sort(_new_model, _open_model),
    "sqlite": Sort(lambda folder: f"sqlite://{folder}/store.db", lambda at, clock: SqliteStore.open(_file(at), clock)),
    "postgresql": Sort(lambda _: postgres.server().url(), lambda at, clock: PostgresStore.open(at, _own(clock))),
    "redis": Sort(lambda _: valkey.shared().url(valkey.fresh_prefix()), _redis),
    "redis+cluster": Sort(lambda _: valkey.shared_cluster().url(valkey.fresh_prefix(), "redis+cluster"), _redis),
}
"""By the scheme of their addresses. A store that is added here is held to the whole contract.

The first is the model that the simulation runs on: passing the contract is what makes it worth anything.
"""


SORTS = ["sqlite", "postgresql", "redis"]
"""Those that people choose from: a cluster is a Redis to everybody but its store."""


@contextlib.contextmanager
def lent(sort: str, folder: Path) -> Iterator[str]:
    """Where an empty store is, for one test: a new one, or one that has been emptied where that is much quicker."""
    if sort == "postgresql":
        with schemas.shared().lent() as address:
            yield address
    else:
        yield STORES[sort].fresh(folder)


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


async def open_at(address: str, clock: Now = time.time) -> Store:
    """A handle on the store at the address, in whichever process."""
    scheme, _, _ = address.partition("://")
    return await STORES[scheme].open(address, clock)
