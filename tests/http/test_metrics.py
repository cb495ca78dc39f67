"""/metrics, on every store: each request is counted once, what is open is closed again, no label says who or which."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Iterator
from typing import Any

import httpx2
import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from packhorse import Client
from packhorse.errors import InvalidInput, SlotTaken, UnknownPipeline
from packhorse.factory import open_store
from packhorse.store.collections.queues import Level, Reading, add_reading
from tests.http.processes import Place, Process, Server, served, until, working
from tests.http.unserved import unserved
from tests.journey.places import PLACES
from tests.servers.ports import free_port
from tests.servers.valkey import Valkey

ONNX = frozenset({("queue", "onnx")})
Numbers = dict[tuple[str, frozenset[tuple[str, str]]], float]


def read(text: str) -> Numbers:
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(numbers: Numbers, name: str, **labels: str) -> float:
    return numbers.get((f"packhorse_{name}", frozenset(labels.items())), 0.0)


@pytest.fixture(scope="module", params=PLACES)
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Place:
    folder = tmp_path_factory.mktemp("metrics")
    return Place(folder, metrics_port=free_port(), **PLACES[request.param](folder))


@pytest.fixture(scope="module")
def worker(place: Place) -> Iterator[Process]:
    with working(place) as worker:
        yield worker


@pytest.fixture(scope="module")
def server(place: Place, worker: Process) -> Iterator[Server]:
    with served(place) as server, Client(server.url) as client:
        until(client.pipelines)
        yield server


@pytest.fixture
def client(server: Server) -> Iterator[Client]:
    with Client(server.url) as client:
        yield client


def scraped(server: Server) -> Numbers:
    answer = httpx2.get(f"{server.url}/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    return read(answer.text)


def of_worker(place: Place) -> Numbers:
    return read(httpx2.get(f"http://127.0.0.1:{place.settings.metrics_port}/metrics").text)


def more(server: Server, act: Callable[[], object]) -> Callable[..., float]:
    """How much higher a number is after the act than before."""
    before = scraped(server)
    act()
    after = scraped(server)
    return lambda name, **labels: of(after, name, **labels) - of(before, name, **labels)


def test_a_request_is_counted_under_its_route(server: Server) -> None:
    def ask() -> None:
        for path in ("jobs/nope-1", "jobs/nope-2", "jobs?limit=1", "jobs?limit=x", "no/such/place"):
            httpx2.get(f"{server.api}/{path}")
        httpx2.request("BREW", f"{server.api}/jobs")
        httpx2.request("PUT", f"{server.api}/jobs")

    risen = more(server, ask)

    one = "/api/v1/jobs/{job_id}"
    assert risen("http_requests_total", method="GET", route=one, status="404") == 2
    assert risen("http_requests_total", method="GET", route="/api/v1/jobs", status="200") == 1
    assert risen("http_requests_total", method="GET", route="/api/v1/jobs", status="422") == 1
    assert risen("http_requests_total", method="GET", route="none", status="404") == 1
    assert risen("http_requests_total", method="PUT", route="none", status="405") == 1
    assert risen("http_requests_total", method="other", route="none", status="405") == 1
    assert risen("http_request_seconds_count", method="GET", route=one) == 2
    assert risen("http_request_seconds_sum", method="GET", route=one) > 0


def test_submits_are_counted_and_refusals_by_their_reason(server: Server, client: Client) -> None:
    def submit() -> None:
        client.submit("add", {"a": 1})
        taken = client.submit("convert", files={"model": b"x"}, user="counted", delay="1h")
        with pytest.raises(SlotTaken):
            client.submit("convert", files={"model": b"x"}, user="counted")
        with pytest.raises(InvalidInput):
            client.submit("add", {"a": "x"})
        with pytest.raises(UnknownPipeline):
            client.submit("nope")
        with pytest.raises(InvalidInput):
            client.retry(taken["job_id"], stage="nope")
        client.cancel(taken["job_id"])

    risen = more(server, submit)

    assert risen("jobs_submitted_total") == 2
    assert risen("jobs_refused_total", reason="slot-taken") == 1
    assert risen("jobs_refused_total", reason="invalid-input") == 1
    assert risen("jobs_refused_total", reason="unknown-pipeline") == 1


def test_bytes_are_counted_in_and_out(server: Server, client: Client, tmp_path: Any) -> None:
    def carry() -> None:
        job = client.submit("convert", files={"model": b"x" * 500_000}, user="bytes")
        client.wait(job["job_id"])
        client.result(job["job_id"], tmp_path)

    risen = more(server, carry)

    assert 500_000 < risen("http_received_bytes_total", route="/api/v1/jobs") < 502_000
    assert risen("http_sent_bytes_total", route="/api/v1/jobs/{job_id}/result") == 500_003


@pytest.mark.parametrize("how", ["upload", "download", "stream"])
def test_what_is_open_is_closed_when_its_client_vanishes(server: Server, client: Client, how: str) -> None:
    def is_open(count: int) -> Callable[[], bool]:
        return lambda: of(scraped(server), "http_open", kind=how) == count

    with vanishing(server, client, how):
        assert until(is_open(1))

    assert until(is_open(0))


def vanishing(server: Server, client: Client, how: str) -> socket.socket:
    """A connection in the middle of something."""
    if how == "upload":
        head = "POST /api/v1/jobs?pipeline=convert&user_id=gone HTTP/1.1\r\nContent-Length: 1000000\r\n"
        head += "Content-Type: multipart/form-data; boundary=x\r\n"
        body = '--x\r\nContent-Disposition: form-data; name="model"; filename="m"\r\n\r\nbegun'
    elif how == "download":
        job = client.submit("convert", files={"model": b"x" * 64_000_000}, user="going")
        client.wait(job["job_id"])
        head, body = f"GET /api/v1/jobs/{job['job_id']}/result HTTP/1.1\r\n", ""
    else:
        job = client.submit("add", {"a": 1}, delay="1h")
        head, body = f"GET /api/v1/jobs/{job['job_id']}/events HTTP/1.1\r\n", ""
    connection = server.connection()
    connection.sendall(f"{head}Host: 127.0.0.1\r\n\r\n{body}".encode())
    return connection


def test_no_label_says_who_or_which(server: Server, client: Client) -> None:
    job = client.submit("add", {"a": 1}, user="canary-user", metadata={"canary-meta": "canary-value"})
    for path in (f"jobs/{job['job_id']}", "jobs/canary-id", "canary-path", "jobs?user_id=canary-query"):
        httpx2.get(f"{server.api}/{path}")
    httpx2.request("CANARY", f"{server.api}/jobs")
    httpx2.get(f"{server.api}/jobs", headers={"Authorization": "Bearer canary-key"})

    text = httpx2.get(f"{server.url}/metrics").text

    assert "canary" not in text.lower()
    assert job["job_id"] not in text
    assert {name for labels in (key[1] for key in read(text)) for name, _ in labels} == {
        "method", "route", "status", "kind", "reason", "queue", "le",
    }  # fmt: skip


def test_the_store_says_what_costs_nothing(server: Server, worker: Process) -> None:
    numbers = scraped(server)

    assert of(numbers, "store_up") == 1
    assert of(numbers, "workers") == 1
    assert of(numbers, "queue_slots", queue="onnx") >= 1


def test_a_worker_samples_its_queues_for_the_server(server: Server, worker: Process) -> None:
    names = ("queue_ready", "queue_oldest_seconds", "queue_running")

    assert until(lambda: {(f"packhorse_{name}", ONNX) for name in names} <= scraped(server).keys())


async def test_the_last_sample_of_the_queues_is_reported(tmp_path: Any) -> None:
    settings = Place(tmp_path).settings
    async with unserved(settings, "http://127.0.0.1") as http:
        store = await open_store(settings.store)
        minute = int(store.now() // 60) * 60
        await add_reading(store, Reading(minute - 60, 1, {"onnx": Level(ready=9, running=9)}))
        await add_reading(store, Reading(minute, 1, {"onnx": Level(ready=2, oldest=7.0, running=1)}))
        await store.close()
        numbers = read((await http.get("/metrics")).text)

    assert of(numbers, "queue_ready", queue="onnx") == 2
    assert of(numbers, "queue_oldest_seconds", queue="onnx") == 7
    assert of(numbers, "queue_running", queue="onnx") == 1


def test_a_worker_says_that_it_is_ready_and_what_its_metrics_are(place: Place, worker: Process) -> None:
    base = f"http://127.0.0.1:{place.settings.metrics_port}"

    assert until(lambda: httpx2.get(f"{base}/readyz").status_code == 200)
    assert httpx2.get(f"{base}/healthz").text == "ok\n"
    assert "packhorse_claim_age_seconds" in httpx2.get(f"{base}/metrics").text


async def test_a_store_that_is_away_leaves_the_rest(tmp_path: Any) -> None:
    valkey = Valkey().start()
    settings = Place(tmp_path, store=valkey.url()).settings
    try:
        async with unserved(settings, "http://127.0.0.1") as http:
            before = read((await http.get("/metrics")).text)
            await asyncio.to_thread(valkey.kill)
            answer = await http.get("/metrics")
    finally:
        valkey.remove()

    assert of(before, "store_up") == 1
    assert answer.status_code == 200
    assert of(read(answer.text), "store_up") == 0
    assert of(read(answer.text), "http_requests_total", method="GET", route="/metrics", status="200") >= 1


def test_a_worker_tells_what_its_attempts_came_to(place: Place, client: Client) -> None:
    before = of_worker(place)
    client.wait(client.submit("add", {"a": 1})["job_id"])
    client.wait(client.submit("fail", {"message": "no"})["job_id"])
    held = client.submit("hold", {"seconds": 30})["job_id"]

    def risen(name: str, **labels: str) -> float:
        return of(of_worker(place), name, **labels) - of(before, name, **labels)

    until(lambda: risen("attempts_started_total", pipeline="hold", stage="wait") == 1)
    assert of(of_worker(place), "slots_busy", queue="default") == 1
    assert of(of_worker(place), "claim_age_seconds") < 10
    client.cancel(held)
    client.wait(held)
    until(lambda: of(of_worker(place), "slots_busy", queue="default") == 0)
    assert risen("attempts_ended_total", pipeline="add", stage="add", outcome="finish") == 1
    assert risen("attempts_ended_total", pipeline="fail", stage="fail", outcome="fail") == 1
    until(lambda: risen("attempts_ended_total", pipeline="hold", stage="wait", outcome="hand_back") == 1)


def test_a_worker_without_the_setting_listens_nowhere(tmp_path: Any) -> None:
    place = Place(tmp_path)
    with working(place) as worker:
        until(lambda: [*place.folder.glob("scratch/*")])  # it has come as far as to work

        listening = [each for each in psutil.Process(worker.pid).net_connections() if each.status == "LISTEN"]
    assert listening == []
