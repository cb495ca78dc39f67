"""Both clients on the wire: what they send, what they send again, and that a lost answer makes no second job."""

from __future__ import annotations

import asyncio
import inspect
import io
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

import packhorse
from packhorse import AsyncClient, Client, File
from packhorse.errors import InvalidInput, JobNotFound, Unreachable
from tests.http.both import KINDS, opened
from tests.http.processes import Server
from tests.servers.flaky import FlakyHttp
from tests.servers.ports import free_port


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    found: str = request.param
    return found


@pytest.fixture
def client(running: Server, kind: str) -> Iterator[Client]:
    with opened(kind, running.url) as client:
        yield client


class Way(FlakyHttp):
    """A flaky way to a server that a test without an event loop can stand on."""

    @contextmanager
    def laid(self) -> Iterator[str]:
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever)
        thread.start()
        asyncio.run_coroutine_threadsafe(self.open(), loop).result()
        try:
            yield f"http://127.0.0.1:{self.port}"
        finally:
            asyncio.run_coroutine_threadsafe(self.close(), loop).result()
            loop.call_soon_threadsafe(loop.stop)
            thread.join()
            loop.close()


def found(client: Client, user: str) -> list[str]:
    return [job["job_id"] for job in client.iterate(user=user)]


def test_the_public_names_are_the_clients() -> None:
    assert {"Client", "AsyncClient"} <= {*packhorse.__all__}
    assert packhorse.Client is Client
    with pytest.raises(AttributeError, match="nope"):
        packhorse.nope  # noqa: B018


def test_both_clients_have_the_same_calls() -> None:
    calls = {name: each for name, each in vars(Client).items() if not name.startswith("_")}
    others = {name: each for name, each in vars(AsyncClient).items() if not name.startswith("_")}

    assert calls.keys() == others.keys()
    for name, each in calls.items():
        assert each.__doc__ == others[name].__doc__, name
        assert [*inspect.signature(each).parameters] == [*inspect.signature(others[name]).parameters], name


@pytest.mark.parametrize("fates", [["lost"], ["cut", "lost"], ["503", "lost", "cut"]])
def test_an_answer_that_is_lost_makes_no_second_job(running: Server, kind: str, fates: list[Any]) -> None:
    way = Way(running.port)
    user = f"lost-{kind}-{len(fates)}"
    with way.laid() as url, opened(kind, url) as client:
        way.fates = [*fates]
        job = client.submit("hold", user=user)

        assert way.struck == len(fates)
        assert found(client, user) == [job["job_id"]]


def test_files_are_sent_again_from_where_they_began(running: Server, kind: str, tmp_path: Path) -> None:
    way = Way(running.port)
    path = tmp_path / "m.onnx"
    path.write_bytes(b"from the path")
    rest = io.BytesIO(b"skipped the rest")
    rest.seek(8)
    told: list[tuple[int, int]] = []
    with way.laid() as url, opened(kind, url) as client:
        way.fates = ["lost", "cut"]
        job = client.submit(
            "convert",
            files={"model": path, "ref_images": [rest, b"bytes", ("named.png", b"more")]},
            user=f"again-{kind}",
            on_progress=lambda sent, total: told.append((sent, total)),
        )
        done = client.wait(job["job_id"], 60)

        assert found(client, f"again-{kind}") == [job["job_id"]]
    sizes = [(each["filename"], each["size_bytes"]) for each in done["inputs"]]
    assert sizes == [("m.onnx", 13), ("ref_images", 8), ("ref_images", 5), ("named.png", 4)]
    assert told[-1] == (30, 30)


def test_whoever_gives_up_says_so(running: Server, kind: str) -> None:
    way = Way(running.port)
    with way.laid() as url, opened(kind, url) as client:
        way.rates = {"lost": 1.0}
        with pytest.raises(Unreachable):
            client.submit("hold", user=f"given-up-{kind}")
        way.rates = {}

        assert way.struck == 4
        assert len(found(client, f"given-up-{kind}")) == 1


def test_other_calls_are_not_sent_twice(running: Server, kind: str) -> None:
    way = Way(running.port)
    with way.laid() as url, opened(kind, url) as client:
        job = client.submit("hold", {"seconds": 0.0}, delay="1h")
        way.fates = ["cut"]
        with pytest.raises(Unreachable):
            client.cancel(job["job_id"])

        assert client.get(job["job_id"])["status"] == "pending"
        client.cancel(job["job_id"])


def test_events_go_on_after_a_cut(running: Server, kind: str) -> None:
    way = Way(running.port)
    with way.laid() as url, opened(kind, url) as client:
        job = client.submit("hold", {"seconds": 0.5, "lines": 3})
        way.cuts = [2500, 200, 3000]
        events = list(client.events(job["job_id"]))

        numbers = [event["n"] for event in events if event["n"] is not None]
        texts = [event["data"]["text"] for event in events if event["type"] == "log"]
        assert numbers == [*range(1, len(numbers) + 1)]
        assert events[-1]["type"] == "completed"
        assert texts == ["line 0", "line 1", "line 2"]
        assert way.cuts == []


def test_every_page_is_read(client: Client, kind: str) -> None:
    made = [client.submit("add", {"a": n}, user=f"pages-{kind}")["job_id"] for n in range(5)]

    read = [job["job_id"] for job in client.iterate(user=f"pages-{kind}", limit=2)]

    assert read == made[::-1]


