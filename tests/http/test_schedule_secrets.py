"""Secret parameters of schedules: kept encrypted in every version, shown as dots, and left alone by who sends those."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient
from msgspec.structs import replace

from packhorse.background.scheduler import declare
from packhorse.core import json, schedules
from packhorse.core.redaction import MASK
from packhorse.core.schedules import CODE, Declared
from packhorse.define.registry import load
from packhorse.errors import SecretUnreadable
from packhorse.jobs.encryption import get_encryptor
from packhorse.store.base import Store
from packhorse.store.collections import audit
from packhorse.store.collections import schedules as schedule_records
from tests.contract.schedules import terms
from tests.http.conftest import publish
from tests.http.processes import SAMPLE, Place

Http = AsyncTestClient[Any]
Json = dict[str, Any]

KEY = "s" * 40
CANARY, SECOND = "canary-0123456789", "canary-9876543210"
DEFINITIONS = load(str(SAMPLE)).definitions()
PLAN = next(json.plan_from(each.plan) for each in DEFINITIONS if each.pipeline == "log_in")


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere, secret_key=KEY)
    publish(place)
    return place


async def put(http: Http, version: int | None = None, cron: str = "0 3 * * *", **parameters: str) -> Any:
    headers = {} if version is None else {"If-Match": f'"{version}"'}
    body = {"cron": cron, "pipeline": "log_in", "user_id": "ann", "parameters": parameters}
    return await http.put("schedules/nightly", json=body, headers=headers)


async def opened(store: Store) -> Json:
    """What a stage would be given."""
    found = await schedule_records.get(store, "default", "nightly")
    assert found is not None
    plain: Json = json.decode(get_encryptor(KEY).decrypt(found.terms.parameters, PLAN, "default"))
    return plain


async def everything(http: Http, store: Store) -> str:
    paths = ("", "/nightly", "/nightly/versions", "/nightly/versions/1", "/nightly/runs")
    told = [(await http.get(f"schedules{path}")).text for path in paths]
    kept = [
        await schedule_records.list_all(store),
        await schedule_records.revisions(store, "default", "nightly"),
        await audit.tail(store),
    ]
    return "".join(told) + repr(kept) + json.encode(kept).decode()


async def test_a_secret_is_shown_as_dots_and_kept_encrypted(http: Http, store: Store) -> None:
    answer = await put(http, name="n", password=CANARY)

    assert answer.status_code == 201, answer.text
    assert answer.json()["parameters"] == {"name": "n", "password": MASK}
    assert await opened(store) == {"name": "n", "password": CANARY}
    assert CANARY not in await everything(http, store)


async def test_who_sends_the_dots_back_leaves_the_secret_as_it_is(http: Http, store: Store) -> None:
    await put(http, name="n", password=CANARY)
    before = await schedule_records.get(store, "default", "nightly")

    edited = await put(http, 1, cron="0 4 * * *", name="m", password=MASK)

    after = await schedule_records.get(store, "default", "nightly")
    assert edited.status_code == 200, edited.text
    assert before is not None
    assert after is not None
    kept: list[Any] = [json.decode(each.terms.parameters)["password"] for each in (before, after)]
    assert kept[0] == kept[1]
    assert await opened(store) == {"name": "m", "password": CANARY}
    diff = (await http.get("schedules/nightly/diff", params={"old": 1, "new": 2})).json()["items"]
    assert [each["field"] for each in diff] == ["parameters.name", "cron"]


async def test_a_changed_secret_is_told_without_its_values_and_rolls_back(http: Http, store: Store) -> None:
    await put(http, name="n", password=CANARY)
    await put(http, 1, name="n", password=SECOND)

    diff = (await http.get("schedules/nightly/diff", params={"old": 1, "new": 2})).json()["items"]
    changed = await opened(store)
    back = await http.post("schedules/nightly/rollback", json={"version": 1})

    assert diff == [{"field": "parameters.password", "old": MASK, "new": MASK}]
    assert changed["password"] == SECOND
    assert back.status_code == 200
    assert (await opened(store))["password"] == CANARY
    text = await everything(http, store)
    assert CANARY not in text
    assert SECOND not in text


async def test_a_secret_that_cannot_be_read_any_more_can_be_replaced(http: Http, store: Store) -> None:
    sealed = get_encryptor("another, older key of the deployment").encrypt(
        b'{"name":"n","password":"old"}', PLAN, "default"
    )
    old = terms(pipeline="log_in", parameters=sealed)
    await schedule_records.move(store, schedules.create("default", "nightly", old, author="k", now=store.now()))

    kept = await put(http, 1, name="n", password=MASK)
    replaced = await put(http, 1, name="n", password=CANARY)

    assert (kept.status_code, replaced.status_code) == (SecretUnreadable.status, 200)
    assert await opened(store) == {"name": "n", "password": CANARY}


async def test_dots_that_stand_for_nothing_are_refused(http: Http, store: Store) -> None:
    answer = await put(http, name="n", password=MASK)

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "password"
    assert await schedule_records.list_all(store) == []


async def test_something_encrypted_is_taken_from_nobody(http: Http, store: Store) -> None:
    await put(http, name="n", password=CANARY)
    found = await schedule_records.get(store, "default", "nightly")
    assert found is not None
    sealed: Any = json.decode(found.terms.parameters)["password"]

    answer = await put(http, 1, name="n", password=sealed)

    assert answer.status_code == 422
    assert sealed["$secret"] not in answer.text


async def test_a_secret_that_code_declares_is_encrypted_once_and_makes_no_new_version(store: Store) -> None:
    parameters = json.encode({"name": "n", "password": CANARY})
    declared = Declared("nightly", terms(pipeline="log_in", parameters=parameters))
    for _ in range(2):
        await declare(store, [declared], DEFINITIONS, get_encryptor(KEY))

    other = Declared("nightly", replace(declared.terms, parameters=parameters.replace(b"0123", b"3210")))
    once = await schedule_records.revisions(store, "default", "nightly")
    await declare(store, [other], DEFINITIONS, get_encryptor(KEY))

    assert [(each.version, each.author) for each in once] == [(1, CODE)]
    assert CANARY.encode() not in once[0].terms.parameters
    assert (await opened(store))["password"] == "canary-3210456789"
    assert [each.version for each in await schedule_records.revisions(store, "default", "nightly")] == [2, 1]


async def test_a_schedule_whose_secret_cannot_be_kept_is_not_declared(store: Store) -> None:
    parameters = json.encode({"name": "n", "password": CANARY})

    await declare(
        store, [Declared("nightly", terms(pipeline="log_in", parameters=parameters))], DEFINITIONS, get_encryptor("")
    )

    assert await schedule_records.list_all(store) == []
