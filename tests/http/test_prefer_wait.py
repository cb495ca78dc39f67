"""``Prefer: wait``: the answer comes when the job has ended, or when patience has."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packhorse.client import Client
from packhorse.http.routes.submit import preferred_wait
from tests.http.conftest import publish, run
from tests.http.processes import Place, Server, until
from tests.http.unserved import Http
from tests.journey.places import PLACES

pytestmark = pytest.mark.every_store

ADD = {"pipeline": "add", "parameters": {"a": 1, "b": 2}}


@pytest.fixture(scope="module", params=PLACES)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("running")
    with run(Place(folder, **PLACES[request.param](folder))) as server:
        yield server


def hold(seconds: float) -> dict[str, Any]:
    return {"pipeline": "hold", "parameters": {"seconds": seconds}}


@pytest.mark.parametrize(
    ("prefer", "seconds"),
    [
        ("wait=30", 30.0),
        ('Wait="5"', 5.0),
        ("respond-async, wait = 7; x=y, wait=9", 7.0),
        ("wait=100", 60.0),
        ("wait=99999999999", None),
        ("wait=-1", None),
        ("wait=soon", None),
        ("wait", None),
        ("", None),
        ("return=minimal", None),
    ],
)
def test_a_preference_is_read_as_far_as_it_is_understood(prefer: str, seconds: float | None) -> None:
    assert preferred_wait(prefer, 60.0) == seconds


def test_a_job_that_ends_in_time_is_answered_with_its_result(running: Server) -> None:
    answer = httpx2.post(f"{running.api}/jobs", json=ADD, headers={"Prefer": "wait=30"}, timeout=40)

    assert (answer.status_code, answer.headers["preference-applied"]) == (200, "wait=30")
    assert (answer.json()["status"], answer.json()["result"]) == ("completed", 3)
    assert answer.headers["location"] == f"/api/v1/jobs/{answer.json()['job_id']}"


def test_a_job_that_takes_longer_is_answered_as_it_is(running: Server) -> None:
    answer = httpx2.post(f"{running.api}/jobs", json=hold(60), headers={"Prefer": "wait=1"}, timeout=40)

    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=1")
    assert answer.json()["status"] in ("pending", "running")
    httpx2.post(f"{running.api}/jobs/{answer.json()['job_id']}/cancel")


def test_without_a_preference_nobody_waits(running: Server) -> None:
    answer = httpx2.post(f"{running.api}/jobs", json=ADD)

    assert answer.status_code == 202
    assert "preference-applied" not in answer.headers


def test_a_repeated_key_is_answered_with_the_job_that_has_ended(running: Server) -> None:
    headers = {"Idempotency-Key": "waited", "Prefer": "wait=30"}

    first, second = (httpx2.post(f"{running.api}/jobs", json=ADD, headers=headers, timeout=40) for _ in range(2))

    assert (first.status_code, second.status_code) == (200, 200)
    assert first.json() == second.json()


def test_who_leaves_while_waiting_leaves_the_job_and_no_watcher(running: Server) -> None:
    with running.connection() as connection, Client(running.url) as client:
        body = b'{"pipeline": "hold", "user_id": "leaver", "parameters": {"seconds": 0.5}}'
        connection.sendall(
            b"POST /api/v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\nPrefer: wait=60\r\n"
            b"Content-Length: %d\r\n\r\n%s" % (len(body), body)
        )
        [job] = until(lambda: client.list(user="leaver")["items"])

        connection.close()

        assert client.wait(job["job_id"], 60)["status"] == "completed"


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere, wait_limit=0.1)
    publish(place)
    return place


async def test_a_limit_is_a_limit(http: Http) -> None:
    answer = await http.post("jobs", json=ADD, headers={"Prefer": "wait=3600"})

    assert (answer.status_code, answer.headers["preference-applied"]) == (202, "wait=0")


def test_a_job_that_is_cancelled_meanwhile_ends_the_wait(running: Server) -> None:
    asked = {**hold(60), "user_id": "hasty"}
    with ThreadPoolExecutor() as aside, Client(running.url) as client:
        asking = aside.submit(httpx2.post, f"{running.api}/jobs", json=asked, headers={"Prefer": "wait=50"}, timeout=60)
        [job] = until(lambda: client.list(user="hasty")["items"])

        client.cancel(job["job_id"])
        answer = asking.result(40)

    assert (answer.status_code, answer.json()["status"]) == (200, "cancelled")
