"""Server-sent events over real sockets: a snapshot, the exact suffix, and an end."""

from __future__ import annotations

import json
import signal
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packhorse.client import Client
from tests.http.conftest import run
from tests.http.processes import Place, Server, served, until, working
from tests.journey.places import PLACES

pytestmark = pytest.mark.every_store

Json = dict[str, Any]
UNNUMBERED = {"snapshot", "progress", "log", "gap"}


@pytest.fixture(scope="module", params=PLACES)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("running")
    with run(Place(folder, **PLACES[request.param](folder))) as server:
        yield server


def stream(server: Server, job_id: str, query: str = "", **headers: str) -> list[httpx2.ServerSentEvent]:
    """All events until the server ends the stream."""
    with httpx2.stream("GET", f"{server.api}/jobs/{job_id}/events{query}", headers=headers, timeout=60) as response:
        assert response.headers["content-type"] == "text/event-stream"
        return list(httpx2.EventSource(response))


def numbered(events: list[httpx2.ServerSentEvent]) -> list[tuple[int, str]]:
    return [(json.loads(event.data)["n"], event.event) for event in events if event.event not in UNNUMBERED]


@pytest.fixture(scope="module")
def ended(running: Server) -> Json:
    with Client(running.url) as client:
        return client.wait(client.submit("hold", {"seconds": 0.2, "lines": 3})["job_id"], 60)


HISTORY = [(1, "submitted"), (2, "started"), (3, "stage_started"), (4, "stage_completed"), (5, "completed")]


def test_an_ended_job_is_told_from_the_start_and_the_stream_ends(running: Server, ended: Json) -> None:
    events = stream(running, ended["job_id"])

    assert events[0].event == "snapshot"
    assert json.loads(events[0].data) == ended
    assert numbered(events) == HISTORY
    assert events[-1].event == "completed"


def test_the_id_of_an_event_is_its_number(running: Server, ended: Json) -> None:
    text = httpx2.get(f"{running.api}/jobs/{ended['job_id']}/events").text
    blocks = [dict(line.split(": ", 1) for line in block.splitlines()) for block in text.strip().split("\n\n")]

    ids = {block["event"]: block.get("id") for block in blocks}

    assert ids == {"snapshot": None, "log": None, **{type: str(n) for n, type in HISTORY}}


@pytest.mark.parametrize("after", range(6))
def test_a_resumed_watcher_gets_the_exact_suffix(running: Server, ended: Json, after: int) -> None:
    by_query = stream(running, ended["job_id"], f"?after={after}")
    by_header = stream(running, ended["job_id"], "?after=0", **{"Last-Event-ID": str(after)})

    assert numbered(by_query) == numbered(by_header) == HISTORY[after:]


def test_a_number_from_the_future_is_a_gap(running: Server, ended: Json) -> None:
    events = stream(running, ended["job_id"], "?after=99")

    assert [event.event for event in events] == ["snapshot", "gap", "log", "log", "log"]
    assert json.loads(events[1].data) == {"what": "events", "after": 99, "last_event": 5}


@pytest.mark.parametrize("number", ["x", "-1", "1.5", "9" * 30, "١"])
def test_a_last_event_that_is_no_number_is_refused(running: Server, ended: Json, number: str) -> None:
    answer = httpx2.get(f"{running.api}/jobs/{ended['job_id']}/events", headers=[(b"Last-Event-ID", number.encode())])

    assert answer.status_code == 422
    assert answer.json()["errors"][0]["field"] == "Last-Event-ID"


def test_the_log_is_told_once_and_may_be_left_out(running: Server, ended: Json) -> None:
    def lines(query: str) -> list[str]:
        events = stream(running, ended["job_id"], query)
        return [json.loads(event.data)["text"] for event in events if event.event == "log"]

    assert lines("") == ["line 0", "line 1", "line 2"]
    assert lines("?log_after=2") == ["line 2"]
    assert lines("?log=false") == []


