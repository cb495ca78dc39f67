"""The OpenAPI file is a promise: a real server is asked for all of it, with what fits and with what does not."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from schemathesis import GenerationMode
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import positive_data_acceptance, response_schema_conformance

from packhorse.client import Client
from tests.http.processes import Place, Server, served, until, working
from tests.http.unserved import blueprint
from tests.tiers import examples

EXAMPLES = examples(15)
"""Of each sort for each operation."""


def without_keys(told: dict[str, Any]) -> dict[str, Any]:
    """Nobody needs a key here; who needs one for what is tested elsewhere."""
    return {**told, "security": [], "components": {**told["components"], "securitySchemes": {}}}


PROMISED = schemathesis.openapi.from_dict(without_keys(blueprint().openapi_schema.to_schema()))
OPERATIONS: dict[str, Any] = {
    f"{each.ok().method.upper()} {each.ok().path}": each.ok()
    for each in PROMISED.get_all_operations()
    if isinstance(each, Ok)
}

TOO_WIDE = {
    "GET /api/v1/jobs": "what fits names a pipeline that there is",
    "GET /api/v1/jobs/count": "what fits names a pipeline that there is",
    "POST /api/v1/jobs": "what fits depends on the pipeline, whose own schema is elsewhere",
    "POST /api/v1/jobs/{job_id}/retry": "what fits depends on the job's stages",
    "GET /api/v1/jobs/{job_id}/log": "what fits depends on the job's stages",
    "POST /api/v1/keys": "what fits is one of a few words, or a time",
    "POST /api/v1/keys/{key_id}/rotate": "what fits is a time",
    "POST /api/v1/jobs/{job_id}/tokens": "what fits is a time",
    "POST /api/v1/jobs/{job_id}/promote": "what fits is the name of a place that the server has",
    "POST /api/v1/webhooks": "what fits is a public address",
    "POST /api/v1/failures/retry": "what fits names failures, or says by what they are found",
    "POST /api/v1/failures/dismiss": "what fits does so, and says why",
    "POST /api/v1/jobs/cancel": "what fits names jobs, or says by what they are found",
    "POST /api/v1/jobs/retry": "what fits does so",
    "POST /api/v1/jobs/delete": "what fits does so",
    "GET /api/v1/stats": "what fits is a time",
    "POST /api/v1/schedules/preview": "what fits is a cron line",
    "PUT /api/v1/schedules/{schedule_id}": "what fits is a cron line, and depends on the pipeline",
    "POST /api/v1/schedules/{schedule_id}/token": "what fits is a whole number, and 1.0 is none",
    "PUT /api/v1/limits/{limit}": "what fits is a whole number, and 1.0 is none",
    "POST /api/v1/schedules/{schedule_id}/trigger": "what fits is a signed token",
    "PUT /api/v1/job_config/{schedule_id}": "what fits is a cron line, and depends on the pipeline",
    "GET /api/v1/jobs/{job_id}/events": "a header that may be left out is taken for one that may say null",
}
"""Where the file cannot say what will be taken, so that what fits may be refused."""


STREAM = "GET /api/v1/jobs/{job_id}/events"
"""A text to this version of OpenAPI; what its events look like is tested elsewhere."""


def excluded(name: str) -> list[Any]:
    return [positive_data_acceptance] * (name in TOO_WIDE) + [response_schema_conformance] * (name == STREAM)


def can_be_wrong(operation: Any) -> bool:
    """Whether there is anything about it that is more than any text."""
    given = [*operation.query, *operation.headers]
    return bool(operation.body) or any(not is_any_text(each) for each in given)


def is_any_text(parameter: Any) -> bool:
    schema = parameter.definition["schema"]
    kinds = schema.get("oneOf", [schema])
    return any(kind == {"type": "string"} for kind in kinds)


MODES = [
    (name, mode)
    for name, operation in OPERATIONS.items()
    for mode in GenerationMode
    if mode is GenerationMode.POSITIVE or can_be_wrong(operation)
]


class Asked:
    """A server with jobs that can be asked for."""

    def __init__(self, server: Server, client: Client, folder: Path) -> None:
        (folder / "m").write_bytes(b"weights")
        self.url = server.url
        self._client = client
        self.ended = [
            client.wait(client.submit("convert", files={"model": folder / "m"})["job_id"], 30)["job_id"],
            client.cancel(self.fresh())["job_id"],
            client.wait(client.submit("fail", {"message": "no"})["job_id"], 30)["job_id"],
        ]

    def fresh(self) -> str:
        job_id: str = self._client.submit("add", {"a": 1}, delay="1h")["job_id"]
        return job_id

    def path(self, name: str, parameters: dict[str, Any]) -> dict[str, Any]:
        """With things that are there instead of those that were made up."""
        there = {"job_id": self.ended[0] if name.startswith("GET") else self.fresh(), "queue": "default"}
        there |= {"schedule_id": "nightly"}
        return {each: there.get(each, "nef/out.nef") for each in parameters}


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Asked]:
    folder = tmp_path_factory.mktemp("promises")
    place = Place(folder, wait_limit=0.2, body_silence=5, secret_key="s" * 40, promote_to=f"file://{folder / 'kept'}")
    with served(place) as server, working(place), Client(server.url) as client:
        until(client.pipelines)
        yield Asked(server, client, place.folder)


@pytest.mark.parametrize(("name", "mode"), MODES)
def test_every_call_keeps_its_promise(asked: Asked, name: str, mode: GenerationMode) -> None:
    statuses = []

    @settings(
        max_examples=EXAMPLES,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=OPERATIONS[name].as_strategy(generation_mode=mode), is_there=st.booleans())
    def holds(case: Any, is_there: bool) -> None:
        if is_there and mode is GenerationMode.POSITIVE:
            case.path_parameters = asked.path(name, case.path_parameters or {})
        answer = case.call_and_validate(base_url=asked.url, excluded_checks=excluded(name), timeout=20)
        statuses.append(answer.status_code)

    holds()

    assert len(OPERATIONS) == len([*PROMISED.get_all_operations()])
    assert statuses
    assert max(statuses) < 500
