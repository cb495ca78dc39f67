"""What every object store promises."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from packhorse.blobs.base import CHUNK, MAX_PIECE, Blobs, Sum
from packhorse.blobs.s3 import transfer
from packhorse.errors import BlobExists, BlobNotFound, BlobUnavailable, PathRefused, TooLarge
from tests.contract import blob_fixtures
from tests.contract.blob_fixtures import content, is_empty, stream

url = blob_fixtures.url
another = blob_fixtures.another
blobs = blob_fixtures.blobs

KEY = "jobs/1/input/model.onnx"

LARGE = 11 * 1024 * 1024
"""Bytes. More than any store waits for before it begins to send."""

REFUSED = [
    "",
    "/",
    "/x",
    "x/",
    "a//b",
    ".",
    "..",
    "../x",
    "a/..",
    "a/../b",
    "./a",
    "a/.",
    "a/./b",
    ".partial/x",
    "a/.hidden",
    "a\0b",
    "a\nb",
    "a\rb",
    "a\tb",
    "a\x7fb",
    "a\x85b",
    "a\u2028b",
    "a\\b",
    "..\\x",
    "C:x",
    "a*",
    "a?",
    'a"b',
    "a<b",
    "a>b",
    "a|b",
    "a\ud800b",
    "a\uffffb",
    "cafe\u0301",  # not NFC: the same name as another on some file systems
    "x" * 256,
    "é" * 128,  # 256 bytes
    "/".join(["x" * 223] * 4) + "/x",  # 897 bytes
    "/".join(["é" * 100] * 6),  # 605 characters, 1205 bytes
    "x" * 5000,
    "/".join("x" * 33),
]

ALLOWED = [
    "a",
    "a/b.c..d",
    "a/b.",
    "a b/ c ",
    "a/-",
    "a/~",
    "%2e%2e/x",
    "a/b%2Fc",
    "a#b/c&d;e='f'",
    "{a}/[b]/^`$!@,+()",
    "naïve/模型.onnx",
    "a/\U0001f600",
    "x" * 255,
    "é" * 127,
    "/".join(["x" * 223] * 4) + "x",  # 896 bytes
    "/".join("x" * 32),
]

METHODS: dict[str, Callable[[Blobs, str, Path], Awaitable[object]]] = {
    "put": lambda blobs, key, _: blobs.put(key, stream(b"x")),
    "put_file": lambda blobs, key, tmp_path: blobs.put_file(key, tmp_path / "source"),
    "copy": lambda blobs, key, _: blobs.copy("jobs/1/source", key),
    "copy from": lambda blobs, key, _: blobs.copy(key, "jobs/1/target"),
    "read": lambda blobs, key, _: content(blobs, key),
    "size": lambda blobs, key, _: blobs.size(key),
    "fetch": lambda blobs, key, tmp_path: blobs.fetch(key, tmp_path / "fetched"),
    "keys": lambda blobs, key, _: blobs.keys(key),
    "folders": lambda blobs, key, _: blobs.folders(key),
    "delete": lambda blobs, key, _: blobs.delete([key]),
    "delete_all": lambda blobs, key, _: blobs.delete_all(key),
}

PUT_ELSEWHERE = """
import asyncio, os, signal, sys
from packhorse import crashpoints
from packhorse.blobs import open_blobs
from packhorse.errors import BlobExists

url, key, at, then, size = sys.argv[1:]

def passing(point, by):
    if point == at and then == "die":
        os.kill(os.getpid(), signal.SIGKILL)
    if point == at and then == "wait":
        print("waiting", flush=True)
        sys.stdin.readline()

async def chunks():
    yield b"theirs" * int(size)

async def main():
    blobs = open_blobs(url)
    try:
        await blobs.put(key, chunks())
        print("won", flush=True)
    except BlobExists:
        print("lost", flush=True)
    await blobs.close()

