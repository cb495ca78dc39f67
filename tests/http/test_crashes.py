"""A server that dies while a job comes in: a whole job or none, no slot without one, and nothing for ever."""

from __future__ import annotations

import asyncio
import signal
import time
from contextlib import suppress
from pathlib import Path

import httpx2
import pytest

from packhorse.background.janitor import Janitor
from packhorse.core.lifecycle import slot_key
from packhorse.factory import open_both
from packhorse.jobs.transact import Transactor
from tests.http.conftest import publish
from tests.http.processes import Place, Server, served, until
from tests.http.raw import KIND, OPEN, head
from tests.journey.places import PLACES

pytestmark = pytest.mark.every_store

FILES = [("model", ("m.onnx", b"weights")), ("ref_images", ("a.png", b"pixels"))]

POINTS = {
    "blob.put.before": 2,
    "blob.put.written": 2,
    "blob.put.after": 2,
    "admit.objects.after": 1,
    "store.write.before": 1,
    "store.write.open": 1,
    "store.write.after": 1,
    "admit.job.after": 1,
}
"""Where it dies, and at which pass: of a put, the second of two files."""
STORED = frozenset({"store.write.after", "admit.job.after"})


WRITING = ["store.write.open", "store.write.after"]
WHERE = {"sqlite": [*POINTS], "postgresql": ["blob.put.written", *WRITING], "redis": WRITING}
"""The points once, and on each store those that are its own."""
OFTEN = {
    ("sqlite", "admit.objects.after"),
    ("sqlite", "store.write.open"),
    ("postgresql", "store.write.after"),
    ("redis", "store.write.open"),
    ("sqlite", "admit.job.after"),
}
"""Before each merge: tests/journey/test_crashpoints.py has every point then, without HTTP."""


def placed(where: str, folder: Path) -> Place:
    place = Place(folder, **PLACES[where](folder))
    publish(place)
    asyncio.run(holder(place))  # as after the first start, which marks store and files
    return place


async def holder(place: Place) -> str | None:
    store, blobs = await open_both(place.settings)
    try:
        return await store.holder(slot_key("default", "ann", "convert"))
    finally:
        await store.close()
        await blobs.close()


async def sweep(place: Place) -> None:
    """What janitors do about objects nobody refers to, with an age of nothing."""
    store, blobs = await open_both(place.settings)
    janitor = Janitor(store, blobs, Transactor(store), orphan_after=0.0, period=1.0)
    end = time.monotonic() + 20
    try:
        while await is_littered(place) and time.monotonic() < end:
            await janitor.tick()
    finally:
        await store.close()
        await blobs.close()


async def is_littered(place: Place) -> bool:
    objects, jobs = await asyncio.to_thread(place.left)
    return any(name.split("/")[1:2] and name.split("/")[1] not in jobs for name in objects)


def submitted(server: Server) -> httpx2.Response:
    return httpx2.post(f"{server.api}/jobs?pipeline=convert&user_id=ann", files=FILES)


@pytest.mark.parametrize(
    ("where", "point"),
    [
        pytest.param(where, point, marks=() if (where, point) in OFTEN else pytest.mark.release)
        for where, points in WHERE.items()
        for point in points
    ],
)
def test_a_server_killed_there_leaves_a_whole_job_or_none(tmp_path: Path, where: str, point: str) -> None:
    place = placed(where, tmp_path)
    server = Server(place, crash=f"{point}:{POINTS[point]}")
    with suppress(httpx2.TransportError):
        submitted(server)
    assert server.ended() == -signal.SIGKILL, server.log.read_text()

    jobs = {job.id for job in place.jobs()}
    is_stored = point in STORED
    if point == "store.write.open" and place.settings.store.startswith("redis"):
        is_stored = bool(jobs)  # a server that was sent a script goes on with it, or has not got all of it
    assert len(jobs) == is_stored
    assert asyncio.run(holder(place)) == next(iter(jobs), None)
    asyncio.run(sweep(place))
    assert {name.split("/")[1] for name in place.objects()} == jobs
    with served(place) as again:
        assert submitted(again).status_code == (409 if is_stored else 202)


@pytest.mark.parametrize("where", ["sqlite", "postgresql"])
def test_a_server_killed_during_an_upload_leaves_only_what_the_sweep_removes(tmp_path: Path, where: str) -> None:
    place = placed(where, tmp_path)
    server = Server(place)
    connection = server.connection()
    second = b'\r\n--XX\r\nContent-Disposition: form-data; name="ref_images"; filename="a.png"\r\n\r\n'
    connection.sendall(
        head(server, KIND, b"Content-Length: 90000000\r\n", query="?pipeline=convert&user_id=ann")
        + OPEN
        + b"w" * 300_000
        + second
        + b"x" * 12_000_000
    )
    until(lambda: len(place.objects()) >= 2)  # one is there, the other under way

    server.signal(signal.SIGKILL)
    server.ended()

    connection.close()
    assert place.jobs() == []
    assert asyncio.run(holder(place)) is None
    asyncio.run(sweep(place))
    until(lambda: place.objects() == set())
