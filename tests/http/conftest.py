from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest

from packhorse.client import Client
from packhorse.core.plan import Definition
from packhorse.define.registry import load
from packhorse.factory import open_store
from packhorse.store.base import Store
from packhorse.store.collections.workers import publish_definitions
from tests.contract.stores import SORTS, lent
from tests.http.processes import SAMPLE, STARTING, Place, Server, served, until, working
from tests.http.unserved import Http, unserved
from tests.journey.places import bucket


def publish(place: Place) -> None:
    """What a worker does when it starts."""

    async def tell() -> None:
        store = await open_store(place.settings.store)
        await publish_definitions(store, sampled())
        await store.close()

    asyncio.run(tell())


@cache
def sampled() -> list[Definition]:
    return load(str(SAMPLE)).definitions()


@pytest.fixture(params=SORTS)
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """The address of an empty store of each sort, for modules whose rows are about what is remembered."""
    with lent(request.param, tmp_path) as address:
        yield address


@pytest.fixture
def beside(anywhere: str) -> dict[str, str]:
    """Where the objects are, for modules whose rows are also about files: a bucket goes with PostgreSQL, a folder with
    the others."""
    return bucket() if anywhere.startswith("postgresql") else {}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    publish(place)
    return place


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server without a worker, for one module: jobs stay where they are."""
    place = Place(tmp_path_factory.mktemp("served"), file_limit=1_000_000, parameters_limit=20_000)
    publish(place)
    with served(place) as server:
        yield server


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """A server and a worker, for one module."""
    with run(Place(tmp_path_factory.mktemp("running"))) as server:
        yield server


@contextmanager
def run(place: Place) -> Iterator[Server]:
    with served(place) as server, working(place), Client(server.url) as client:
        until(client.pipelines, STARTING)
        yield server


@pytest.fixture
def client(running: Server) -> Iterator[Client]:
    with Client(running.url) as client:
        yield client


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    """A second handle on what the server of the test works with."""
    store = await open_store(place.settings.store)
    yield store
    await store.close()


@pytest.fixture
async def http(place: Place) -> AsyncIterator[Http]:
    """The application without sockets."""
    async with unserved(place.settings) as http:
        yield http
