"""The server process: what it refuses to be, how it stops, and that it is well."""

from __future__ import annotations

import asyncio
import shutil
import signal
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

import httpx2
import pytest

from packhorse.client import Client
from packhorse.errors import SettingError
from packhorse.http import server as serving
from packhorse.http.server import check_address
from packhorse.log import log
from packhorse.settings import Settings
from packhorse.web.app import serve
from tests.http.processes import Place, Server, served, until
from tests.servers.ports import free_port

SILENCE = Settings().body_silence
"""Seconds after which the server drops the upload: to stop, it does not wait for that."""


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.10", "example.com", ""])
def test_an_address_others_can_reach_is_refused(host: str) -> None:
    with pytest.raises(SettingError, match="without keys"):
        serve(Settings(host=host, keyless=True))


def test_a_port_that_is_taken_is_refused(server: Server) -> None:
    with pytest.raises(SettingError, match="already in use"):
        check_address(Settings(port=server.port))


def test_a_second_server_on_the_port_ends_at_once(server: Server) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "packhorse.web"],
        env=server.place.environment(),
        capture_output=True,
        timeout=180,
        check=False,
    )

    assert done.returncode != 0
    assert b"already in use" in done.stderr


async def test_who_reads_that_it_serves_can_come(monkeypatch: pytest.MonkeyPatch) -> None:
    settings, is_open, listens, told = Settings(port=free_port()), asyncio.Event(), False, []
    monkeypatch.setattr(log, "serving", lambda *_: told.append(listens))

    is_open.set()
    announcing = asyncio.create_task(serving._announce(is_open, settings))
    await asyncio.sleep(0)
    listens = True
    async with await asyncio.start_server(lambda _, writer: writer.close(), settings.host, settings.port):
        await asyncio.wait_for(announcing, 60)

    assert told == [True]


def test_it_says_where_it_serves(place: Place) -> None:
    with served(place) as server:
        until(lambda: f"serving {server.url}" in server.log.read_text())

        assert server.is_alive


def test_it_is_healthy_and_ready(server: Server) -> None:
    assert httpx2.get(f"{server.url}/healthz").json()["status"] == "ok"
    assert httpx2.get(f"{server.url}/readyz").json() == {"status": "ready", "store": "ok", "blobs": "ok"}


def test_it_is_not_ready_without_its_objects(place: Place) -> None:
    with served(place):
        pass  # the first start needs an object store that answers
    shutil.rmtree(place.blobs)
    place.blobs.write_text("not a folder")
    with served(place) as server:
        assert httpx2.get(f"{server.url}/healthz").status_code == 200
        answer = httpx2.get(f"{server.url}/readyz")

    assert answer.status_code == 502
    assert answer.json()["type"] == "urn:packhorse:blob-unavailable"


def test_the_interface_describes_itself(server: Server) -> None:
    found = httpx2.get(f"{server.url}/openapi.json").json()

    assert found["openapi"].startswith("3.")
    assert {"/api/v1/jobs", "/api/v1/jobs/{job_id}/events", "/api/v1/pipelines"} <= found["paths"].keys()
    body = found["paths"]["/api/v1/jobs"]["post"]["requestBody"]["content"]
    assert body.keys() == {"application/json", "multipart/form-data"}


