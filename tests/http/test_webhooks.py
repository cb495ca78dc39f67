"""Webhooks over HTTP, on every store: made, listed, tried, removed, and refused."""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64decode, b64encode
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse.http.routes import webhooks
from packhorse.store.base import Store
from packhorse.store.collections.webhooks import (
    Endpoint,
    add_endpoint,
    list_deliveries,
    list_endpoints,
    settle_delivery,
    take_deliveries,
)
from tests.contract.builders import completed
from tests.http.processes import Place
from tests.http.test_openapi import told, validator
from tests.http.unserved import Http, unserved
from tests.servers.web import Web, answering, web_aside

KEY = "a secret of more than thirty-two characters"
HOOK = {"url": "https://hooks.example.org/packhorse"}


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    return Place(tmp_path, store=anywhere, secret_key=KEY, outbound_allow="127.0.0.0/8")


@pytest.fixture
def receiver() -> Iterator[Web]:
    """In another thread: the client of these tests holds the loop while it waits."""
    with web_aside() as receiver:
        yield receiver


async def made(http: Http, url: str = HOOK["url"]) -> dict[str, Any]:
    answer = await http.post("webhooks", json={"url": url})
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_a_new_webhook_is_told_with_its_secret_and_never_again(http: Http, store: Store) -> None:
    webhook = await made(http)

    secret = webhook.pop("secret")
    derived = hmac.new(KEY.encode(), b"webhook:" + webhook["webhook_id"].encode(), hashlib.sha256).digest()
    listed = await http.get("webhooks")
    assert secret == "whsec_" + b64encode(derived).decode()
    assert listed.json() == {"items": [webhook], "next": None}
    assert (webhook["url"], webhook["ended_at"], webhook["reason"]) == (HOOK["url"], None, "")
    assert [each.id for each in await list_endpoints(store, "default")] == [webhook["webhook_id"]]


@pytest.mark.parametrize("anywhere", ["sqlite"], indirect=True)  # whose files can be looked into
async def test_the_secret_is_not_in_the_store(http: Http, place: Place) -> None:
    secret = (await made(http))["secret"].removeprefix("whsec_")

    kept = b"".join(path.read_bytes() for path in place.folder.glob("store.db*"))

    assert secret.encode() not in kept
    assert b64decode(secret) not in kept


@pytest.mark.parametrize(
    "url",
    [
        "https://10.0.0.1/hook",
        "https://169.254.169.254/latest/meta-data/",
        "https://[::1]/",
        "https://[fd00:ec2::254]/",
        "https://2130706433/",
        "https://user:word@example.org/",
        "ftp://example.org/",
        "http://8.8.8.8/",
        "hooks.example.org",
    ],
)
async def test_an_address_that_must_not_be_called_is_refused_at_once(http: Http, store: Store, url: str) -> None:
    answer = await http.post("webhooks", json={"url": url})

    assert (answer.status_code, answer.json()["type"]) == (422, "urn:packhorse:blocked-address")
    assert "PACKHORSE_OUTBOUND_ALLOW" in answer.json()["hint"]
    assert await list_endpoints(store) == []


@pytest.mark.parametrize("anywhere", ["sqlite"], indirect=True)  # no store is asked about an address
async def test_a_private_address_is_the_reason_also_with_http(http: Http) -> None:
    answer = await http.post("webhooks", json={"url": "http://10.0.0.1/"})

    assert answer.json()["detail"] == "Requests to 10.0.0.1 are not allowed: its address is private."


@pytest.mark.parametrize("anywhere", ["sqlite"], indirect=True)  # no store is asked about what cannot be read
@pytest.mark.parametrize("body", [{}, {"url": ""}, {"url": 1}, {"url": None}, {**HOOK, "secret": "mine"}, []])
async def test_a_body_that_is_not_a_webhook_is_refused(http: Http, body: Any) -> None:
    answer = await http.post("webhooks", json=body)

    assert (answer.status_code, answer.json()["type"]) == (422, "urn:packhorse:invalid-input")


async def test_without_a_secret_key_there_are_no_webhooks_and_the_way_out_is_told(place: Place) -> None:
    async with unserved(place.but(secret_key="").settings) as http:
        answer = await http.post("webhooks", json=HOOK)

    assert (answer.status_code, answer.json()["type"]) == (409, "urn:packhorse:no-secret-key")
    assert "PACKHORSE_SECRET_KEY" in answer.json()["hint"]


async def test_there_are_only_so_many(http: Http, store: Store) -> None:
    *_, last = [await made(http) for _ in range(webhooks.MOST)]

    refused = await http.post("webhooks", json=HOOK)
    await http.delete(f"webhooks/{last['webhook_id']}")

    assert refused.status_code == 429
    assert (await made(http))["ended_at"] is None


