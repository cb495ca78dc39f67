"""Submitting: JSON and forms, what is refused, and that a refusal leaves nothing behind."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from packhorse.auth import authenticate
from packhorse.auth.access import GRANTS, Caller
from packhorse.store.base import Filter, Store
from tests.contract import builders
from tests.contract.stores import SORTS, lent
from tests.http.conftest import publish
from tests.http.processes import Place
from tests.http.unserved import Http, unserved

Json = dict[str, Any]

MODEL: Json = {"model": ("m.onnx", b"weights")}


EVERYWHERE = pytest.mark.parametrize("anywhere", SORTS, indirect=True)
"""For the rows that the store decides about."""
ELSEWHERE = pytest.mark.parametrize("anywhere", ["postgresql", "redis"], indirect=True)
"""For what is only read and refused: one by one on SQLite, and all of it in one go on the others."""


@pytest.fixture
def anywhere(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with lent(getattr(request, "param", "sqlite"), tmp_path) as address:
        yield address


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere)
    publish(place)
    return place


def fields(answer: Any) -> set[str]:
    return {error["field"] for error in answer.json()["errors"]}


async def nothing_is_left(place: Place, store: Store) -> bool:
    return not await asyncio.to_thread(place.objects) and not await store.find(Filter())


# As JSON


@EVERYWHERE
async def test_a_job_is_admitted_and_can_be_found(http: Http, store: Store) -> None:
    body = {"pipeline": "add", "user_id": "ann", "parameters": {"a": 1, "b": 2}, "priority": 5, "metadata": {"k": [1]}}

    answer = await http.post("jobs", json=body)

    job = answer.json()
    assert answer.status_code == 202
    assert answer.headers["location"] == f"/api/v1/jobs/{job['job_id']}"
    assert (await http.get(f"http://127.0.0.1{answer.headers['location']}")).json() == job
    assert (job["user_id"], job["pipeline"], job["status"]) == ("ann", "add", "pending")
    assert (job["parameters"], job["priority"], job["metadata"]) == ({"a": 1, "b": 2}, 5, {"k": [1]})
    assert [found.id for found in await store.find(Filter())] == [job["job_id"]]


@EVERYWHERE
async def test_pipeline_and_user_may_be_in_the_query(http: Http) -> None:
    answer = await http.post("jobs?pipeline=add&user_id=bob", json={"parameters": {"a": 1}})

    assert (answer.json()["pipeline"], answer.json()["user_id"]) == ("add", "bob")


@EVERYWHERE
async def test_without_a_user_it_is_local(http: Http) -> None:
    assert (await http.post("jobs", json={"pipeline": "add", "parameters": {"a": 1}})).json()["user_id"] == "local"


@EVERYWHERE
async def test_a_delay_is_a_duration(http: Http) -> None:
    body = {"pipeline": "add", "parameters": {"a": 1}, "delay": "1h30m"}

    job = (await http.post("jobs", json=body)).json()

    assert job["not_before"] > job["created_at"]


@EVERYWHERE
async def test_job_starts_at_the_time_that_was_given(http: Http) -> None:
    at = datetime.now(UTC).replace(microsecond=250_000) + timedelta(days=1)
    body = {"pipeline": "add", "parameters": {"a": 1}}

    job = (await http.post("jobs", json={**body, "at": at.astimezone(timezone(timedelta(hours=2))).isoformat()})).json()
    past = (await http.post("jobs", json={**body, "at": "2020-01-01T00:00:00Z"})).json()

    assert datetime.fromisoformat(job["not_before"]) == at
    assert past["not_before"] is None


async def debounced(http: Http, a: int, key: str = "k", debounce: str = "1h") -> str:
    body = {"pipeline": "add", "parameters": {"a": a}, "debounce": debounce}
    answer = await http.post("jobs", json=body, headers={"Idempotency-Key": key})
    assert answer.status_code == 202, answer.text
    job_id: str = answer.json()["job_id"]
    return job_id


@EVERYWHERE
async def test_last_submit_of_a_key_replaces_the_job_that_waits(http: Http, store: Store) -> None:
    first, second, other = await debounced(http, 1), await debounced(http, 2), await debounced(http, 3, "other")

    gone = await http.get(f"jobs/{first}")
    kept = (await http.get(f"jobs/{second}")).json()

    assert gone.status_code == 404
    assert (kept["status"], kept["parameters"]["a"]) == ("pending", 2)
    assert kept["not_before"] > kept["created_at"]
    assert {job["job_id"] for job in (await http.get("jobs")).json()["items"]} == {second, other}


@EVERYWHERE
async def test_of_submits_that_come_together_one_job_is_left(http: Http) -> None:
    ids = await asyncio.gather(*(debounced(http, n) for n in range(4)))

    [left] = (await http.get("jobs")).json()["items"]

    assert left["job_id"] in ids


@EVERYWHERE
async def test_job_that_has_started_is_not_replaced(http: Http, store: Store) -> None:
    first = await debounced(http, 1, debounce="1ms")
    [job] = await store.get([first])
    assert job is not None
    async with asyncio.timeout(60):
        while not await builders.claim(store, kinds=[job.plan.stages[0].kind]):  # noqa: ASYNC110  (a store has no event for it)
            await asyncio.sleep(0.01)

    second = await debounced(http, 2)

    assert (await http.get(f"jobs/{first}")).json()["status"] == "running"
    assert (await http.get(f"jobs/{second}")).json()["status"] == "pending"


async def test_of_one_key_in_a_batch_the_last_job_is_left(http: Http) -> None:
    item = {"pipeline": "add", "debounce": "1h", "idempotency_key": "k"}
    items = [{**item, "parameters": {"a": n}} for n in range(3)]

    answer = await http.post("jobs/batch", json={"items": items})

    [left] = (await http.get("jobs")).json()["items"]
    assert answer.json()["accepted"] == 3
    assert left["parameters"]["a"] == 2


async def test_debounce_of_a_pipeline_with_one_job_per_user_is_refused(http: Http) -> None:
    data = {"pipeline": "convert", "debounce": "1h"}
    answer = await http.post("jobs", data=data, files={"model": ("m", b"w")}, headers={"Idempotency-Key": "k"})

    assert (answer.status_code, answer.json()["field"]) == (422, "debounce")


WRONG: list[tuple[Json, set[str]]] = [
    ({"pipeline": "nope"}, {"pipeline"}),
    ({}, {"pipeline"}),
    ({"pipeline": "add"}, {"a"}),
    ({"pipeline": "add", "parameters": {"a": "x"}}, {"a"}),
    ({"pipeline": "add", "parameters": {"a": 1, "c": 2, "d": 3}}, {"c", "d"}),
    ({"pipeline": "add", "parameters": {"a": 1, "b": None}}, {"b"}),
    ({"pipeline": "add", "parameters": [1]}, {"parameters"}),
    ({"pipeline": 7}, {"pipeline"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "colour": "red"}, {"colour"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "priority": "high"}, {"priority"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "priority": 1001}, {"priority"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "delay": -1}, {"delay"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "delay": 1e300}, {"delay"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "delay": "soon"}, {"delay"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "debounce": "1s"}, {"debounce"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "at": "soon"}, {"at"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "at": "2026-01-31T12:00:00"}, {"at"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "at": "2199-01-31T12:00:00Z"}, {"at"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "at": "2126-01-31T12:00:00Z", "delay": "1s"}, {"at"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "user_id": ""}, {"user_id"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "user_id": "x" * 256}, {"user_id"}),
    ({"pipeline": "add", "parameters": {"a": 1}, "metadata": "m"}, {"metadata"}),
    ({"pipeline": "convert", "parameters": {"model": "m.onnx"}}, {"model"}),
    ({"pipeline": "convert", "parameters": {"model": {"$file": 0}}}, {"model"}),
    ({"pipeline": "convert", "parameters": {"ref_images": ["a"]}}, {"ref_images"}),
    ({"pipeline": "convert", "parameters": {"platform": "999"}}, {"platform", "model"}),
]


@pytest.mark.parametrize(("body", "wrong"), WRONG)
async def test_what_is_wrong_is_named(http: Http, place: Place, store: Store, body: Json, wrong: set[str]) -> None:
    answer = await http.post("jobs", json=body)

    assert answer.status_code == 422, answer.text
    assert answer.headers["content-type"] == "application/problem+json"
    assert fields(answer) == wrong
    assert await nothing_is_left(place, store)


@pytest.mark.parametrize("name", ["pipeline", "user_id"])
async def test_a_name_in_query_and_body_is_given_twice(http: Http, name: str) -> None:
    answer = await http.post(f"jobs?{name}=add", json={"pipeline": "add", "user_id": "add", "parameters": {"a": 1}})

    assert answer.status_code == 422
    assert fields(answer) == {name}


@pytest.mark.parametrize(
    ("query", "field"), [("colour=red", "colour"), ("user_id=a&user_id=b", "user_id"), ("PIPELINE=add", "PIPELINE")]
)
async def test_a_query_that_is_not_known_is_refused(http: Http, store: Store, query: str, field: str) -> None:
    answer = await http.post(f"jobs?{query}", json={"pipeline": "add", "parameters": {"a": 1}})

    assert answer.status_code == 422
    assert fields(answer) == {field}
    assert await store.find(Filter(), limit=1) == []


NOT_JSON = [b"", b"{", b"nope", b"[" * 100_000, b'{"pipeline": "add", "parameters": {"a": "\xff"}}', b"\x00"]


@pytest.mark.parametrize("body", NOT_JSON)
async def test_what_is_not_json_is_malformed(http: Http, place: Place, store: Store, body: bytes) -> None:
    answer = await http.post("jobs", content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == 400
    assert answer.json()["type"] == "urn:packhorse:malformed"
    assert await nothing_is_left(place, store)


@pytest.mark.parametrize("depth", [63, 200, 300, 1000, 5000])
@pytest.mark.parametrize("name", ["parameters", "metadata", "labels"])
async def test_depth_has_a_limit_and_no_surprise(http: Http, place: Place, name: str, depth: int) -> None:
    deep = "[" * depth + "]" * depth
    value = deep if name == "labels" else f'{{"x": {deep}}}'

    as_json = await http.post(
        "jobs?pipeline=add", content=f'{{"{name}": {value}}}', headers={"Content-Type": "application/json"}
    )
    as_form = await http.post("jobs?pipeline=convert", files={**MODEL, name: (None, value)})

    assert as_json.status_code in (400, 422)
    assert as_form.status_code == (202 if (name, depth) == ("metadata", 63) else 422)


@pytest.mark.parametrize("body", [b"[]", b"null", b"3", b'"add"'])
async def test_json_that_is_no_object_is_refused(http: Http, body: bytes) -> None:
    answer = await http.post("jobs", content=body, headers={"Content-Type": "application/json"})

    assert answer.status_code == 422


@pytest.mark.parametrize(
    "kind", ["", "text/plain", "application/x-www-form-urlencoded", "application/xml", "multipart/mixed"]
)
async def test_another_content_type_is_415(http: Http, kind: str) -> None:
    answer = await http.post("jobs", content=b"a=1", headers={"Content-Type": kind} if kind else {})

    assert answer.status_code == 415


@EVERYWHERE
async def test_parameters_past_the_limit_are_413(http: Http, place: Place, store: Store) -> None:
    body = {"pipeline": "fail", "parameters": {"message": "x" * place.settings.parameters_limit}}

    answer = await http.post("jobs", json=body)

    assert (answer.status_code, fields(answer)) == (413, {"parameters"})
    assert await nothing_is_left(place, store)


async def test_a_body_past_any_sense_is_413_and_names_the_limit_there_is(http: Http, place: Place) -> None:
    limit = place.settings.parameters_limit
    much = "x" * (limit + 200_000)

    as_json = await http.post("jobs", json={"pipeline": "add", "metadata": {"m": much}})
    as_form = await http.post("jobs?pipeline=convert", files={**MODEL, "version": (None, "1"), "note": (None, much)})

    for answer, field in ((as_json, "body"), (as_form, "note")):
        assert (answer.status_code, answer.json()["limit"], fields(answer)) == (413, limit, {field})
        assert f"{limit} bytes (PACKHORSE_PARAMETERS_LIMIT)" in answer.json()["detail"]


async def test_what_is_said_back_is_not_the_whole_of_what_was_sent(http: Http) -> None:
    long = "x" * 5000

    user = await http.post("jobs", json={"pipeline": "add", "user_id": long, "parameters": {"a": 1}})
    pipeline = await http.post("jobs", json={"pipeline": long})

    assert f"not '{'x' * 79}…" in user.json()["detail"]
    assert "x" * 100 not in user.text
    assert f"There is no pipeline named '{'x' * 79}…. Pipelines: add, convert, " in pipeline.json()["detail"]


async def test_a_pipeline_there_is_not_is_answered_with_those_there_are(http: Http) -> None:
    problem = (await http.post("jobs", json={"pipeline": "nope"})).json()

    assert (
        problem["detail"]
        == "There is no pipeline named 'nope'. Pipelines: add, convert, fail, hold, log_in, picture, speak, split."
    )
    assert problem["hint"].startswith("Workers publish their pipelines when they start")


async def test_a_name_there_is_not_is_answered_with_those_there_are(http: Http) -> None:
    names = "Parameters: model, ref_images, platform, enable_evaluate, version, note, labels"

    as_json = await http.post("jobs", json={"pipeline": "add", "colour": "red"})
    as_form = await http.post("jobs?pipeline=convert", files={**MODEL, "colour": (None, "red")})
    as_file = await http.post("jobs?pipeline=convert", files={**MODEL, "colour": ("red.png", b"")})
    in_query = await http.get("jobs?colour=red")

    assert (
        "Parameters: pipeline, user_id, parameters, priority, delay, at, debounce, metadata" in as_json.json()["detail"]
    )
    assert names in as_form.json()["detail"]
    assert names in as_file.json()["detail"]
    assert "Parameters: user_id, status, pipeline, created_from, created_until, q, cursor, limit" in in_query.text


# As a form


@EVERYWHERE
async def test_a_repeated_part_is_a_list_and_one_alone_a_list_of_one(http: Http) -> None:
    several: list[Any] = [("model", ("m.onnx", b"w")), ("labels", (None, "x")), ("labels", (None, "2"))]

    found = [
        await http.post("jobs?pipeline=convert&user_id=several", files=several),
        await http.post("jobs?pipeline=convert&user_id=one", files={**MODEL, "labels": (None, "x")}),
        await http.post(
            "jobs?user_id=array", files={**MODEL, "pipeline": (None, "convert"), "labels": (None, '["y"]')}
        ),
    ]

    assert [answer.json()["parameters"]["labels"] for answer in found] == [["x", "2"], ["x"], ["y"]]


@pytest.mark.parametrize("name", ["note", "version", "platform"])
async def test_a_repeated_part_of_what_is_no_list_is_given_twice(http: Http, place: Place, name: str) -> None:
    files: list[Any] = [("model", ("m.onnx", b"w")), (name, (None, b"1")), (name, (None, b"1"))]

    answer = await http.post("jobs?pipeline=convert", files=files)

    assert (answer.status_code, fields(answer)) == (422, {name})
    assert answer.json()["errors"][0]["message"] == "This is given twice"
    assert not place.objects()


@pytest.mark.parametrize("given", ["x", "1.5", "[]", "true", ""])
async def test_a_priority_that_is_none_is_refused_alike_at_both_doors(http: Http, given: str) -> None:
    value = json.loads(given) if given in ("1.5", "[]", "true") else given

    as_json = await http.post("jobs?pipeline=convert", json={"priority": value})
    as_form = await http.post("jobs?pipeline=convert", files={**MODEL, "priority": (None, given)})

    assert as_form.status_code == 422
    assert {**as_form.json(), "trace_id": ""} == {**as_json.json(), "trace_id": ""}
    assert as_form.json()["errors"][0]["message"].startswith("Expected `int`, got ")


@EVERYWHERE
async def test_a_form_carries_files_and_values(http: Http, place: Place) -> None:
    files = [
        ("model", ("m.onnx", b"weights")),
        ("ref_images", ("a.png", b"a")),
        ("ref_images", ("b.png", b"bb")),
    ]
    data = {
        "pipeline": "convert",
        "user_id": "ann",
        "platform": "720",
        "enable_evaluate": "true",
        "version": "3",
        "note": "123",
        "labels": '["x", "y"]',
        "metadata": '{"ticket": 7}',
        "priority": "9",
        "delay": "10m",
    }

    answer = await http.post("jobs", data=data, files=files)

    job = answer.json()
    assert answer.status_code == 202, answer.text
    assert job["parameters"] == {
        "platform": "720",
        "enable_evaluate": True,
        "version": 3,
        "note": "123",
        "labels": ["x", "y"],
        "model": "m.onnx",
        "ref_images": ["a.png", "b.png"],
    }
    assert (job["metadata"], job["priority"], job["user_id"]) == ({"ticket": 7}, 9, "ann")
    assert [(each["parameter"], each["filename"], each["size_bytes"]) for each in job["inputs"]] == [
        ("model", "m.onnx", 7),
        ("ref_images", "a.png", 1),
        ("ref_images", "b.png", 2),
    ]
    assert (job["source_filename"], job["input"]) == ("m.onnx", {**job["inputs"][0], "ref_images_count": 2})
    assert place.objects() == {each["object_key"] for each in job["inputs"]}


async def test_parameters_may_be_one_json_part(http: Http) -> None:
    data = {
        "pipeline": "convert",
        "parameters": json.dumps({"platform": "720", "version": 2}),
        "enable_evaluate": "true",
    }

    job = (await http.post("jobs", data=data, files=MODEL)).json()

    assert job["parameters"] == {"platform": "720", "version": 2, "enable_evaluate": True, "model": "m.onnx"}


async def test_parameters_may_be_sent_as_a_file(http: Http) -> None:
    """As curl and browsers do when they are given a type to send with it."""
    files = {**MODEL, "parameters": ("blob", b'{"version": 2}', "application/json")}

    job = (await http.post("jobs", data={"pipeline": "convert"}, files=files)).json()

    assert job["parameters"] == {"version": 2, "model": "m.onnx"}


async def test_the_pipeline_may_come_after_the_files(http: Http) -> None:
    files = [("model", ("m.onnx", b"weights")), ("pipeline", (None, b"convert"))]

    assert (await http.post("jobs", files=files)).json()["parameters"] == {"model": "m.onnx"}


async def test_a_file_that_was_not_chosen_is_not_there(http: Http, place: Place) -> None:
    """As browsers send it."""
    body = (
        b'--b\r\nContent-Disposition: form-data; name="model"; filename="m.onnx"\r\n\r\nweights\r\n'
        b'--b\r\nContent-Disposition: form-data; name="ref_images"; filename=""\r\n'
        b"Content-Type: application/octet-stream\r\n\r\n\r\n--b--\r\n"
    )
    kind = {"Content-Type": "multipart/form-data; boundary=b"}

    job = (await http.post("jobs?pipeline=convert", content=body, headers=kind)).json()

    assert job["parameters"] == {"model": "m.onnx"}
    assert len(place.objects()) == 1


async def test_an_empty_file_is_a_file(http: Http) -> None:
    job = (await http.post("jobs?pipeline=convert", files={"model": ("m.onnx", b"")})).json()

    assert (job["input"]["filename"], job["input"]["size_bytes"]) == ("m.onnx", 0)


WRONG_PARTS: list[tuple[list[Any], set[str]]] = [
    ([("model", (None, b"text"))], {"model"}),
    ([("colour", (None, b"red"))], {"colour"}),
    ([("colour", ("c.txt", b"red"))], {"colour"}),
    ([("platform", (None, b"720")), ("platform", (None, b"720"))], {"platform"}),
    ([("model", ("2.onnx", b"x"))], {"model"}),
    ([("version", (None, b"three"))], {"version"}),
    ([("version", (None, b'"3"'))], {"version"}),
    ([("version", ("v.txt", b"3"))], {"version"}),
    ([("platform", (None, b"999"))], {"platform"}),
    ([("labels", (None, b"[1]"))], {"labels[0]"}),
    ([("note", (None, b"\xff"))], {"note"}),
    ([("parameters", (None, b"{}")), ("parameters", (None, b"{}"))], {"parameters"}),
    ([("parameters", (None, b'{"version": 1}')), ("version", (None, b"1"))], {"version"}),
    ([("parameters", (None, b'{"model": "m.onnx"}'))], {"model"}),
    ([("parameters", (None, b"[1]"))], {"parameters"}),
    ([("parameters", (None, b"{"))], {"parameters"}),
    ([("metadata", (None, b"7"))], {"metadata"}),
    ([("user_id", (None, b"\xff"))], {"user_id"}),
    ([("user_id", (None, b"a")), ("user_id", (None, b"b"))], {"user_id"}),
    ([("priority", (None, b"1.5"))], {"priority"}),
    ([("ref_images", (None, b"text"))], {"ref_images"}),
    ([("../../etc/passwd", ("p", b"x"))], {"../../etc/passwd"}),
    ([("a/b", ("p", b"x"))], {"a/b"}),
]  # fmt: skip


@pytest.mark.parametrize("query", ["", "?pipeline=convert"])
@pytest.mark.parametrize(("parts", "wrong"), WRONG_PARTS)
async def test_a_wrong_part_is_named_and_nothing_is_left(
    http: Http, place: Place, store: Store, parts: list[Any], wrong: set[str], query: str
) -> None:
    given = [("model", ("m.onnx", b"weights")), *parts]
    if not query:
        given.append(("pipeline", (None, b"convert")))

    answer = await http.post(f"jobs{query}", files=given)

    assert answer.status_code == 422, answer.text
    assert fields(answer) == wrong
    assert await nothing_is_left(place, store)


@EVERYWHERE
async def test_a_missing_file_is_named(http: Http, place: Place, store: Store) -> None:
    answer = await http.post("jobs", files={"pipeline": (None, b"convert"), "ref_images": ("a.png", b"x")})

    assert (answer.status_code, fields(answer)) == (422, {"model"})
    assert await nothing_is_left(place, store)


async def test_all_bad_parts_are_named(http: Http) -> None:
    data = {"pipeline": "convert", "version": "x", "platform": "999", "enable_evaluate": "maybe"}

    answer = await http.post("jobs", data=data, files=MODEL)

    assert fields(answer) == {"version", "platform", "enable_evaluate"}


@EVERYWHERE
async def test_a_form_for_a_pipeline_nobody_has_leaves_nothing(http: Http, place: Place, store: Store) -> None:
    for query, data in (("?pipeline=nope", {}), ("", {"pipeline": "nope"}), ("", {})):
        answer = await http.post(f"jobs{query}", data=data, files=MODEL)

        assert (answer.status_code, fields(answer)) == (422, {"pipeline"})
        assert await nothing_is_left(place, store)


# One active job per user


@EVERYWHERE
async def test_a_second_job_of_a_user_is_409_and_names_the_first(http: Http, place: Place, store: Store) -> None:
    first = (await http.post("jobs?pipeline=convert&user_id=ann", files=MODEL)).json()
    before = place.objects()

    for query in ("?pipeline=convert&user_id=ann", "?pipeline=convert"):
        data = {} if "user_id" in query else {"user_id": "ann"}
        answer = await http.post(f"jobs{query}", data=data, files=MODEL)

        assert answer.status_code == 409
        assert answer.json()["type"] == "urn:packhorse:slot-taken"
        assert answer.json()["active_job_id"] == first["job_id"]
    assert place.objects() == before
    assert len(await store.find(Filter())) == 1


@EVERYWHERE
async def test_fifty_at_once_make_one_job(http: Http, place: Place, store: Store) -> None:
    answers = await asyncio.gather(
        *(http.post("jobs", data={"pipeline": "convert", "user_id": "ann"}, files=MODEL) for _ in range(50))
    )

    admitted = [answer.json()["job_id"] for answer in answers if answer.status_code == 202]
    refused = [answer.json()["active_job_id"] for answer in answers if answer.status_code == 409]
    assert len(admitted) == 1
    assert refused == admitted * 49
    assert len(place.objects()) == 1


@EVERYWHERE
async def test_a_cancelled_job_gives_its_place_away(http: Http) -> None:
    first = (await http.post("jobs?pipeline=convert&user_id=ann", files=MODEL)).json()
    await http.post(f"jobs/{first['job_id']}/cancel")

    assert (await http.post("jobs?pipeline=convert&user_id=ann", files=MODEL)).status_code == 202


async def never() -> AsyncIterator[bytes]:
    """A body that would be read for ever."""
    while True:
        yield b"x" * 1000
        await asyncio.sleep(0)


@EVERYWHERE
@pytest.mark.parametrize("key", [{}, {"Idempotency-Key": "unknown"}])
@pytest.mark.parametrize("kind", ["multipart/form-data; boundary=XX", "application/json"])
async def test_a_taken_slot_is_refused_before_the_body_is_read(http: Http, key: Json, kind: str) -> None:
    first = (await http.post("jobs?pipeline=convert&user_id=ann", files=MODEL)).json()
    headers = {**key, "Content-Type": kind, "Expect": "100-continue"}

    answer = await asyncio.wait_for(
        http.post("jobs?pipeline=convert&user_id=ann", content=never(), headers=headers), 20
    )

    assert (answer.status_code, answer.json()["active_job_id"]) == (409, first["job_id"])
    assert int(answer.headers["retry-after"]) > 0


@EVERYWHERE
async def test_a_known_key_is_let_in_though_its_job_holds_the_slot(http: Http) -> None:
    key = {"Idempotency-Key": "k1"}
    first = await http.post("jobs?pipeline=convert&user_id=ann", files=MODEL, headers=key)

    again = await http.post("jobs?pipeline=convert&user_id=ann", files=MODEL, headers=key)
    other = await http.post("jobs?pipeline=convert&user_id=ann", files={"model": ("n", b"x")}, headers=key)

    assert (again.status_code, again.json()["job_id"]) == (202, first.json()["job_id"])
    assert (other.status_code, other.json()["type"]) == (422, "urn:packhorse:key-reused")


# Idempotency


@asynccontextmanager
async def asking_as(place: Place, monkeypatch: pytest.MonkeyPatch, caller: Caller) -> AsyncIterator[Http]:
    monkeypatch.setattr(authenticate, "local_caller", lambda _address: caller)
    async with unserved(place.settings) as http:
        yield http


ADD: Json = {"json": {"pipeline": "add", "user_id": "ann", "parameters": {"a": 1}}, "headers": {"Idempotency-Key": "k"}}


@EVERYWHERE
async def test_a_key_is_of_one_tenant_and_one_client(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    callers = [Caller("acme", GRANTS["submit"], client=each) for each in ("c1", "c2", "c1")]
    callers.append(Caller("other", GRANTS["submit"], client="c1"))
    made = []

    for caller in callers:
        async with asking_as(place, monkeypatch, caller) as http:
            made.append((await http.post("jobs", **ADD)).json())

    assert made[0]["job_id"] == made[2]["job_id"]
    assert len({job["job_id"] for job in made}) == 3
    assert [job["created_by_client_id"] for job in made] == ["c1", "c2", "c1", "c1"]


@EVERYWHERE
async def test_who_is_bound_to_a_user_learns_nothing_of_the_slot_of_another(
    http: Http, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    await http.post("jobs?pipeline=convert&user_id=ann", files=MODEL)
    bob = Caller("default", GRANTS["submit"], key_id="c1", user="bob")

    async with asking_as(place, monkeypatch, bob) as bobs:
        answer = await bobs.post("jobs?pipeline=convert&user_id=ann", files=MODEL)

    assert (answer.status_code, fields(answer)) == (422, {"user_id"})


@EVERYWHERE
async def test_the_same_key_and_request_give_the_first_job(http: Http, place: Place, store: Store) -> None:
    key = {"Idempotency-Key": "k1"}
    first = await http.post("jobs?pipeline=convert&user_id=ann", files=MODEL, headers=key)

    second = await http.post(
        "jobs", data={"user_id": "ann", "pipeline": "convert", "parameters": "{}"}, files=MODEL, headers=key
    )

    assert second.status_code == 202
    assert second.json() == first.json()
    assert second.headers["location"] == first.headers["location"]
    assert len(await store.find(Filter())) == 1
    assert len(place.objects()) == 1


OTHERS: list[tuple[Json, Json]] = [
    ({"user_id": "bob"}, MODEL),
    ({"user_id": "ann", "version": "2"}, MODEL),
    ({"user_id": "ann"}, {"model": ("m.onnx", b"other")}),
    ({"user_id": "ann"}, {"model": ("n.onnx", b"weights")}),
    ({"user_id": "ann", "metadata": '{"a": 1}'}, MODEL),
    ({"user_id": "ann", "priority": "1"}, MODEL),
]


@pytest.mark.parametrize(("data", "files"), OTHERS)
async def test_the_same_key_for_another_request_is_422(http: Http, place: Place, data: Json, files: Json) -> None:
    key = {"Idempotency-Key": "k1"}
    await http.post("jobs?pipeline=convert&user_id=ann", files=MODEL, headers=key)

    answer = await http.post("jobs?pipeline=convert", data=data, files=files, headers=key)

    assert answer.status_code == 422
    assert answer.json()["type"] == "urn:packhorse:key-reused"
    assert fields(answer) == {"Idempotency-Key"}
    assert len(place.objects()) == 1


@pytest.mark.parametrize("key", ["", "x" * 256])
async def test_a_key_that_cannot_be_one_is_named(http: Http, key: str) -> None:
    body = {"pipeline": "add", "parameters": {"a": 1}}

    answer = await http.post("jobs", json=body, headers={"Idempotency-Key": key})

    assert (answer.status_code, fields(answer)) == (422, {"Idempotency-Key"})


# Stores that fail


@EVERYWHERE
async def test_objects_that_do_not_answer_are_502_and_leave_no_job(http: Http, place: Place, store: Store) -> None:
    shutil.rmtree(place.blobs)
    place.blobs.write_text("not a folder")

    answer = await http.post("jobs?pipeline=convert", files=MODEL)

    assert answer.status_code == 502
    assert answer.headers["retry-after"]
    assert str(place.blobs) not in answer.text
    assert not await store.find(Filter())


# What no store could keep


NUL: list[tuple[Json, str]] = [
    ({"user_id": "a\0b"}, "user_id"),
    ({"metadata": {"a": "\0"}}, "metadata.a"),
    ({"pipeline": "fail", "parameters": {"message": "a\0"}}, "message"),
]


@pytest.mark.parametrize(("body", "field"), NUL)
async def test_a_nul_character_is_refused_by_its_field(
    http: Http, place: Place, store: Store, body: Json, field: str
) -> None:
    answer = await http.post("jobs", json={"pipeline": "add", "parameters": {"a": 1}, **body})

    assert answer.status_code == 422
    assert [mistake["field"] for mistake in answer.json()["errors"]] == [field]
    assert await nothing_is_left(place, store)


@EVERYWHERE
async def test_a_nul_character_in_a_form_or_a_query_is_refused_too(http: Http, place: Place, store: Store) -> None:
    form = await http.post("jobs?pipeline=fail", files={"message": (None, b"a\0")})
    query = await http.get("jobs?user_id=a%00")

    assert [answer.status_code for answer in (form, query)] == [422, 422]
    assert [answer.json()["errors"][0]["field"] for answer in (form, query)] == ["message", "user_id"]
    assert await nothing_is_left(place, store)


@EVERYWHERE
async def test_choices_that_a_worker_has_published_are_the_ones_there_are(http: Http) -> None:
    wrong = await http.post("jobs", json={"pipeline": "speak", "parameters": {"voice": "carl"}})
    right = await http.post("jobs", json={"pipeline": "speak", "parameters": {"voice": "bob"}})

    assert (wrong.status_code, right.status_code) == (422, 202)
    assert wrong.json()["errors"] == [{"field": "voice", "message": "It must be one of amy, bob"}]


@ELSEWHERE
async def test_whatever_is_refused_is_refused_alike_and_leaves_nothing(http: Http, place: Place, store: Store) -> None:
    kind = {"Content-Type": "application/json"}

    for body, wrong in WRONG:
        assert (refused(await http.post("jobs", json=body))) == (422, wrong)
    for data in NOT_JSON:
        assert (await http.post("jobs", content=data, headers=kind)).status_code == 400
    for parts, wrong in WRONG_PARTS:
        answer = await http.post("jobs?pipeline=convert", files=[("model", ("m.onnx", b"weights")), *parts])
        assert refused(answer) == (422, wrong)
    for body, field in NUL:
        answer = await http.post("jobs", json={"pipeline": "add", "parameters": {"a": 1}, **body})
        assert refused(answer) == (422, {field})

    assert await nothing_is_left(place, store)


@ELSEWHERE
async def test_a_key_that_was_used_is_refused_alike_to_whatever_else_it_is_sent_with(http: Http, place: Place) -> None:
    key = {"Idempotency-Key": "k1"}
    await http.post("jobs?pipeline=convert&user_id=ann", files=MODEL, headers=key)

    for data, files in OTHERS:
        answer = await http.post("jobs?pipeline=convert", data=data, files=files, headers=key)
        assert refused(answer) == (422, {"Idempotency-Key"})

    assert len(place.objects()) == 1


def refused(answer: Any) -> tuple[int, set[str]]:
    return answer.status_code, fields(answer)
