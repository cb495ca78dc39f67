"""packhorse inside other people's applications, on real servers: under any path, whatever the parent tells it."""

from __future__ import annotations

import asyncio
import html
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import pytest
from litestar import Litestar

import packhorse
from packhorse import Client
from packhorse.errors import JobNotFound, SettingError
from packhorse.http import mount as mounting
from packhorse.http.mount import mounted_scope
from packhorse.settings import Settings
from packhorse.web.app import build
from tests.http.conftest import publish
from tests.http.processes import LIMIT, Place, is_taken, until, working
from tests.servers.ports import free_port

MOUNTS = [
    pytest.param(("starlette", "uvicorn", "/carrier"), marks=pytest.mark.release),
    ("fastapi", "uvicorn", "/carrier"),
    pytest.param(("litestar", "uvicorn", "/carrier"), marks=pytest.mark.release),
    ("nested", "uvicorn", "/a/b"),
    pytest.param(("starlette", "granian", "/api"), marks=pytest.mark.release),
    ("litestar", "granian", "/api"),  # as our own paths begin
    pytest.param(("none", "uvicorn", ""), marks=pytest.mark.release),
    pytest.param(("none", "granian", ""), marks=pytest.mark.release),
]


@dataclass
class Parent:
    url: str
    mount: str

    @property
    def mounted(self) -> str:
        return self.url + self.mount


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    place = Place(tmp_path_factory.mktemp("mounted"), secret_key="s" * 40)
    publish(place)
    with working(place):
        yield place


@pytest.fixture(scope="module", params=MOUNTS, ids=lambda each: "-".join(each).replace("/", ""))
def parent(request: pytest.FixtureRequest, shared: Place) -> Iterator[Parent]:
    framework, server, mount = request.param
    port = free_port()
    command = [sys.executable, "-m", "tests.http.parents", framework, server, mount, str(port)]
    with (shared.folder / f"{framework}-{server}.log").open("wb") as log:
        process = subprocess.Popen(command, env=shared.environment(), stdout=log, stderr=log, cwd=shared.folder)
        try:
            found = Parent(f"http://127.0.0.1:{port}", mount)
            until(lambda: process.poll() is not None or (is_taken(port) and is_there(found)))
            assert process.poll() is None, Path(log.name).read_text()
            yield found
        finally:
            process.terminate()
            process.wait(LIMIT)
    assert "Traceback" not in Path(log.name).read_text()


def is_there(parent: Parent) -> bool:
    try:
        return httpx2.get(f"{parent.mounted}/healthz").is_success
    except httpx2.TransportError:
        return False


def test_a_job_is_carried_through(parent: Parent, tmp_path: Path) -> None:
    with Client(parent.mounted) as client:
        job = client.submit("convert", files={"model": ("m.onnx", b"weights")}, user=parent.url)
        types = [event["type"] for event in client.events(job["job_id"])]

        assert types[-1] == "completed"
        assert client.result(job["job_id"], tmp_path).read_bytes() == b"weights520"
        assert [each["job_id"] for each in client.iterate(user=parent.url)] == [job["job_id"]]
        with pytest.raises(JobNotFound):
            client.get("nope")


def test_the_location_leads_to_the_job(parent: Parent) -> None:
    answer = httpx2.post(f"{parent.mounted}/api/v1/jobs?pipeline=add", json={"parameters": {"a": 1}})

    location = answer.headers["location"]
    assert location == f"{parent.mount}/api/v1/jobs/{answer.json()['job_id']}"
    assert httpx2.get(parent.url + location).json()["job_id"] == answer.json()["job_id"]


def test_the_path_with_a_token_leads_to_the_schedule(parent: Parent) -> None:
    with Client(parent.mounted) as client:
        id = f"pushed-{parent.url.rpartition(':')[2]}"
        client.put_schedule(id, cron="0 8 * * *", pipeline="add", parameters={"a": 1}, user="ann")
        token = client.create_trigger_token(id)

        assert httpx2.post(parent.url + token["path"]).status_code == 202
        assert client.trigger_schedule(id, token["token"])["schedule_id"] == id


def test_the_openapi_file_names_the_mount(parent: Parent) -> None:
    told = httpx2.get(f"{parent.mounted}/openapi.json").json()

    assert told["servers"] == [{"url": parent.mount or "/"}]
    assert "/api/v1/jobs" in told["paths"]


