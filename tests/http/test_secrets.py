"""Secret parameters over HTTP, on every store: how they are given, shown, refused and repeated."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.client import Client
from packhorse.core.redaction import MASK
from packhorse.store.base import Filter, Store
from tests.http.conftest import publish
from tests.http.processes import Place, Server, served, until, working
from tests.http.unserved import Http, unserved

KEY = "s" * 40
CANARY = "canary-0123456789"
BODY: dict[str, Any] = {"pipeline": "log_in", "user_id": "ann", "parameters": {"name": "n", "password": CANARY}}


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere, secret_key=KEY)
    publish(place)
    return place


async def test_a_secret_is_shown_as_dots_from_the_first_answer_on(http: Http, store: Store) -> None:
    answer = await http.post("jobs", json=BODY)

    assert answer.status_code == 202
    assert answer.json()["parameters"] == {"name": "n", "password": MASK}
    shown = (await http.get(f"jobs/{answer.json()['job_id']}")).json()
    assert shown["parameters"] == {"name": "n", "password": MASK}
    [spec] = (await store.specs([shown["job_id"]])).values()
    assert CANARY.encode() not in spec.parameters


async def test_a_secret_may_be_a_part_of_a_form(http: Http) -> None:
    parts = {"pipeline": "log_in", "name": "n", "password": CANARY, "proxy": "p"}
    answer = await http.post("jobs", files={name: (None, text) for name, text in parts.items()})

    assert answer.status_code == 202, answer.text
    assert answer.json()["parameters"] == {"name": "n", "password": MASK, "proxy": MASK}


async def test_a_repeated_request_is_known_by_its_secret(http: Http) -> None:
    headers = {"Idempotency-Key": "once"}
    first = await http.post("jobs", json=BODY, headers=headers)
    again = await http.post("jobs", json=BODY, headers=headers)
    other = await http.post("jobs", json={**BODY, "parameters": {"name": "n", "password": "another"}}, headers=headers)

    assert (first.status_code, again.json()["job_id"]) == (202, first.json()["job_id"])
    assert other.status_code == 422
    assert other.json()["type"].endswith("key-reused")


@pytest.mark.parametrize(
    "wrong",
    [
        {"password": 1234567890},
        {"password": [CANARY]},
        {"password": {"$secret": CANARY}},
        {"password": "fine", "proxy": {"a": CANARY}},
        {"password": None},
    ],
    ids=["number", "list", "sealed", "optional", "none"],
)
async def test_what_is_wrong_with_a_secret_is_told_without_it(http: Http, store: Store, wrong: Any) -> None:
    answer = await http.post("jobs", json={**BODY, "parameters": {"name": "n", **wrong}})

    assert answer.status_code == 422
    assert {each["field"] for each in answer.json()["errors"]} <= {"password", "proxy"}
    assert "canary" not in answer.text
    assert "1234567890" not in answer.text
    assert await store.find(Filter()) == []


async def test_dots_are_refused_by_name(http: Http, store: Store) -> None:
    answer = await http.post("jobs", json={**BODY, "parameters": {"name": "n", "password": MASK}})

    assert answer.status_code == 422
    assert [each["field"] for each in answer.json()["errors"]] == ["password"]
    assert await store.find(Filter()) == []


async def test_a_server_without_a_key_takes_no_secret_and_tells_the_way_out(place: Place, store: Store) -> None:
    async with unserved(place.but(secret_key="").settings) as http:
        answer = await http.post("jobs", json=BODY)

    assert answer.status_code == 409
    assert answer.json()["type"].endswith("no-secret-key")
    assert "PACKHORSE_SECRET_KEY" in answer.text
    assert await store.find(Filter()) == []


async def test_the_schema_says_that_it_is_one(http: Http) -> None:
    [found] = [each for each in (await http.get("pipelines")).json()["items"] if each["name"] == "log_in"]

    assert found["schema"]["properties"]["password"]["format"] == "password"
    assert found["schema"]["properties"]["password"]["writeOnly"] is True


@pytest.fixture
def running(place: Place) -> Iterator[Server]:
    with served(place) as server, working(place):
        yield server


@pytest.mark.parametrize("anywhere", ["sqlite"], indirect=True)  # on every store: tests/journey/test_secrets.py
def test_the_stage_reads_it(running: Server) -> None:
    with Client(running.url) as client:
        until(client.pipelines)
        job = client.submit("log_in", {"name": "n", "password": CANARY}, user="ann")
        done = client.wait(job["job_id"], 60)

    assert (done["status"], done["result"]) == ("completed", f"n {len(CANARY)} True")