crashpoints.hook = passing
asyncio.run(main())
"""


async def put_elsewhere(url: str, key: str, *, at: str, then: str, size: int = 1) -> asyncio.subprocess.Process:
    """Another process that puts the key, and waits for a line or dies at a point on the way."""
    pipe = asyncio.subprocess.PIPE
    return await asyncio.create_subprocess_exec(
        sys.executable, "-c", PUT_ELSEWHERE, url, key, at, then, str(size), stdin=pipe, stdout=pipe
    )


def parts(size: int) -> Iterator[bytes]:
    for start in range(0, size, CHUNK):
        yield b"x" * min(CHUNK, size - start)


async def heard(process: asyncio.subprocess.Process) -> str:
    assert process.stdout
    return (await process.stdout.readline()).decode().strip()


# --- put and read


@pytest.mark.parametrize(
    "chunks", [[], [b""], [b"one"], [b"a" * 1000] * 3000, [b"b" * (3 * CHUNK + 1), b"c"], [b"d" * LARGE]]
)
async def test_what_was_put_is_read_back(blobs: Blobs, chunks: list[bytes]) -> None:
    whole = b"".join(chunks)

    written = await blobs.put(KEY, stream(*chunks))

    assert written == Sum(size=len(whole), sha256=hashlib.sha256(whole).hexdigest())
    assert await content(blobs, KEY) == whole
    assert await blobs.size(KEY) == len(whole)


async def test_another_handle_sees_what_was_put(blobs: Blobs, another: Callable[[], Blobs]) -> None:
    await blobs.put(KEY, stream(b"x"))

    assert await content(another(), KEY) == b"x"


async def test_an_object_is_read_in_pieces_of_bounded_size(blobs: Blobs) -> None:
    await blobs.put(KEY, stream(b"x" * (5 * MAX_PIECE + 1)))

    pieces = [piece async for piece in blobs.read(KEY)]

    assert max(map(len, pieces)) <= MAX_PIECE
    assert all(pieces)


@pytest.mark.parametrize("length", [None, 0, 1, CHUNK + 1, 2**70])
async def test_a_part_is_read_as_it_lies_in_the_whole(blobs: Blobs, length: int | None) -> None:
    whole = bytes(range(251)) * (2 * CHUNK // 251) + b"x" * ((2 * CHUNK) % 251 + 10)
    await blobs.put(KEY, stream(whole))

    for start in (0, 1, CHUNK - 1, CHUNK, 2 * CHUNK + 9, 2 * CHUNK + 10, 2**70):
        part = await content(blobs, KEY, start=start, length=length)

        assert part == whole[start:][:length], start


@pytest.mark.parametrize("length", [None, 0])
async def test_reading_what_is_not_there_fails_on_the_first_step(blobs: Blobs, length: int | None) -> None:
    await blobs.put("jobs/1/input/other", stream(b"x"))

    with pytest.raises(BlobNotFound):
        await anext(blobs.read(KEY, length=length))


async def test_what_is_not_there_has_no_size(blobs: Blobs) -> None:
    await blobs.put("jobs/1/input/other", stream(b"x"))

    assert await blobs.size(KEY) is None
    assert await blobs.size("jobs/1/input") is None
    assert await blobs.size("jobs/1/input/other/below") is None


@pytest.mark.parametrize("key", ALLOWED)
async def test_an_unusual_name_is_kept_to_the_letter(blobs: Blobs, key: str) -> None:
    await blobs.put(key, stream(b"x"))

    assert await content(blobs, key) == b"x"
    if "/" in key:
        assert await blobs.keys(key.split("/")[0]) == [key]


@pytest.mark.parametrize("method", METHODS)
async def test_an_odd_key_is_refused(blobs: Blobs, tmp_path: Path, method: str) -> None:
    (tmp_path / "source").write_bytes(b"x")
    taken = []

    for key in REFUSED:
        try:
            await METHODS[method](blobs, key, tmp_path)
        except PathRefused:
            continue
        taken.append(key)

    assert taken == []
    assert not (tmp_path / "fetched").exists()


async def test_an_odd_key_is_refused_before_anything_is_touched(blobs: Blobs) -> None:
    await blobs.put(KEY, stream(b"x"))

    with pytest.raises(PathRefused):
        await blobs.delete([KEY, "../x"])

    assert await blobs.size(KEY) == 1


# --- never overwritten


@pytest.mark.parametrize("size", [6, LARGE])
async def test_an_object_is_never_overwritten(blobs: Blobs, size: int) -> None:
    await blobs.put(KEY, stream(b"first"))

    with pytest.raises(BlobExists):
        await blobs.put(KEY, stream(b"x" * size))

    assert await content(blobs, KEY) == b"first"
    assert await blobs.abandon(older_than=0) == 0


async def test_of_racing_puts_exactly_one_wins(another: Callable[[], Blobs]) -> None:
    handles = [another() for _ in range(6)]
    met = asyncio.Barrier(len(handles))

    async def chunks(mine: int) -> AsyncIterator[bytes]:
        yield b"%d" % mine
        await met.wait()

    for key in (f"jobs/{number}/x" for number in range(5)):
        puts = [handle.put(key, chunks(mine)) for mine, handle in enumerate(handles)]
        ends = await asyncio.gather(*puts, return_exceptions=True)

        [winner] = [mine for mine, end in enumerate(ends) if isinstance(end, Sum)]
        assert [type(end) for end in ends].count(BlobExists) == len(handles) - 1
        assert await content(handles[0], key) == b"%d" % winner


@pytest.mark.parametrize("size", [1, LARGE // 6])
async def test_a_put_that_was_overtaken_by_another_process_is_told(blobs: Blobs, url: str, size: int) -> None:
    overtaken = await put_elsewhere(url, KEY, at="blob.put.written", then="wait", size=size)
    assert await heard(overtaken) == "waiting"
    await blobs.put(KEY, stream(b"ours"))

    out, _ = await overtaken.communicate(b"\n")

    assert out == b"lost\n"
    assert await content(blobs, KEY) == b"ours"
    assert await blobs.abandon(older_than=0) == 0


async def test_of_racing_processes_exactly_one_wins(blobs: Blobs, url: str) -> None:
    racers = [await put_elsewhere(url, KEY, at="blob.put.written", then="wait") for _ in range(3)]
    assert [await heard(racer) for racer in racers] == ["waiting"] * 3

    ends = await asyncio.gather(*(racer.communicate(b"\n") for racer in racers))

    assert sorted(out for out, _ in ends) == [b"lost\n", b"lost\n", b"won\n"]
    assert await content(blobs, KEY) == b"theirs"


# --- all or nothing


async def test_an_object_on_its_way_cannot_be_seen(blobs: Blobs) -> None:
    seen: list[object] = []

    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * (2 * CHUNK)
        seen.extend([await blobs.size(KEY), await blobs.keys("jobs"), await blobs.folders("jobs")])

    await blobs.put(KEY, chunks())

    assert seen == [None, [], []]
    assert await blobs.keys("jobs") == [KEY]


async def test_an_object_of_exactly_the_limit_is_kept(blobs: Blobs) -> None:
    await blobs.put(KEY, stream(b"abc", b"de"), limit=5)

    assert await content(blobs, KEY) == b"abcde"


@pytest.mark.parametrize("size", [3 * CHUNK, LARGE])
async def test_past_the_limit_reading_stops_and_nothing_is_left(blobs: Blobs, size: int) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        for part in parts(size):
            yield part
        pytest.fail("asked for more than the limit")

    with pytest.raises(TooLarge) as refused:
        await blobs.put(KEY, chunks(), limit=size - 1)

    assert refused.value.facts == {"field": "model.onnx", "limit": size - 1}
    assert await is_empty(blobs)


@pytest.mark.parametrize("size", [1, 2 * CHUNK, LARGE])
async def test_an_error_of_the_sender_is_raised_as_it_is_and_nothing_is_left(blobs: Blobs, size: int) -> None:
    async def broken() -> AsyncIterator[bytes]:
        for part in parts(size):
            yield part
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await blobs.put(KEY, broken())

    assert await is_empty(blobs)


@pytest.mark.parametrize("size", [1, 2 * CHUNK, LARGE])
async def test_a_cancelled_put_leaves_nothing(blobs: Blobs, size: int) -> None:
    halfway = asyncio.Event()

    async def stuck() -> AsyncIterator[bytes]:
        for part in parts(size):
            yield part
        halfway.set()
        await asyncio.Future()

    put = asyncio.create_task(blobs.put(KEY, stuck()))
    await halfway.wait()
    put.cancel()

    with pytest.raises(asyncio.CancelledError):
        await put
    assert await is_empty(blobs)


async def test_a_put_that_failed_can_be_done_again(blobs: Blobs) -> None:
    with pytest.raises(TooLarge):
        await blobs.put(KEY, stream(b"too much"), limit=1)

    await blobs.put(KEY, stream(b"x"), limit=1)

    assert await content(blobs, KEY) == b"x"


@pytest.mark.parametrize("size", [1, LARGE // 6])
@pytest.mark.parametrize("point", ["blob.put.before", "blob.put.written"])
async def test_a_process_killed_before_the_name_is_given_leaves_no_object(
    blobs: Blobs, url: str, point: str, size: int
) -> None:
    killed = await put_elsewhere(url, KEY, at=point, then="die", size=size)
    await killed.communicate()

    assert killed.returncode == -signal.SIGKILL
    assert await blobs.size(KEY) is None
    assert await blobs.keys("jobs") == []
    assert await blobs.abandon(older_than=3600) == 0
    assert await blobs.abandon(older_than=0) <= 1
    assert await blobs.abandon(older_than=0) == 0


async def test_a_process_killed_after_the_name_is_given_leaves_the_whole_object(blobs: Blobs, url: str) -> None:
    killed = await put_elsewhere(url, KEY, at="blob.put.after", then="die")
    await killed.communicate()

    assert killed.returncode == -signal.SIGKILL
    assert await content(blobs, KEY) == b"theirs"
    assert await blobs.abandon(older_than=0) == 0


async def test_a_young_put_is_not_abandoned(blobs: Blobs, another: Callable[[], Blobs]) -> None:
    gone: list[int] = []

    async def chunks() -> AsyncIterator[bytes]:
        for part in parts(LARGE):
            yield part
        gone.append(await another().abandon(older_than=3600))

    await blobs.put(KEY, chunks())

    assert gone == [0]
    assert await blobs.size(KEY) == LARGE


async def test_finished_objects_are_not_abandoned_at_any_age(blobs: Blobs) -> None:
    await blobs.put(KEY, stream(b"x"))

    assert await blobs.abandon(older_than=-3600) == 0
    assert await blobs.size(KEY) == 1


# --- files


async def test_a_file_is_put_like_a_stream(blobs: Blobs, tmp_path: Path) -> None:
    whole = bytes(range(256)) * (LARGE // 256) + b"end"
    (tmp_path / "source").write_bytes(whole)

    written = await blobs.put_file(KEY, tmp_path / "source")

    assert written == Sum(size=len(whole), sha256=hashlib.sha256(whole).hexdigest())
    assert await content(blobs, KEY) == whole


async def test_an_object_does_not_change_with_the_file_it_came_from(blobs: Blobs, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.write_bytes(b"before")
    await blobs.put_file(KEY, source)

    source.write_bytes(b"after!")

    assert await content(blobs, KEY) == b"before"


async def test_a_file_is_not_put_over_an_object(blobs: Blobs, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"second")
    await blobs.put(KEY, stream(b"first"))

    with pytest.raises(BlobExists):
        await blobs.put_file(KEY, tmp_path / "source")

    assert await content(blobs, KEY) == b"first"


async def test_a_file_that_cannot_be_read_is_no_fault_of_the_store(blobs: Blobs, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        await blobs.put_file(KEY, tmp_path / "missing")

    assert await is_empty(blobs)


async def test_a_fetched_object_is_readable_and_outlives_the_object(blobs: Blobs, tmp_path: Path) -> None:
    await blobs.put(KEY, stream(b"x" * CHUNK, b"y"))

    await blobs.fetch(KEY, tmp_path / "fetched")
    await blobs.delete([KEY])

    assert (tmp_path / "fetched").read_bytes() == b"x" * CHUNK + b"y"


@pytest.mark.parametrize("key", [KEY, "jobs/1/input", "jobs/1/input/other/below"])
async def test_fetching_what_is_not_there_says_so_and_leaves_no_file(blobs: Blobs, tmp_path: Path, key: str) -> None:
    await blobs.put("jobs/1/input/other", stream(b"x"))

    with pytest.raises(BlobNotFound):
        await blobs.fetch(key, tmp_path / "fetched")

    assert not (tmp_path / "fetched").exists()


async def test_fetching_overwrites_no_file(blobs: Blobs, tmp_path: Path) -> None:
    await blobs.put(KEY, stream(b"x"))
    (tmp_path / "fetched").write_bytes(b"mine")

    with pytest.raises(BlobUnavailable):
        await blobs.fetch(KEY, tmp_path / "fetched")

    assert (tmp_path / "fetched").read_bytes() == b"mine"
    assert [path.name for path in tmp_path.iterdir() if path.is_file()] == ["fetched"]


# --- listing


async def put_all(blobs: Blobs, keys: list[str]) -> None:
    await asyncio.gather(*(blobs.put(key, stream(b"x")) for key in keys))


async def test_keys_come_in_the_order_of_their_strings(blobs: Blobs) -> None:
    keys = [
        "jobs/b/b",
        "jobs/c",
        "jobs/b/a/x",
        "jobs/B",
        "jobs/ü",
        "jobs/\U0001f600/x",
        "jobs/Ａ",
        "jobs/ b",
        "jobs/a-b",
    ]
    await put_all(blobs, keys)

    assert await blobs.keys("jobs") == sorted(keys)


async def test_a_prefix_is_a_folder_not_the_beginning_of_a_name(blobs: Blobs) -> None:
    await put_all(blobs, ["jobs/1/x", "jobs/10/x", "jobs/1-/x"])

    assert await blobs.keys("jobs/1") == ["jobs/1/x"]
    assert await blobs.keys("jobs/1/x") == []
    assert await blobs.keys("jobs/2") == []


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_pages_of_keys_add_up_to_all_of_them(blobs: Blobs, limit: int) -> None:
    keys = [f"jobs/{job}/{kind}/{name}" for job in ("a", "a-", "b") for kind in ("in", "in.put") for name in ("x", "y")]
    await put_all(blobs, keys)

    pages = [await blobs.keys("jobs", limit=limit)]
    while pages[-1] and len(pages) <= len(keys):
        pages.append(await blobs.keys("jobs", after=pages[-1][-1], limit=limit))

    found = [key for page in pages for key in page]
    assert sorted(found) == sorted(keys)
    assert found == await blobs.keys("jobs")
    assert max(map(len, pages)) == limit


@pytest.mark.parametrize("limit", [1, 2, 3, 7])
async def test_pages_of_folders_add_up_to_all_of_them(blobs: Blobs, limit: int) -> None:
    names = ["a", "a-", "a-b", "a.", "a0", "ab", "b"]
    await put_all(blobs, [f"jobs/{name}/{key}" for name in names for key in ("x", "y/z", "y-/z")])

    pages = [await blobs.folders("jobs", limit=limit)]
    while pages[-1] and len(pages) <= len(names):
        pages.append(await blobs.folders("jobs", after=pages[-1][-1], limit=limit))

    found = [name for page in pages for name in page]
    assert sorted(found) == names
    assert found == await blobs.folders("jobs")
    assert max(map(len, pages)) == limit


async def test_folders_are_named_without_what_lies_deeper_or_beside(blobs: Blobs) -> None:
    await put_all(blobs, ["jobs/b/in/x", "jobs/a/x", "jobs/ab/x", "jobs/file", "other/c/x"])

    assert await blobs.folders("jobs") == ["a", "ab", "b"]
    assert await blobs.folders("jobs", after="a") == ["ab", "b"]
    assert await blobs.folders("jobs", after="aa", limit=1) == ["ab"]
    assert await blobs.folders("jobs/a") == []
    assert await blobs.folders("nothing") == []


numbers = itertools.count()
part = st.text("a0-. ~éＡ\U0001f600", min_size=2, max_size=2).filter(lambda name: not name.startswith("."))
paths = st.lists(part, min_size=1, max_size=3).map("/".join)


def without_folders(names: set[str]) -> list[str]:
    """No key may be a folder of another, and none of these names is the beginning of another."""
    return [name for name in names if not any(other.startswith(name + "/") for other in names)]


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(names=st.sets(paths, max_size=8).map(without_folders), after=st.none() | paths, limit=st.integers(1, 9))
@example(names=["aa/bb/cc", "aa/bc", "ab"], after="aa/bb/cc", limit=2)
@example(names=["aa/bb/cc", "aa/bc", "ab"], after="aa", limit=2)
@example(names=["Ａ", "\U0001f600"], after=None, limit=2)
async def test_a_listing_is_the_sorted_keys_after_a_key(
    blobs: Blobs, names: list[str], after: str | None, limit: int
) -> None:
    top = f"jobs-{next(numbers)}"
    keys = [f"{top}/{name}" for name in names]
    below = {name.split("/")[0] for name in names if "/" in name}
    await put_all(blobs, keys)

    found: list[str] | None = None
    if after is None or after in without_folders({*names, after}):
        found = await blobs.keys(top, after=None if after is None else f"{top}/{after}", limit=limit)
    folders = await blobs.folders(top, after=after and after.split("/")[0], limit=limit)

    assert found in (None, [key for key in sorted(keys) if key > f"{top}/{after or ''}"][:limit])
    assert folders == [name for name in sorted(below) if name > (after or "").split("/")[0]][:limit]


# --- deleting


async def test_only_what_was_named_is_deleted(blobs: Blobs) -> None:
    await put_all(blobs, ["jobs/1/a", "jobs/1/b", "jobs/2/c"])

    await blobs.delete(["jobs/1/a", "jobs/2/c"])

    assert await blobs.keys("jobs") == ["jobs/1/b"]
    assert await blobs.folders("jobs") == ["1"]


async def test_deleting_what_is_not_there_is_no_error_and_does_not_stop_the_rest(blobs: Blobs) -> None:
    await put_all(blobs, ["jobs/1/a", "jobs/1/b"])

    await blobs.delete(["jobs/1/zzz", "jobs/9/a", "jobs/1", "jobs/1/a/below", "jobs/1/a", "jobs/1/a"])
    await blobs.delete([])

    assert await blobs.keys("jobs") == ["jobs/1/b"]


async def test_all_below_a_folder_is_deleted_and_nothing_beside_it(blobs: Blobs) -> None:
    await put_all(blobs, ["jobs/1/a", "jobs/1/in/b", "jobs/1/in/deep/c", "jobs/10/a", "jobs/1-/a", "jobs/0/a"])

    await blobs.delete_all("jobs/1")
    await blobs.delete_all("jobs/1")
    await blobs.delete_all("jobs/0/a")

    assert await blobs.keys("jobs") == ["jobs/0/a", "jobs/1-/a", "jobs/10/a"]
    assert await blobs.folders("jobs") == ["0", "1-", "10"]


async def test_more_than_a_page_is_listed_and_deleted(blobs: Blobs) -> None:
    keys = [f"jobs/1/{number:04}" for number in range(1100)]
    for start in range(0, len(keys), 100):
        await put_all(blobs, keys[start : start + 100])
    await put_all(blobs, ["jobs/0/x", "jobs/2/x"])

    assert await blobs.keys("jobs/1", limit=5000) == keys
    assert await blobs.keys("jobs/1", after=keys[9], limit=1050) == keys[10:1060]
    assert await blobs.folders("jobs") == ["0", "1", "2"]
    await blobs.delete(keys[:-1001])
    assert await blobs.keys("jobs/1", limit=5000) == keys[-1001:]
    await blobs.delete_all("jobs/1")

    assert await blobs.keys("jobs") == ["jobs/0/x", "jobs/2/x"]


async def test_a_deleted_key_is_free_again(blobs: Blobs) -> None:
    await blobs.put(KEY, stream(b"first"))

    await blobs.delete([KEY])
    await blobs.put(KEY, stream(b"second"))

    assert await content(blobs, KEY) == b"second"


async def test_a_put_succeeds_while_its_neighbours_are_deleted(another: Callable[[], Blobs]) -> None:
    putting, deleting = another(), another()

    for number in range(20):
        await asyncio.gather(
            *(putting.put(f"jobs/1/{name}/{number}", stream(b"x")) for name in ("in", "out/a", "out/b")),
            deleting.delete_all("jobs/1/in"),
            deleting.delete_all("jobs/1"),
            deleting.delete([f"jobs/1/out/a/{number}"]),
        )

    await deleting.delete_all("jobs/1")
    assert await is_empty(putting)
    assert await putting.folders("jobs") == []


# Copying


@pytest.mark.parametrize("size", [0, 5, LARGE])
async def test_a_copy_has_the_same_bytes_and_outlives_the_first(blobs: Blobs, size: int) -> None:
    data = bytes(range(256)) * (size // 256) + b"x" * (size % 256)
    await blobs.put("jobs/1/output/a/größe.bin", stream(data))

    await blobs.copy("jobs/1/output/a/größe.bin", "jobs/2/input/model.0.bin")
    await blobs.delete_all("jobs/1")

    assert await content(blobs, "jobs/2/input/model.0.bin") == data
    assert await blobs.keys("jobs") == ["jobs/2/input/model.0.bin"]


async def test_a_large_object_is_copied_part_by_part(blobs: Blobs, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(transfer, "COPY_PART", 5 * 1024 * 1024)
    data = bytes(range(256)) * (LARGE // 256)
    await blobs.put("jobs/1/a", stream(data))

    await blobs.copy("jobs/1/a", "jobs/2/a")

    assert await content(blobs, "jobs/2/a") == data
    await blobs.delete_all("jobs/1")
    await blobs.delete_all("jobs/2")
    assert await is_empty(blobs)


async def test_a_copy_of_nothing_makes_nothing(blobs: Blobs) -> None:
    with pytest.raises(BlobNotFound):
        await blobs.copy("jobs/1/none", "jobs/2/a")

    assert await is_empty(blobs)


async def test_a_copy_overwrites_nothing(blobs: Blobs) -> None:
    await blobs.put("jobs/1/a", stream(b"new"))
    await blobs.put("jobs/2/a", stream(b"old"))

    with pytest.raises(BlobExists):
        await blobs.copy("jobs/1/a", "jobs/2/a")

    assert await content(blobs, "jobs/2/a") == b"old"
