"""Servers and workers of the real apps, each on the store that its document names."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.auth import keys
from packhorse.client import Client
from packhorse.factory import open_store
from packhorse_converter import sample
from tests.apps.places import Stand
from tests.http.processes import Place, served
from tests.journey.places import redis_and_a_folder


@pytest.fixture(scope="session")
def shapes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small model, shapes.onnx, and one picture."""
    folder = tmp_path_factory.mktemp("shapes")
    sample.write(folder, images=1)
    return folder


@pytest.fixture(scope="module")
def converter(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    """The model converter on Redis. It asks for keys; the stand's client has one for everything."""
    folder = tmp_path_factory.mktemp("converter")
    settings = {**redis_and_a_folder(folder), "promote_to": f"file://{folder / 'promoted'}"}
    place = Place(folder, app="packhorse_converter:app", lease=2.0, keyless=False, **settings)
    with served(place) as server, Client(server.url, key=operator_key(place)) as client:
        found = Stand(server, client)
        worker = found.work()
        try:
            found.ready("convert")
            yield found
        finally:
            worker.stop()


def operator_key(place: Place) -> str:
    async def create() -> str:
        store = await open_store(place.settings.store)
        try:
            return (await keys.create(store, "default", ["admin"], by="cli"))[1]
        finally:
            await store.close()

    return asyncio.run(create())
