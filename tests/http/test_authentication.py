"""Who is let in where keys are asked for, and what is written down about it."""

from __future__ import annotations

import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packhorse.auth import keys
from packhorse.store.base import Store
from tests.http.conftest import publish
from tests.http.keyed import asking, audited, bearer, key
from tests.http.processes import Place, served, until
from tests.http.unserved import Http
from tests.journey.site import until as in_time

ADD = {"pipeline": "add", "parameters": {"a": 1}, "user_id": "ann"}


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere, keyless=False, trust_proxy="127.0.0.0/8")
    publish(place)
    return place


@pytest.fixture
async def http(place: Place) -> AsyncIterator[Http]:
    async with asking(place) as http:
        yield http


MISSING = "the request has none"
INCOMPLETE = "this key is incomplete. Copy it again: a key is ph_ and 60 lowercase letters and digits"


async def test_a_good_key_is_let_in(http: Http, store: Store) -> None:
    answer = await http.post("jobs", json=ADD, headers=await key(store))

    assert answer.status_code == 202
    assert answer.json()["tenant_id"] == "acme"


@pytest.mark.parametrize(
    ("sent", "event", "reason"),
    [
        ({}, "key.missing", MISSING),
        ({"Authorization": ""}, "key.malformed", INCOMPLETE),
        ({"Authorization": "Bearer"}, "key.malformed", INCOMPLETE),
        ({"Authorization": "Bearer nonsense"}, "key.malformed", INCOMPLETE),
        ({"Authorization": "Basic YTpi"}, "key.malformed", INCOMPLETE),
        ({"X-Api-Key": "ph_x"}, "key.missing", MISSING),
    ],
)
async def test_what_is_no_key_is_refused_and_written_down(
    http: Http, store: Store, sent: dict[str, str], event: str, reason: str
) -> None:
    answer = await http.get("jobs", headers=sent)

    assert answer.status_code == 401
    assert answer.json()["detail"] == f"A valid API key is required: {reason}."
    assert answer.json()["type"] == "urn:packhorse:unauthorized"
    assert answer.headers["www-authenticate"] == "Bearer"
    assert [entry.event for entry in await audited(store, 1)] == [event]


async def test_a_key_in_the_address_is_no_key(http: Http, store: Store) -> None:
    _, text = await keys.create(store, "acme", ["read"], by="cli")

    assert (await http.get(f"jobs?key={text}")).status_code == 401


async def test_a_wrong_secret_is_refused_and_not_written_down(http: Http, store: Store) -> None:
    _, text = await keys.create(store, "acme", ["read"], by="cli")
    _, other = await keys.create(store, "acme", ["read"], by="cli")
    mixed = text[:23] + other[23:55]

    answer = await http.get("jobs", headers=bearer(f"{mixed}{zlib.crc32(mixed[3:].encode()):08x}"))

    [entry] = await audited(store, 1)
    assert answer.status_code == 401
    assert entry.event == "key.wrong"
    assert other[23:55] not in repr(entry)


async def test_an_accepted_key_is_written_down_with_who_and_from_where(http: Http, store: Store) -> None:
    made, text = await keys.create(store, "acme", ["read"], by="cli")

    await http.get("jobs", headers=bearer(text) | {"X-Forwarded-For": "6.6.6.6, 198.51.100.7"})

    [entry] = await audited(store, 1, "acme")
    assert (entry.event, entry.actor, entry.tenant) == ("key.accepted", made.id, "acme")
    assert text[23:55] not in repr(entry)


async def test_many_of_one_kind_are_two_lines(place: Place, store: Store) -> None:
    async with asking(place) as http:
        headers = await key(store)
        for _ in range(20):
            await http.get("jobs", headers=headers)

        assert [entry.count for entry in await audited(store, 1)] == [1]
    assert [entry.count for entry in await audited(store, 2)] == [1, 19]


