"""Uploads over real sockets, on every store: what arrives broken is refused or cut, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import hashlib
import json
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packhorse.background.janitor import Janitor
from packhorse.blobs import open_blobs
from packhorse.blobs.s3.transfer import PART
from packhorse.client import Client
from packhorse.define import signatures
from packhorse.factory import open_store
from packhorse.jobs.transact import Transactor
from tests.http.conftest import publish
from tests.http.processes import LIMIT, Place, Server, served, until
from tests.http.raw import CLOSE, KIND, OPEN, answer, head, length, reset, status
from tests.journey.places import PLACES

Left = tuple[set[str], set[str]]


@pytest.fixture(scope="module", params=PLACES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("uploads")
    place = Place(folder, **PLACES[request.param](folder), file_limit=1_000_000, parameters_limit=20_000)
    publish(place)
    with served(place) as server:
        yield server


def is_quiet(server: Server) -> bool:
    """Whether no upload is under way, also of those that vanished in an earlier test."""
    return 'packhorse_http_open{kind="upload"} 0.0' in httpx2.get(f"{server.url}/metrics").text


def has_begun(server: Server, before: Left) -> bool:
    """Whether some of a file has come in. A bucket is told of it only when a whole part is there."""
    is_in_bucket = not server.place.settings.blobs.startswith("file:")
    return not is_quiet(server) if is_in_bucket else server.place.objects() > before[0]


def settled(server: Server) -> Left:
    until(lambda: is_quiet(server))
    return server.place.left()


def settles(server: Server, before: Left) -> None:
    until(lambda: is_quiet(server) and server.place.left() == before)


BROKEN = {
    "empty": b"",
    "no boundary in it": b"hello",
    "another boundary": b"--YY\r\n\r\n\r\n--YY--\r\n",
    "cut in the boundary": b"--X",
    "cut in the headers": OPEN[:30],
    "cut in the content": OPEN + b"weigh",
    "cut before the end": OPEN + b"weights\r\n--XX\r\n",
    "cut in the end": OPEN + b"weights\r\n--XX-",
    "no headers": b"--XX\r\n\r\nweights\r\n--XX--\r\n",
    "no disposition": b"--XX\r\nContent-Type: text/plain\r\n\r\nweights\r\n--XX--\r\n",
    "no name": b'--XX\r\nContent-Disposition: form-data; filename="a"\r\n\r\nweights\r\n--XX--\r\n',
    "bad header": b"--XX\r\nContent Disposition\r\n\r\nweights\r\n--XX--\r\n",
    "header without end": b"--XX\r\n" + b"a" * 100_000,
    "value without end": b"--XX\r\nContent-Disposition: " + b"a" * 100_000,
    "nul in the name": OPEN.replace(b"model", b"mo\x00del") + b"weights" + CLOSE,
    "broken after a good file": OPEN + b"weights\r\n--XX\r\nbroken\r\n\r\n\r\n--XX--\r\n",
    "many headers": b"--XX\r\n" + b"X-A: b\r\n" * 9 + OPEN[6:] + b"weights" + CLOSE,
    "a part encoded": OPEN.replace(b"\r\n\r\n", b"\r\nContent-Transfer-Encoding: base64\r\n\r\n") + b"eA==" + CLOSE,
    "a name that is no UTF-8": OPEN.replace(b"model", b"mo\xffdel") + b"weights" + CLOSE,
    "a name that leads elsewhere": OPEN.replace(b"model", b"../model") + b"weights" + CLOSE,
    "much after the end": OPEN + b"weights" + CLOSE + b"x" * 100_000,
    "deep JSON": b'--XX\r\nContent-Disposition: form-data; name="metadata"\r\n\r\n' + b"[" * 5000 + CLOSE,
    "a huge field": b'--XX\r\nContent-Disposition: form-data; name="note"\r\n\r\n' + b"x" * 200_000 + CLOSE,
    "thousands of parts": (b'--XX\r\nContent-Disposition: form-data; name="a"\r\n\r\n\r\n') * 5000 + b"--XX--\r\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_form_is_a_problem_and_leaves_nothing(server: Server, name: str) -> None:
    before, body = settled(server), BROKEN[name]

    with server.connection() as connection:
        connection.sendall(head(server, KIND, length(body)) + body)
        found = answer(connection)

    assert status(found) in (400, 413, 422), found
    assert json.loads(found.partition(b"\r\n\r\n")[2])["type"].startswith("urn:packhorse:")
    assert server.place.left() == before


@pytest.mark.parametrize(
    "kind",
    [b"", b"multipart/form-data", *(b"multipart/form-data; boundary=" + each for each in (b"", b"ZZ", b"x" * 300))],
)
def test_a_form_without_its_boundary_is_refused(server: Server, kind: bytes) -> None:
    before, body = settled(server), OPEN + b"weights" + CLOSE

    with server.connection() as connection:
        connection.sendall(head(server, b"Content-Type: " + kind + b"\r\n", length(body)) + body)
        found = answer(connection)

    assert status(found) in (400, 415)
    assert server.place.left() == before


def test_a_body_shorter_than_it_said_is_refused(server: Server) -> None:
    before, body = settled(server), OPEN + b"weights" + CLOSE

    with server.connection() as connection:
        connection.sendall(head(server, KIND, b"Content-Length: 100000\r\n") + body[:-10])
        connection.shutdown(socket.SHUT_WR)
        found = answer(connection)

    assert found == b"" or status(found) == 400
    settles(server, before)


def test_a_whole_form_in_a_body_that_is_cut_makes_no_job(server: Server) -> None:
    """The form is complete, the request is not: the sender may have meant more."""
    before, body = settled(server), OPEN + b"weights" + CLOSE

    with server.connection() as connection:
        connection.sendall(head(server, KIND, b"Content-Length: 100000\r\n") + body)
        connection.shutdown(socket.SHUT_WR)
        found = answer(connection)

    assert found == b"" or status(found) == 400
    settles(server, before)


@pytest.mark.parametrize("chunks", [b"5\r\nabc", b"zz\r\nabc\r\n", b"-1\r\n", b"ffffffffffffffffff\r\nabc"])
def test_broken_chunks_are_refused(server: Server, chunks: bytes) -> None:
    before = settled(server)
    opening = b"%x\r\n%s\r\n" % (len(OPEN), OPEN)

    with server.connection() as connection:
        connection.sendall(head(server, KIND, b"Transfer-Encoding: chunked\r\n") + opening + chunks)
        connection.shutdown(socket.SHUT_WR)
        found = answer(connection)

    assert found == b"" or status(found) == 400
    settles(server, before)


@pytest.mark.parametrize("sent", [0, 10, len(OPEN), len(OPEN) + 1, 50_000, 900_000])
@pytest.mark.parametrize("leave", [socket.socket.close, reset])
def test_a_client_that_vanishes_leaves_nothing(server: Server, sent: int, leave: Any) -> None:
    before, body = settled(server), (OPEN + b"x" * 950_000)[:sent]
    connection = server.connection()
    connection.sendall(head(server, KIND, b"Content-Length: 2000000\r\n") + body)
    if sent > len(OPEN) + signatures.HEAD:  # before that, it is not known what kind of file it is
        until(lambda: has_begun(server, before))

    leave(connection)

    settles(server, before)


def test_a_file_past_the_limit_is_413_and_leaves_nothing(server: Server) -> None:
    before = settled(server)
    content = b"x" * (server.place.settings.file_limit + 1)

    for query in ("?pipeline=convert", ""):
        found = httpx2.post(f"{server.api}/jobs{query}", files={"model": ("m", content)})

        assert found.status_code == 413
        assert found.json()["errors"][0]["field"] == "model"
        assert server.place.left() == before


def test_a_refusal_before_the_body_reaches_a_client_that_is_still_sending(server: Server) -> None:
    """Two hundred megabytes that nobody wants: the answer comes through all the same."""
    before = settled(server)
    connection = server.connection()
    connection.sendall(head(server, KIND, b"Content-Length: 200000000\r\n", query="?pipeline=nope"))
    sent = 0
    try:
        for _ in range(2000):
            connection.sendall(b"x" * 100_000)
            sent += 100_000
    except ConnectionError:
        pass

    found = answer(connection)

    connection.close()
    assert status(found) == 422
    assert sent < 100_000_000
    assert server.place.left() == before


def test_who_asks_first_need_not_send_the_body(server: Server) -> None:
    with server.connection() as connection:
        connection.sendall(
            head(server, KIND, b"Content-Length: 200000000\r\nExpect: 100-continue\r\n", query="?pipeline=nope")
        )
        found = answer(connection)

    assert status(found) == 422


NAMES = {
    "quotes": ('a"b.txt', "a\"b.txt"),
    "path": ("../../etc/passwd", "passwd"),
    "windows path": ("C:\\temp\\model.onnx", "model.onnx"),
    "dots": ("..", "file"),
    "leading dot": (".bashrc", "bashrc"),
    "line ends": ("a%0D%0Ab.txt", "a%0D%0Ab.txt"),
    "right to left": ("invoice\u202efdp.exe", "invoicefdp.exe"),
    "unicode": ("größe 漢字 🐴.onnx", "größe 漢字 🐴.onnx"),
    "decomposed": ("e\u0301.txt", "é.txt"),
    "spaces": ("   ", "file"),
    "semicolon": ("a;b=c.txt", "a;b=c.txt"),
    "empty": ("", "file"),
    "control": ("a\x01\x7fb.txt", "ab.txt"),
}  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_file_name_is_only_ever_a_name(server: Server, name: str) -> None:
    given, kept = NAMES[name]
    quoted = given.replace("\\", "\\\\").replace('"', '\\"').encode()
    body = OPEN.replace(b"m.onnx", quoted) + b"weights" + CLOSE

    with server.connection() as connection:
        query = f"?pipeline=convert&user_id=name-{name.replace(' ', '-')}"
        connection.sendall(head(server, KIND, length(body), query=query) + body)
        found = answer(connection)

    job = json.loads(found.partition(b"\r\n\r\n")[2])
    assert status(found) == 202, found
    assert job["source_filename"] == kept
    assert job["input"]["object_key"].startswith(f"jobs/{job['job_id']}/input/model.0")


def test_a_raw_line_end_in_a_file_name_is_refused_or_dropped(server: Server) -> None:
    before = settled(server)
    body = OPEN.replace(b"m.onnx", b"a\r\nX-Evil: 1\r\n.txt") + b"weights" + CLOSE

    with server.connection() as connection:
        connection.sendall(head(server, KIND, length(body)) + body)
        found = answer(connection)

    assert status(found) == 400
    assert server.place.left() == before


def test_a_file_name_of_thousands_of_letters_is_cut(server: Server) -> None:
    long = "ä" * 5000 + ".onnx"

    found = httpx2.post(f"{server.api}/jobs?pipeline=convert&user_id=long", files={"model": (long, b"weights")})

    kept = found.json()["source_filename"]
    assert found.status_code == 202
    assert len(kept.encode()) <= 255
    assert kept.endswith(".onnx")


def test_two_hundred_megabytes_pass_through_without_being_held(tmp_path: Path) -> None:
    place = Place(tmp_path)
    publish(place)
    big = tmp_path / "big.onnx"
    with big.open("wb") as file:
        for i in range(200):
            file.write(bytes([i]) * 2**20)
    with served(place) as server, Client(server.url) as client:
        (tmp_path / "small.onnx").write_bytes(b"weights")
        client.submit("convert", files={"model": tmp_path / "small.onnx"}, user="first")
        base, peak, told = server.memory(), 0, 0

        def watch(sent: int, _total: int) -> None:
            nonlocal peak, told
            told = sent
            peak = max(peak, server.memory())

        job = client.submit("convert", files={"model": big}, user="second", on_progress=watch)

        peak = max(peak, server.memory())
    assert told == job["input"]["size_bytes"] == 200 * 2**20
    with big.open("rb") as sent:
        assert job["input"]["sha256"] == hashlib.file_digest(sent, "sha256").hexdigest()
    assert peak - base < 60 * 2**20, f"grew by {(peak - base) / 2**20:.0f} MiB"


@pytest.mark.parametrize("where", PLACES)
def test_a_server_killed_during_an_upload_leaves_only_what_the_sweep_removes(tmp_path: Path, where: str) -> None:
    place = Place(tmp_path, **PLACES[where](tmp_path))
    publish(place)
    server = Server(place)
    connection = server.connection()
    connection.sendall(
        head(server, KIND, b"Content-Length: 20000000\r\n")
        + OPEN
        + b"w" * 300_000
        + b'\r\n--XX\r\nContent-Disposition: form-data; name="ref_images"; filename="a.png"\r\n\r\n'
        + b"x" * (PART + 600_000)
    )
    until(lambda: any(name.startswith("jobs/") for name in place.objects()))
    until(lambda: second_is_under_way(place))

    server.signal(signal.SIGKILL)
    server.ended()

    connection.close()
    assert place.jobs() == []
    assert len(place.objects()) == 2
    asyncio.run(sweep(place))
    assert place.objects() == set()


def second_is_under_way(place: Place) -> bool:
    """In a folder, a file that has no name but that of its upload: the first one had both for a moment."""
    if not place.settings.blobs.startswith("file:"):
        return any(name.startswith("open: ") for name in place.objects())
    with suppress(FileNotFoundError):
        return any(each.stat().st_nlink == 1 for each in (place.blobs / ".partial").iterdir())
    return False


async def sweep(place: Place) -> None:
    """What the janitor does about objects nobody refers to, with an age of nothing."""
    given = place.settings
    store, blobs = await open_store(given.store), open_blobs(given.blobs, given.s3_access_key, given.s3_secret_key)
    janitor = Janitor(store, blobs, Transactor(store), orphan_after=0.0, period=1.0)
    end = time.monotonic() + LIMIT
    while await asyncio.to_thread(place.objects) and time.monotonic() < end:
        await janitor.tick()
    await store.close()
    await blobs.close()
