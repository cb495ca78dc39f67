"""`/p/{token}` over HTTP: the token is all it takes; a wrong one is counted, and none is written to a log."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packhorse.store.base import Store
from tests.http.conftest import publish
from tests.http.keyed import BASE, audited, bearer, key
from tests.http.processes import Place, Server, served, until
from tests.http.unserved import Http, unserved

ADD = {"pipeline": "add", "parameters": {"a": 1}, "user_id": "ann"}
SITE = BASE.removesuffix("/api/v1/")


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere, keyless=False, secret_key="s" * 40, failed_limit=5)
    publish(place)
    return place


@pytest.fixture
async def http(place: Place) -> AsyncIterator[Http]:
    async with unserved(place.settings, SITE) as http:
        yield http


async def shared(http: Http, store: Store) -> tuple[str, str, dict[str, str]]:
    """A job, a token of it, and the key that made both."""
    service = await key(store)
    job_id = (await http.post("/api/v1/jobs", json=ADD, headers=service)).json()["job_id"]
    made = (await http.post(f"/api/v1/jobs/{job_id}/tokens", headers=service)).json()
    return job_id, made["key"], service


async def test_the_page_needs_nothing_but_the_token(http: Http, store: Store) -> None:
    _, token, _ = await shared(http, store)

    answer = await http.get(f"/p/{token}")

    assert answer.status_code == 200
    assert "Waiting</h1>" in answer.text
    told = {name: answer.headers[name] for name in ("x-robots-tag", "referrer-policy", "cache-control")}
    assert told == {"x-robots-tag": "noindex, nofollow", "referrer-policy": "same-origin", "cache-control": "no-store"}


async def test_who_waits_can_cancel_without_a_script(http: Http, store: Store) -> None:
    job_id, token, service = await shared(http, store)

    foreign = await http.post(f"/p/{token}/cancel", headers={"origin": "https://elsewhere.example"})
    answer = await http.post(f"/p/{token}/cancel", headers={"origin": SITE}, follow_redirects=False)

    assert foreign.status_code >= 400
    assert (answer.status_code, answer.headers["location"]) == (303, f"/p/{token}")
    assert (await http.get(f"/api/v1/jobs/{job_id}", headers=service)).json()["status"] == "cancelled"
    assert "Cancelled</h1>" in (await http.get(f"/p/{token}")).text


@pytest.mark.parametrize("path", ["", "/result", "/artifacts/a/b", "/events"])
async def test_a_token_that_has_ended_gets_a_clear_page(http: Http, store: Store, path: str) -> None:
    job_id, token, service = await shared(http, store)
    [made] = (await http.get(f"/api/v1/jobs/{job_id}/tokens", headers=service)).json()["items"]
    await http.delete(f"/api/v1/jobs/{job_id}/tokens/{made['key_id']}", headers=service)

    answer = await http.get(f"/p/{token}{path}")

    assert answer.status_code == 404
    assert "This link does not work" in answer.text
    assert job_id not in answer.text


async def test_a_key_is_no_token(http: Http, store: Store) -> None:
    """It opens more than one job, and an address is seen by many."""
    text = (await key(store))["Authorization"].removeprefix("Bearer ")

    assert (await http.get(f"/p/{text}")).status_code == 404


async def test_wrong_tokens_are_counted_as_wrong_keys_are(http: Http, store: Store) -> None:
    answers = [await http.get(f"/p/ph_{n}") for n in range(8)]

    assert [answer.status_code for answer in answers] == [404] * 5 + [429] * 3
    assert int(answers[-1].headers["retry-after"]) > 0
    assert "Too many tries" in answers[-1].text
    assert {"key.malformed", "key.blocked"} <= {entry.event for entry in await audited(store, 2)}
    assert (await http.get("/api/v1/jobs", headers=bearer("ph_x"))).status_code == 429


async def test_a_result_that_is_not_there_yet_is_said_so(http: Http, store: Store) -> None:
    _, token, _ = await shared(http, store)

    answer = await http.get(f"/p/{token}/result")

    assert answer.status_code == 409


def test_a_token_counts_where_nobody_needs_a_key_and_no_secret_is_logged(tmp_path: Path) -> None:
    place = Place(tmp_path, log_level="debug")
    publish(place)
    with served(place) as server:
        token = _token(server)

        right = httpx2.get(f"{server.url}/p/{token}")
        wrong = httpx2.get(f"{server.url}/p/{token[:-1]}x")
        until(lambda: f"/p/{token[:23]}" in server.log.read_text())

    assert (right.status_code, wrong.status_code) == (200, 404)
    assert token[23:55] not in server.log.read_text()


def _token(server: Server) -> str:
    job: dict[str, Any] = httpx2.post(f"{server.api}/jobs", json=ADD).json()
    found: str = httpx2.post(f"{server.api}/jobs/{job['job_id']}/tokens").json()["key"]
    return found
