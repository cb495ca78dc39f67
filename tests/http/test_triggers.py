"""A schedule that another system runs with a signed token: who may, how often, and what a repeated message does."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from packhorse.core.schedules import Run
from packhorse.factory import open_store
from packhorse.store.base import Store
from packhorse.store.collections import schedules as records
from tests.http.conftest import publish
from tests.http.keyed import asking, audited, key
from tests.http.processes import Place

Http = AsyncTestClient[Any]
Json = dict[str, Any]

SCHEDULE = {"cron": "0 8 * * *", "pipeline": "add", "user_id": "ann", "parameters": {"a": 1}}
PUSHED = b'{"message": {"data": "e30=", "messageId": "2070443601311540"}, "subscription": "projects/p/subscriptions/s"}'
OTHER = PUSHED.replace(b"2070443601311540", b"2070443601311541")


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path, keyless=False, secret_key="s" * 40, failed_limit=100)
    publish(place)
    return place


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    store = await open_store(place.settings.store)
    yield store
    await store.close()


@pytest.fixture
async def headers(store: Store) -> dict[str, str]:
    return await key(store, "acme", "operate")


@pytest.fixture
async def http(place: Place) -> AsyncIterator[Http]:
    async with asking(place) as http:
        yield http


async def token(http: Http, headers: dict[str, str], id: str = "apod-daily", **asked: Any) -> Json:
    """Of a schedule that is made if need be."""
    await http.put(f"schedules/{id}", json=SCHEDULE, headers=headers)
    answer = await http.post(f"schedules/{id}/token", json=asked, headers=headers)
    assert answer.status_code == 201, answer.text
    found: Json = answer.json()
    return found


async def push(http: Http, path: str, body: bytes = PUSHED) -> Any:
    """As Pub/Sub does: from anywhere, without a key, an Origin or a cookie."""
    address = f"http://packhorse.example{path}"
    return await http.post(address, content=body, headers={"Content-Type": "application/json"})


async def runs(store: Store, id: str = "apod-daily", tenant: str = "acme") -> list[Run]:
    return await records.runs(store, tenant, id)


async def test_a_push_message_runs_the_schedule_once_however_often_it_comes(
    http: Http, store: Store, headers: dict[str, str]
) -> None:
    path = (await token(http, headers))["path"]

    answers = [await push(http, path) for _ in range(3)]
    other = await push(http, path, OTHER)

    assert path.startswith("/api/v1/schedules/apod-daily/trigger?token=")
    assert [answer.status_code for answer in (*answers, other)] == [202] * 4
    assert [answer.json()["is_repeated"] for answer in (*answers, other)] == [False, True, True, False]
    [newer, run] = await runs(store)
    assert run.is_manual
    assert {answer.json()["trace_id"] for answer in answers} == {run.trace_id}
    assert newer.trace_id == other.json()["trace_id"] != run.trace_id


@pytest.mark.parametrize(
    "body", [b"", b"run!", b"[1]", b"{}", b'{"message": "hello"}', b'{"message": {"messageId": []}}']
)
async def test_a_request_without_a_message_runs_the_schedule_each_time(
    http: Http, store: Store, headers: dict[str, str], body: bytes
) -> None:
    path = (await token(http, headers))["path"]

    answers = [await push(http, path, body) for _ in range(2)]

    assert [(answer.status_code, answer.json()["trace_id"]) for answer in answers] == [(202, None)] * 2
    assert len(await runs(store)) == 2


def tampered(text: str) -> str:
    return text[:-1] + ("0" if text[-1] != "0" else "1")


WRONG: dict[str, Callable[[str], str]] = {
    "none": lambda path: path.partition("?")[0],
    "empty": lambda path: path.partition("=")[0] + "=",
    "signature": tampered,
    "not-ascii": lambda path: path[:-64] + "%C3%A9%F0%9F%90%8E",
    "not-ascii-tenant": lambda path: path.partition("=")[0] + "=%C3%A9.0." + "0" * 64,
    "no-number": lambda path: path.partition("=")[0] + "=YWNtZQ.x." + "0" * 64,
    "later": lambda path: re.sub(r"\.\d+\.", ".99999999999.", path),
    "schedule": lambda path: path.replace("apod-daily", "neo-daily"),
    "missing": lambda path: path.replace("apod-daily", "no-such"),
    "nul": lambda path: path.replace("apod-daily", "a%00b"),
    "tenant": lambda path: path.replace("=YWNtZQ", "=Z2xvYmV4"),
}


@pytest.mark.parametrize("wrong", WRONG)
async def test_without_a_valid_token_nothing_runs_and_the_body_is_not_read(
    http: Http, store: Store, headers: dict[str, str], wrong: str
) -> None:
    path = (await token(http, headers))["path"]
    await token(http, headers, "neo-daily")
    await token(http, await key(store, "globex", "operate"))

    answer = await push(http, WRONG[wrong](path), b"{no json")

    assert answer.status_code == 401
    assert (answer.json()["type"], "token" in answer.json()["hint"]) == ("urn:packhorse:token-refused", True)
    assert await runs(store) + await runs(store, "neo-daily") + await runs(store, tenant="globex") == []


async def test_a_token_ends_with_its_schedule_and_does_not_come_back_with_its_name(
    http: Http, store: Store, headers: dict[str, str]
) -> None:
    path = (await token(http, headers))["path"]

    await http.delete("schedules/apod-daily", headers=headers)
    deleted, none = await push(http, path), await http.post("schedules/apod-daily/token", headers=headers)
    again = await token(http, headers)
    answers = [await push(http, path), await push(http, again["path"])]

    assert (deleted.status_code, none.status_code) == (401, 409)
    assert [answer.status_code for answer in answers] == [401, 202]
    assert len(await runs(store)) == 1


async def test_a_token_ends_when_the_schedule_acts_for_another_user(
    http: Http, store: Store, headers: dict[str, str]
) -> None:
    path = (await token(http, headers))["path"]
    edits = [{"cron": "0 9 * * *"}, {"user_id": "ben"}]

    answers = []
    for version, edit in enumerate(edits, 1):
        match = {**headers, "If-Match": f'"{version}"'}
        assert (await http.put("schedules/apod-daily", json=SCHEDULE | edit, headers=match)).is_success
        answers.append((await push(http, path)).status_code)

    assert answers == [202, 401]


async def test_a_token_ends_at_its_time(
    http: Http, store: Store, headers: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await token(http, headers, seconds=60)
    first = await push(http, made["path"])
    later = store.now() + 62
    monkeypatch.setattr(http.app.state.services.store, "now", lambda: later)

    assert (first.status_code, (await push(http, made["path"], OTHER)).status_code) == (202, 401)
    assert made["expires_at"] is not None


async def test_a_token_lasts_a_year_unless_its_request_says_otherwise(
    http: Http, store: Store, headers: dict[str, str]
) -> None:
    made = await token(http, headers)

    ends = datetime.fromisoformat(made["expires_at"]).timestamp()
    assert ends == pytest.approx(store.now() + 365 * 86400, abs=60)


async def test_a_secret_key_that_is_replaced_ends_its_tokens_when_it_goes(
    place: Place, store: Store, headers: dict[str, str]
) -> None:
    async with asking(place) as http:
        path = (await token(http, headers))["path"]
    async with asking(place.but(secret_key=f"{'t' * 40},{'s' * 40}")) as http:
        kept = await push(http, path)
    async with asking(place.but(secret_key="t" * 40)) as http:
        gone = await push(http, path)
    async with asking(place.but(secret_key="")) as http:
        none = await http.post("schedules/apod-daily/token", headers=headers)

    assert (kept.status_code, gone.status_code, none.status_code) == (202, 401, 409)


async def test_a_key_for_one_user_makes_tokens_of_that_users_schedules_only(http: Http, store: Store) -> None:
    await token(http, await key(store, "acme", "operate"))
    statuses = {
        user: (await http.post("schedules/apod-daily/token", headers=await key(store, "acme", "operate", user=user)))
        for user in ("ann", "ben")
    }
    reading = await http.post("schedules/apod-daily/token", headers=await key(store, "acme", "read", "submit"))

    assert [answer.status_code for answer in (*statuses.values(), reading)] == [201, 404, 403]


async def test_guesses_of_one_address_are_limited_and_a_valid_token_still_works(
    place: Place, store: Store, headers: dict[str, str]
) -> None:
    async with asking(place.but(failed_limit=3)) as http:
        path = (await token(http, headers))["path"]
        answers = [await push(http, tampered(path)) for _ in range(5)]
        valid = await push(http, path)

    assert [answer.status_code for answer in answers] == [401, 401, 401, 429, 429]
    assert valid.status_code == 202


async def test_runs_of_one_token_are_limited(place: Place, headers: dict[str, str]) -> None:
    async with asking(place.but(api_limit=3)) as http:
        path = (await token(http, headers))["path"]
        answers = [await push(http, path, b"") for _ in range(4)]

    assert [answer.status_code for answer in answers] == [202, 202, 202, 429]
    assert "ratelimit" in answers[0].headers


async def test_tokens_runs_and_refusals_are_in_the_audit_log_without_the_token(
    http: Http, store: Store, headers: dict[str, str]
) -> None:
    made = await token(http, headers)
    await push(http, made["path"])
    await push(http, tampered(made["path"]))

    entries = await audited(store, 5)

    assert {"schedule.token", "schedule.triggered", "trigger.wrong"} <= {entry.event for entry in entries}
    [run] = [entry for entry in entries if entry.event == "schedule.triggered"]
    assert (run.tenant, run.actor, run.details) == ("acme", "", {"schedule_id": "apod-daily"})
    assert made["token"][-20:] not in json.dumps([repr(entry) for entry in entries])


async def test_a_message_that_is_no_json_is_refused_and_runs_nothing(
    http: Http, store: Store, headers: dict[str, str]
) -> None:
    path = (await token(http, headers))["path"]

    assert (await push(http, path, b"{no json")).status_code == 400
    assert await runs(store) == []


async def test_without_keys_a_token_is_no_way_in_from_elsewhere(place: Place) -> None:
    async with asking(place.but(keyless=True)) as http:
        base = "http://127.0.0.1/api/v1"
        await http.put(f"{base}/schedules/apod-daily", json=SCHEDULE)
        path = (await http.post(f"{base}/schedules/apod-daily/token")).json()["path"]

        answers = [await http.post(f"{host}{path}") for host in ("http://packhorse.example", "http://127.0.0.1")]

    assert [answer.status_code for answer in answers] == [403, 202]