def test_a_running_job_is_told_live_with_its_progress(running: Server, client: Client, tmp_path: Path) -> None:
    gate = tmp_path / "watched"
    job_id = client.submit("hold", {"seconds": 1.0, "lines": 2, "gate": str(gate)})["job_id"]
    seen: list[httpx2.ServerSentEvent] = []
    with httpx2.stream("GET", f"{running.api}/jobs/{job_id}/events", timeout=60) as response:
        for event in httpx2.EventSource(response):
            seen.append(event)
            gate.touch()

    progress = [json.loads(event.data) for event in seen if event.event == "progress"]
    values = [each["progress"] for each in progress]
    assert numbered(seen) == HISTORY
    types = [event.event for event in seen]
    assert types.index("progress") < types.index("stage_completed")
    assert values == sorted(values)
    assert len(set(values)) >= 3
    assert any(each["stages"].get("wait", {}).get("message", "") for each in progress)
    assert [json.loads(event.data)["text"] for event in seen if event.event == "log"] == ["line 0", "line 1"]


def test_a_second_run_is_followed_to_its_end(running: Server, client: Client) -> None:
    job_id = client.submit("fail", {"message": "no"})["job_id"]
    assert client.wait(job_id, 60)["status"] == "failed"
    client.retry(job_id)

    events = stream(running, job_id)

    types = [type for _, type in numbered(events)]
    assert types.count("failed") == 2
    assert types[-1] == "failed"
    assert [n for n, _ in numbered(events)] == list(range(1, len(types) + 1))


def test_many_watchers_of_one_job_all_see_all_of_it(running: Server, client: Client) -> None:
    job_id = client.submit("hold", {"seconds": 0.7})["job_id"]
    with httpx2.Client(timeout=60) as http:
        opened = [http.stream("GET", f"{running.api}/jobs/{job_id}/events") for _ in range(20)]
        responses = [each.__enter__() for each in opened]

        found = [numbered(list(httpx2.EventSource(response))) for response in responses]

        for each in opened:
            each.__exit__(None, None, None)
    assert found == [HISTORY] * 20


def test_a_quiet_stream_is_pinged(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """With the real period it would take a quarter of a minute; what sends it is the same."""
    script = (
        "import runpy, packhorse.http.routes.events as events; events.PING = 0.2; "
        "runpy.run_module('packhorse.web', run_name='__main__')"
    )
    monkeypatch.setattr("sys.executable", _wrapper(place, script))
    with served(place) as server:
        job_id = httpx2.post(f"{server.api}/jobs", json={"pipeline": "add", "parameters": {"a": 1}}).json()["job_id"]
        with httpx2.stream("GET", f"{server.api}/jobs/{job_id}/events", timeout=60) as response:
            pings = (line for line in response.iter_lines() if line == ": ping")
            assert len(list(islice(pings, 2))) == 2


def _wrapper(place: Place, script: str) -> str:
    path = place.folder / "python"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} -c "{script}"\n')
    path.chmod(0o755)
    return str(path)


def test_a_client_that_loses_its_server_goes_on_where_it_was(place: Place) -> None:
    with working(place), Client(f"http://127.0.0.1:{place.settings.port}") as client:
        server = Server(place)
        until(client.pipelines)
        job_id = client.submit("hold", {"seconds": 3.0, "lines": 5})["job_id"]
        events = client.events(job_id)
        seen = [next(events) for _ in range(4)]

        server.signal(signal.SIGKILL)
        server.ended()
        server = Server(place)
        seen += events

        server.stop()
    assert [event["n"] for event in seen if event["n"]] == [1, 2, 3, 4, 5]
    assert [event["data"]["n"] for event in seen if event["type"] == "log"] == [1, 2, 3, 4, 5]
    assert seen[-1]["type"] == "completed"


def test_a_watcher_that_reads_nothing_costs_the_others_nothing(running: Server, client: Client) -> None:
    job_id = client.submit("hold", {"seconds": 1.0, "lines": 2000})["job_id"]
    with running.connection() as stuck:
        stuck.sendall(f"GET /api/v1/jobs/{job_id}/events HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())

        events = stream(running, job_id)

    lines = [json.loads(event.data)["n"] for event in events if event.event == "log"]
    assert numbered(events) == HISTORY
    assert lines == sorted(set(lines))
    assert client.pipelines()
