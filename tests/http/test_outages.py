"""Objects that cannot be stored: 502 with a time to come back, and the state store is not touched."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import pytest

from tests.http.conftest import publish
from tests.http.processes import Place, Server, served
from tests.servers import postgres, seaweed
from tests.servers.flaky import FlakyHttp

pytestmark = pytest.mark.every_store


@pytest.fixture
async def way() -> AsyncIterator[FlakyHttp]:
    """To the bucket."""
    async with FlakyHttp(seaweed.running().port) as way:
        yield way


@pytest.fixture
async def server(tmp_path: Path, way: FlakyHttp) -> AsyncIterator[Server]:
    keys = {"s3_access_key": seaweed.KEYS.access, "s3_secret_key": seaweed.KEYS.secret}
    blobs = seaweed.running().place(port=way.port)
    place = Place(tmp_path, store=postgres.server().url(), blobs=blobs, **keys)
    await asyncio.to_thread(publish, place)
    serving = served(place)
    opened = await asyncio.to_thread(serving.__enter__)
    yield opened
    await asyncio.to_thread(serving.__exit__, None, None, None)


async def submitted(server: Server) -> httpx2.Response:
    def post() -> httpx2.Response:
        files = {"model": ("m.onnx", b"weights")}
        return httpx2.post(f"{server.api}/jobs?pipeline=convert&user_id=ann", files=files, timeout=60)

    return await asyncio.to_thread(post)


async def answers_503(way: FlakyHttp) -> None:
    way.rates = {"503": 1.0}


async def is_silent(way: FlakyHttp) -> None:
    way.darken()


async def is_down(way: FlakyHttp) -> None:
    await way.close()


async def is_well(way: FlakyHttp) -> None:
    way.rates = {}
    way.lighten()
    await way.cut()


@pytest.mark.parametrize("trouble", [answers_503, is_silent, is_down])
async def test_a_bucket_in_trouble_is_502_and_no_job(
    server: Server, way: FlakyHttp, trouble: Callable[[FlakyHttp], object]
) -> None:
    await trouble(way)  # type: ignore[misc]

    refused = await submitted(server)

    jobs = await asyncio.to_thread(server.place.jobs)
    if trouble is is_down:
        await way.open()
    await is_well(way)
    afterwards = await submitted(server)
    assert (refused.status_code, refused.json()["type"]) == (502, "urn:packhorse:blob-unavailable")
    assert int(refused.headers["retry-after"]) > 0
    assert jobs == []
    assert afterwards.status_code == 202  # whoever holds a slot without a job would make it 409
    assert len(await asyncio.to_thread(server.place.objects)) == 1
