"""Queues over HTTP: what waits in each, who serves it, and holding one up."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.queues import list_pauses
from tests.contract.builders import card
from tests.http.conftest import publish
from tests.http.processes import Place
from tests.http.test_jobs import submitted

Http = AsyncTestClient[Any]


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere)
    publish(place)
    return place


def assert_holds(document: dict[str, Any], facts: dict[str, Any]) -> None:
    assert {name: document[name] for name in facts} == facts


async def queues(http: Http) -> dict[str, Any]:
    return {each["name"]: each for each in (await http.get("queues")).json()["items"]}


async def test_queues_are_listed_with_what_waits_and_who_serves_them(http: Http, store: Store) -> None:
    await submitted(http)
    await submitted(http)
    await workers.enroll(store, card("w1", queues={"default": 2, "other": 1}))
    await workers.enroll(store, card("w2", queues={"default": 3}))

    found = await queues(http)

    assert found.keys() == {"default", "nef", "onnx", "other"}
    assert_holds(found["default"], {"name": "default", "ready": 2, "workers": 2, "slots": 5, "paused": None})
    assert_holds(found["onnx"], {"name": "onnx", "ready": 0, "workers": 0, "slots": 0, "paused": None})


async def test_a_pipeline_says_whether_a_running_worker_has_it(http: Http, store: Store) -> None:
    async def served() -> dict[str, bool]:
        return {each["name"]: each["is_served"] for each in (await http.get("pipelines")).json()["items"]}

    before = await served()
    await workers.enroll(store, card("w1", queues={"default": 1}, kinds=()))
    after = await served()

    assert not any(before.values())
    assert after["add"] is True  # its only stage is in the queue default
    assert after["convert"] is False  # no worker serves onnx and nef


async def test_a_paused_queue_says_since_when_by_whom_and_why(http: Http, store: Store) -> None:
    answer = await http.post("queues/default/pause", json={"reason": "the disk is full"})

    [pause] = await list_pauses(store)
    assert answer.status_code == 200
    assert answer.json() == (await queues(http))["default"]
    assert answer.json()["paused"]["by"] == pause.by == "local"
    assert answer.json()["paused"]["reason"] == pause.reason == "the disk is full"
    assert answer.json()["paused"]["at"].endswith("Z")


async def test_a_job_in_a_paused_queue_is_explained(http: Http, store: Store) -> None:
    await workers.enroll(store, card(queues={"default": 1}, kinds=()))
    job_id = await submitted(http)

    await http.post("queues/default/pause")
    paused = (await http.get(f"jobs/{job_id}/explain")).json()["reasons"]
    await http.post("queues/default/resume")
    resumed = (await http.get(f"jobs/{job_id}/explain")).json()["reasons"]

    assert [each["code"] for each in paused] == ["PAUSED"]
    assert [each["code"] for each in resumed] == ["QUEUED"]


async def test_a_second_pause_replaces_the_first_and_a_second_resume_does_nothing(http: Http, store: Store) -> None:
    for reason in ("one", "two"):
        await http.post("queues/onnx/pause", json={"reason": reason})
    reasons = [pause.reason for pause in await list_pauses(store)]
    answers = [await http.post("queues/onnx/resume") for _ in range(2)]

    assert reasons == ["two"]
    assert [(each.status_code, each.json()["paused"]) for each in answers] == [(200, None)] * 2
    assert await list_pauses(store) == []


@pytest.mark.parametrize("verb", ["pause", "resume"])
async def test_a_queue_nobody_uses_is_404(http: Http, store: Store, verb: str) -> None:
    answer = await http.post(f"queues/defualt/{verb}")

    assert (answer.status_code, answer.json()["type"]) == (404, "urn:packhorse:queue-not-found")
    assert await list_pauses(store) == []


@pytest.mark.parametrize("reason", ["x" * 501, "a\0b", 7])
async def test_a_reason_is_a_short_text(http: Http, store: Store, reason: object) -> None:
    answer = await http.post("queues/default/pause", json={"reason": reason})

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "reason"
    assert await list_pauses(store) == []