async def test_a_webhook_that_is_removed_stays_listed_with_the_reason(http: Http, store: Store) -> None:
    webhook = await made(http)
    await completed(store, webhooks=(webhook["webhook_id"],))

    removed = await http.delete(f"webhooks/{webhook['webhook_id']}")

    assert removed.json() == (await http.get("webhooks")).json()["items"][0]
    assert (removed.json()["reason"], removed.json()["ended_at"] is None) == ("It was removed.", False)
    assert await list_deliveries(store, webhook["webhook_id"]) == []


async def test_what_waits_to_be_sent_is_listed(http: Http, store: Store) -> None:
    webhook = await made(http)
    job = await completed(store, webhooks=(webhook["webhook_id"],))
    [taken] = await take_deliveries(store, 1, 60)
    await settle_delivery(store, taken, next_at=1_800_000_000.0, error="HTTP_500")

    [waiting] = (await http.get(f"webhooks/{webhook['webhook_id']}/deliveries")).json()["items"]

    assert waiting.pop("created_at") < waiting["next_at"]
    assert waiting == {
        "id": f"{job.id}.1.{webhook['webhook_id']}",
        "job_id": job.id,
        "run": 1,
        "attempts": 1,
        "next_at": "2027-01-15T08:00:00.000000Z",
        "error": "HTTP_500",
    }


@pytest.mark.parametrize(
    ("status", "told"),
    [
        (204, {"delivered": True, "status": 204, "error": ""}),
        (418, {"delivered": False, "status": 418, "error": "HTTP_418"}),
    ],
)
async def test_a_trial_sends_a_signed_message_at_once(
    http: Http, receiver: Web, status: int, told: dict[str, Any]
) -> None:
    receiver.answer = answering(status)
    webhook = await made(http, receiver.url)

    answer = await http.post(f"webhooks/{webhook['webhook_id']}/test")

    [asked] = receiver.asked
    headers = asked.headers
    signed = f"{headers['webhook-id']}.{headers['webhook-timestamp']}.".encode() + asked.body
    digest = hmac.new(b64decode(webhook["secret"].removeprefix("whsec_")), signed, hashlib.sha256).digest()
    assert (answer.status_code, answer.json()) == (200, told)
    assert headers["webhook-signature"] == "v1," + b64encode(digest).decode()
    assert (asked.json["type"], asked.json["data"]) == ("webhook.test", {"webhook_id": webhook["webhook_id"]})


async def test_a_trial_is_not_a_way_inside(http: Http, store: Store, receiver: Web) -> None:
    """The rules may have changed since the webhook was made."""
    await add_endpoint(store, Endpoint("old", "default", "https://10.0.0.1/", 1.0))

    answer = await http.post("webhooks/old/test")

    assert answer.json() == {"delivered": False, "status": None, "error": "BLOCKED_ADDRESS"}


@pytest.mark.parametrize(
    ("method", "path"), [("delete", ""), ("get", "/deliveries"), ("post", "/test")], ids=["remove", "list", "test"]
)
@pytest.mark.parametrize("webhook", ["nope", "foreign"])
async def test_a_foreign_webhook_and_a_missing_one_look_the_same(
    http: Http, store: Store, method: str, path: str, webhook: str
) -> None:
    await add_endpoint(store, Endpoint("foreign", "other", HOOK["url"], 1.0))

    answer = await http.request(method, f"webhooks/{webhook}{path}")

    assert (answer.status_code, answer.json()["type"]) == (404, "urn:packhorse:webhook-not-found")
    assert (await list_endpoints(store, "other"))[0].ended_at is None
    assert (await http.get("webhooks")).json()["items"] == []


async def test_what_is_answered_is_what_the_openapi_file_says(http: Http, store: Store, receiver: Web) -> None:
    api = await told(http)
    webhook = await made(http, receiver.url)
    one = f"webhooks/{webhook['webhook_id']}"
    await completed(store, webhooks=(webhook["webhook_id"],))

    validator(api, "/webhooks", "post", 201).validate(webhook)
    for method, call, path in (
        ("get", "webhooks", "/webhooks"),
        ("get", f"{one}/deliveries", "/webhooks/{webhook_id}/deliveries"),
        ("post", f"{one}/test", "/webhooks/{webhook_id}/test"),
        ("delete", one, "/webhooks/{webhook_id}"),
    ):
        said = validator(api, path, method, 200)
        said.validate((await http.request(method, call)).json())
        assert not said.is_valid({})
