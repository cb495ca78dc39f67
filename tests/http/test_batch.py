"""Many jobs in one request: each accepted or rejected by itself, in order, as a submit of it alone would be."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from packhorse.errors import StoreUnavailable, UnknownOutcome
from packhorse.factory import open_store
from packhorse.store.base import Filter, Store
from packhorse.store.sqlite import SqliteStore
from tests.contract.stores import SORTS, lent
from tests.http.conftest import publish
from tests.http.keyed import asking, audited, key
from tests.http.processes import Place
from tests.http.unserved import Http

Json = dict[str, Any]

EVERYWHERE = pytest.mark.parametrize("anywhere", SORTS, indirect=True)
"""For what the store decides about."""


@pytest.fixture
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with lent(getattr(request, "param", "sqlite"), tmp_path) as address:
        yield address


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    (tmp_path / "inbox").mkdir()
    (tmp_path / "inbox" / "m.onnx").write_bytes(b"weights")
    inbox = str(tmp_path / "inbox")
    place = Place(tmp_path, store=anywhere, parameters_limit=20_000, tenant_jobs=50, input_folders=inbox)
    publish(place)
    return place


@pytest.fixture
def keyed(tmp_path: Path) -> Place:
    place = Place(tmp_path, keyless=False, api_limit=5)
    publish(place)
    return place


@pytest.fixture
async def guarded(keyed: Place) -> AsyncIterator[Http]:
    async with asking(keyed) as http:
        yield http


@asynccontextmanager
async def opened(place: Place) -> AsyncIterator[Store]:
    store = await open_store(place.settings.store)
    yield store
    await store.close()


def add(a: object = 1, **more: Any) -> Json:
    return {"pipeline": "add", "user_id": "ann", "parameters": {"a": a}, **more}


async def post(http: Http, *items: object, query: str = "") -> Json:
    answer = await http.post(f"jobs/batch{query}", json={"items": items})
    assert answer.status_code == 202, answer.text
    found: Json = answer.json()
    return found


def types(found: Json) -> list[str | None]:
    return [each["problem"] and each["problem"]["type"].removeprefix("urn:packhorse:") for each in found["items"]]


def job_ids(found: Json) -> list[str]:
    return [each["job"]["job_id"] for each in found["items"]]


def fields(found: Json, n: int) -> list[str]:
    return [each["field"] for each in found["items"][n]["problem"]["errors"]]


async def stored(store: Store) -> set[str]:
    return {job.id for job in await store.find(Filter())}


@EVERYWHERE
async def test_each_item_is_a_job_as_a_submit_alone_would_be(http: Http, store: Store) -> None:
    items = [add(1, priority=5), add(2, user_id="ben", metadata={"k": [1]}), add(3, delay="10m")]

    found = await post(http, *items)

    alone = [(await http.get(f"jobs/{job_id}")).json() for job_id in job_ids(found)]
    assert (found["accepted"], found["rejected"]) == (3, 0)
    assert [each["job"] for each in found["items"]] == alone
    assert [(job["parameters"]["a"], job["user_id"], job["priority"]) for job in alone] == [
        (1, "ann", 5), (2, "ben", 0), (3, "ann", 0),
    ]  # fmt: skip
    assert await stored(store) == set(job_ids(found))
    assert {job["trace_id"] for job in alone} == {alone[0]["trace_id"]}


@EVERYWHERE
async def test_a_rejected_item_leaves_its_neighbours(http: Http, store: Store) -> None:
    items = [add(1), add("no number"), {"pipeline": "none", "user_id": "ann"}, add(2, prioritee=1), 7, add(3)]

    found = await post(http, *items)

    assert types(found) == [None, "invalid-input", "unknown-pipeline", "invalid-input", "invalid-input", None]
    assert [fields(found, n) for n in (1, 2, 3, 4)] == [
        ["items[1].a"], ["items[2].pipeline"], ["items[3].prioritee"], ["items[4]"],
    ]  # fmt: skip
    assert [found["items"][n]["problem"]["status"] for n in (1, 2, 3, 4)] == [422] * 4
    assert (found["accepted"], found["rejected"], len(await stored(store))) == (2, 4, 2)


@pytest.mark.every_store
@EVERYWHERE
async def test_items_with_one_key_are_one_job(http: Http, store: Store) -> None:
    items = [add(1, idempotency_key="a"), add(2), add(1, idempotency_key="a"), add(9, idempotency_key="a")]

    found = await post(http, *items)
    again = await post(http, *items)

    first, second, repeated = (each["job"]["job_id"] for each in found["items"][:3])
    assert (first == repeated, second == first) == (True, False)
    assert types(found) == types(again) == [None, None, None, "key-reused"]
    assert fields(found, 3) == ["items[3].idempotency_key"]
    assert [again["items"][n]["job"]["job_id"] for n in (0, 2)] == [first, first]
    assert len(await stored(store)) == 3  # the item without a key is a job each time


@pytest.mark.every_store
@EVERYWHERE
async def test_a_slot_goes_to_the_first_item_of_its_user_and_files_of_the_other_are_removed(
    http: Http, place: Place, tmp_path: Path
) -> None:
    def convert(user: str) -> Json:
        return {"pipeline": "convert", "user_id": user, "parameters": {"model": str(tmp_path / "inbox" / "m.onnx")}}

    found = await post(http, convert("ann"), convert("ben"), convert("ann"))

    assert types(found) == [None, None, "slot-taken"]
    assert found["items"][2]["problem"]["active_job_id"] == found["items"][0]["job"]["job_id"]
    inputs = [each["job"]["input"] for each in found["items"][:2]]
    assert [each["size_bytes"] for each in inputs] == [7, 7]
    assert set(place.objects()) == {each["object_key"] for each in inputs}


@pytest.mark.every_store
@EVERYWHERE
async def test_a_quota_counts_jobs(http: Http, store: Store) -> None:
    found = await post(http, *(add(n) for n in range(52)))

    assert types(found) == [None] * 50 + ["too-many-jobs"] * 2
    assert len(await store.find(Filter(), limit=100)) == 50


async def test_pipeline_and_user_may_be_in_the_query(http: Http) -> None:
    found = await post(http, {"parameters": {"a": 1}}, add(2), query="?pipeline=add&user_id=bob")

    assert (found["items"][0]["job"]["pipeline"], found["items"][0]["job"]["user_id"]) == ("add", "bob")
    assert fields(found, 1) == ["items[1].pipeline", "items[1].user_id"]


async def test_an_app_of_its_own_has_batches(http: Http) -> None:
    inside, outside = [
        (await http.post(f"http://127.0.0.1/apps/{app}/api/v1/jobs/batch", json={"items": [add()]}))
        for app in ("sample", "other")
    ]

    assert (inside.status_code, types(inside.json()), outside.status_code) == (202, [None], 404)


async def test_no_item_is_no_mistake(http: Http) -> None:
    assert await post(http) == {"items": [], "accepted": 0, "rejected": 0}


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"items": [add()] * 1001}, 422, "items"),
        ({"items": {}}, 422, "items"),
        ({}, 422, "items"),
        ({"items": [add()], "more": 1}, 422, "more"),
        ([add()], 422, ""),
        ({"items": [add("x" * 2_000_000)]}, 413, "body"),
    ],
)
async def test_a_batch_that_is_none_is_refused_as_a_whole(
    http: Http, store: Store, body: Any, status: int, field: str
) -> None:
    answer = await http.post("jobs/batch", json=body)

    assert (answer.status_code, [each["field"] for each in answer.json()["errors"]]) == (status, [field])
    assert not await stored(store)


async def test_a_key_for_all_is_refused(http: Http, store: Store) -> None:
    answer = await http.post("jobs/batch", json={"items": [add()]}, headers={"Idempotency-Key": "k"})

    assert (answer.status_code, answer.json()["errors"][0]["field"]) == (422, "Idempotency-Key")
    assert not await stored(store)


async def test_parameters_that_are_too_large_are_of_their_item(http: Http) -> None:
    found = await post(http, add(1), {"pipeline": "fail", "user_id": "ann", "parameters": {"message": "x" * 30_000}})

    assert types(found) == [None, "too-large"]
    assert found["items"][1]["problem"]["field"] == "items[1].parameters"


@pytest.mark.parametrize("lost", [StoreUnavailable, UnknownOutcome])
async def test_a_store_that_does_not_answer_is_the_problem_of_all(
    http: Http, monkeypatch: pytest.MonkeyPatch, lost: type[Exception]
) -> None:
    async def commit(self: Any, changes: Any) -> Any:
        raise lost

    monkeypatch.setattr(SqliteStore, "commit", commit)

    answer = await http.post("jobs/batch", json={"items": [add(1), add(2)]})

    assert (answer.status_code, answer.headers["retry-after"]) == (503, "2")


async def test_an_unknown_outcome_is_told_of_the_items_it_is_about(
    http: Http, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = SqliteStore.commit

    async def commit(self: Any, changes: Any) -> Any:
        return [*await real(self, changes[:1]), UnknownOutcome(), StoreUnavailable("gone")]

    monkeypatch.setattr(SqliteStore, "commit", commit)

    found = await post(http, add(1), add(2), add(3))

    assert types(found) == [None, "unknown-outcome", "store-unavailable"]
    assert [each["problem"]["retry_after"] for each in found["items"][1:]] == [2, 2]
    assert "gone" not in str(found)
    assert await stored(store) == {found["items"][0]["job"]["job_id"]}


async def test_a_rate_limit_and_the_audit_log_count_jobs(guarded: Http, keyed: Place) -> None:
    async with opened(keyed) as store:
        headers = await key(store, "acme", "submit", "read")

        found = (await guarded.post("jobs/batch", json={"items": [add(n) for n in range(7)]}, headers=headers)).json()
        after = await guarded.post("jobs", json=add(), headers=headers)

        assert types(found) == [None] * 5 + ["rate-exceeded"] * 2
        assert found["items"][6]["problem"]["retry_after"] > 0
        assert after.status_code == 429
        [told] = [each for each in await audited(store, 3, "acme") if each.event == "job.submitted"]
        assert (told.count, told.job_id) == (5, found["items"][0]["job"]["job_id"])


async def test_a_batch_needs_the_scope_of_a_submit(guarded: Http, keyed: Place) -> None:
    async with opened(keyed) as store:
        headers = await key(store, "acme", "read")

        answer = await guarded.post("jobs/batch", json={"items": [add()]}, headers=headers)

        assert (answer.status_code, await store.find(Filter())) == (403, [])
