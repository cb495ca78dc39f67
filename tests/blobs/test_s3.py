"""What only a bucket at the end of a network can get wrong: lost answers, outages, addresses, signatures."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import random
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote_plus

import httpx2
import psutil
import pytest

from packhorse.blobs import open_blobs
from packhorse.blobs.base import CHUNK, Blobs, Sum
from packhorse.blobs.s3 import S3
from packhorse.blobs.s3 import list as bucket
from packhorse.blobs.s3.http import Keys, Patience, Signed, address, keys
from packhorse.blobs.s3.list import Bucket
from packhorse.blobs.s3.transfer import PART
from packhorse.errors import BlobExists, BlobUnavailable, SettingError
from tests.contract.blob_fixtures import content, is_empty, stream
from tests.servers import seaweed
from tests.servers.flaky import FlakyHttp

T = TypeVar("T")

KEY = "jobs/1/input/model.onnx"
LARGE = random.Random(1).randbytes(2 * PART + 1000)

ASKED: dict[str, Callable[[Blobs, Path], Awaitable[object]]] = {
    "put": lambda blobs, _: blobs.put("jobs/2/x", stream(b"x")),
    "large put": lambda blobs, _: blobs.put("jobs/2/x", stream(LARGE)),
    "read": lambda blobs, _: content(blobs, KEY),
    "part": lambda blobs, _: content(blobs, KEY, start=1, length=1),
    "size": lambda blobs, _: blobs.size(KEY),
    "fetch": lambda blobs, folder: blobs.fetch(KEY, folder / "fetched"),
    "keys": lambda blobs, _: blobs.keys("jobs"),
    "folders": lambda blobs, _: blobs.folders("jobs"),
    "delete": lambda blobs, _: blobs.delete(["jobs/2/x"]),
    "delete all": lambda blobs, _: blobs.delete_all("jobs/2"),
    "abandon": lambda blobs, _: blobs.abandon(0),
}


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in seaweed.ENV.items():
        monkeypatch.setenv(name, value)


@pytest.fixture
async def way() -> AsyncIterator[FlakyHttp]:
    async with FlakyHttp(seaweed.running().port) as way:
        yield way


@pytest.fixture
def place(way: FlakyHttp) -> str:
    """An empty place at the other end of the way."""
    return seaweed.running().place(way.port)


@pytest.fixture
async def blobs(place: str) -> AsyncIterator[Blobs]:
    blobs = open_blobs(place)
    yield blobs
    await blobs.close()


@pytest.fixture
async def impatient(place: str) -> AsyncIterator[Blobs]:
    """Another handle on it, which does not wait for an outage in full."""
    blobs = S3(address(place, {}), seaweed.KEYS, Patience(0.3, 0.2))
    yield blobs
    await blobs.close()


async def in_the_end(ask: Callable[[], Awaitable[T]]) -> T:
    """The answer, when there is one: the impatient may have to ask twice."""
    for _ in range(100):
        with suppress(BlobUnavailable):
            return await ask()
    return await ask()


# --- answers that do not come


async def test_with_a_tenth_of_requests_failing_nothing_is_wrong_and_nothing_lost(way: FlakyHttp, blobs: Blobs) -> None:
    way.rates = {"503": 0.05, "cut": 0.03, "lost": 0.02}
    chance = random.Random(3)
    kept: dict[str, bytes] = {}

    for number in range(200):
        key = f"jobs/{number % 5}/{number}"
        size = PART + 5000 if number % 25 == 0 else chance.randrange(3 * CHUNK)
        whole = chance.randbytes(size)
        assert await blobs.put(key, stream(whole)) == Sum(size, hashlib.sha256(whole).hexdigest())
        kept[key] = whole
        old = chance.choice(list(kept))
        match number % 4:
            case 0:
                assert await content(blobs, old) == kept[old]
            case 1:
                start = chance.randrange(len(kept[old]) + 1)
                assert await content(blobs, old, start=start, length=1000) == kept[old][start:][:1000]
            case 2:
                assert await blobs.size(old) == len(kept[old])
                with pytest.raises(BlobExists):
                    await blobs.put(old, stream(b"another"))
            case _:
                await blobs.delete([old])
                del kept[old]

    way.rates = {}
    assert way.struck > 40
    assert sorted(await blobs.keys("jobs", limit=1000)) == sorted(kept)
    assert [await content(blobs, key) for key in kept] == list(kept.values())
    await blobs.abandon(older_than=0)
    assert await blobs.abandon(older_than=0) == 0


@pytest.mark.parametrize("whole", [b"x", LARGE])
@pytest.mark.parametrize("fate", ["503", "cut", "lost", "spoilt"])
@pytest.mark.parametrize("method", ["PUT", "POST", "HEAD"])
async def test_a_put_is_done_once_when_any_of_its_requests_has_to_be_repeated(
    way: FlakyHttp, blobs: Blobs, whole: bytes, fate: Any, method: str
) -> None:
    way.concerns = lambda line: line.startswith(method)
    way.fates = [fate, "pass", fate, "pass", fate]

    await blobs.put(KEY, stream(whole))

    assert await content(blobs, KEY) == whole
    with pytest.raises(BlobExists):
        await blobs.put(KEY, stream(whole))


@pytest.mark.parametrize("whole", [b"x", LARGE])
async def test_a_lost_answer_to_the_naming_request_is_not_taken_for_a_rival(
    way: FlakyHttp, blobs: Blobs, whole: bytes
) -> None:
    way.concerns = lambda line: line.startswith("PUT" if len(whole) == 1 else "POST") and "uploads=" not in line
    way.fates = ["lost"]

    await blobs.put(KEY, stream(whole))

    assert way.fates == []
    assert await content(blobs, KEY) == whole


@pytest.mark.parametrize("whole", [b"x", LARGE])
async def test_a_put_that_ends_in_an_outage_leaves_nothing_once_it_is_over(
    way: FlakyHttp, place: str, whole: bytes
) -> None:
    """The object has its name, but no answer ever says so."""
    blobs = S3(address(place, {}), seaweed.KEYS, Patience(2, 2))
    way.concerns = lambda line: line.startswith("PUT" if len(whole) == 1 else "POST") and "uploads=" not in line
    way.rates = {"lost": 1.0}

    with pytest.raises(BlobUnavailable):
        await blobs.put(KEY, stream(whole))

    assert await is_empty(blobs)
    await blobs.close()


@pytest.mark.parametrize("whole", [b"x", LARGE])
async def test_a_put_cancelled_while_it_is_given_its_name_leaves_nothing(
    way: FlakyHttp, blobs: Blobs, whole: bytes
) -> None:
    named = asyncio.Event()

    def at_last(line: str) -> bool:
        if line.startswith("PUT" if len(whole) == 1 else "POST") and "uploads=" not in line:
            way.darken()
            named.set()
        return False

    way.concerns = at_last
    put = asyncio.create_task(blobs.put(KEY, stream(whole)))
    await named.wait()
    put.cancel()
    await asyncio.sleep(0)
    way.lighten()

    with pytest.raises(asyncio.CancelledError):
        await put
    assert await is_empty(blobs)


async def test_a_put_cancelled_at_any_request_leaves_nothing(way: FlakyHttp, blobs: Blobs) -> None:
    for nth in itertools.count(1):
        countdown = itertools.count(1 - nth)
        put = asyncio.create_task(blobs.put(KEY, stream(*[LARGE[:PART]] * 3)))

        def cancel_twice(_: str, countdown: Iterator[int] = countdown, put: asyncio.Task[Sum] = put) -> bool:
            """An impatient caller."""
            if next(countdown) == 0:
                put.cancel()
                asyncio.get_running_loop().call_soon(put.cancel)
            return False

        way.concerns = cancel_twice
        [end] = await asyncio.gather(put, return_exceptions=True)
        way.concerns = lambda _: False
        if next(countdown) <= 0:
            break
        assert isinstance(end, asyncio.CancelledError)
        assert await is_empty(blobs)

    assert nth == 6


@pytest.mark.parametrize("what", ASKED)
@pytest.mark.parametrize("how", ["dark", "closed", "503"])
async def test_an_outage_is_told_and_its_end_needs_no_restart(
    way: FlakyHttp, blobs: Blobs, impatient: Blobs, tmp_path: Path, what: str, how: str
) -> None:
    await blobs.put(KEY, stream(b"abc"))
    if how == "dark":
        way.darken()
    elif how == "closed":
        await way.close()
    else:
        way.rates = {"503": 1.0}

    with pytest.raises(BlobUnavailable):
        await ASKED[what](impatient, tmp_path)

    assert list(tmp_path.iterdir()) == []
    way.rates = {}
    way.lighten()
    if how == "closed":
        await way.open()
    assert await in_the_end(lambda: content(impatient, KEY)) == b"abc"
    assert (await in_the_end(lambda: impatient.put("jobs/3/x", stream(b"x")))).size == 1


def test_an_outage_that_was_told_is_not_waited_for_again() -> None:
    asked: list[str] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked.append(request.url.path)
        return httpx2.Response(200 if request.url.path == "/well" else 503)

    signed = Signed(
        address("s3://b", {}), EXAMPLE, 1, patience=Patience(0.3, 1), transport=httpx2.MockTransport(answer)
    )
    for key in ("first", "second", "well", "last"):
        with suppress(BlobUnavailable):
            signed.ask("GET", key)
    signed.close()

    assert (asked.count("/second"), asked.count("/well")) == (1, 1)
    assert min(asked.count("/first"), asked.count("/last")) > 1


def test_an_error_that_comes_as_a_good_answer_is_an_error() -> None:
    """As when a server has begun its answer before it knew."""
    body = b'<?xml version="1.0"?>\n  \n<Error><Code>InternalFault</Code></Error>'
    answer = httpx2.MockTransport(lambda _: httpx2.Response(200, content=body))
    signed = Signed(address("s3://b", {}), EXAMPLE, 1, patience=Patience(0.3, 1), transport=answer)

    with pytest.raises(BlobUnavailable, match="InternalFault"):
        signed.ask("POST", "x", query={"uploadId": "1"})
    signed.close()


async def test_the_server_may_be_killed_and_come_back(blobs: Blobs) -> None:
    server = seaweed.running()
    await blobs.put(KEY, stream(LARGE))

    server.kill()
    server.start()

    assert await content(blobs, KEY) == LARGE
    await blobs.put("jobs/3/x", stream(b"x"))


def test_the_server_goes_with_the_process_that_started_it() -> None:
    """Or a test run that is killed would leave one behind."""
    starting = "from tests.servers import seaweed; s = seaweed.running(); "
    process = subprocess.Popen(
        [sys.executable, "-c", starting + "print(s.pid, s.folder, *s.sockets, flush=True); input()"],
        stdout=subprocess.PIPE,
        stdin=subprocess.PIPE,
    )
    assert process.stdout
    pid, folder, *sockets = process.stdout.readline().decode().split()
    server = psutil.Process(int(pid))

    process.kill()
    process.communicate()

    server.wait(10)
    assert not server.is_running()
    shutil.rmtree(folder)
    for socket in sockets:
        Path(socket).unlink()


# --- reading


async def gathered(pieces: AsyncIterator[bytes], into: bytearray) -> None:
    async for piece in pieces:
        into += piece


@pytest.mark.parametrize("cuts", [[0], [100], [300, 70_000, 1_000_000], [PART] * 3])
async def test_a_read_that_is_cut_goes_on_where_it_was(way: FlakyHttp, blobs: Blobs, cuts: list[int]) -> None:
    await blobs.put(KEY, stream(LARGE))
    way.cuts = [*cuts]

    whole = await content(blobs, KEY)

    assert way.cuts == []
    assert whole == LARGE


async def test_a_part_that_is_cut_goes_on_where_it_was(way: FlakyHttp, blobs: Blobs) -> None:
    await blobs.put(KEY, stream(LARGE))
    way.cuts = [300, 70_000]

    part = await content(blobs, KEY, start=1000, length=PART)

    assert way.cuts == []
    assert part == LARGE[1000:][:PART]


async def test_a_read_that_is_always_cut_is_an_error_and_not_an_end(
    way: FlakyHttp, blobs: Blobs, impatient: Blobs
) -> None:
    await blobs.put(KEY, stream(LARGE))
    got = bytearray()
    way.cuts = [PART, *[0] * 1000]

    with pytest.raises(BlobUnavailable):
        await gathered(impatient.read(KEY), got)

    assert LARGE.startswith(got)


async def test_a_read_does_not_go_on_in_another_object(way: FlakyHttp, blobs: Blobs) -> None:
    await blobs.put(KEY, stream(LARGE))
    pieces = blobs.read(KEY)
    got = bytearray(await anext(pieces))
    await way.cut()
    await blobs.delete([KEY])
    await blobs.put(KEY, stream(b"y" * len(LARGE)))

    with pytest.raises(BlobUnavailable):
        await gathered(pieces, got)

    assert LARGE.startswith(got)


async def test_the_time_a_reader_takes_is_not_counted(way: FlakyHttp, blobs: Blobs, place: str) -> None:
    await blobs.put(KEY, stream(LARGE))
    hasty = S3(address(place, {}), seaweed.KEYS, Patience(0.3, 10))
    pieces = hasty.read(KEY)
    got = bytearray(await anext(pieces))

    await asyncio.sleep(0.5)  # longer than it goes on trying; there is nothing else to wait for
    await way.cut()
    await gathered(pieces, got)
    await hasty.close()

    assert got == LARGE


async def test_a_fetch_that_fails_leaves_no_file(
    way: FlakyHttp, blobs: Blobs, impatient: Blobs, tmp_path: Path
) -> None:
    await blobs.put(KEY, stream(LARGE))
    way.cuts = [PART, *[0] * 1000]

    with pytest.raises(BlobUnavailable):
        await impatient.fetch(KEY, tmp_path / "fetched")

    assert list(tmp_path.iterdir()) == []


# --- the bucket


@pytest.mark.parametrize("what", ASKED)
async def test_a_bucket_that_is_not_there_is_unavailable_not_empty(tmp_path: Path, what: str) -> None:
    blobs = open_blobs(seaweed.running().url("nowhere/x"))

    with pytest.raises(BlobUnavailable):
        await ASKED[what](blobs, tmp_path)
    await blobs.close()


@pytest.mark.parametrize("what", ASKED)
async def test_wrong_keys_are_refused_at_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, what: str) -> None:
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
    blobs = open_blobs(seaweed.running().place())

    with pytest.raises(BlobUnavailable) as refused:
        await ASKED[what](blobs, tmp_path)
    await blobs.close()

    assert "wrong" not in str(refused.value)


async def test_one_place_does_not_see_another(blobs: Blobs) -> None:
    other = open_blobs(seaweed.running().place())
    await blobs.put(KEY, stream(b"x"))

    assert await other.size(KEY) is None
    assert await other.keys("jobs") == await other.folders("jobs") == []
    await other.delete([KEY])
    await other.delete_all("jobs")
    await other.close()

    assert await blobs.size(KEY) == 1


async def test_unfinished_uploads_anywhere_are_removed_from_a_bucket_of_our_own() -> None:
    blobs = open_blobs(seaweed.running().place())
    blobs._signed.ask("POST", "apod-daily/2025-09-04/original.jpg", query={"uploads": ""})  # type: ignore[attr-defined]

    left, gone = await blobs.abandon(older_than=0), await blobs.abandon(older_than=0, everywhere=True)
    await blobs.close()

    assert (left, gone) == (0, 1)


async def test_unfinished_uploads_of_others_in_the_bucket_are_left_alone() -> None:
    """A deployment without a prefix sees the whole bucket."""
    place = seaweed.running().place()
    bucket, _, options = place.partition("?")
    above = open_blobs(f"{bucket.rpartition('/')[0]}?{options}")
    theirs = open_blobs(place)
    theirs._signed.ask("POST", KEY, query={"uploads": ""})  # type: ignore[attr-defined]

    gone = await above.abandon(older_than=0)
    await above.close()

    assert gone == 0
    assert await theirs.abandon(older_than=0) == 1
    await theirs.close()


async def test_a_handle_is_used_from_several_event_loops(blobs: Blobs) -> None:
    """As by a program that submits with and without one."""
    await blobs.put(KEY, stream(b"x"))

    def elsewhere() -> bytes:
        async def work() -> bytes:
            await blobs.put("jobs/2/x", stream(LARGE))
            return await content(blobs, KEY)

        return asyncio.run(work())

    assert await asyncio.to_thread(elsewhere) == b"x"
    assert await content(blobs, "jobs/2/x") == LARGE


# --- listings as Amazon makes them: of whole keys in the order of their bytes


def listing(keys: list[str]) -> httpx2.MockTransport:
    """A bucket that holds these, as far as listing goes."""

    def answer(request: httpx2.Request) -> httpx2.Response:
        asked = request.url.params
        after = asked.get("continuation-token", asked.get("start-after", ""))
        found = sorted(key for key in keys if key > after and key.startswith(asked["prefix"]))
        page = found[: int(asked["max-keys"])]
        contents = "".join(f"<Contents><Key>{quote_plus(key)}</Key></Contents>" for key in page)
        more = f"<NextContinuationToken>{page[-1]}</NextContinuationToken>" if len(page) < len(found) else ""
        told = f"<IsTruncated>{'true' if more else 'false'}</IsTruncated><EncodingType>url</EncodingType>"
        return httpx2.Response(200, content=f"<ListBucketResult xmlns='x'>{told}{more}{contents}</ListBucketResult>")

    return httpx2.MockTransport(answer)


@pytest.mark.parametrize("page", [1, 2, 3, 1000])
@pytest.mark.parametrize("limit", [1, 2, 100])
def test_pages_add_up_whatever_the_order(monkeypatch: pytest.MonkeyPatch, page: int, limit: int) -> None:
    monkeypatch.setattr(bucket, "PAGE", page)
    names = ["a", "a b", "a-", "a-b", "a.", "a0", "ab", "b", "ü+%"]
    keys = [f"jobs/{name}/{key}" for name in names for key in ("x", "y/z", "y-/z")] + ["jobs/file", "jobs/zz/"]
    signed = Signed(address("s3://b/p", {}), EXAMPLE, 1, transport=listing([f"p/{key}" for key in [*keys, "x/y"]]))
    ours = Bucket(signed, "p/")

    found, folders = [""], [""]
    while more := ours.keys("jobs", found[-1], limit):
        found += more
    while more := ours.folders("jobs", folders[-1], limit):
        folders += more
    signed.close()

    assert found[1:] == sorted(key for key in keys if not key.endswith("/"))
    assert sorted(folders[1:]) == sorted([*names, "zz"])  # a mark that some tools make: to be deleted with its folder


# --- links


async def test_a_link_lets_anybody_download_under_the_given_name(blobs: Blobs) -> None:
    key = "jobs/1/output/a/b c#é+%.bin"
    await blobs.put(key, stream(b"content"))

    link = await blobs.presign(key, seconds=60, filename='naïve "x".bin', content_type="application/octet-stream")

    assert link
    async with httpx2.AsyncClient() as anybody:
        answer = await anybody.get(link)
        changed = await anybody.get(link.replace("model", "other").replace("X-Amz-Expires=60", "X-Amz-Expires=600"))
    assert answer.content == b"content"
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    assert "na%C3%AFve" in answer.headers["content-disposition"]
    assert changed.status_code == 403


EXAMPLE = Keys("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")


def example(transport: httpx2.BaseTransport | None = None) -> Signed:
    """Of Amazon's documentation of signatures."""
    at = datetime(2013, 5, 24, tzinfo=UTC)
    where = address("s3://examplebucket?endpoint=https://s3.amazonaws.com&path_style=0", {})
    return Signed(where, EXAMPLE, 1, now=lambda: at, transport=transport)