def test_an_open_file_stays_open(client: Client, kind: str, tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(b"0123456789")
    with path.open("rb") as file:
        first = client.submit("convert", files={"model": file}, user=f"open-{kind}")
        assert not file.closed

    second = client.submit("convert", files={"model": File(path, name="other.onnx")}, user=f"file-{kind}")

    assert [each["inputs"][0]["filename"] for each in (first, second)] == ["m.onnx", "other.onnx"]
    assert first["inputs"][0]["size_bytes"] == 10


@pytest.mark.parametrize("name", ['a"b.bin', "größe.bin", "a b;c.bin"])
def test_a_name_arrives_as_it_is(client: Client, kind: str, name: str) -> None:
    job = client.submit("convert", files={"model": (name, b"x")}, user=f"named-{kind}-{name}")

    assert job["inputs"][0]["filename"] == name.replace('"', "%22")


def test_what_cannot_be_read_again_is_refused_before_anything_is_sent(kind: str, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    (tmp_path / "text").write_text("x")
    with (
        ours,
        theirs,
        ours.makefile("rb") as pipe,
        (tmp_path / "text").open() as text,
        opened(kind, f"http://127.0.0.1:{free_port()}") as client,
    ):
        for given in (pipe, text, tmp_path / "nope", tmp_path):
            with pytest.raises(InvalidInput) as error:
                client.submit("convert", files={"model": given})  # type: ignore[dict-item]
            assert error.value.errors[0]["field"] == "model"


class Listening(BaseHTTPRequestHandler):
    """Keeps the headers of what it is asked."""

    heard: list[tuple[str, str, dict[str, str]]]
    bodies: ClassVar[list[bytes]] = []

    def answered(self) -> None:
        self.bodies.append(self.rfile.read(int(self.headers.get("content-length", 0))))
        self.heard.append((self.command, self.path, {name.lower(): value for name, value in self.headers.items()}))
        self.send_response(204 if self.command == "DELETE" else 200)
        body = b"" if self.command == "DELETE" else b'{"job_id": "x", "items": [], "next": null}'
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = do_DELETE = answered

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def listening() -> Iterator[tuple[str, list[Any]]]:
    heard: list[Any] = []
    handler = type("Mine", (Listening,), {"heard": heard})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}", heard
    server.shutdown()
    thread.join()
    server.server_close()


def test_the_key_is_shown_with_every_call(
    listening: tuple[str, list[Any]], kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    url, heard = listening
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PACKHORSE_KEY", "ph_from_the_settings")
    for key in ("ph_given", None, ""):
        with opened(kind, url, key=key) as client:
            client.pipelines()
            client.submit("add", files={"a": b"x"})

    shown = [headers.get("authorization") for _, _, headers in heard]
    assert shown == ["Bearer ph_given"] * 2 + ["Bearer ph_from_the_settings"] * 2 + [None] * 2


@pytest.mark.parametrize("key", ["ph one", "ph\nx", "schlüssel"])
def test_what_cannot_be_a_key_is_refused_without_repeating_it(kind: str, key: str) -> None:
    with pytest.raises(InvalidInput) as error, opened(kind, "http://127.0.0.1:9", key=key):
        pass

    assert key not in str(error.value)


def test_every_submit_has_a_key_of_its_own(listening: tuple[str, list[Any]], kind: str) -> None:
    url, heard = listening
    with opened(kind, url) as client:
        client.submit("add", wait=2.5)
        client.submit("add")
        client.submit("add", key="mine")

    keys = [headers["idempotency-key"] for _, _, headers in heard]
    assert len({*keys}) == 3
    assert keys[2] == "mine"
    assert [headers.get("prefer") for _, _, headers in heard] == ["wait=3", None, None]


def test_a_job_is_deleted(listening: tuple[str, list[Any]], kind: str) -> None:
    url, heard = listening
    with opened(kind, url) as client:
        answer: Callable[..., Any] = client.delete
        assert answer("a/b") is None

    assert [each[:2] for each in heard] == [("DELETE", "/api/v1/jobs/a%2Fb")]


def test_a_refusal_is_not_asked_for_again(running: Server, kind: str) -> None:
    way = Way(running.port)
    with way.laid() as url, opened(kind, url) as client:
        with pytest.raises(InvalidInput):
            client.submit("add", {"a": "x"})
        with pytest.raises(JobNotFound):
            list(client.events("nope"))

        assert len(way.seen) == 2


def test_promoting_and_tokens_are_asked_for_as_the_routes_want_it(listening: tuple[str, list[Any]], kind: str) -> None:
    url, heard = listening
    Listening.bodies.clear()
    with opened(kind, url) as client:
        client.promote("j")
        client.promote("j", "archive")
        client.token("j", "1h")
        assert client.tokens("j") == []
        client.revoke("j", "t/1")
        with pytest.raises(InvalidInput, match="The token id is empty"):
            client.revoke("j", " ")

    assert [(method, path.removeprefix("/api/v1/jobs/j")) for method, path, _ in heard] == [
        ("POST", "/promote"),
        ("POST", "/promote"),
        ("POST", "/tokens"),
        ("GET", "/tokens"),
        ("DELETE", "/tokens/t%2F1"),
    ]
    assert Listening.bodies == [b"", b'{"destination":"archive"}', b'{"expires_in":"1h"}', b"", b""]
