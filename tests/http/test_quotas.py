"""Quotas of a tenant over HTTP: what a refusal says, what it leaves, and where the numbers are shown."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from packhorse.factory import open_store
from tests.http.conftest import publish
from tests.http.keyed import asking, key
from tests.http.processes import Place
from tests.http.unserved import unserved

Http = AsyncTestClient[Any]
DAILY = {"cron": "0 2 * * *", "zone": "UTC", "pipeline": "add", "user_id": "ann", "parameters": {"a": 1}}


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path, tenant_jobs=2, tenant_bytes=100, tenant_schedules=2, schedule_interval=60)
    publish(place)
    return place


@pytest.fixture
async def http(place: Place) -> AsyncIterator[Http]:
    async with unserved(place.settings) as http:
        yield http


async def submit(http: Http, user: str, size: int = 7) -> Any:
    return await http.post(f"jobs?pipeline=convert&user_id={user}", files={"model": ("m.onnx", b"x" * size)})


async def test_a_submit_beyond_the_limit_is_429_and_leaves_no_file(http: Http, place: Place) -> None:
    first = await submit(http, "ann")
    await submit(http, "ben")
    kept = place.objects()

    refused = await submit(http, "eve")
    await http.post(f"jobs/{first.json()['job_id']}/cancel")
    admitted = await submit(http, "eve")

    assert (refused.status_code, refused.json()["type"]) == (429, "urn:packhorse:too-many-jobs")
    assert "unfinished jobs (2 of 2)" in refused.json()["detail"]
    assert (admitted.status_code, len(kept), len(place.objects())) == (202, 2, 3)


async def test_files_beyond_the_limit_are_429_and_room_comes_back_with_a_delete(http: Http, place: Place) -> None:
    first = (await submit(http, "ann", 60)).json()["job_id"]

    refused = await submit(http, "ben", 41)
    await http.post(f"jobs/{first}/cancel")
    await http.delete(f"jobs/{first}")
    admitted = await submit(http, "ben", 41)

    assert (refused.status_code, refused.json()["type"]) == (429, "urn:packhorse:storage-full")
    assert admitted.status_code == 202


async def test_of_schedules_made_at_once_the_limit_is_kept_exactly(http: Http) -> None:
    answers = await asyncio.gather(*(http.put(f"schedules/s{n}", json=DAILY) for n in range(6)))

    codes = sorted(each.status_code for each in answers)
    refused = next(each for each in answers if each.status_code == 429)
    assert codes == [201, 201, 429, 429, 429, 429]
    assert refused.json()["type"] == "urn:packhorse:too-many-schedules"
    assert len((await http.get("schedules")).json()["items"]) == 2


async def test_an_edit_needs_no_room_and_a_deleted_schedule_makes_some(http: Http) -> None:
    for name in ("a", "b"):
        await http.put(f"schedules/{name}", json=DAILY)
    edited = await http.put("schedules/a", json={**DAILY, "cron": "0 3 * * *"}, headers={"If-Match": "*"})
    full = await http.put("schedules/c", json=DAILY)
    await http.delete("schedules/b", headers={"If-Match": "*"})

    made, back = await http.put("schedules/c", json=DAILY), await http.put("schedules/b", json=DAILY)

    assert [each.status_code for each in (edited, full, made, back)] == [200, 429, 201, 429]


@pytest.mark.parametrize(("cron", "code"), [("* * * * *", 201), ("*/30 * * * * *", 422), ("0,30 0 2 * * *", 422)])
async def test_a_schedule_that_fires_too_often_is_refused_with_its_field(http: Http, cron: str, code: int) -> None:
    answer = await http.put("schedules/often", json={**DAILY, "cron": cron})

    assert answer.status_code == code, answer.text
    if code == 422:
        assert answer.json()["errors"][0]["field"] == "cron"
        assert "every 60 seconds" in answer.json()["errors"][0]["message"]


async def test_what_is_left_of_the_quotas_is_shown_with_the_limits_of_a_key(place: Place) -> None:
    store = await open_store(place.settings.store)
    admin = await key(store, "acme", "admin", "submit", "operate", "read")
    await store.close()
    keyed = Place(place.folder, tenant_jobs=2, tenant_bytes=100, keyless=False)
    async with asking(keyed) as http:
        made = await http.post(
            "jobs?pipeline=convert&user_id=ann", files={"model": ("m.onnx", b"x" * 30)}, headers=admin
        )
        key_id = admin["Authorization"].removeprefix("Bearer ph_")[:20]
        found = (await http.get(f"keys/{key_id}/limits", headers=admin)).json()["items"]

    left = {each["name"]: (each["limit"], each["left"], each["window_seconds"]) for each in found}
    assert made.status_code == 202, made.text
    assert (left["tenant-jobs"], left["tenant-bytes"]) == ((2, 1, None), (100, 70, None))
