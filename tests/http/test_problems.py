"""Errors as problems: one shape, the right status, nothing of the inside."""

from __future__ import annotations

import logging
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from packhorse.client import Client
from packhorse.client.server import KNOWN, URN
from packhorse.errors import (
    BlobUnavailable,
    CorruptRecord,
    NotFinished,
    SlotTaken,
    StoreUnavailable,
    TooLarge,
    UnknownOutcome,
    UnknownPipeline,
)
from packhorse.http.problems import error_to_json
from packhorse.http.services import HttpServices
from tests.http.processes import Server

Http = AsyncTestClient[Any]


@pytest.mark.parametrize(
    ("method", "path", "status", "type"),
    [
        ("GET", "nope", 404, "not-found"),
        ("GET", "http://127.0.0.1/nope", 404, "not-found"),
        ("GET", "http://127.0.0.1/static/../page.py", 404, "not-found"),
        ("DELETE", "jobs", 405, "wrong-method"),
        ("PUT", "jobs/x/cancel", 405, "wrong-method"),
        ("GET", "jobs?limit=x", 422, "invalid-input"),
    ],
)
async def test_what_the_framework_refuses_looks_the_same(
    http: Http, method: str, path: str, status: int, type: str
) -> None:
    answer = await http.request(method, path)

    problem = answer.json()
    assert answer.status_code == status
    assert answer.headers["content-type"] == "application/problem+json"
    assert (problem["type"], problem["status"]) == (URN + type, status)
    assert problem["title"]
    assert problem["detail"]


async def test_what_nobody_expected_is_a_500_without_internals(
    http: Http, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(*_: Any) -> Any:
        raise ZeroDivisionError("the secret inside")

    monkeypatch.setattr(HttpServices, "job", broken)

    with caplog.at_level(logging.ERROR, "packhorse"):
        answer = await http.get("jobs/x")

    assert answer.status_code == 500
    assert answer.json() == {
        "type": "urn:packhorse:packhorse-error",
        "title": "Packhorse error",
        "status": 500,
        "detail": "Something went wrong inside packhorse.",
        "trace_id": answer.headers["x-trace-id"],
    }
    assert "the secret inside" in caplog.text


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (StoreUnavailable("SQLite: /home/x is full"), 503),
        (UnknownOutcome("SQLite: /home/x is full"), 503),
        (BlobUnavailable(reason="/home/x is full"), 502),
    ],
)
async def test_a_store_that_fails_says_when_to_come_again(
    http: Http, monkeypatch: pytest.MonkeyPatch, error: Exception, status: int
) -> None:
    async def broken(*_: Any) -> Any:
        raise error

    monkeypatch.setattr(HttpServices, "job", broken)

    answer = await http.get("jobs/x")

    assert answer.status_code == status
    assert int(answer.headers["retry-after"]) > 0
    assert "/home/x" not in answer.text


async def test_a_store_that_fails_makes_the_server_unready(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    async def broken(*_: Any) -> Any:
        raise StoreUnavailable

    tools: HttpServices = http.app.state.services
    monkeypatch.setattr(tools.store, "fetch", broken)

    assert (await http.get("http://127.0.0.1/readyz")).status_code == 503
    assert (await http.get("http://127.0.0.1/healthz")).status_code == 200


def test_facts_stand_beside_the_message() -> None:
    assert dict(error_to_json(SlotTaken(active_job_id="j1")))["active_job_id"] == "j1"
    assert error_to_json(TooLarge(field="model", limit=5)) == {
        "type": "urn:packhorse:too-large",
        "title": "Too large",
        "status": 413,
        "detail": "model is too large (limit 5 bytes).",
        "field": "model",
        "limit": 5,
        "errors": [{"field": "model", "message": "model is too large (limit 5 bytes)."}],
    }


def test_the_next_thing_to_do_stands_there_with_the_id_it_is_about() -> None:
    assert (
        error_to_json(SlotTaken(active_job_id="j1"))["hint"]
        == "Wait until it has ended, or cancel it: packhorse cancel j1"
    )
    assert (
        error_to_json(NotFinished(job_id="j2", status="failed"))["hint"] == "Check its progress with: packhorse show j2"
    )
    assert "hint" not in error_to_json(TooLarge(field="model", limit=5))


def test_no_fact_takes_the_place_of_a_member() -> None:
    found = error_to_json(
        CorruptRecord(what="spec", job_id="j", reason="r", status="x", type="y", title="z", detail="d", hint="h")
    )

    assert (found["status"], found["title"]) == (500, "Corrupt record")
    assert found["hint"].startswith("Retrying does not help")


async def test_the_client_hands_the_hint_on(running: Server) -> None:
    with Client(running.url) as client, pytest.raises(UnknownPipeline, match="Pipelines: add, convert, ") as refused:
        client.submit("nope", {})

    assert refused.value.hint.startswith("Workers publish their pipelines")
    assert refused.value.facts.keys() == {"pipeline", "field", "errors", "trace_id"}


def test_the_client_knows_every_error_by_its_type() -> None:
    assert KNOWN["slot-taken"] is SlotTaken
    assert len(KNOWN) == len({each.__name__ for each in KNOWN.values()})
