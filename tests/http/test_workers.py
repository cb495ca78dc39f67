"""Workers and health over HTTP, on every store: who is there, who was lost, and what of it is fresh."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient
from msgspec.structs import replace

from packhorse import host
from packhorse.core.models import TaskId
from packhorse.store.base import Finding, Store
from packhorse.store.collections import workers as worker_records
from packhorse.store.collections.workers import Lost, Machine, Work, WorkerCard, save_findings
from tests.contract.builders import card
from tests.http.conftest import publish
from tests.http.processes import Place
from tests.http.test_jobs import submitted
from tests.worker.processes import dead

Http = AsyncTestClient[Any]


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere, lease=30.0)
    publish(place)
    return place


def machine(store: Store, ago: float = 1.0) -> Machine:
    return Machine(store.now() - ago, 0.25, 4, 1 << 30, 1 << 33)


def ended_here(id: str) -> WorkerCard:
    """The card of a worker of this machine whose process is gone."""
    pid, born = dead()
    return card(id, boot=host.boot(), pid_space=host.pid_space(), pid=pid, born=born)


async def workers(http: Http) -> dict[str, dict[str, Any]]:
    return {each["worker_id"]: each for each in (await http.get("workers")).json()["items"]}


async def findings(http: Http) -> tuple[str, dict[str, dict[str, Any]]]:
    found = (await http.get("health")).json()
    return found["status"], {each["name"]: each for each in found["findings"]}


# workers


async def test_a_worker_says_what_it_has_in_hand_and_how_its_host_is(http: Http, store: Store) -> None:
    facts = {"queues": {"default": 2, "onnx": 1}, "busy": {"default": 1}, "kinds": ("a#1",), "started_at": 1.0}
    work = (Work("j1", TaskId("page", 3), 1_800_000_000.0),)
    await worker_records.enroll(store, card("w1", **facts, work=work, machine=machine(store)))

    found = (await workers(http))["w1"]

    assert (found["state"], found["host"], found["version"], found["kinds"]) == ("alive", "h", "0", ["a#1"])
    assert found["queues"] == {"default": {"slots": 2, "busy": 1}, "onnx": {"slots": 1, "busy": 0}}
    assert found["work"] == [
        {"job_id": "j1", "stage": "page", "element": 3, "since": "2027-01-15T08:00:00.000000Z", "status": None}
    ]
    assert (found["machine"]["cpu"], found["machine"]["cores"], found["machine"]["is_fresh"]) == (0.25, 4, True)
    assert found["lost"] is None


async def test_a_worker_that_was_told_to_stop_is_draining(http: Http, store: Store) -> None:
    await worker_records.enroll(store, card("w1", is_draining=True))

    assert (await workers(http))["w1"]["state"] == "draining"


async def test_what_a_host_uses_is_stale_after_ten_seconds(http: Http, store: Store) -> None:
    await worker_records.enroll(store, card("w1", machine=machine(store, ago=11.0)))

    assert (await workers(http))["w1"]["machine"]["is_fresh"] is False


async def test_a_worker_whose_process_is_gone_is_not_shown_as_alive(http: Http, store: Store) -> None:
    await worker_records.enroll(store, ended_here("w1"))

    silent = (await workers(http))["w1"]["state"]
    await worker_records.report_lost(store, Lost("w1", "h", 7, "0", store.now() - 5, store.now(), "w2"))
    lost = (await workers(http))["w1"]["state"]

    assert (silent, lost) == ("silent", "lost")


async def test_a_lost_worker_stays_listed_with_what_became_of_its_jobs(http: Http, store: Store) -> None:
    job_id = await submitted(http)
    work = (Work(job_id, TaskId("add"), 1.0), Work("gone-since", TaskId("add"), 1.0))
    await worker_records.report_lost(
        store, Lost("w9", "far", 7, "0", store.now() - 60, store.now(), "w2", tasks=30, work=work)
    )
    await http.post(f"jobs/{job_id}/cancel")

    found = (await workers(http))["w9"]

    assert (found["state"], found["host"]) == ("lost", "far")
    assert (found["lost"]["noticed_by"], found["lost"]["tasks"]) == ("w2", 30)
    assert [(each["job_id"], each["status"]) for each in found["lost"]["work"]] == [
        (job_id, "cancelled"),
        ("gone-since", None),
    ]


async def test_a_worker_that_came_back_is_not_lost(http: Http, store: Store) -> None:
    await worker_records.report_lost(store, Lost("w1", "h", 7, "0", store.now() - 60, store.now() - 30, "w2"))
    await worker_records.enroll(store, card("w1"))

    found = (await workers(http))["w1"]

    assert (found["state"], found["lost"]) == ("alive", None)


# health


async def test_all_is_well_where_store_and_files_answer(http: Http) -> None:
    status, found = await findings(http)

    assert {"store", "files", "workers"} <= found.keys()
    assert {found["store"]["state"], found["files"]["state"]} == {"ok"}
    assert found["store"]["value"].startswith("answers in")
    assert (status == "ok") == all(each["state"] == "ok" for each in found.values())
    assert all(each["measured_at"].endswith("Z") for each in found.values())


async def test_what_workers_found_turns_stale_when_nobody_looks_any_more(http: Http, store: Store) -> None:
    await worker_records.enroll(store, card("w1", duties={"reaper": store.now()}))
    seen = Finding("files", True, "answers in 1 ms", "as w1 sees it", "files", store.now() - 20)
    await save_findings(store, [seen])
    _, fresh = await findings(http)

    await save_findings(store, [replace(seen, measured_at=store.now() - 61)])
    status, stale = await findings(http)

    assert fresh["files, from a worker"]["state"] == "ok"
    assert (status, stale["files, from a worker"]["state"]) == ("bad", "stale")


async def test_a_duty_that_nobody_does_is_bad(http: Http, store: Store) -> None:
    await worker_records.enroll(store, card("w1", duties={"reaper": store.now() - 90, "janitor": store.now() - 90}))
    await worker_records.enroll(store, card("w2", duties={"janitor": store.now() - 5}))

    status, found = await findings(http)

    assert (status, found["background task reaper"]["state"], found["background task janitor"]["state"]) == (
        "bad",
        "bad",
        "ok",
    )


async def test_a_duty_that_never_succeeded_is_bad_and_says_why(http: Http, store: Store) -> None:
    failing = {"janitor": "The object store does not answer: AccessDenied."}
    await worker_records.enroll(store, card("w1", started_at=store.now() - 90, errors=failing))

    status, found = await findings(http)

    assert (status, found["background task janitor"]["state"]) == ("bad", "bad")
    assert "AccessDenied" in found["background task janitor"]["meaning"]


async def test_files_of_another_deployment_are_bad_and_say_what_to_do(http: Http, place: Place) -> None:
    _, before = await findings(http)
    mark = place.blobs / "deployment"
    mark.unlink()
    mark.write_text('{"id": "production", "store": "redis://cache"}')

    status, found = await findings(http)

    assert before["deployment"]["state"] == "ok"
    assert (status, found["deployment"]["state"]) == ("bad", "bad")
    assert "belong to deployment production, of the store redis://cache" in found["deployment"]["meaning"]
    assert "packhorse adopt" in found["deployment"]["meaning"]


async def test_a_silent_worker_and_jobs_that_nothing_will_start_are_bad(http: Http, store: Store) -> None:
    await submitted(http)
    await worker_records.enroll(store, ended_here("w1"))

    status, found = await findings(http)

    assert (status, found["worker w1"]["state"], found["waiting jobs"]["state"]) == ("bad", "bad", "bad")
    assert found["waiting jobs"]["meaning"] == "no live worker serves queue `default`"


async def test_files_that_do_not_answer_are_told_to_all_who_ask(http: Http, place: Place) -> None:
    place.blobs.mkdir(parents=True, exist_ok=True)
    os.rename(place.blobs, f"{place.blobs}-away")
    place.blobs.write_text("no folder")

    status, found = await findings(http)
    ready = await http.get("http://127.0.0.1/readyz")

    assert (status, found["files"]["state"]) == ("bad", "bad")
    assert (ready.status_code, ready.json()["type"]) == (502, "urn:packhorse:blob-unavailable")
