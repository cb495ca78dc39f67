"""`packhorse keys`: straight at the store for who has none yet, through the server for who has one."""

from __future__ import annotations

from pathlib import Path

import httpx2
import pytest

from tests.cli.conftest import Tell
from tests.http.conftest import publish
from tests.http.processes import Place, served


def test_the_first_key_needs_no_server(tell: Tell) -> None:
    said = tell("keys", "create", "--scope", "admin", "--tenant", "acme", "--name", "first")

    listed = tell("keys", "list", "--json").json["items"]
    assert said.code == 0
    assert said.out.startswith("ph_")
    assert [(each["tenant_id"], each["scopes"], each["name"]) for each in listed] == [("acme", ["admin"], "first")]
    assert said.out.strip()[23:55] not in str(listed)


def test_it_may_be_rotated_and_revoked_there(tell: Tell) -> None:
    old = tell("keys", "create", "--json").json
    new = tell("keys", "rotate", old["key_id"], "--overlap", "1h", "--json").json

    ended = tell("keys", "revoke", new["key_id"])

    listed = {each["key_id"]: each for each in tell("keys", "list", "--json").json["items"]}
    assert ended.code == 0
    assert listed[new["key_id"]]["ended_by"] == "cli"
    assert listed[old["key_id"]]["ends_at"] > listed[new["key_id"]]["ends_at"]


@pytest.mark.parametrize(
    ("arguments", "code", "sentence"),
    [
        (["create", "--scope", "root"], 3, "There is no scope 'root'"),
        (["create", "--expires", "soon"], 3, "'soon' is not a duration"),
        (["revoke", "nope"], 3, "There is no key 'nope'"),
        (["rotate", "nope"], 3, "There is no key 'nope'"),
    ],
)
def test_what_cannot_be_is_said(tell: Tell, arguments: list[str], code: int, sentence: str) -> None:
    said = tell("keys", *arguments)

    assert said.code == code
    assert sentence in said.err
    assert tell("keys", "list", "--json").json["items"] == []


def test_a_whole_key_names_itself_and_is_not_printed_back(tell: Tell) -> None:
    text = tell("keys", "create", "--json").json["key"]

    said = tell("keys", "revoke", text)

    assert said.code == 0
    assert text[23:55] not in said.out + said.err


def test_one_key_is_shown(tell: Tell) -> None:
    made = tell("keys", "create", "--name", "ci", "--user", "ann", "--json").json

    shown, told = tell("keys", "show", made["key_id"], "--json").json, tell("keys", "show", made["key"])

    assert {**shown, "key": made["key"]} == made
    assert [word for word in (made["key_id"], "ci", "ann", "submit,read") if word not in told.out] == []
    assert made["key"][23:55] not in told.out
    assert tell("keys", "show", "nope").code == 3


def test_the_audit_can_be_read_at_the_store(tell: Tell) -> None:
    made = tell("keys", "create", "--json").json

    said = tell("audit")

    assert made["key_id"] in said.out
    assert "key.created" in said.out


def test_who_has_a_key_asks_the_server(tell: Tell, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", keyless=False)
    place.folder.mkdir()
    publish(place)
    admin = tell("keys", "create", "--scope", "admin", "--tenant", "acme", "--store", place.settings.store).out.strip()
    with served(place) as server:
        env = {"PACKHORSE_KEY": admin, "PACKHORSE_URL": server.url}
        made = tell("keys", "create", "--scope", "read", "--json", env=env).json

        answer = httpx2.get(f"{server.api}/jobs", headers={"Authorization": f"Bearer {made['key']}"})
        listed = tell("keys", "list", "--json").json["items"]
        bare = tell("keys", "--json").json["items"]
        shown = tell("keys", "show", made["key_id"], "--json").json
        revoked = tell("keys", "revoke", made["key_id"])
        foreign = tell("keys", "create", "--tenant", "umbrella")

    assert made["tenant_id"] == "acme"
    assert bare == listed
    assert answer.status_code == 200
    assert shown["scopes"] == ["read"]
    assert [each["key_id"] for each in listed] == [made["key_id"], admin[3:23]]
    assert revoked.code == 0
    assert foreign.code == 3


def test_a_key_that_may_not_submit_is_told_so_whatever_else_is_wrong(tell: Tell, tmp_path: Path) -> None:
    place = Place(tmp_path / "place", keyless=False)
    place.folder.mkdir()
    publish(place)
    reader = tell("keys", "create", "--scope", "read", "--store", place.settings.store).out.strip()
    with served(place) as server:
        env = {"PACKHORSE_KEY": reader, "PACKHORSE_URL": server.url}
        commands = [
            tell("submit", "nowhere", env=env),
            tell("submit", "speak", "voice=@nowhere.txt"),
            tell("submit", "speak"),
            tell("schedules", "put", "nightly", "nowhere", "--cron", "0 3 * * *"),
        ]
        sent = httpx2.post(
            f"{server.api}/jobs", json={"pipeline": "nowhere"}, headers={"Authorization": f"Bearer {reader}"}
        )

    assert [said.code for said in commands] == [3, 3, 3, 3]
    assert ["the scope submit" in said.err for said in commands] == [True, True, True, False]
    assert "the scope operate" in commands[3].err
    assert "This key has: read" in commands[0].err
    assert (sent.status_code, sent.json()["type"]) == (403, "urn:packhorse:forbidden")
    assert "submit" in sent.json()["detail"]


@pytest.mark.parametrize(("per", "left"), [("key", "5.0 GiB"), ("user", "per user")])
def test_limits_are_told_as_people_write_them_and_as_numbers_in_json(
    tell: Tell, tmp_path: Path, per: str, left: str
) -> None:
    place = Place(
        tmp_path / "place", keyless=False, downloads_per=per, download_bytes_per_day=5 * 1024**3, api_limit=10_000
    )
    place.folder.mkdir()
    publish(place)
    admin = tell("keys", "create", "--scope", "admin", "--store", place.settings.store).out.strip()
    with served(place) as server:
        told = tell("keys", "limits", admin, env={"PACKHORSE_KEY": admin, "PACKHORSE_URL": server.url})
        numbers = {each["name"]: each for each in tell("keys", "limits", admin, "--json").json["items"]}

    lines = [line.split() for line in told.out.splitlines()]
    assert ["bytes-day", "bytes", "5.0", "GiB", "1", "d", *left.split()] in lines
    assert "10,000" in told.out
    assert (numbers["bytes-day"]["limit"], numbers["bytes-day"]["window_seconds"]) == (5 * 1024**3, 86_400)