def test_pipelines_are_shown_with_their_schema(server: Server) -> None:
    with Client(server.url) as client:
        found = {each["name"]: each for each in client.pipelines()}

    assert found.keys() == {"convert", "split", "hold", "picture", "speak", "add", "fail", "log_in"}
    assert found["convert"]["description"] == "Model to model"
    assert found["convert"]["schema"]["properties"]["platform"]["enum"] == ["520", "720"]
    assert [(stage["name"], stage["queue"]) for stage in found["convert"]["stages"]] == [
        ("onnx", "onnx"),
        ("nef", "nef"),
    ]
    assert found["convert"]["stages"][1]["needs"] == [{"stage": "onnx", "how": "needs"}]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_it_stops_soon_whoever_is_connected(place: Place, tmp_path: Path, number: signal.Signals) -> None:
    """An idle stream, an upload in the middle, a connection that says nothing and one that waits for its next call."""
    server = Server(place)
    job_id = httpx2.post(f"{server.api}/jobs", json={"pipeline": "add", "parameters": {"a": 1}}).json()["job_id"]
    watching, uploading, silent, idle = (server.connection() for _ in range(4))
    watching.sendall(f"GET /api/v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    uploading.sendall(
        b"POST /api/v1/jobs?pipeline=convert HTTP/1.1\r\nHost: localhost\r\nContent-Length: 900000\r\n"
        b"Content-Type: multipart/form-data; boundary=XX\r\n\r\n"
        b'--XX\r\nContent-Disposition: form-data; name="model"; filename="m"\r\n\r\n' + b"x" * 400_000
    )
    silent.sendall(b"GET /heal")
    idle.sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
    assert b"snapshot" in watching.recv(65536) + watching.recv(65536)
    assert idle.recv(1000)
    until(place.objects)

    server.signal(number)

    assert server.ended(SILENCE / 2) == 0
    assert place.objects() == set()
    assert len(place.jobs()) == 1
    assert b"Traceback" not in server.log.read_bytes()
    for connection in (watching, uploading, silent, idle):
        connection.close()


def test_a_stream_ends_properly_when_the_server_stops(place: Place) -> None:
    server = Server(place)
    job_id = httpx2.post(f"{server.api}/jobs", json={"pipeline": "add", "parameters": {"a": 1}}).json()["job_id"]
    with httpx2.stream("GET", f"{server.api}/jobs/{job_id}/events", timeout=60) as response:
        events = iter(httpx2.EventSource(response))
        assert next(events).event == "snapshot"
        server.signal(signal.SIGTERM)

        rest = list(events)

    assert [event.event for event in rest] == ["submitted"]
    assert server.ended() == 0


def test_what_was_acknowledged_survives_a_kill(place: Place) -> None:
    server = Server(place)
    answer = httpx2.post(f"{server.api}/jobs", json={"pipeline": "add", "parameters": {"a": 1}})
    server.signal(signal.SIGKILL)
    server.ended()

    with served(place) as again:
        found = httpx2.get(f"{again.api}/jobs/{answer.json()['job_id']}").json()

    assert found == answer.json()


def test_a_free_port_is_served() -> None:
    check_address(Settings(port=free_port()))
    check_address(Settings(host="::1", port=free_port()))


def test_a_name_for_this_machine_is_served(tmp_path: Path) -> None:
    with served(Place(tmp_path, host="localhost")) as server:
        assert httpx2.get(f"{server.url}/healthz").is_success


def test_a_store_that_cannot_be_opened_ends_the_server_with_its_reason(tmp_path: Path) -> None:
    place = Place(tmp_path)
    environment = {**place.environment(), "PACKHORSE_STORE": "sqlite:////proc/nope/packhorse.db"}

    done = subprocess.run(
        [sys.executable, "-m", "packhorse.web"], env=environment, capture_output=True, timeout=180, check=False
    )

    assert done.returncode != 0
    assert b"/proc/nope" in done.stderr
    assert b"never retrieved" not in done.stderr


def test_many_who_stay_keep_nobody_from_being_answered(server: Server) -> None:
    with Client(server.url) as client:
        job_id = client.submit("add", {"a": 1})["job_id"]
    asked = f"GET /api/v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()

    with ExitStack() as staying:
        watchers = [staying.enter_context(server.connection()) for _ in range(300)]
        for watcher in watchers:
            watcher.sendall(asked)
        begun = [watcher.recv(12) for watcher in watchers]

        assert begun == [b"HTTP/1.1 200"] * 300
        assert httpx2.get(f"{server.url}/healthz").is_success
