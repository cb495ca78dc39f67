"""Uploads and downloads by way of a real server with its objects in a bucket."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Iterator
from pathlib import Path

import httpx2
import pytest

from packhorse.blobs import open_blobs
from packhorse.blobs.base import Blobs
from packhorse.blobs.s3.http import Signed, address
from packhorse.blobs.s3.transfer import PART
from packhorse.client import Client
from packhorse.core import json
from packhorse.core.records import Put
from packhorse.factory import open_store
from packhorse.jobs import deployment
from tests.http.conftest import publish
from tests.http.processes import Place, Server, served, until, working
from tests.servers import seaweed
from tests.servers.ports import free_port

KIND = "Content-Type: multipart/form-data; boundary=XX"
OPEN = b'--XX\r\nContent-Disposition: form-data; name="model"; filename="m.onnx"\r\n\r\n'


@pytest.fixture(scope="module")
def kept() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        for name, value in seaweed.ENV.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def server(kept: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    place = Place(tmp_path_factory.mktemp("bucket"), blobs=seaweed.running().place())
    with served(place) as server, working(place), Client(server.url) as client:
        until(client.pipelines)
        yield server


@pytest.fixture
def blobs(server: Server) -> Iterator[Blobs]:
    blobs = open_blobs(server.place.settings.blobs)
    yield blobs
    asyncio.run(blobs.close())


def open_uploads(server: Server) -> list[str]:
    where = address(server.place.settings.blobs, {})
    signed = Signed(where, seaweed.KEYS, 1)
    page = signed.ask("GET", None, query={"uploads": "", "prefix": where.prefix}).document()
    signed.close()
    return [each.findtext("Key") or "" for each in page.iter("Upload")]


def test_a_file_goes_in_and_its_result_comes_out(server: Server, tmp_path: Path) -> None:
    whole = bytes(range(256)) * (2 * PART // 256) + b"end"
    (tmp_path / "m.onnx").write_bytes(whole)

    with Client(server.url) as client:
        job = client.submit("convert", files={"model": tmp_path / "m.onnx"}, user="ann")
        until(lambda: client.get(job["job_id"])["status"] == "completed")
        [result] = client.artifacts(job["job_id"])[-1:]
    answer = httpx2.get(f"{server.api}/jobs/{job['job_id']}/artifacts/{result['name']}")

    assert job["input"]["sha256"] == hashlib.sha256(whole).hexdigest()
    assert hashlib.sha256(answer.content).hexdigest() == result["sha256"]


def test_a_client_that_vanishes_leaves_nothing(server: Server, blobs: Blobs) -> None:
    before = asyncio.run(blobs.keys("jobs"))
    connection = server.connection()
    head = f"POST /api/v1/jobs?pipeline=convert&user_id=raw HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\n{KIND}\r\n"
    connection.sendall(f"{head}Content-Length: {4 * PART}\r\n\r\n".encode() + OPEN + b"x" * (2 * PART))
    until(lambda: open_uploads(server))

    connection.close()

    until(lambda: not open_uploads(server))
    assert asyncio.run(blobs.keys("jobs")) == before


async def started_before(place: Place) -> None:
    """Only the first start needs a bucket that answers."""
    store = await open_store(place.settings.store)
    await store.put([Put(deployment.KIND, deployment.ID, json.encode("ours"))])
    await store.close()


def test_a_bucket_that_does_not_answer_is_502_and_leaves_no_job(kept: None, tmp_path: Path) -> None:
    place = Place(tmp_path, blobs=seaweed.running().place(port=free_port()))
    publish(place)
    asyncio.run(started_before(place))
    with served(place) as server:
        ready = httpx2.get(f"{server.url}/readyz", timeout=60)
        answer = httpx2.post(f"{server.api}/jobs?pipeline=convert", files={"model": ("m", b"weights")}, timeout=60)

    assert (ready.status_code, answer.status_code) == (502, 502)
    assert answer.json()["type"] == "urn:packhorse:blob-unavailable"
    assert "127.0.0.1" not in answer.text
    assert place.jobs() == []


def test_a_hundred_megabytes_pass_through_without_being_held(server: Server, tmp_path: Path) -> None:
    big = tmp_path / "big.onnx"
    with big.open("wb") as file:
        for number in range(100):
            file.write(bytes([number]) * 2**20)
    with Client(server.url) as client:
        base, peak = server.memory(), 0

        def watch(_sent: int, _total: int) -> None:
            nonlocal peak
            peak = max(peak, server.memory())

        job = client.submit("convert", files={"model": big}, user="big", on_progress=watch)

    with big.open("rb") as sent:
        assert job["input"]["sha256"] == hashlib.file_digest(sent, "sha256").hexdigest()
    assert peak - base < 60 * 2**20, f"grew by {(peak - base) / 2**20:.0f} MiB"
