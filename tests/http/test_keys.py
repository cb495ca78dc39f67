"""Keys over HTTP: made once, shown once, rotated with an overlap, ended; and tokens for the person who waits."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest
from msgspec.structs import replace

from packhorse.auth import keys
from packhorse.background.webhooks import Reply
from packhorse.factory import open_store
from packhorse.store.base import Store
from packhorse.store.collections import keys as key_records
from tests.http.conftest import publish
from tests.http.keyed import asking, audited, bearer, key
from tests.http.processes import Place, served
from tests.http.unserved import Http

ADD = {"pipeline": "add", "parameters": {"a": 1}, "user_id": "ann"}


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere, keyless=False, secret_key="s" * 40)
    publish(place)
    return place


@pytest.fixture
async def http(place: Place, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Http]:
    monkeypatch.setattr(keys, "FRESH", 0.0)
    async with asking(place) as http:
        yield http


@pytest.fixture
async def admin(store: Store) -> dict[str, str]:
    return await key(store, "acme", "admin")


async def test_a_key_is_made_and_shown_once(http: Http, admin: dict[str, str]) -> None:
    made = (await http.post("keys", json={"scopes": ["read"], "name": "ci"}, headers=admin)).json()

    listed = await http.get("keys", headers=admin)

    assert (await http.get("jobs", headers=bearer(made["key"]))).status_code == 200
    assert [each["name"] for each in listed.json()["items"]] == ["ci", ""]
    assert made["key"][23:55] not in listed.text


async def test_one_key_is_shown_also_when_it_has_ended_and_never_its_secret(http: Http, admin: dict[str, str]) -> None:
    asked = {"scopes": ["read"], "name": "ci", "user_id": "ann", "expires_in": "1d"}
    made = (await http.post("keys", json=asked, headers=admin)).json()
    text = made.pop("key")

    shown = await http.get(f"keys/{made['key_id']}", headers=admin)
    ended = (await http.delete(f"keys/{made['key_id']}", headers=admin)).json()

    assert shown.json() == made
    assert text[23:55] not in shown.text
    assert (await http.get(f"keys/{made['key_id']}", headers=admin)).json() == ended
    assert (await http.get("keys/nope", headers=admin)).status_code == 404


@pytest.mark.parametrize("anywhere", ["sqlite"], indirect=True)  # whose files can be looked into
async def test_no_secret_is_in_the_store(http: Http, store: Store, admin: dict[str, str], place: Place) -> None:
    made = (await http.post("keys", json={"scopes": ["read"]}, headers=admin)).json()["key"]
    await http.get("jobs", headers=bearer(made))
    await audited(store, 2)

    held = b"".join(path.read_bytes() for path in place.folder.iterdir() if path.is_file())

    assert made[:23].encode()[3:] in held
    assert made[23:55].encode() not in held


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({}, "scopes"),
        ({"scopes": ["root"]}, "scopes"),
        ({"scopes": ["read"], "expires_in": "soon"}, "expires_in"),
        ({"scopes": ["read"], "expires_in": -1}, "expires_in"),
        ({"scopes": ["read"], "user_id": ""}, "user_id"),
        ({"scopes": ["read"], "tenant": "umbrella"}, "tenant"),
        ({"scopes": "read"}, "scopes"),
        ({"scopes": ["admin"], "user_id": "ann"}, "scopes"),
    ],
)
async def test_what_a_key_cannot_be_is_named(
    http: Http, admin: dict[str, str], body: dict[str, object], field: str
) -> None:
    answer = await http.post("keys", json=body, headers=admin)

    assert answer.status_code == 422
    assert [each["field"] for each in answer.json()["errors"]] == [field]
    assert len((await http.get("keys", headers=admin)).json()["items"]) == 1


async def test_a_rotated_key_goes_on_for_the_overlap(http: Http, admin: dict[str, str]) -> None:
    old = (await http.post("keys", json={"scopes": ["read"], "user_id": "ann"}, headers=admin)).json()

    new = (await http.post(f"keys/{old['key_id']}/rotate", json={"overlap": "1h"}, headers=admin)).json()

    assert [new[name] for name in ("scopes", "user_id")] == [["read"], "ann"]
    for each in (old, new):
        assert (await http.get("jobs", headers=bearer(each["key"]))).status_code == 200
    [kept] = [
        each for each in (await http.get("keys", headers=admin)).json()["items"] if each["key_id"] == old["key_id"]
    ]
    assert kept["ends_at"] is not None


async def test_a_key_rotated_without_overlap_has_ended(http: Http, admin: dict[str, str]) -> None:
    old = (await http.post("keys", json={"scopes": ["read"]}, headers=admin)).json()

    await http.post(f"keys/{old['key_id']}/rotate", headers=admin)

    assert (await http.get("jobs", headers=bearer(old["key"]))).status_code == 401
    assert (await http.post(f"keys/{old['key_id']}/rotate", headers=admin)).status_code == 404


async def test_a_revoked_key_stays_revoked(http: Http, admin: dict[str, str]) -> None:
    made = (await http.post("keys", json={"scopes": ["read"]}, headers=admin)).json()

    first = await http.delete(f"keys/{made['key_id']}", headers=admin)
    second = await http.delete(f"keys/{made['key_id']}", headers=admin)

    assert first.json()["ends_at"] == second.json()["ends_at"]
    assert (await http.get("jobs", headers=bearer(made["key"]))).status_code == 401


async def test_every_action_on_a_key_is_written_down_once(http: Http, store: Store, admin: dict[str, str]) -> None:
    made = (await http.post("keys", json={"scopes": ["read"]}, headers=admin)).json()
    new = (await http.post(f"keys/{made['key_id']}/rotate", headers=admin)).json()
    await http.delete(f"keys/{new['key_id']}", headers=admin)

    told = [entry for entry in await audited(store, 4, "acme") if entry.event != "key.accepted"]

    assert [(entry.event, entry.details["key_id"]) for entry in told] == [
        ("key.created", made["key_id"]),
        ("key.rotated", new["key_id"]),
        ("key.revoked", new["key_id"]),
    ]
    assert {entry.actor for entry in told} == {admin["Authorization"].split("ph_")[1][:20]}


async def test_what_is_changed_besides_is_written_down_once(http: Http, store: Store, admin: dict[str, str]) -> None:
    webhook = (await http.post("webhooks", json={"url": "https://example.com/x"}, headers=admin)).json()["webhook_id"]
    await http.delete(f"webhooks/{webhook}", headers=admin)
    operator = await key(store, "default", "operate")
    await http.post("queues/default/pause", json={"reason": "lunch"}, headers=operator)
    for _ in range(2):
        await http.post("queues/default/resume", headers=operator)
    job_id = (await http.post("jobs", json=ADD, headers=admin)).json()["job_id"]
    await http.post(f"jobs/{job_id}/cancel", headers=admin)
    await http.delete(f"jobs/{job_id}", headers=admin)

    told = [entry.event for entry in await audited(store, 6, "acme") if entry.event != "key.accepted"]
    shared = [entry.event for entry in await audited(store, 3, "default") if entry.event != "key.accepted"]

    assert told == ["webhook.added", "webhook.removed", "job.submitted", "job.cancelled", "job.deleted"]
    assert shared == ["queue.paused", "queue.resumed"]


async def test_what_is_done_with_jobs_and_webhooks_is_written_down(
    http: Http, store: Store, admin: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.http.routes.webhooks.webhooks.post", answered)
    webhook = (await http.post("webhooks", json={"url": "https://example.com/x"}, headers=admin)).json()["webhook_id"]
    await http.post(f"webhooks/{webhook}/test", headers=admin)
    first, *_ = [(await http.post("jobs", json=ADD, headers=admin)).json()["job_id"] for _ in range(3)]
    await http.post(f"jobs/{first}/cancel", headers=admin)
    await http.post(f"jobs/{first}/retry", headers=admin)
    token = (await http.post(f"jobs/{first}/tokens", headers=admin)).json()
    await http.post(f"jobs/{first}/cancel", headers=bearer(token["key"]))

    told = [entry for entry in await audited(store, 9, "acme") if entry.event != "key.accepted"]

    assert [(entry.event, entry.job_id) for entry in told] == [
        ("webhook.added", ""),
        ("webhook.tested", ""),
        ("job.submitted", first),  # two more are counted until the minute is over
        ("job.cancelled", first),
        ("job.retried", first),
        ("token.created", first),
        ("job.cancelled", first),
    ]
    assert told[1].details == {"webhook_id": webhook, "status": 204}
    assert told[-1].actor == token["key_id"]


async def answered(*_: object, **__: object) -> Reply:
    return Reply(204)


async def test_what_a_key_may_not_do_is_written_down_and_counted(http: Http, store: Store) -> None:
    reader = await key(store, "acme", "read")
    for _ in range(5):
        assert (await http.get("keys", headers=reader)).status_code == 403
    assert (await http.post("jobs", json=ADD, headers=reader)).status_code == 403

    told = [entry for entry in await audited(store, 3, "acme") if entry.event == "api.forbidden"]

    assert [(entry.details, entry.count) for entry in told] == [
        ({"route": "/api/v1/keys", "scope": "admin"}, 1),
        ({"route": "/api/v1/jobs", "scope": "submit"}, 1),
    ]
    assert {entry.actor for entry in told} == {reader["Authorization"].removeprefix("Bearer ph_")[:20]}


async def test_no_tenant_pushes_out_what_another_has_done(place: Place, store: Store) -> None:
    async with asking(place.but(audit_keep=10)) as http:
        await http.get("jobs", headers=await key(store, "quiet"))
        busy = await key(store, "busy", "read")
        for _ in range(40):
            assert (await http.post("sessions", headers=busy)).status_code == 201
        mine = (await http.get("audit", headers=await key(store, "quiet", "admin"))).json()["items"]
        theirs = (await http.get("audit", headers=await key(store, "busy", "admin"))).json()["items"]

    assert "key.accepted" in [each["event"] for each in mine]
    assert 10 <= len(theirs) <= 12


async def test_operators_see_what_callers_without_a_key_tried_and_no_tenant_does(http: Http, store: Store) -> None:
    assert (await http.get("jobs", headers=bearer("nonsense"))).status_code == 401

    seen = (await http.get("audit", headers=await key(store, "default", "admin"))).json()["items"]
    unseen = (await http.get("audit", headers=await key(store, "acme", "admin"))).json()["items"]

    assert [each["tenant_id"] for each in seen if each["event"] == "key.malformed"] == [""]
    assert "key.malformed" not in [each["event"] for each in unseen]


async def test_the_audit_comes_in_pages(http: Http, admin: dict[str, str]) -> None:
    for _ in range(5):
        await http.post("keys", json={"scopes": ["read"]}, headers=admin)

    first = (await http.get("audit?limit=4", headers=admin)).json()
    second = (await http.get(f"audit?limit=4&before={first['next']}", headers=admin)).json()

    numbers = [each["n"] for each in first["items"] + second["items"]]
    assert numbers == sorted(numbers, reverse=True)
    assert len(numbers) == len(set(numbers)) == 6
    assert second["next"] is None


async def test_a_token_reads_and_cancels_its_job_and_nothing_else(http: Http, store: Store) -> None:
    service = await key(store)
    own, other = [(await http.post("jobs", json=ADD, headers=service)).json()["job_id"] for _ in range(2)]

    made = (await http.post(f"jobs/{own}/tokens", json={"expires_in": "1h"}, headers=service)).json()
    token = bearer(made["key"])

    assert (await http.get(f"jobs/{own}", headers=token)).status_code == 200
    assert (await http.get(f"jobs/{other}", headers=token)).status_code == 404
    assert (await http.get("jobs", headers=token)).status_code == 403
    assert (await http.get("pipelines", headers=token)).status_code == 403
    assert (await http.post("jobs", json=ADD, headers=token)).status_code == 403
    assert (await http.post(f"jobs/{own}/retry", headers=token)).status_code == 403
    assert (await http.post(f"jobs/{own}/tokens", headers=token)).status_code == 403
    assert (await http.post(f"jobs/{other}/cancel", headers=token)).status_code == 404
    assert (await http.post(f"jobs/{own}/cancel", headers=token)).status_code == 202


async def test_whoever_has_a_key_or_a_token_can_ask_what_it_is_good_for(http: Http, store: Store) -> None:
    service = await key(store, "acme", "submit", "read", user="ann")
    job_id = (await http.post("jobs", json=ADD, headers=service)).json()["job_id"]
    token = (await http.post(f"jobs/{job_id}/tokens", headers=service)).json()

    mine = (await http.get("me", headers=service)).json()
    theirs = (await http.get("me", headers=bearer(token["key"]))).json()

    assert (mine["tenant_id"], mine["user_id"], mine["job_id"]) == ("acme", "ann", None)
    assert mine["allowed"] == ["cancel", "read", "submit"]
    assert (theirs["key_id"], theirs["job_id"], theirs["allowed"]) == (token["key_id"], job_id, ["cancel", "read"])
    assert (await http.get("me")).status_code == 401


async def test_a_token_is_listed_with_its_job_and_can_be_revoked(
    http: Http, store: Store, admin: dict[str, str]
) -> None:
    service = await key(store)
    job_id = (await http.post("jobs", json=ADD, headers=service)).json()["job_id"]
    made = (await http.post(f"jobs/{job_id}/tokens", headers=service)).json()

    listed = (await http.get(f"jobs/{job_id}/tokens", headers=service)).json()["items"]
    await http.delete(f"jobs/{job_id}/tokens/{made['key_id']}", headers=service)

    assert [each["key_id"] for each in listed] == [made["key_id"]]
    assert made["key_id"] not in (await http.get("keys", headers=admin)).text
    assert (await http.delete(f"keys/{made['key_id']}", headers=admin)).status_code == 404
    assert (await http.get(f"jobs/{job_id}", headers=bearer(made["key"]))).status_code == 401


async def test_a_token_can_be_revoked_behind_a_thousand_newer_ones_and_only_with_its_job(
    http: Http, store: Store
) -> None:
    service = await key(store)
    job_id, other = [(await http.post("jobs", json=ADD, headers=service)).json()["job_id"] for _ in range(2)]
    made = (await http.post(f"jobs/{job_id}/tokens", headers=service)).json()
    [token] = await key_records.get(store, [made["key_id"]])
    assert token is not None
    await asyncio.gather(*(key_records.add(store, replace(token, id=f"f{n:019x}")) for n in range(1000)))

    assert (await http.delete(f"jobs/{other}/tokens/{token.id}", headers=service)).status_code == 404
    assert (await http.get(f"jobs/{job_id}", headers=bearer(made["key"]))).status_code == 200
    assert (await http.delete(f"jobs/{job_id}/tokens/{token.id}", headers=service)).status_code == 200
    assert (await http.get(f"jobs/{job_id}", headers=bearer(made["key"]))).status_code == 401


async def test_who_may_not_read_makes_no_token_that_may(http: Http, store: Store) -> None:
    service = await key(store, "acme", "submit")
    job_id = (await http.post("jobs", json=ADD, headers=service)).json()["job_id"]

    assert (await http.post(f"jobs/{job_id}/tokens", headers=service)).status_code == 403


async def test_a_rotated_key_is_the_same_client(http: Http, admin: dict[str, str]) -> None:
    old = (await http.post("keys", json={"scopes": ["submit", "read"]}, headers=admin)).json()
    once = {"Idempotency-Key": "once"}
    first = await http.post("jobs", json=ADD, headers=bearer(old["key"]) | once)

    new = (await http.post(f"keys/{old['key_id']}/rotate", json={"overlap": "1h"}, headers=admin)).json()
    again = await http.post("jobs", json=ADD, headers=bearer(new["key"]) | once)

    assert again.json()["job_id"] == first.json()["job_id"]


async def test_a_key_for_one_user_that_was_made_admin_all_the_same_is_none(http: Http, store: Store) -> None:
    made, text = keys.mint("acme", ["admin"], now=store.now(), by="cli", user="mallory")
    await key_records.add(store, made)

    answers = [
        await http.post("keys", json={"scopes": ["admin"]}, headers=bearer(text)),
        await http.get("audit", headers=bearer(text)),
        await http.get("webhooks", headers=bearer(text)),
    ]

    assert [answer.status_code for answer in answers] == [403] * 3


@pytest.mark.parametrize("asked", ["31d", 0, "x"])
async def test_a_token_lasts_no_longer_than_anybody_waits(http: Http, store: Store, asked: object) -> None:
    service = await key(store)
    job_id = (await http.post("jobs", json=ADD, headers=service)).json()["job_id"]

    answer = await http.post(f"jobs/{job_id}/tokens", json={"expires_in": asked}, headers=service)

    assert answer.status_code == 422


def test_what_is_streamed_with_a_key_is_cut_when_it_ends(place: Place) -> None:
    """A real server: events and a download that would both go on for long."""

    async def made() -> list[str]:
        store = await open_store(place.settings.store)
        texts = [(await keys.create(store, "acme", ["submit", "read"], by="cli"))[1] for _ in range(2)]
        await store.close()
        return texts

    async def revoke(text: str) -> None:
        store = await open_store(place.settings.store)
        await keys.revoke(store, text[3:23], by="cli")
        await store.close()

    mine, other = asyncio.run(made())
    with served(place) as server, httpx2.Client(base_url=server.api, timeout=60) as http:
        job_id = http.post("/jobs", json=ADD, headers=bearer(mine)).json()["job_id"]
        with (
            http.stream("GET", f"/jobs/{job_id}/events", headers=bearer(mine)) as cut,
            http.stream("GET", f"/jobs/{job_id}/events", headers=bearer(other)) as kept,
        ):
            lines, others = cut.iter_lines(), kept.iter_lines()
            assert next(lines) == next(others) == "retry: 1000"

            asyncio.run(revoke(mine))
            with pytest.raises(httpx2.TransportError):
                list(lines)

            http.post(f"/jobs/{job_id}/cancel", headers=bearer(other))
            assert "event: cancelled" in list(others)
        assert http.get("/jobs", headers=bearer(mine)).status_code == 401


@pytest.mark.parametrize("user", ["ann\nINFO forged", "ann\x1b[2J", "\x9b", "a\u2028b"])
async def test_no_job_or_schedule_is_for_a_user_that_a_terminal_would_obey(http: Http, store: Store, user: str) -> None:
    operator = await key(store, "acme", "operate")

    job = await http.post("jobs", json={**ADD, "user_id": user}, headers=operator)
    schedule = await http.put("schedules/x", json={**ADD, "user_id": user, "cron": "0 3 * * *"}, headers=operator)

    for answer in (job, schedule):
        assert answer.status_code == 422
        assert "control character" in answer.json()["detail"]
    assert (await http.get("jobs", headers=operator)).json()["items"] == []


async def test_a_key_for_one_user_touches_nothing_that_all_tenants_share(http: Http, store: Store) -> None:
    bound, free = await key(store, "default", "operate", user="ann"), await key(store, "default", "operate")

    for method, path in (("POST", "queues/default/pause"), ("GET", "queues"), ("GET", "workers"), ("GET", "stats")):
        answer = await http.request(method, path, headers=bound)
        assert answer.status_code == 403
        assert "not bound to a user" in answer.json()["detail"]
    assert (await http.get("http://packhorse.example/queues", headers=bound)).status_code == 403

    queues = (await http.get("queues", headers=free)).json()["items"]
    assert [each["name"] for each in queues if each["paused"]] == []