async def test_an_ended_key_is_refused(http: Http, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "FRESH", 0.0)
    made, text = await keys.create(store, "acme", ["read"], by="cli")
    assert (await http.get("jobs", headers=bearer(text))).status_code == 200

    await keys.revoke(store, made.id, by="cli")

    async def is_refused() -> bool:
        return (await http.get("jobs", headers=bearer(text))).status_code == 401

    await in_time(is_refused, 30, lambda: "it is still let in")  # two handles know the time to some milliseconds
    assert [entry.event for entry in await audited(store, 2)][-1] == "key.ended"


class Ahead:
    """A store whose clock is 61 seconds ahead."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def now(self) -> float:
        return self._store.now() + 61.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


async def test_a_key_ends_by_itself(http: Http, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    _, text = await keys.create(store, "acme", ["read"], by="cli", lasting=60.0)
    assert (await http.get("jobs", headers=bearer(text))).status_code == 200

    monkeypatch.setattr(http.app.state.services.keyring, "_store", Ahead(store))

    assert (await http.get("jobs", headers=bearer(text))).status_code == 401


async def test_who_has_no_key_may_ask_as_often_as_they_like(place: Place) -> None:
    async with asking(place.but(failed_limit=3)) as http:
        assert [(await http.get("jobs")).status_code for _ in range(6)] == [401] * 6


async def test_a_wrong_secret_is_told_to_whose_key_it_is(http: Http, store: Store) -> None:
    _, text = await keys.create(store, "acme", ["read"], by="cli")
    wrong = text[:23] + "0" * 32

    await http.get("jobs", headers=bearer(f"{wrong}{zlib.crc32(wrong[3:].encode()):08x}"))

    assert [entry.event for entry in await audited(store, 1, "acme")] == ["key.wrong"]


async def test_one_client_has_only_so_many_streams(place: Place, store: Store) -> None:
    limited = place.but(streams_limit=1)
    with served(limited) as server, httpx2.Client(base_url=server.api, timeout=60) as real:
        mine, other = await key(store, "acme"), await key(store, "acme")
        path = f"/jobs/{real.post('/jobs', json=ADD, headers=mine).json()['job_id']}/events"
        with real.stream("GET", path, headers=mine) as open_one:
            lines = open_one.iter_lines()  # held, else the stream is closed
            assert next(lines) == "retry: 1000"

            assert real.get(path, headers=mine).status_code == 429
            with real.stream("GET", path, headers=other) as another:
                assert another.status_code == 200
        until(lambda: first_line(real, path, mine) == "retry: 1000")


def first_line(real: httpx2.Client, path: str, headers: dict[str, str]) -> str:
    with real.stream("GET", path, headers=headers) as response:
        return next(response.iter_lines()) if response.is_success else ""


@pytest.mark.parametrize(
    ("scopes", "call", "status"),
    [
        (["read"], ("GET", "jobs"), 200),
        (["read"], ("POST", "jobs"), 403),
        (["submit"], ("POST", "jobs"), 202),
        (["submit"], ("GET", "jobs"), 403),
        (["submit", "read"], ("GET", "keys"), 403),
        (["operate"], ("GET", "keys"), 403),
        (["operate"], ("POST", "jobs"), 202),
        (["admin"], ("GET", "keys"), 200),
        (["admin"], ("GET", "audit"), 200),
        (["operate"], ("GET", "audit"), 403),
    ],
)
async def test_a_key_may_do_what_its_scopes_say(
    http: Http, store: Store, scopes: list[str], call: tuple[str, str], status: int
) -> None:
    method, path = call
    body = {"json": ADD} if method == "POST" else {}

    answer = await http.request(method, path, headers=await key(store, "acme", *scopes), **body)  # type: ignore[arg-type]

    assert answer.status_code == status


async def test_who_is_not_allowed_is_told_what_is_left_all_the_same(place: Place, store: Store) -> None:
    async with asking(place.but(api_limit=3)) as http:
        answer = await http.post("jobs", json=ADD, headers=await key(store, "acme", "read"))

    assert answer.status_code == 403
    assert answer.headers["ratelimit"] == '"api";r=2'


@pytest.mark.parametrize(
    ("path", "asked", "status"),
    [
        ("jobs", {"json": ADD | {"pipeline": "nope"}}, 422),
        ("jobs?colour=red", {"json": ADD}, 422),
        ("jobs", {"content": "text", "headers": {"Content-Type": "text/plain"}}, 415),
        ("jobs", {"content": "{", "headers": {"Content-Type": "application/json"}}, 400),
    ],
)
async def test_who_is_refused_is_told_what_is_left_all_the_same(
    place: Place, store: Store, path: str, asked: dict[str, Any], status: int
) -> None:
    async with asking(place.but(api_limit=3)) as http:
        headers = await key(store, "acme", "submit") | asked.get("headers", {})
        answer = await http.post(path, **asked | {"headers": headers})

    assert answer.status_code == status
    assert answer.headers.get_list("ratelimit") == ['"api";r=2']


async def test_who_is_not_allowed_leaves_nothing_behind(http: Http, store: Store) -> None:
    await http.post("jobs", json=ADD, headers=await key(store, "acme", "read"))

    assert (await http.get("jobs", headers=await key(store))).json()["items"] == []


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/openapi.json"])
async def test_what_needs_no_key_is_served(http: Http, path: str) -> None:
    assert (await http.get(f"http://packhorse.example{path}")).status_code == 200


async def test_no_user_is_made_up(http: Http, store: Store) -> None:
    answer = await http.post("jobs", json={"pipeline": "add", "parameters": {"a": 1}}, headers=await key(store))

    assert answer.status_code == 422
    assert [each["field"] for each in answer.json()["errors"]] == ["user_id"]


async def test_a_bound_key_acts_for_its_user_only(http: Http, store: Store) -> None:
    anybody, ann = await key(store), await key(store, user="ann")
    bobs = (await http.post("jobs", json={**ADD, "user_id": "bob"}, headers=anybody)).json()["job_id"]

    own = await http.post("jobs", json={"pipeline": "add", "parameters": {"a": 1}}, headers=ann)
    foreign = await http.post("jobs", json={**ADD, "user_id": "bob"}, headers=ann)

    assert own.json()["user_id"] == "ann"
    assert foreign.status_code == 422
    assert (await http.get(f"jobs/{bobs}", headers=ann)).status_code == 404
    assert [job["user_id"] for job in (await http.get("jobs", headers=ann)).json()["items"]] == ["ann"]
    assert (await http.get("jobs?user_id=bob", headers=ann)).json()["items"] == []


async def test_the_same_user_of_another_tenant_has_another_slot(http: Http, store: Store) -> None:
    files = {"model": ("m.onnx", b"model")}
    answers = [
        await http.post("jobs?pipeline=convert&user_id=ann", files=files, headers=await key(store, tenant))
        for tenant in ("acme", "umbrella", "acme")
    ]

    assert [answer.status_code for answer in answers] == [202, 202, 409]


async def test_an_address_that_fails_too_often_has_to_wait(place: Place, store: Store) -> None:
    async with asking(place.but(failed_limit=5)) as http:
        answers = [await http.get("jobs", headers=bearer("nonsense")) for _ in range(8)]
        good = await http.get("jobs", headers=await key(store, "acme"))

    assert [answer.status_code for answer in answers] == [401] * 5 + [429] * 3
    assert int(answers[-1].headers["retry-after"]) > 0
    assert answers[-1].json()["type"] == "urn:packhorse:rate-exceeded"
    assert good.status_code == 200
    events = [(entry.event, entry.count) for entry in await audited(store, 3, "")]
    assert events == [("key.malformed", 1), ("key.blocked", 1), ("key.malformed", 5)]


async def test_a_client_that_asks_too_often_has_to_wait(place: Place, store: Store) -> None:
    async with asking(place.but(api_limit=3)) as http:
        headers = await key(store)
        answers = [await http.get("jobs", headers=headers) for _ in range(5)]
        other = await http.get("jobs", headers=await key(store))

    assert [answer.status_code for answer in answers] == [200] * 3 + [429] * 2
    assert [answer.headers["ratelimit"] for answer in answers[:3]] == ['"api";r=2', '"api";r=1', '"api";r=0']
    assert answers[0].headers["ratelimit-policy"] == '"api";q=3;qu="requests";w=300'
    assert int(answers[-1].headers["retry-after"]) > 0
    assert other.status_code == 200
