"""Schedules over HTTP, on every store: made, edited by version, rolled back, paused, run, looked back on, refused."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient
from msgspec.structs import replace

from packhorse.background.scheduler import declare
from packhorse.core import schedules
from packhorse.core.schedules import Declared
from packhorse.define.registry import load
from packhorse.jobs.encryption import get_encryptor
from packhorse.store.base import Store
from packhorse.store.collections import schedules as schedule_records
from tests.contract.schedules import claimed, fired, terms
from tests.http.conftest import publish
from tests.http.keyed import audited
from tests.http.processes import SAMPLE, Place
from tests.http.test_openapi import told, validator

Http = AsyncTestClient[Any]
Json = dict[str, Any]

DEFINITIONS = load(str(SAMPLE)).definitions()
NIGHTLY: Json = {
    "cron": "30 2 * * *",
    "zone": "Europe/Berlin",
    "pipeline": "add",
    "user_id": "ann",
    "parameters": {"a": 1},
    "labels": {"team": "edge"},
}


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere)
    publish(place)
    return place


async def put(http: Http, id: str = "nightly", *, match: str | None = None, **changes: Any) -> Any:
    headers = {} if match is None else {"If-Match": match}
    return await http.put(f"schedules/{id}", json={**NIGHTLY, **changes}, headers=headers)


async def made(http: Http, id: str = "nightly", **changes: Any) -> Json:
    answer = await put(http, id, **changes)
    assert answer.status_code == 201, answer.text
    found: Json = answer.json()
    return found


async def edited(http: Http, id: str = "nightly", **changes: Any) -> Json:
    seen = await http.get(f"schedules/{id}")
    answer = await put(http, id, match=seen.headers["etag"], **changes)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


async def test_a_schedule_is_made_shown_and_listed(http: Http) -> None:
    answer = await put(http, reason="we need it")
    shown = await http.get("schedules/nightly")
    listed = await http.get("schedules")

    assert answer.status_code == 201
    assert answer.json() == shown.json() == listed.json()["items"][0]
    assert answer.headers["etag"] == shown.headers["etag"] == '"1"'
    assert NIGHTLY.items() <= shown.json().items()
    assert shown.json()["next_at"][11:16] in ("00:30", "01:30", "01:00")
    assert (shown.json()["origin"], shown.json()["drift"]) == ("person", None)


@pytest.mark.parametrize("path", ["", "/{schedule_id}", "/{schedule_id}/versions", "/{schedule_id}/runs"])
async def test_what_is_answered_is_as_the_openapi_file_says(http: Http, path: str) -> None:
    await made(http)
    await http.post("schedules/nightly/run")

    answer = await http.get("schedules" + path.format(schedule_id="nightly"))

    validator(await told(http), f"/schedules{path}", "get", 200).validate(answer.json())


async def test_an_edit_must_say_which_version_it_is_of(http: Http) -> None:
    await made(http)

    answer = await put(http, cron="0 4 * * *")

    assert answer.status_code == 428
    assert answer.json()["type"].endswith("version-needed")
    assert (await http.get("schedules/nightly")).json()["version"] == 1


async def test_of_two_people_who_edit_at_once_one_is_told_and_nothing_is_lost(http: Http) -> None:
    await made(http)

    mine, theirs = await asyncio.gather(
        put(http, match='"1"', cron="0 4 * * *", reason="mine"),
        put(http, match='"1"', cron="0 5 * * *", reason="theirs"),
    )

    won, lost = (mine, theirs) if mine.status_code == 200 else (theirs, mine)
    assert (won.status_code, lost.status_code) == (200, 412)
    assert lost.json()["type"].endswith("edited-meanwhile")
    shown = (await http.get("schedules/nightly")).json()
    assert (shown["version"], shown["cron"]) == (2, won.json()["cron"])
    assert [each["version"] for each in (await http.get("schedules/nightly/versions")).json()["items"]] == [2, 1]


async def test_an_edit_is_made_though_ticks_are_claimed_meanwhile(http: Http, store: Store) -> None:
    await made(http, cron="* * * * * *")
    schedule = await schedule_records.get(store, "default", "nightly")
    assert schedule is not None
    await claimed(store, schedule, store.now() + 2.0)

    answer = await put(http, match='"1"', cron="0 4 * * *")

    assert answer.status_code == 200
    assert len(await schedule_records.runs(store, "default", "nightly")) > 0


async def test_every_version_says_who_when_why_and_what_it_changed(http: Http) -> None:
    await made(http, reason="first")
    await edited(http, cron="0 4 * * *", parameters={"a": 1, "b": 2}, user_id="ben", reason="second")

    second, first = (await http.get("schedules/nightly/versions")).json()["items"]
    one = await http.get("schedules/nightly/versions/2")
    diff = await http.get("schedules/nightly/diff", params={"old": 2, "new": 1})

    assert (first["version"], first["author"], first["action"], first["reason"]) == (1, "local", "created", "first")
    assert (second["version"], second["action"], second["reason"]) == (2, "edited", "second")
    assert second["changes"] == [
        {"field": "parameters.b", "old": None, "new": 2},
        {"field": "cron", "old": "30 2 * * *", "new": "0 4 * * *"},
        {"field": "user_id", "old": "ann", "new": "ben"},
    ]
    assert one.json() == second
    assert {"field": "user_id", "old": "ben", "new": "ann"} in diff.json()["items"]


async def test_a_rollback_is_a_version_with_the_very_bytes_of_the_old_one(http: Http, store: Store) -> None:
    body = b'{"cron": "30 2 * * *", "pipeline": "add", "user_id": "ann", "parameters": {"b":  2.0,\n "a": 1e0}}'
    answer = await http.put("schedules/nightly", content=body, headers={"Content-Type": "application/json"})
    assert answer.status_code == 201, answer.text
    await edited(http, parameters={"a": 5})

    answer = await http.post("schedules/nightly/rollback", json={"version": 1, "reason": "it was better"})

    third, _, first = await schedule_records.revisions(store, "default", "nightly")
    assert answer.status_code == 200
    assert first.terms.parameters == third.terms.parameters == b'{"b":  2.0,\n "a": 1e0}'
    assert third.terms == first.terms
    assert (third.version, third.action, third.reason) == (3, "rolled back to 1", "it was better")
    missing = await http.post("schedules/nightly/rollback", json={"version": 9})
    assert (missing.status_code, missing.json()["type"].rpartition(":")[2]) == (404, "version-not-found")


async def test_a_schedule_is_paused_and_resumed_as_versions(http: Http) -> None:
    await made(http)

    paused = await http.post("schedules/nightly/pause", json={"reason": "holiday"})
    again = await http.post("schedules/nightly/pause")
    resumed = await http.post("schedules/nightly/resume")

    assert (paused.json()["active"], paused.json()["next_at"], paused.json()["version"]) == (False, None, 2)
    assert again.json() == paused.json()
    assert (resumed.json()["active"], resumed.json()["version"]) == (True, 3)
    assert resumed.json()["next_at"] is not None


async def test_a_deleted_schedule_is_gone_from_the_list_and_can_be_looked_back_on(http: Http) -> None:
    await made(http)

    answer = await http.request("DELETE", "schedules/nightly", json={"reason": "enough"})
    listed = await http.get("schedules")
    shown = await http.get("schedules/nightly")
    refused = [await http.post(f"schedules/nightly/{verb}") for verb in ("run", "resume")]
    again = await put(http)

    assert answer.status_code == 200
    assert listed.json()["items"] == []
    assert shown.json()["deleted_at"] is not None
    assert [each.status_code for each in refused] == [409, 409]
    assert (again.status_code, again.json()["version"], again.json()["deleted_at"]) == (201, 3, None)


async def test_running_now_leaves_a_run_of_its_own(http: Http, store: Store) -> None:
    await made(http, active=False)

    answer = await http.post("schedules/nightly/run")
    runs = (await http.get("schedules/nightly/runs")).json()["items"]

    assert (answer.status_code, answer.json()["manual"], answer.json()["status"]) == (202, True, "due")
    assert runs == [answer.json()]
    assert len(await schedule_records.take_runs(store, 10, 5.0)) == 1


async def test_runs_show_how_their_job_stands_and_where_its_result_is(http: Http, store: Store) -> None:
    move = schedules.create("default", "beat", terms(), author="k", now=99.5)
    await schedule_records.move(store, move)
    _, run = await claimed(store, move.after, 100.0)
    job = await fired(store, run, trace_id="t1")

    [live] = (await http.get("schedules/beat/runs")).json()["items"]
    found = await schedule_records.run(store, "default", "beat", 100.0)
    assert found is not None
    ended = replace(found, status="completed", started_at=101.0, ended_at=102.5, stamp=found.stamp + 1)
    await schedule_records.put_run(store, found, ended)
    [over] = (await http.get("schedules/beat/runs")).json()["items"]

    assert (live["status"], live["output_url"]) == ("pending", None)
    assert over == {
        "schedule_id": "beat",
        "tick": "1970-01-01T00:01:40.000000Z",
        "version": 1,
        "manual": False,
        "status": "completed",
        "message": "",
        "job_id": job.id,
        "trace_id": "t1",
        "started_at": "1970-01-01T00:01:41.000000Z",
        "ended_at": "1970-01-01T00:01:42.500000Z",
        "duration_ms": 1500,
        "output_url": f"/api/v1/jobs/{job.id}/result",
        "count": 1,
        "until": None,
    }
    shown = (await http.get(f"jobs/{job.id}")).json()
    assert (shown["schedule_id"], shown["tick"]) == ("beat", "1970-01-01T00:01:40.000000Z")


async def test_runs_and_schedules_come_in_pages(http: Http, store: Store) -> None:
    for id in ("a", "b", "c"):
        await made(http, id)
    for _ in range(3):
        await http.post("schedules/a/run")

    first = (await http.get("schedules", params={"limit": 2})).json()
    second = (await http.get("schedules", params={"limit": 2, "cursor": first["next"]})).json()
    newest = (await http.get("schedules/a/runs", params={"limit": 2})).json()
    oldest = (await http.get("schedules/a/runs", params={"limit": 2, "before": newest["next"]})).json()

    assert [each["schedule_id"] for each in first["items"] + second["items"]] == ["a", "b", "c"]
    assert second["next"] is None
    assert (len(newest["items"]), len(oldest["items"]), oldest["next"]) == (2, 1, None)
    assert len({each["tick"] for each in newest["items"] + oldest["items"]}) == 3


async def test_what_people_changed_of_declared_schedules_is_seen_and_reset(http: Http, store: Store) -> None:
    declared = terms(pipeline="add", parameters=b'{"a":1}', cron="0 3 * * *")
    await declare(store, [Declared("nightly", declared)], DEFINITIONS, get_encryptor(""))
    await edited(http, cron="0 4 * * *", zone="UTC", labels={})

    adrift = (await http.get("schedules/nightly")).json()
    reset = (await http.post("schedules/nightly/reset", json={"reason": "back"})).json()
    again = (await http.post("schedules/nightly/reset")).json()

    assert adrift["origin"] == "code"
    assert {"field": "cron", "old": "0 3 * * *", "new": "0 4 * * *"} in adrift["drift"]
    assert (reset["drift"], reset["cron"], reset["version"]) == ([], "0 3 * * *", 3)
    assert again["version"] == 3
    undeclared = await made(http, "mine")
    answer = await http.post(f"schedules/{undeclared['schedule_id']}/reset")
    assert answer.status_code == 409


async def test_a_preview_says_what_the_change_of_clocks_does(http: Http) -> None:
    answer = await http.post("schedules/preview", json={"cron": "*/30 * * * *", "zone": "Europe/Berlin"})

    assert answer.status_code == 200
    assert len(answer.json()["items"]) == 10
    assert all(each["at"].endswith((":00:00.000000Z", ":30:00.000000Z")) for each in answer.json()["items"])


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"cron": "0 0 31 2 *"}, "cron"),
        ({"cron": "61 * * * *"}, "cron"),
        ({"cron": "* * * *"}, "cron"),
        ({"cron": ""}, "cron"),
        ({"zone": "Mars/Base"}, "zone"),
        ({"zone": "../etc/passwd"}, "zone"),
        ({"parameters": {"a": "x"}}, "a"),
        ({"parameters": {}}, "a"),
        ({"parameters": {"a": 1, "c": 2}}, "c"),
        ({"pipeline": "unknown"}, "pipeline"),
        ({"pipeline": "convert", "parameters": {"model": "job:1/artifacts/x"}}, "model"),
        ({"overlap": "allow"}, "overlap"),
        ({"window": "soon"}, "window"),
        ({"window": 1e12}, "window"),
        ({"labels": {"x": "y" * 300}}, "labels"),
        ({"user_id": ""}, "user_id"),
        ({"surprise": 1}, "surprise"),
        ({"reason": "x" * 501}, "reason"),
    ],
)
async def test_what_is_wrong_is_refused_with_its_field(http: Http, changes: Json, field: str) -> None:
    answer = await put(http, **changes)

    assert answer.status_code == 422, answer.text
    assert answer.json()["errors"][0]["field"] == field
    assert (await http.get("schedules")).json()["items"] == []


async def test_all_that_is_wrong_is_told_at_once(http: Http) -> None:
    wrong: Json = {"cron": "x", "zone": "Mars", "parameters": {"a": "x"}, "window": "soon", "reason": "x" * 501}
    labels: Json = {"labels": {"x": "y" * 300}}
    unknown: Json = {"pipeline": "nope"}

    answer = await put(http, "a b", **wrong, **labels)
    other = await put(http, **wrong, **unknown)
    alone = await put(http, **unknown)

    assert (answer.status_code, answer.json()["type"]) == (422, "urn:packhorse:invalid-input")
    fields = [each["field"] for each in answer.json()["errors"]]
    assert fields == ["schedule_id", "reason", "a", "window", "labels", "zone", "cron"]
    assert [each["field"] for each in other.json()["errors"]] == ["reason", "pipeline", "window", "zone", "cron"]
    assert alone.json()["type"] == "urn:packhorse:unknown-pipeline"


async def test_an_id_that_is_no_name_is_refused(http: Http) -> None:
    assert (await put(http, "a b")).status_code == 422
    assert (await http.get("schedules/unknown")).status_code == 404
    assert (await put(http, "unknown", match='"1"')).status_code == 412


async def test_edits_are_audited(http: Http, store: Store) -> None:
    await made(http, reason="why not")
    await http.post("schedules/nightly/run")

    entries = [entry for entry in await audited(store, 2) if entry.event.startswith("schedule.")]

    assert [(entry.event, entry.details.get("action")) for entry in entries] == [
        ("schedule.changed", "created"),
        ("schedule.run", None),
    ]
    assert entries[0].details["reason"] == "why not"


# Words, trials, and lists with more in them


async def test_a_schedule_says_when_in_words(http: Http) -> None:
    odd = await made(http, "odd", cron="*/7 * * * *", zone="UTC")
    preview = (await http.post("schedules/preview", json={"cron": "0 9 * * 1-5", "zone": "Asia/Tokyo"})).json()

    assert (await made(http))["when"] == "every day at 02:30, Europe/Berlin"
    assert odd["when"] == "*/7 * * * *, UTC"
    assert preview["when"] == "Monday to Friday at 09:00, Asia/Tokyo"


async def test_a_dry_run_tells_what_an_edit_would_do_and_does_nothing(http: Http, store: Store) -> None:
    before = await made(http)

    trial = await put(http, match='"1"', cron="0 4 * * *", parameters={"a": 2}, dry_run=True)

    assert (trial.status_code, "etag" in trial.headers) == (200, False)
    assert (trial.json()["version"], trial.json()["when"]) == (2, "every day at 04:00, Europe/Berlin")
    assert trial.json()["changes"] == [
        {"field": "parameters.a", "old": 1, "new": 2},
        {"field": "cron", "old": "30 2 * * *", "new": "0 4 * * *"},
    ]
    assert (await http.get("schedules/nightly")).json() == before
    assert len(await schedule_records.revisions(store, "default", "nightly")) == 1


async def test_a_dry_run_of_a_new_schedule_makes_none(http: Http) -> None:
    trial = await put(http, dry_run=True)

    assert (trial.status_code, trial.json()["version"], trial.json()["changes"]) == (200, 1, [])
    assert (await http.get("schedules/nightly")).status_code == 404


@pytest.mark.parametrize(
    ("match", "changes", "status"),
    [(None, {}, 428), ('"7"', {}, 412), ('"1"', {"cron": "x"}, 422), ('"1"', {"parameters": {"a": "x"}}, 422)],
    ids=["unseen", "stale", "cron", "parameters"],
)
async def test_a_dry_run_is_refused_as_the_edit_would_be(
    http: Http, match: str | None, changes: Json, status: int
) -> None:
    await made(http)

    assert (await put(http, match=match, dry_run=True, **changes)).status_code == status


async def test_deleted_schedules_are_listed_if_asked_for(http: Http) -> None:
    await made(http)
    await http.delete("schedules/nightly")

    [gone] = (await http.get("schedules?deleted=true")).json()["items"]

    assert (await http.get("schedules")).json()["items"] == []
    assert gone["schedule_id"] == "nightly"
    assert gone["deleted_at"] is not None


async def test_a_list_shows_the_last_runs_of_each_if_asked(http: Http) -> None:
    await made(http, "a")
    await made(http, "b")
    for _ in range(3):
        await http.post("schedules/b/run")

    plain = (await http.get("schedules")).json()
    listed = (await http.get("schedules?runs=2")).json()
    runs = (await http.get("schedules/b/runs?limit=2")).json()["items"]

    assert "runs" not in plain["items"][0]
    assert [each["runs"] for each in listed["items"]] == [[], runs]
    assert len(runs) == 2
    assert (await http.get("schedules?runs=31")).status_code == 422


async def test_parameters_that_say_the_same_stay_as_they_were_spelled(http: Http, store: Store) -> None:
    given = b'{"cron": "30 2 * * *", "pipeline": "add", "user_id": "ann", "parameters": %s}'
    headers = {"Content-Type": "application/json"}
    await http.put("schedules/nightly", content=given % b'{ "b": 2, "a": 1 }', headers=headers)

    async def changes(parameters: bytes, seen: str) -> list[str]:
        answer = await http.put(
            "schedules/nightly", content=given % parameters, headers={**headers, "If-Match": f'"{seen}"'}
        )
        assert answer.status_code == 200, answer.text
        [made] = (await http.get("schedules/nightly/versions?limit=1")).json()["items"]
        return [each["field"] for each in made["changes"]]

    assert await changes(b'{"a":1,"b":2}', "1") == []
    assert await changes(b'{"a":1.0,"b":2}', "2") == ["parameters"]
    found = await schedule_records.revisions(store, "default", "nightly")
    assert [each.terms.parameters for each in found[::-1]] == [b'{ "b": 2, "a": 1 }'] * 2 + [b'{"a":1.0,"b":2}']
