"""The client: every call, the errors as they were, and files that appear whole or not at all."""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from packhorse.client import LOCAL, Client
from packhorse.errors import (
    InvalidInput,
    JobNotFound,
    KeyReused,
    NotAllowed,
    NotFinished,
    SlotTaken,
    UnknownPipeline,
    Unreachable,
)
from tests.http.both import KINDS, opened
from tests.http.processes import Server
from tests.servers.ports import free_port


def test_a_subclass_may_override_a_call_and_inherits_the_others() -> None:
    class Mine(Client):
        def get(self, job_id: str) -> str:  # type: ignore[override]
            return f"mine {job_id}"

    with Mine("http://127.0.0.1:1") as client:
        assert client.get("j1") == "mine j1"
    assert vars(Mine).keys().isdisjoint({"cancel", "submit"})


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def client(running: Server, kind: str) -> Iterator[Client]:
    with opened(kind, running.url) as client:
        yield client


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "größe.onnx"
    path.write_bytes(b"weights")
    return path


def test_a_job_is_submitted_followed_and_fetched(client: Client, kind: str, model: Path, tmp_path: Path) -> None:
    told: list[tuple[int, int]] = []

    job = client.submit(
        "convert",
        {"platform": "720", "version": 2, "note": "out.bin"},
        files={"model": model, "ref_images": [model, model]},
        user=f"client-{kind}",
        priority=3,
        metadata={"a": [1]},
        on_progress=lambda sent, total: told.append((sent, total)),
    )
    types = [event["type"] for event in client.events(job["job_id"])]
    done = client.get(job["job_id"])
    path = client.result(job["job_id"], tmp_path)

    assert done["status"] == "completed"
    assert types[0] == "snapshot"
    assert types[-1] == "completed"
    assert done["parameters"]["ref_images"] == ["größe.onnx", "größe.onnx"]
    assert (done["priority"], done["metadata"], done["source_filename"]) == (3, {"a": [1]}, "größe.onnx")
    assert told[-1] == (21, 21)
    assert path == tmp_path / "größe-out.bin"
    assert path.read_bytes() == b"weights720"
    assert client.log(job["job_id"])["items"][0]["text"] == "converting größe.onnx"
    assert [found["job_id"] for found in client.list(user=job["user_id"], status="completed")["items"]] == [
        job["job_id"]
    ]


def test_a_value_is_returned_as_it_is(client: Client, tmp_path: Path) -> None:
    job = client.submit("add", {"a": 1, "b": 1})

    assert client.wait(job["job_id"], 60)["status"] == "completed"
    assert client.result(job["job_id"], tmp_path) == 2
    assert list(tmp_path.iterdir()) == []


def test_a_file_may_be_given_its_name(client: Client, model: Path, tmp_path: Path) -> None:
    job = client.wait(client.submit("convert", files={"model": model}, user="named")["job_id"], 60)

    path = client.result(job["job_id"], tmp_path / "new" / "mine.nef")
    other = client.artifact(job["job_id"], "onnx/report.txt", tmp_path / "new")

    assert path == tmp_path / "new" / "mine.nef"
    assert hashlib.sha256(path.read_bytes()).hexdigest() == job["result"]["sha256"]
    assert other.read_bytes() == b"fine"
    assert sorted(each.name for each in (tmp_path / "new").iterdir()) == sorted(["mine.nef", other.name])


def test_waiting_ends_with_the_timeout(client: Client) -> None:
    job = client.submit("add", {"a": 1}, delay="1h")
    began = time.monotonic()

    found = client.wait(job["job_id"], 0.3)

    assert found["status"] == "pending"
    assert time.monotonic() - began > 0.25
    client.cancel(job["job_id"])


def test_waiting_returns_soon_after_the_end(client: Client) -> None:
    job = client.submit("hold", {"seconds": 0.3})

    done = client.wait(job["job_id"])

    assert done["status"] == "completed"


def test_a_running_job_is_cancelled(client: Client) -> None:
    job = client.submit("hold", {"seconds": 30})
    for event in client.events(job["job_id"]):
        if event["type"] == "stage_started":
            client.cancel(job["job_id"])

    assert client.get(job["job_id"])["status"] == "cancelled"


def test_a_failed_job_is_retried(client: Client) -> None:
    job = client.wait(client.submit("fail", {"message": "not today"})["job_id"], 60)

    again = client.retry(job["job_id"])

    assert (job["status"], job["error"]["code"], job["error"]["message"]) == ("failed", "NO_LUCK", "not today")
    assert again["run"] == 2
    assert client.wait(job["job_id"], 60)["status"] == "failed"
    assert client.retry(job["job_id"], stage="*")["run"] == 3


def test_a_key_gives_the_first_job(client: Client) -> None:
    first = client.submit("add", {"a": 1}, key="client-key")

    assert client.submit("add", {"a": 1}, key="client-key")["job_id"] == first["job_id"]
    with pytest.raises(KeyReused):
        client.submit("add", {"a": 2}, key="client-key")


