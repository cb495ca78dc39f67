"""`packhorse tokens` against a real server; and what a command says while it waits."""

from __future__ import annotations

import json
from pathlib import Path

import httpx2

from packhorse.client import Client
from tests.cli.conftest import Tell
from tests.http.conftest import publish
from tests.http.processes import Place, served
from tests.servers.web import answering, in_turn, web_aside


def test_a_token_is_made_used_listed_and_revoked(tell: Tell, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", keyless=False)
    place.folder.mkdir()
    publish(place)
    key = tell("keys", "create", "--scope", "operate", "--store", place.settings.store).out.strip()
    with served(place) as server, Client(server.url, key) as client:
        job = client.submit("add", {"a": 1}, user="ann", delay="1h")["job_id"]
        env = {"PACKHORSE_KEY": key, "PACKHORSE_URL": server.url}

        none = tell("tokens", "list", job, env=env)
        made = tell("tokens", "create", job, "--expires", "1d")
        token = made.out.strip()
        page = httpx2.get(made.last_line.rpartition(" ")[2])
        seen = httpx2.get(f"{server.api}/jobs/{job}", headers={"Authorization": f"Bearer {token}"})
        listed = tell("tokens", "list", job, "--json").json["items"]
        table = tell("tokens", "list", job)
        revoked = tell("tokens", "revoke", job, listed[0]["key_id"])
        missing = tell("tokens", "revoke", job, "nope")

    assert (none.code, made.code, revoked.code, missing.code) == (0, 0, 0, 3)
    assert "No tokens" in none.err
    assert job in made.err
    assert made.last_line == f"Page for the end user: {server.url}/p/{token}"
    assert (page.status_code, "Waiting</h1>" in page.text) == (200, True)
    assert seen.json()["job_id"] == job
    assert [each["job_id"] for each in listed] == [job]
    assert listed[0]["key_id"] in table.out
    assert token[23:] not in table.out + str(listed)
    assert listed[0]["key_id"] in revoked.err


def test_the_page_of_a_token_is_told_in_json_too(tell: Tell, tmp_path: Path) -> None:
    place = Place(tmp_path / "place")
    place.folder.mkdir()
    publish(place)
    with served(place) as server, Client(server.url) as client:
        job = client.submit("add", {"a": 1}, delay="1h")["job_id"]

        made = tell("tokens", "create", job, "--json", "--url", server.url).json

    assert made["url"] == f"{server.url}/p/{made['key']}"


def test_a_command_says_that_it_waits(tell: Tell) -> None:
    problem = {"type": "urn:packhorse:rate-exceeded", "title": "No", "status": 429, "detail": "Not so fast."}
    refusal = answering(429, json.dumps(problem).encode(), retry_after="1")
    with web_aside(in_turn(refusal, answering(200, b'{"items": [], "next": null}'))) as server:
        said = tell("jobs", "--json", "--url", server.url)

    assert said.code == 0
    assert "Not so fast. Waiting 1 s, as the server asks." in said.err
    assert said.json["items"] == []
