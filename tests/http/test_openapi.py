"""The OpenAPI file tells what is really answered: what comes is held against what it says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import jsonschema_rs
import pytest
from litestar.testing import AsyncTestClient

from packhorse.core import lifecycle
from packhorse.core.plan import TERMINAL
from packhorse.http.routes import events
from packhorse.http.routes.batch import Item
from packhorse.http.routes.submit import Asked
from packhorse.store.base import Store
from tests.http.conftest import publish
from tests.http.processes import Place
from tests.http.test_jobs import failed, submitted

Http = AsyncTestClient[Any]
Json = dict[str, Any]

BASE = "/api/v1"
PROBLEM = "application/problem+json"


ON_ONE = pytest.mark.parametrize("anywhere", ["sqlite"], indirect=True)
"""For what the file says, which has nothing to do with a store."""


@pytest.fixture
def place(tmp_path: Path, anywhere: str) -> Place:
    place = Place(tmp_path, store=anywhere)
    publish(place)
    return place


async def told(http: Http) -> Json:
    found: Json = (await http.get("http://127.0.0.1/openapi.json")).json()
    return found


def validator(
    api: Json, path: str, method: str, status: int, kind: str = "application/json"
) -> jsonschema_rs.Validator:
    schema = api["paths"][BASE + path][method]["responses"][str(status)]["content"][kind]["schema"]
    return jsonschema_rs.validator_for({**schema, "components": api["components"]})


@ON_ONE
@pytest.mark.parametrize("verb", ["cancel", "retry", "delete"])
async def test_generated_clients_keep_the_names_of_changes_to_many_jobs(http: Http, verb: str) -> None:
    operation = (await told(http))["paths"][f"{BASE}/jobs/{verb}"]["post"]

    assert operation["operationId"] == f"ApiV1Jobs{verb.capitalize() * 2}"


@pytest.mark.parametrize(
    ("call", "path"),
    [
        ("jobs/{id}", "/jobs/{job_id}"),
        ("jobs", "/jobs"),
        ("jobs/{id}/explain", "/jobs/{job_id}/explain"),
        ("jobs/{id}/log", "/jobs/{job_id}/log"),
        ("jobs/{id}/artifacts", "/jobs/{job_id}/artifacts"),
        ("jobs/{id}/metrics", "/jobs/{job_id}/metrics"),
        ("pipelines", "/pipelines"),
    ],
)
async def test_what_is_answered_is_what_it_says(http: Http, store: Store, call: str, path: str) -> None:
    job_id = await submitted(http)
    await failed(store, job_id)
    api = await told(http)

    answer = (await http.get(call.format(id=job_id))).json()

    validator(api, path, "get", 200).validate(answer)
    assert not validator(api, path, "get", 200).is_valid({})


@pytest.mark.parametrize(
    ("method", "call", "path", "status"),
    [
        ("get", "jobs/nope", "/jobs/{job_id}", 404),
        ("get", "jobs?limit=x", "/jobs", 422),
        ("get", "jobs/{id}/result", "/jobs/{job_id}/result", 409),
        ("get", "jobs/{id}/artifacts/nope", "/jobs/{job_id}/artifacts/{name}", 404),
        ("post", "jobs", "/jobs", 415),
        ("post", "jobs/{id}/retry?stage=nope", "/jobs/{job_id}/retry", 422),
        ("post", "jobs/nope/cancel", "/jobs/{job_id}/cancel", 404),
    ],
)
async def test_what_is_refused_is_refused_as_it_says(
    http: Http, store: Store, method: str, call: str, path: str, status: int
) -> None:
    job_id = await submitted(http)
    await failed(store, job_id)
    api = await told(http)

    answer = await http.request(method, call.format(id=job_id))

    assert answer.status_code == status
    validator(api, path, method, status, PROBLEM).validate(answer.json())


@ON_ONE
async def test_every_refusal_it_tells_of_is_a_problem(http: Http) -> None:
    api = await told(http)

    operations = [found for path in api["paths"].values() for found in path.values()]
    kinds = {
        kind
        for operation in operations
        for status, answer in operation["responses"].items()
        if int(status) >= 400
        for kind in answer["content"]
    }
    assert kinds == {PROBLEM}
    assert all({"400", "403", "422", "500", "503"} <= operation["responses"].keys() for operation in operations)


@ON_ONE
async def test_a_submit_is_told_with_its_key_and_its_body(http: Http) -> None:
    operation = (await told(http))["paths"][f"{BASE}/jobs"]["post"]

    [key, prefer] = [each for each in operation["parameters"] if each["in"] == "header"]
    bodies = {kind: each["schema"] for kind, each in operation["requestBody"]["content"].items()}
    assert (key["name"], key["required"]) == ("Idempotency-Key", False)
    assert (prefer["name"], prefer["required"]) == ("Prefer", False)
    assert bodies.keys() == {"application/json", "multipart/form-data"}
    assert bodies["application/json"]["properties"].keys() == {*Asked.__struct_fields__}
    assert bodies["application/json"]["additionalProperties"] is False
    assert bodies["multipart/form-data"]["additionalProperties"] is True
    assert bodies["application/json"]["properties"]["priority"]["maximum"] == 1000
    assert operation["requestBody"]["required"]


@ON_ONE
async def test_an_item_of_a_batch_is_told_with_its_fields_beside_what_is_rejected(http: Http) -> None:
    operation = (await told(http))["paths"][f"{BASE}/jobs/batch"]["post"]

    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    item, rejected = schema["properties"]["items"]["items"]["anyOf"]
    assert schema["required"] == ["items"]
    assert item["properties"].keys() == {*Item.__struct_fields__}
    assert item["additionalProperties"] is False
    assert rejected.keys() == {"description"}


@ON_ONE
async def test_a_retry_is_told_with_the_stage_it_may_name(http: Http) -> None:
    operation = (await told(http))["paths"][BASE + "/jobs/{job_id}/retry"]["post"]

    schema = operation["requestBody"]["content"]["application/json"]["schema"]
    assert schema["properties"].keys() == {"stage", "failed_elements"}
    assert not operation["requestBody"]["required"]


def test_every_event_there_is_is_in_the_list() -> None:
    said = re.findall(r'\.say\(\s*"(\w+)"', Path(lifecycle.__file__).read_text())

    assert {*said, *TERMINAL} | events.UNNUMBERED == events.TYPES.keys()
