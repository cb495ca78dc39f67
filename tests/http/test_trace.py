"""One trace from the request to the worker's log, and a log of whole lines in which no secret stands."""

from __future__ import annotations

import json
import logging
import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx2
import pytest

from packhorse import Client
from packhorse.core.models import TaskId
from packhorse.errors import JobNotFound
from packhorse.http.middleware import trace_of
from packhorse.log import JsonLines, log, logger, traced
from packhorse.store.base import Lease
from tests.http.processes import Place, Process, Server, served, until, working
from tests.journey.places import PLACES

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
PARENT = f"00-{TRACE}-00f067aa0ba902b7-01"


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("traced")
    return Place(folder, log_format="json", log_level="debug", **PLACES[request.param](folder))


@pytest.fixture(scope="module")
def worker(place: Place) -> Iterator[Process]:
    with working(place) as worker:
        yield worker


@pytest.fixture(scope="module")
def server(place: Place, worker: Process) -> Iterator[Server]:
    with served(place) as server, Client(server.url) as client:
        until(client.pipelines)
        yield server


def lines(process: Process) -> list[dict[str, Any]]:
    """Every line of its log is JSON; the last may still be on its way."""
    return [json.loads(line) for line in process.log.read_text().splitlines(keepends=True) if line.endswith("\n")]


def submitted(server: Server, traceparent: str | None = PARENT) -> httpx2.Response:
    headers = {} if traceparent is None else {"traceparent": traceparent}
    asked = {"pipeline": "add", "parameters": {"a": 1}}
    return httpx2.post(f"{server.api}/jobs", json=asked, headers=headers)


def test_a_trace_goes_from_the_request_to_the_workers_log(server: Server, worker: Process) -> None:
    answer = submitted(server)
    job = answer.json()

    assert job["trace_id"] == answer.headers["x-trace-id"] == TRACE
    version, trace, span, flags = answer.headers["traceresponse"].split("-")
    assert (version, trace, flags) == ("00", TRACE, "01")
    assert span != "00f067aa0ba902b7"

    def ended() -> list[dict[str, Any]]:
        return [each for each in lines(worker) if each["event"] == "attempt_ended" and each["job_id"] == job["job_id"]]

    [found] = until(ended)
    assert (found["trace_id"], found["level"], found["outcome"]) == (TRACE, "debug", "finish")


def test_the_workers_log_says_what_was_wrong_with_a_stage(server: Server, worker: Process) -> None:
    asked = {"pipeline": "fail", "parameters": {"message": "no wind today"}}
    job = httpx2.post(f"{server.api}/jobs", json=asked).json()

    def ended() -> list[dict[str, Any]]:
        return [each for each in lines(worker) if each["event"] == "attempt_ended" and each["job_id"] == job["job_id"]]

    found = until(ended)[0]
    assert (found["level"], found["outcome"]) == ("warning", "fail")
    assert found["reason"] == "NO_LUCK: no wind today"


def test_without_a_parent_there_is_a_new_trace_each_time(server: Server) -> None:
    answers = [submitted(server, None) for _ in range(3)]

    assert len({answer.headers["x-trace-id"] for answer in answers}) == 3
    assert all(answer.json()["trace_id"] == answer.headers["x-trace-id"] for answer in answers)


def test_requests_at_the_same_time_do_not_mix_their_traces(server: Server) -> None:
    traces = [f"{n:032x}" for n in range(1, 41)]
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(lambda trace: submitted(server, f"00-{trace}-00f067aa0ba902b7-00"), traces))

    assert [answer.json()["trace_id"] for answer in answers] == traces
    assert [answer.headers["x-trace-id"] for answer in answers] == traces


def test_a_problem_tells_its_trace(server: Server) -> None:
    headers = {"traceparent": PARENT}
    answers = [httpx2.get(server.api + path, headers=headers) for path in ("/jobs/nope", "/nope", "/jobs?limit=x")]

    assert [answer.json()["trace_id"] for answer in answers] == [TRACE] * 3
    assert [answer.headers["x-trace-id"] for answer in answers] == [TRACE] * 3
    with Client(server.url) as client, pytest.raises(JobNotFound) as error:
        client.get("nope")
    assert len(error.value.facts["trace_id"]) == 32


