"""What no client should send, on every store: a 4xx or a clean cut, and nothing left behind."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx2
import pytest

from packhorse.client import Client
from tests.http.conftest import publish
from tests.http.processes import Place, Server, served
from tests.http.raw import CLOSE, GOOD, KIND, OPEN, head, length, reset, sent, status
from tests.http.test_uploads import BROKEN, settled, settles
from tests.journey.places import PLACES
from tests.servers.ports import free_port

SILENCE = 1.0


@pytest.fixture(scope="module", params=PLACES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("corpus")
    limits = {"file_limit": 1_000_000, "parameters_limit": 20_000, "body_silence": SILENCE, "body_rate": 1000}
    place = Place(folder, **PLACES[request.param](folder), **limits)
    publish(place)
    with served(place) as server:
        yield server


def test_no_broken_form_leaves_anything(server: Server) -> None:
    before = settled(server)

    said = {name: sent(server, head(server, KIND, length(body)) + body) for name, body in BROKEN.items()}

    assert {name: status(found) for name, found in said.items() if not 400 <= status(found) < 500} == {}
    assert server.place.left() == before


LIES: dict[str, tuple[bytes, bytes]] = {
    "longer": (b"Content-Length: 100000\r\n", GOOD),
    "shorter": (b"Content-Length: 20\r\n", GOOD),
    "negative": (b"Content-Length: -1\r\n", GOOD),
    "no number": (b"Content-Length: lots\r\n", GOOD),
    "past counting": (b"Content-Length: 99999999999999999999999\r\n", GOOD),
    "twice": (b"Content-Length: %d\r\nContent-Length: 5\r\n" % len(GOOD), GOOD),
    "none": (b"", GOOD),
    "chunks of no size": (b"Transfer-Encoding: chunked\r\n", b"zz\r\n" + GOOD),
    "a chunk that is cut": (b"Transfer-Encoding: chunked\r\n", b"%x\r\n%s" % (len(GOOD) + 9, GOOD)),
    "chunks without an end": (b"Transfer-Encoding: chunked\r\n", b"%x\r\n%s\r\n" % (len(GOOD), GOOD)),
    "a negative chunk": (b"Transfer-Encoding: chunked\r\n", b"-5\r\n" + GOOD),
    "a coding that is none": (b"Transfer-Encoding: rot13\r\n", GOOD),
    "headers without number": (b"X-A: b\r\n" * 5000 + length(GOOD), GOOD),
    "a header without end": (b"X-A: " + b"b" * 2_000_000 + b"\r\n" + length(GOOD), GOOD),
}


@pytest.mark.parametrize("name", LIES)
def test_a_request_that_lies_about_itself_makes_no_job(server: Server, name: str) -> None:
    before, (headers, body) = settled(server), LIES[name]

    found = sent(server, head(server, KIND, headers) + body, ends=True)

    assert found == b"" or 400 <= status(found) < 500, found
    settles(server, before)


NAMES: dict[str, tuple[bytes, str | None]] = {
    "quotes": (b'a\\"b\\".txt', 'a"b".txt'),
    "path": (b"../../etc/passwd", "passwd"),
    "right to left": ("invoice\u202efdp.exe".encode(), "invoicefdp.exe"),
    "five thousand": ("ä".encode() * 5000 + b".txt", "ä" * 125 + ".txt"),
    "empty": (b"", "file"),
    "nul": (b"a\x00b.txt", "ab.txt"),
    "reserved": (b"CON", "CON"),
    "reserved with a suffix": (b"nul.txt", "nul.txt"),
    "a device": (b"/dev/null", "null"),
    "no UTF-8": (b"a\xff\xfeb.txt", "a\ufffd\ufffdb.txt"),
    "half a pair": (b"a\xed\xa0\x80b.txt", "a\ufffd\ufffd\ufffdb.txt"),
    "a line end": (b"a\r\nX-Evil: 1\r\n.txt", None),
    "a bare line end": (b"a\nb.txt", "ab.txt"),
}


@pytest.mark.parametrize("name", NAMES)
def test_a_file_name_is_a_name_or_refused(server: Server, name: str) -> None:
    before, (given, kept) = settled(server), NAMES[name]
    body = OPEN.replace(b"model", b"text").replace(b"m.onnx", given) + b"weights" + CLOSE

    found = sent(server, head(server, KIND, length(body), query="?pipeline=split") + body)

    if kept is None:
        assert status(found) == 400, found
        assert server.place.left() == before
    else:
        assert status(found) == 202, found
        assert json.loads(found.partition(b"\r\n\r\n")[2])["source_filename"] == kept


def test_who_vanishes_at_any_byte_leaves_nothing(server: Server) -> None:
    before, chance = settled(server), random.Random(11)
    second = b'\r\n--XX\r\nContent-Disposition: form-data; name="ref_images"; filename="a.png"\r\n\r\n'
    request = OPEN + b"x" * 400_000 + second + b"y" * 400_000 + CLOSE
    whole = head(server, KIND, length(request)) + request

    for _ in range(40):
        connection = server.connection()
        connection.sendall(whole[: chance.randrange(len(whole))])
        if chance.random() < 0.5:
            reset(connection)
        connection.close()

    settles(server, before)


def test_who_sends_a_byte_now_and_then_is_cut(server: Server) -> None:
    before = settled(server)
    with server.connection() as connection:
        connection.sendall(head(server, KIND, b"Content-Length: 100000\r\n") + OPEN)
        connection.setblocking(False)
        found, end = b"", time.monotonic() + 20
        while not found and time.monotonic() < end:
            with suppress(BlockingIOError, ConnectionError):
                connection.send(b"x")
            time.sleep(0.1)
            with suppress(BlockingIOError):
                found = connection.recv(65536)
                break

    assert found == b"" or status(found) == 408
    settles(server, before)


def test_who_says_nothing_more_is_cut(server: Server) -> None:
    before = settled(server)

    found = sent(server, head(server, KIND, b"Content-Length: 100000\r\n") + OPEN + b"x")

    assert status(found) == 408
    settles(server, before)


def test_of_two_hundred_at_once_one_is_admitted(server: Server) -> None:
    objects, jobs = settled(server)
    body = GOOD.replace(CLOSE, b'\r\n--XX\r\nContent-Disposition: form-data; name="user_id"\r\n\r\ncrowd' + CLOSE)

    with served(server.place.but(port=free_port(), body_silence=60)) as patient, ThreadPoolExecutor(200) as crowd:
        request = head(patient, KIND, length(body), query="?pipeline=convert") + body
        answers = list(crowd.map(lambda _: sent(patient, request), range(200)))
    said = [json.loads(found.partition(b"\r\n\r\n")[2]) for found in answers]

    admitted = [each["job_id"] for each in said if "job_id" in each]
    assert len(admitted) == 1
    assert Counter(each["active_job_id"] for each in said if "active_job_id" in each) == {admitted[0]: 199}
    left = server.place.left()
    assert left[1] - jobs == {*admitted}
    assert len(left[0] - objects) == 1


def test_a_server_that_was_sent_all_that_still_serves(server: Server) -> None:
    answer = httpx2.post(f"{server.api}/jobs?pipeline=convert&user_id=good", files={"model": ("m", b"weights")})

    with Client(server.url) as client:
        assert client.get(answer.json()["job_id"])["status"] == "pending"
    assert server.is_alive
