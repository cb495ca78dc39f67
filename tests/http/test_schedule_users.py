"""A key of one user, and a schedule that was for another one before: what was theirs is neither shown nor done."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from litestar.testing import AsyncTestClient
from msgspec.structs import replace

from packhorse.core.schedules import Move
from packhorse.factory import open_store
from packhorse.store.base import Store
from packhorse.store.collections import schedules as schedule_records
from tests.http.conftest import publish
from tests.http.keyed import asking, key
from tests.http.processes import Place
from tests.http.test_tenants import SCHEDULE

Headers = dict[str, str]


class Site(NamedTuple):
    http: AsyncTestClient[Any]
    store: Store
    boss: Headers
    bob: Headers

    async def put(self, user: str, version: int) -> None:
        match = {"If-Match": f'"{version - 1}"'} if version > 1 else {}
        body = {**SCHEDULE, "user_id": user, "parameters": {"a": version}}
        answer = await self.http.put("schedules/x", json=body, headers={**self.boss, **match})
        assert answer.json()["version"] == version, answer.text

    async def run(self) -> None:
        assert (await self.http.post("schedules/x/run", headers=self.boss)).status_code == 202


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere, keyless=False)
    publish(place)
    return place


@pytest.fixture
async def site(place: Place) -> AsyncIterator[Site]:
    """A schedule whose first version, with a run, was for ann; the second and third are for bob."""
    store = await open_store(place.settings.store)
    boss, bob = await key(store, "acme", "operate"), await key(store, "acme", "operate", user="bob")
    async with asking(place) as http:
        made = Site(http, store, boss, bob)
        for version, user in enumerate(("ann", "bob", "bob"), 1):
            await made.put(user, version)
            await made.run()
        yield made
    await store.close()


@pytest.fixture
def bob(site: Site) -> Headers:
    return site.bob


async def test_only_versions_for_the_user_are_shown(site: Site, bob: Headers) -> None:
    page = (await site.http.get("schedules/x/versions", headers=bob)).json()
    all = (await site.http.get("schedules/x/versions", headers=site.boss)).json()
    second = (await site.http.get("schedules/x/versions/2", headers=bob)).json()

    assert [each["version"] for each in all["items"]] == [3, 2, 1]
    assert [each["version"] for each in page["items"]] == [3, 2]
    assert [bool(each["changes"]) for each in page["items"]] == [True, False]
    assert second["changes"] == []


@pytest.mark.parametrize("path", ["versions/1", "diff?old=1&new=2", "diff?old=2&new=1"])
async def test_a_version_for_another_user_looks_like_none(site: Site, bob: Headers, path: str) -> None:
    assert (await site.http.get(f"schedules/x/{path}", headers=bob)).status_code == 404
    assert (await site.http.get(f"schedules/x/{path}", headers=site.boss)).status_code == 200


async def test_only_runs_of_versions_for_the_user_are_shown(site: Site, bob: Headers) -> None:
    mine = (await site.http.get("schedules/x/runs", headers=bob)).json()["items"]
    all = (await site.http.get("schedules/x/runs", headers=site.boss)).json()["items"]

    assert [each["version"] for each in all] == [3, 2, 1]
    assert [each["version"] for each in mine] == [3, 2]


async def test_nobody_goes_back_to_a_version_for_another_user(site: Site, bob: Headers) -> None:
    theirs = await site.http.post("schedules/x/rollback", json={"version": 1}, headers=bob)
    own = await site.http.post("schedules/x/rollback", json={"version": 2}, headers=bob)

    assert theirs.status_code == 404
    assert (own.status_code, own.json()["user_id"], own.json()["version"]) == (200, "bob", 4)


async def test_nobody_goes_back_to_what_the_code_declares_for_another_user(site: Site, bob: Headers) -> None:
    kept = await schedule_records.get(site.store, "acme", "x")
    assert kept is not None
    declared = replace(kept, declared=replace(kept.terms, user="ann"), stamp=kept.stamp + 1)
    await schedule_records.move(site.store, Move(kept, declared))

    refused = await site.http.post("schedules/x/reset", headers=bob)

    assert (refused.status_code, refused.json()["errors"][0]["field"]) == (422, "user_id")
    assert (await site.http.post("schedules/x/reset", headers=site.boss)).json()["user_id"] == "ann"
