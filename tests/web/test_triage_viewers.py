"""Who sees what of schedules and failures: nothing is offered that the viewer may not do, and none of it is done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from packhorse.factory import open_store
from packhorse.store.base import Store
from packhorse.store.collections import schedules as schedule_records
from packhorse.store.collections.failures import get_group, list_orders
from packhorse.web.app import build
from tests.contract.failures import failing, only_group, wrong
from tests.http.conftest import publish
from tests.http.keyed import key
from tests.http.processes import Place

Http = AsyncTestClient[Any]
NIGHTLY = {"cron": "30 2 * * *", "pipeline": "add", "user_id": "ann", "parameters": {"a": 1}}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path, keyless=False)
    publish(place)
    return place


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    store = await open_store(place.settings.store)
    yield store
    await store.close()


@pytest.fixture
async def http(place: Place) -> AsyncIterator[Http]:
    async with AsyncTestClient(build(place.settings), base_url="http://packhorse.example/") as http:
        yield http


async def arranged(http: Http, store: Store) -> str:
    """A schedule for ann and one for bob, and a failure of each; the fingerprint of their group."""
    operator = await key(store, "acme", "read", "operate")
    for user in ("ann", "bob"):
        made = await http.put(f"/api/v1/schedules/of-{user}", json={**NIGHTLY, "user_id": user}, headers=operator)
        assert made.status_code == 201
        await failing(store, wrong(), tenant="acme", user=user)
    return (await only_group(store, "acme")).fingerprint


PAGES = (
    "/schedules",
    "/schedules/of-ann",
    "/schedules/of-ann/history",
    "/failures",
    "/failures?view=single",
    "/failures/groups/{group}",
)
DOING = ("Run now", "Pause", "Edit", "Roll back", "New schedule", "Delete", "Retry", "Dismiss…")


async def test_who_may_only_read_is_offered_nothing_else(http: Http, store: Store) -> None:
    group = await arranged(http, store)
    reader, operator = await key(store, "acme", "read"), await key(store, "acme", "read", "operate")
    paths = [path.format(group=group) for path in PAGES]

    read = [await http.get(path, headers=reader) for path in paths]
    operated = [(await http.get(path, headers=operator)).text for path in paths]

    assert [answer.status_code for answer in read] == [200] * len(paths)
    assert [word for word in DOING if any(word in answer.text for answer in read)] == []
    assert [word for word in DOING if not any(word in text for text in operated)] == ["Roll back"]


@pytest.mark.parametrize(
    "path",
    [
        "/schedules/new",
        "/schedules/of-ann/edit",
        "/schedules/of-ann/pause",
        "/schedules/of-ann/resume",
        "/schedules/of-ann/run",
        "/schedules/of-ann/rollback",
        "/schedules/of-ann/reset",
        "/schedules/of-ann/delete",
        "/failures/retry",
        "/failures/dismiss",
        "/failures/groups/{group}/first",
    ],
)
async def test_who_may_only_read_can_do_nothing_else(http: Http, store: Store, path: str) -> None:
    group = await arranged(http, store)
    form = {"version": "1", "fingerprint": group, "reason": "why not", "to": "1", "step": "save"}

    answer = await http.post(path.format(group=group), data=form, headers=await key(store, "acme", "read"))

    assert answer.status_code == 403
    found = await schedule_records.get(store, "acme", "of-ann")
    assert found is not None
    assert (found.version, found.ended_at) == (1, None)
    assert await list_orders(store, "acme") == []


async def test_what_is_anothers_is_not_there(http: Http, store: Store) -> None:
    group = await arranged(http, store)
    stranger = await key(store, "umbrella", "read", "operate")

    for path in PAGES[1:3] + PAGES[5:]:
        answer = await http.get(path.format(group=group), headers=stranger)
        assert answer.status_code == 404, path
        assert "It broke." not in answer.text
    assert "of-ann" not in (await http.get("/schedules", headers=stranger)).text
    assert "It broke." not in (await http.get("/failures", headers=stranger)).text


async def test_a_key_of_one_user_sees_only_that_users_and_no_groups(http: Http, store: Store) -> None:
    group = await arranged(http, store)
    ann = await key(store, "acme", "read", "operate", user="ann")

    schedules = (await http.get("/schedules", headers=ann)).text
    failures = (await http.get("/failures", headers=ann)).text.partition("<main")[2]
    of_group = await http.get(f"/failures/groups/{group}", headers=ann)

    assert ("of-ann" in schedules, "of-bob" in schedules) == (True, False)
    assert (">ann<" in failures, ">bob<" in failures, "Retry" in failures) == (True, False, False)
    assert of_group.status_code == 403


async def test_a_form_that_is_sent_torn_is_refused_as_a_page(http: Http, store: Store) -> None:
    group = await arranged(http, store)
    operator = await key(store, "acme", "read", "operate")
    odd = {"version": "٣", "to": "x", "step": "save", "parameters": "[" * 5000, "ids": "\0", "reason": "x" * 501}

    answers = {
        path: (await http.post(path, data=odd, headers=operator)).status_code
        for path in (
            "/schedules/new",
            "/schedules/of-ann/edit",
            "/schedules/of-ann/rollback",
            "/schedules/of-ann/delete",
            "/schedules/of-ann/pause",
            "/schedules/%00/edit",
            "/failures/retry",
            "/failures/dismiss",
        )
    }

    whole = {**odd, "parameters": '{"a": 1}', "cron": "0 3 * * *", "zone": "UTC", "window": "1h", "pipeline": "add"}
    edited = {**whole, "user_id": "ann", "overlap": "skip", "misfire": "skip", "reason": ""}
    answers["torn version"] = (await http.post("/schedules/of-ann/edit", data=edited, headers=operator)).status_code

    assert {path: status for path, status in answers.items() if not 400 <= status < 500} == {}
    found = await schedule_records.get(store, "acme", "of-ann")
    assert found is not None
    assert found.version == 1
    assert (await get_group(store, "acme", group)).open == 2  # type: ignore[union-attr]