@pytest.mark.parametrize("page", ["/", "/docs"])
def test_the_pages_find_what_they_need(parent: Parent, page: str) -> None:
    found = httpx2.get(f"{parent.mounted}{page}")

    links = [html.unescape(each) for each in re.findall(r'(?:href|src)="(/[^"]+)"', found.text)]
    assert len(links) >= 2
    assert {httpx2.get(parent.url + link).status_code for link in links} == {200}


def test_what_is_not_there_is_named_as_it_was_asked_for(parent: Parent) -> None:
    problem = httpx2.get(f"{parent.mounted}/nope").json()

    assert (problem["type"], problem["path"]) == ("urn:packhorse:not-found", f"{parent.mount}/nope")


def test_other_machines_stay_outside(parent: Parent) -> None:
    answer = httpx2.get(f"{parent.mounted}/healthz", headers={"Host": "example.test"})

    assert answer.status_code == 403


async def asked(app: Any, path: str = "/readyz") -> httpx2.Response:
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://127.0.0.1") as http:
        return await http.get(path)


def test_loop_after_loop_opens_and_leaves_nothing_open(place: Place) -> None:
    app = packhorse.asgi(place.settings)
    assert asyncio.run(asked(app)).status_code == 200
    few = threading.active_count()

    answers = [asyncio.run(asked(app)) for _ in range(3)]

    assert [answer.status_code for answer in answers] == [200] * 3
    assert threading.active_count() <= few
    assert [*app._apps, *app._keeping, *app._opening] == []


def test_many_first_requests_open_it_once(place: Place) -> None:
    built: list[Litestar] = []

    def counted(settings: Settings) -> Litestar:
        built.append(build(settings))
        return built[-1]

    app = mounting.Mounted(place.settings, counted)

    async def all_at_once() -> list[httpx2.Response]:
        return await asyncio.gather(*(asked(app) for _ in range(10)))

    answers = asyncio.run(all_at_once())

    assert [answer.status_code for answer in answers] == [200] * 10
    assert len(built) == 1


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("store", "mysql://localhost/jobs"),
        ("store", "sqlite://./jobs.db"),
        ("store", "redis+sentinel://localhost"),
        ("blobs", "ftp://localhost/"),
        ("promote_to", "gopher://localhost/"),
        ("timeout", "soon"),
        ("nothing", "1"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_the_first_request(name: str, value: str) -> None:
    with pytest.raises(SettingError):
        packhorse.asgi(None, **{name: value})


def test_a_store_that_is_away_is_a_problem_and_not_for_ever(place: Place, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    blocked.write_text("a file where a folder should be")
    app = packhorse.asgi(store=f"sqlite://{blocked}/packhorse.db", blobs=place.settings.blobs)

    async def before_and_after() -> list[httpx2.Response]:
        before = await asked(app)
        blocked.unlink()
        return [before, await asked(app)]

    before, after = asyncio.run(before_and_after())

    assert (before.status_code, before.headers["content-type"]) == (503, "application/problem+json")
    assert "retry-after" in before.headers
    assert str(blocked) not in before.text
    assert after.status_code == 200


@pytest.mark.parametrize(
    ("given", "root", "path"),
    [
        ({"path": "/api/v1/jobs", "root_path": ""}, "", "/api/v1/jobs"),
        ({"path": "/m/api/v1/jobs", "root_path": "/m"}, "/m", "/m/api/v1/jobs"),
        ({"path": "/m/api/v1/jobs", "root_path": "/m/"}, "/m", "/m/api/v1/jobs"),
        ({"path": "/api/v1/jobs", "root_path": "/m"}, "/m", "/m/api/v1/jobs"),
        ({"path": "/api/v1/jobs/", "root_path": "", "raw_path": b"/m/api/v1/jobs?a=/b"}, "/m", "/m/api/v1/jobs"),
        ({"path": "/", "root_path": "", "raw_path": b"/m"}, "/m", "/m"),
        ({"path": "/jobs/a b", "root_path": "/x", "raw_path": b"/x/m/jobs/a%20b"}, "/x/m", "/x/m/jobs/a b"),
        ({"path": "/mine", "root_path": "/m"}, "/m", "/m/mine"),
        ({"path": "/jobs", "root_path": "", "raw_path": b"/elsewhere"}, "", "/jobs"),
    ],
)
def test_the_mount_is_found_whatever_the_parent_tells(given: Any, root: str, path: str) -> None:
    scope = mounted_scope({"type": "http", "route_handler": "the parent's", "state": {"a": 1}, **given})

    assert (scope["root_path"], scope["path"]) == (root, path)
    assert scope["state"] == {}
    assert "route_handler" not in scope