@pytest.mark.parametrize(
    "given",
    [
        [b"nonsense"],
        [b""],
        [b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01"],
        [f"00-{TRACE}-0000000000000000-01".encode()],
        [f"ff-{TRACE}-00f067aa0ba902b7-01".encode()],
        [f"00-{TRACE}-00f067aa0ba902b7-01-more".encode()],
        [f"00-{TRACE.upper()}-00f067aa0ba902b7-01".encode()],
        [PARENT.encode(), PARENT.encode()],
    ],
)
def test_what_is_no_parent_is_left_aside(given: list[bytes]) -> None:
    assert trace_of([(b"traceparent", value) for value in given]).id != TRACE


def test_a_later_version_may_say_more() -> None:
    assert trace_of([(b"Traceparent", f"01-{TRACE}-00f067aa0ba902b7-01-more".encode())]).id == TRACE


def test_every_request_has_a_line(server: Server) -> None:
    answer = httpx2.get(f"{server.api}/jobs/some-job?limit=3", headers={"traceparent": PARENT})
    assert answer.status_code == 422

    def answered() -> list[dict[str, Any]]:
        return [each for each in lines(server) if each.get("path") == "/api/v1/jobs/some-job"]

    [line] = until(answered)
    assert line["event"] == "request_answered"
    assert (line["method"], line["status"], line["route"]) == ("GET", 422, "/api/v1/jobs/{job_id}")
    assert (line["trace_id"], line["problem"], line["level"]) == (TRACE, "invalid-input", "debug")
    assert line["seconds"] > 0
    assert line["time"].endswith("+00:00")


def test_no_secret_stands_in_the_log(server: Server, worker: Process) -> None:
    canary = "ph_canary_0123456789"
    headers = {"Authorization": f"Bearer {canary}", "Cookie": f"key={canary}", "X-Api-Key": canary}
    for path in ("/jobs", f"/jobs?key={canary}", f"/jobs?cursor={canary}", "/jobs/nope/log", "/jobs/nope/events"):
        httpx2.get(server.api + path, headers=headers)
    httpx2.post(f"{server.api}/jobs", json={"pipeline": "add", "parameters": {"a": canary}}, headers=headers)
    httpx2.post(f"{server.api}/jobs", content=canary, headers={**headers, "Content-Type": "application/json"})
    with Client(server.url, key=canary) as client:
        client.wait(client.submit("speak", {"voice": "bob"}, metadata={"secret": canary}, key=canary)["job_id"])
        until(lambda: [each for each in lines(server) if each.get("route") == "/api/v1/jobs/{job_id}/events"])

    assert canary not in server.log.read_text()
    assert canary not in worker.log.read_text()


def test_a_path_cannot_write_a_line_of_its_own(server: Server) -> None:
    with server.connection() as connection:
        connection.sendall(b"GET /nope%0A%7B%22event%22:%22forged%22%7D HTTP/1.1\r\nHost: localhost\r\n\r\n")
        connection.recv(1000)
        connection.shutdown(socket.SHUT_RDWR)

    found = until(lambda: [each for each in lines(server) if "forged" in each.get("path", "")])
    assert [each["event"] for each in found] == ["request_answered"]
    assert "\n" not in found[0]["message"]


def written(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [json.loads(JsonLines().format(record)) for record in caplog.records]


def test_a_sentence_is_a_line_with_its_facts(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, logger.name)
    with traced(TRACE):
        log.lease_overdue("job-1", "nef")
    log.background_failed("janitor", ValueError("100 % {odd}"))
    logging.getLogger("somebody.else").warning("%s said", "it")

    ours, second, other = written(caplog)
    assert ours == {
        "time": ours["time"],
        "level": "warning",
        "event": "lease_overdue",
        "message": "the lease of nef of job-1 expired; the stage returned to the queue",
        "trace_id": TRACE,
        "job_id": "job-1",
        "stage": "nef",
    }
    assert (len(second["trace_id"]), second["job_id"]) == (32, None)
    assert other["trace_id"] == second["trace_id"] != TRACE
    assert second["message"] == "janitor failed and will be retried: ValueError('100 % {odd}')"
    assert (other["event"], other["logger"], other["message"]) == ("log", "somebody.else", "it said")


@pytest.mark.parametrize(
    ("outcome", "why", "sentence"),
    [
        ("fail", "EXCEPTION: it broke", "nef of job-1 failed after 0.250 s: EXCEPTION: it broke"),
        ("time_out", "TIMEOUT: too long", "nef of job-1 timed out after 0.250 s: TIMEOUT: too long"),
        ("lost", "", "nef of job-1 was lost after 0.250 s"),
    ],
)
def test_an_attempt_that_ended_badly_is_said_in_words(
    caplog: pytest.LogCaptureFixture, outcome: str, why: str, sentence: str
) -> None:
    log.attempt_ended(Lease("job-1", TaskId("nef"), "token"), outcome, 0.25, why)

    assert written(caplog)[-1]["message"] == sentence
    assert written(caplog)[-1]["outcome"] == outcome


def test_what_broke_brings_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    try:
        raise ZeroDivisionError("by hand")
    except ZeroDivisionError as error:
        log.request_failed("GET", "/x", error)

    [line] = written(caplog)
    assert "test_what_broke_brings_its_traceback" in line["traceback"]
    assert line["reason"] == "ZeroDivisionError('by hand')"
