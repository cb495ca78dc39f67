"""The fetcher that stages are given: what comes is in a file, whole, or there is none and a code says why."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

import packhorse
from packhorse import Fetcher, OutboundFailed
from tests.http.processes import until
from tests.servers.web import Asked, Web, answering, by_path, web_aside

LOOPBACK = "127.0.0.0/8"


@pytest.fixture
def server() -> Iterator[Web]:
    with web_aside() as found:
        yield found


def refused(fetcher: Fetcher, url: str, to: Path) -> str:
    """The code."""
    with pytest.raises(OutboundFailed) as failed:
        fetcher.get(url, to)
    return failed.value.code


def test_what_is_fetched_is_in_the_file(server: Web, tmp_path: Path) -> None:
    server.answer = answering(200, b"x" * 1_000_000, content_type="text/plain", etag='"7"')

    found = Fetcher(allow=LOOPBACK).get(f"{server.url}/a?b=1#c", tmp_path / "a", params={"key": "a b&c"})

    assert (tmp_path / "a").read_bytes() == b"x" * 1_000_000
    assert (found.status, found.size, found.is_unchanged) == (200, 1_000_000, False)
    assert (found.headers["etag"], found.url) == ('"7"', f"{server.url}/a?b=1&key=a+b%26c")
    assert server.asked[0].path == "/a?b=1&key=a+b%26c"


async def test_a_stage_that_is_async_awaits_it(server: Web, tmp_path: Path) -> None:
    server.answer = answering(200, b"hello")

    found = await Fetcher(allow=LOOPBACK).a_get(server.url, tmp_path / "a")

    assert (found.size, (tmp_path / "a").read_bytes()) == (5, b"hello")


def test_what_has_not_changed_is_not_sent_again(server: Web, tmp_path: Path) -> None:
    server.answer = answering(304)

    found = Fetcher(allow=LOOPBACK).get(
        server.url, tmp_path / "a", etag='"7"', modified="Thu, 01 Jan 2026 00:00:00 GMT"
    )

    asked = server.asked[0].headers
    assert (asked["if-none-match"], asked["if-modified-since"]) == ('"7"', "Thu, 01 Jan 2026 00:00:00 GMT")
    assert (found.is_unchanged, found.size, (tmp_path / "a").exists()) == (True, 0, False)


def test_unchanged_is_no_answer_to_who_has_nothing(server: Web, tmp_path: Path) -> None:
    server.answer = answering(304)

    assert refused(Fetcher(allow=LOOPBACK), server.url, tmp_path / "a") == "HTTP_304"


def test_nothing_is_left_of_what_did_not_come_whole(server: Web, tmp_path: Path) -> None:
    async def broken(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 900000\r\n\r\n" + b"x" * 600_000)
        await writer.drain()

    server.answer = by_path(broken=broken, large=answering(200, b"x" * 2_000_000), gone=answering(404))
    fetcher = Fetcher(allow=LOOPBACK, body="1MB")

    assert refused(fetcher, f"{server.url}/broken", tmp_path / "a") == "BAD_ANSWER"
    assert refused(fetcher, f"{server.url}/large", tmp_path / "a") == "TOO_LARGE"
    assert refused(fetcher, f"{server.url}/gone", tmp_path / "a") == "HTTP_404"
    assert list(tmp_path.iterdir()) == []


def test_what_was_there_stays_if_it_cannot_be_opened(server: Web, tmp_path: Path) -> None:
    server.answer = answering(200, b"hello")
    (tmp_path / "a").symlink_to(tmp_path, target_is_directory=True)

    with pytest.raises(IsADirectoryError):
        Fetcher(allow=LOOPBACK).get(server.url, tmp_path / "a")

    assert (tmp_path / "a").is_symlink()


def test_a_file_that_somebody_took_away_does_not_hide_what_went_wrong(server: Web, tmp_path: Path) -> None:
    async def broken(_: Asked, writer: asyncio.StreamWriter) -> None:
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 900000\r\n\r\nx")
        await writer.drain()
        await asyncio.to_thread(until, (tmp_path / "a").exists)
        os.unlink(tmp_path / "a")

    server.answer = broken

    assert refused(Fetcher(allow=LOOPBACK), server.url, tmp_path / "a") == "BAD_ANSWER"


UNSENDABLE = {
    "line end": {"Authorization": "Bearer s3cr3tvalue\n"},
    "line within": {"Authorization": "s3cr3tvalue\r\nX-Other: 1"},
    "blank before": {"Authorization": " s3cr3tvalue"},
    "blank after": {"Authorization": "s3cr3tvalue\t"},
    "no ascii": {"Authorization": "s3cr3tvalue\u2026"},
    "name with a blank": {"Authorization ": "s3cr3tvalue"},
    "name of nothing": {"": "s3cr3tvalue"},
    "host": {"Host": "s3cr3tvalue"},
    "length": {"content-length": "3"},
    "encoding": {"Accept-Encoding": "s3cr3tvalue"},
}


@pytest.mark.parametrize("headers", UNSENDABLE.values(), ids=list(UNSENDABLE))
def test_a_header_that_cannot_be_sent_is_told_by_its_name_alone(
    server: Web, tmp_path: Path, headers: dict[str, str]
) -> None:
    with pytest.raises(OutboundFailed) as failed:
        Fetcher(allow=LOOPBACK).get(server.url, tmp_path / "a", headers=headers)

    assert failed.value.code == "BAD_HEADER"
    assert next(iter(headers)) in failed.value.message
    assert "s3cr3t" not in "".join(traceback.format_exception(failed.value))
    assert server.connections == 0


def test_a_header_with_blanks_inside_or_nothing_is_sent_as_it_is(server: Web, tmp_path: Path) -> None:
    server.answer = answering(200, b"hello")

    Fetcher(allow=LOOPBACK).get(server.url, tmp_path / "a", headers={"X-Key": "a\tb  c~", "X-Empty": ""})

    assert (server.asked[0].headers["x-key"], server.asked[0].headers["x-empty"]) == ("a\tb  c~", "")


def test_a_tag_that_cannot_be_sent_back_is_left_out(server: Web, tmp_path: Path) -> None:
    server.answer = answering(200, b"hello")

    found = Fetcher(allow=LOOPBACK).get(server.url, tmp_path / "a", etag='"h\xe9"')

    assert (found.size, "if-none-match" in server.asked[0].headers) == (5, False)


def test_only_public_addresses_are_fetched_unless_somebody_allows_others(server: Web, tmp_path: Path) -> None:
    fetcher = Fetcher(schemes=("http", "https"))

    assert refused(fetcher, server.url, tmp_path / "a") == "BLOCKED_ADDRESS"
    with pytest.raises(OutboundFailed):
        fetcher.check(server.url)
    assert server.connections == 0


def test_who_does_not_fetch_does_not_load_what_fetching_takes() -> None:
    assert {"Fetched", "Fetcher"} <= {*packhorse.__all__}
    code = "import packhorse, sys; print('httpx2' in sys.modules); packhorse.Fetcher; print('httpx2' in sys.modules)"

    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert told.stdout.split() == ["False", "True"]