def test_a_link_is_signed_as_amazon_documents_it() -> None:
    signed = example()
    link = signed.link("test.txt", {}, seconds=86400)
    signed.close()

    assert link.startswith("https://examplebucket.s3.amazonaws.com/test.txt?X-Amz-Algorithm=AWS4-HMAC-SHA256&")
    assert link.endswith("&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")


def test_a_request_is_signed_as_amazon_documents_it() -> None:
    sent: list[httpx2.Request] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        sent.append(request)
        return httpx2.Response(200)

    signed = example(httpx2.MockTransport(answer))
    signed.ask("GET", None, query={"lifecycle": ""})
    signed.close()

    assert str(sent[0].url) == "https://examplebucket.s3.amazonaws.com/?lifecycle="
    assert (
        sent[0]
        .headers["authorization"]
        .endswith("Signature=fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543")
    )


# --- addresses


@pytest.mark.parametrize(
    ("url", "env", "expected"),
    [
        ("s3://b", {}, ("https://b.s3.us-east-1.amazonaws.com", "/", "", "us-east-1")),
        ("s3://b/p/q/", {"AWS_REGION": "eu-1"}, ("https://b.s3.eu-1.amazonaws.com", "/", "p/q/", "eu-1")),
        ("s3://b", {"AWS_DEFAULT_REGION": "eu-1"}, ("https://b.s3.eu-1.amazonaws.com", "/", "", "eu-1")),
        ("s3://b?region=x", {"AWS_REGION": "eu-1"}, ("https://b.s3.x.amazonaws.com", "/", "", "x")),
        ("s3://a.b", {}, ("https://s3.us-east-1.amazonaws.com", "/a.b/", "", "us-east-1")),
        ("s3://b?endpoint=http://h:1", {}, ("http://h:1", "/b/", "", "us-east-1")),
        ("s3://b?endpoint=http://h:1&path_style=0", {}, ("http://b.h:1", "/", "", "us-east-1")),
        ("s3://b?path_style=1", {}, ("https://s3.us-east-1.amazonaws.com", "/b/", "", "us-east-1")),
        ("s3://b", {"AWS_ENDPOINT_URL": "http://h/"}, ("http://h", "/b/", "", "us-east-1")),
        ("s3://b", {"AWS_ENDPOINT_URL_S3": "http://i", "AWS_ENDPOINT_URL": "no"}, ("http://i", "/b/", "", "us-east-1")),
        ("s3://b/a%20b", {}, ("https://b.s3.us-east-1.amazonaws.com", "/", "a b/", "us-east-1")),
    ],
)  # fmt: skip
def test_an_address_says_where_the_bucket_is(url: str, env: dict[str, str], expected: tuple[str, ...]) -> None:
    found = address(url, env)

    assert (found.host, found.root, found.prefix, found.region) == expected