def test_a_problem_is_the_error_it_was(client: Client, model: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownPipeline, match="nope"):
        client.submit("nope")
    with pytest.raises(JobNotFound) as missing:
        client.get("x")
    with pytest.raises(InvalidInput) as invalid:
        client.submit("add", {"a": "x", "c": 1})
    waiting = client.submit("convert", files={"model": model}, user="busy", delay=3600)
    with pytest.raises(SlotTaken) as taken:
        client.submit("convert", files={"model": model}, user="busy")
    with pytest.raises(NotFinished):
        client.result(waiting["job_id"], tmp_path)
    client.cancel(waiting["job_id"])
    with pytest.raises(NotAllowed):
        client.cancel(client.wait(client.submit("add", {"a": 1})["job_id"])["job_id"])

    assert missing.value.facts["job_id"] == "x"
    assert {error["field"] for error in invalid.value.errors} == {"a", "c"}
    assert taken.value.facts["active_job_id"] == waiting["job_id"]


def test_a_file_that_is_not_there_is_named(client: Client, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput) as error:
        client.submit("convert", files={"model": tmp_path / "nope"})

    assert error.value.errors[0]["field"] == "model"


def test_no_answer_is_unreachable(kind: str) -> None:
    url = f"http://127.0.0.1:{free_port()}"
    with opened(kind, url) as client:
        for call in (client.pipelines, lambda: next(client.events("x")), lambda: client.wait("x")):
            with pytest.raises(Unreachable, match=url):
                call()


@pytest.mark.parametrize("url", ["nonsense", "ftp://localhost", "http://", "http://[::1"])
def test_an_address_that_is_none_is_unreachable(url: str) -> None:
    with pytest.raises(Unreachable), Client(url) as client:
        client.pipelines()


def test_the_address_comes_from_the_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PACKHORSE_URL", raising=False)
    with Client() as local:
        assert local.url == LOCAL
    monkeypatch.setenv("PACKHORSE_URL", "http://example.test:1/")
    with Client() as remote:
        assert remote.url == "http://example.test:1"


def test_a_proxy_is_not_asked_about_this_machine(client: Client, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", f"http://127.0.0.1:{free_port()}")
    with Client(client.url) as again:
        assert again.pipelines()


class Impostor(BaseHTTPRequestHandler):
    """Says what it likes: another server, and a packhorse whose answer was tampered with."""

    def do_GET(self) -> None:
        body = b"<html>hello</html>"
        self.send_response(404 if "pipelines" in self.path else 200)
        if self.path.endswith("result"):
            self.send_header("Content-Disposition", "attachment; filename*=UTF-8''..%2Fevil.txt")
            self.send_header("Repr-Digest", "sha-256=:AAAA:")
        self.send_header("Content-Length", str(len(body) + 10 * ("cut" in self.path)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def impostor(kind: str) -> Iterator[Client]:
    server = HTTPServer(("127.0.0.1", 0), Impostor)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    with opened(kind, f"http://127.0.0.1:{server.server_address[1]}") as client:
        yield client
    server.shutdown()
    thread.join()
    server.server_close()


def test_what_is_not_packhorse_is_said_to_be_something_else(impostor: Client) -> None:
    with pytest.raises(Unreachable, match="not packhorse"):
        impostor.pipelines()


@pytest.mark.parametrize("job_id", ["whole", "cut"])
def test_a_file_that_is_not_what_was_sent_does_not_appear(impostor: Client, tmp_path: Path, job_id: str) -> None:
    with pytest.raises(Unreachable):
        impostor.result(job_id, tmp_path)

    assert list(tmp_path.iterdir()) == []
    assert list(tmp_path.parent.glob("evil*")) == []


def test_a_job_without_an_id_is_not_asked_for(kind: str) -> None:
    calls: list[Callable[[Client], object]] = [
        lambda client: client.get(""),
        lambda client: client.cancel(" "),
        lambda client: client.retry(""),
        lambda client: client.log(""),
        lambda client: client.result("", Path()),
        lambda client: client.artifacts(""),
        lambda client: list(client.events("")),
        lambda client: client.wait(""),
        lambda client: client.artifact("", "a.txt", Path()),
    ]
    with opened(kind, "http://127.0.0.1:9") as client:
        for call in calls:
            with pytest.raises(InvalidInput, match="The job id is empty"):
                call(client)


@pytest.mark.parametrize("name", ["", " ", "/"])
def test_an_artifact_without_a_name_is_not_asked_for(name: str) -> None:
    with (
        Client("http://127.0.0.1:9") as client,
        pytest.raises(InvalidInput, match="The artifact name is empty"),
    ):
        client.artifact("01a1de8a-dac9-7252-af02-b5b5a003b862", name, Path())