@pytest.mark.parametrize(
    "url",
    [
        "s3://",
        "s3:///prefix",
        "s3://b:80",
        "s3://b/../c",
        "s3://b/.c",
        "s3://b/" + "x" * 128,
        "s3://b#hidden",
        "s3://b?region",
        "s3://b?path_style=yes",
        "s3://b?endpoint=h",
        "s3://b?endpoint=ftp://h",
        "s3://b?endpoint=http://h/path",
        "s3://b?endpoint=http://me:hidden@h",
        "s3://key:hidden@b",
        "s3://b?secret_access_key=hidden",
        "s3://b?hidden=1",
    ],
)
def test_an_address_that_cannot_be_used_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(SettingError, match="PACKHORSE_BLOBS") as refused:
        open_blobs(url)

    assert "hidden" not in f"{refused.value} {refused.value.facts}"


def test_without_keys_it_says_which_names_are_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")

    with pytest.raises(SettingError, match="AWS_SECRET_ACCESS_KEY"):
        open_blobs("s3://bucket")


def test_without_the_driver_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    for name in ("s3", "s3.transfer"):
        monkeypatch.delitem(sys.modules, f"packhorse.blobs.{name}", raising=False)

    with pytest.raises(SettingError) as refused:
        open_blobs("s3://bucket")

    assert str(refused.value).endswith("pip install packhorse[s3]")


def test_keys_are_not_shown() -> None:
    assert "not/a+secret=" not in repr(keys("", "", seaweed.ENV))


def test_keys_that_are_given_come_before_those_of_the_environment() -> None:
    assert keys("a", "b", seaweed.ENV) == Keys("a", "b")
    assert keys("", "", {**seaweed.ENV, "AWS_SESSION_TOKEN": "t"}) == Keys(
        seaweed.KEYS.access, seaweed.KEYS.secret, "t"
    )
    with pytest.raises(SettingError):
        keys("a", "", seaweed.ENV)
