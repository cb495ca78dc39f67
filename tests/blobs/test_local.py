"""What only a local folder can get wrong: syncing, links, names on disk, system calls that fail."""

from __future__ import annotations

import asyncio
import errno
import fcntl
import itertools
import os
import stat
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from packhorse import crashpoints
from packhorse.blobs import local as store
from packhorse.blobs import open_blobs
from packhorse.blobs.base import CHUNK, MAX_PIECE, Sum
from packhorse.blobs.local import BREATH, BURST, PAUSE, Folder, put
from packhorse.blobs.local import tree as folder_tree
from packhorse.blobs.local.put import BLOCK, FLUSH
from packhorse.errors import BlobExists, BlobNotFound, BlobUnavailable, PathRefused, SettingError
from tests.contract.blob_fixtures import content, stream
from tests.journey.site import until

KEY = "jobs/1/input/model.onnx"
LIMIT = 20.0
"""Seconds nobody has to wait; a limit, not a measure."""
CALLS = ("open", "mkdir", "fchmod", "write", "fsync", "link", "stat", "fstat", "unlink", "pread")


def tree(root: Path) -> list[str]:
    """Everything below the root but the folder of unfinished puts itself."""
    return sorted(str(path.relative_to(root)) for path in root.rglob("*") if path != root / ".partial")


def opened(root: Path) -> int:
    """Descriptors of what lies there. Others of this process may come and go with what earlier tests have left."""
    return sum(path.startswith(str(root)) for path in map(target, os.listdir("/dev/fd")))


def target(descriptor: str) -> str:
    with suppress(OSError):  # the one of the list itself
        return os.readlink(f"/dev/fd/{descriptor}")
    return ""


def in_store() -> bool:
    return threading.current_thread().name.startswith("packhorse-blob")


@contextmanager
def watching(on: Callable[..., None], *names: str) -> Iterator[None]:
    """Hand every such system call of the store's threads to ``on`` before it is made."""

    def watched(name: str, real: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            if in_store():
                on(name, *args)
            return real(*args, **kwargs)

        return call

    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(os, name, watched(name, getattr(os, name)))
        yield


def failing(code: int) -> Callable[..., None]:
    def fail(*_: Any, **__: Any) -> None:
        raise OSError(code, os.strerror(code))

    return fail


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "objects"


@pytest.fixture
async def blobs(root: Path) -> AsyncIterator[Folder]:
    """A folder that exists and has been used."""
    blobs = Folder(root)
    await blobs.size("nothing")
    yield blobs
    await blobs.close()


# --- opening


async def test_a_file_url_opens_the_folder_it_names(tmp_path: Path) -> None:
    blobs = open_blobs((tmp_path / "my objects #1").as_uri())
    await blobs.put(KEY, stream(b"x"))
    await blobs.close()

    assert (tmp_path / "my objects #1" / KEY).read_bytes() == b"x"


@pytest.mark.parametrize(
    "url", ["", "/data", "file:/data", "file://", "file://host/data", "ftp:///data", "sqlite:///data"]
)
def test_an_address_that_is_no_object_store_names_the_setting(url: str) -> None:
    with pytest.raises(SettingError, match="PACKHORSE_BLOBS"):
        open_blobs(url)


async def test_a_refused_key_does_not_even_make_the_root(root: Path) -> None:
    blobs = Folder(root)

    with pytest.raises(PathRefused):
        await blobs.put("../x", stream(b"x"))
    await blobs.close()

    assert not root.exists()


async def test_the_root_is_made_private_on_first_use(tmp_path: Path) -> None:
    blobs = Folder(tmp_path / "new" / "objects")

    assert await blobs.keys("jobs") == []
    await blobs.close()

    assert stat.S_IMODE((tmp_path / "new" / "objects").stat().st_mode) == 0o700


async def test_a_folder_that_was_there_keeps_its_mode(root: Path) -> None:
    root.mkdir()
    root.chmod(0o750)
    blobs = Folder(root)

    await blobs.put(KEY, stream(b"x"))
    await blobs.close()

    assert stat.S_IMODE(root.stat().st_mode) == 0o750


async def test_a_new_root_is_used_by_several_at_once(root: Path) -> None:
    handles = [Folder(root) for _ in range(4)]

    await asyncio.gather(*(handle.put(f"jobs/{n}/x", stream(b"x")) for n, handle in enumerate(handles)))

    assert len(await handles[0].keys("jobs")) == 4
    for handle in handles:
        await handle.close()


# --- a power cut


@contextmanager
def syncs(seen: list[object]) -> Iterator[None]:
    """What is synced and named, in order; files by their inode, which stays when they get their name."""

    def on(name: str, *args: Any) -> None:
        seen.append("named" if name in ("link", "rename") else os.fstat(args[0]).st_ino)

    with watching(on, "fsync", "link", "rename"):
        yield


def inodes(*paths: Path) -> list[int]:
    return [path.stat().st_ino for path in paths]


async def test_bytes_are_synced_before_the_name_and_every_new_folder_after_it(blobs: Folder, root: Path) -> None:
    seen: list[object] = []

    with syncs(seen):
        await blobs.put(KEY, stream(b"x"))

    named = seen.index("named")
    assert seen[:named] == inodes(root / KEY)
    assert sorted(map(str, seen[named + 1 :])) == sorted(
        map(str, inodes(root / "jobs/1/input", root / "jobs/1", root / "jobs", root))
    )


async def test_the_disk_is_asked_to_begin_before_the_end(
    blobs: Folder, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "FLUSH", 2 * BLOCK)
    seen: list[object] = []

    async def is_asked() -> bool | None:
        return True if seen else None

    async def sent() -> AsyncIterator[bytes]:
        yield b"x" * BLOCK
        assert not seen
        yield b"x" * BLOCK
        await until(is_asked, LIMIT, lambda: "it was not asked")
        yield b"y"

    with syncs(seen):
        await blobs.put(KEY, sent())

    assert seen[: seen.index("named")] == inodes(root / KEY) * 2, "on the way, and at the end"


async def test_folders_known_to_be_synced_are_not_synced_again(blobs: Folder, root: Path) -> None:
    await blobs.put(KEY, stream(b"x"))
    seen: list[object] = []

    with syncs(seen):
        await blobs.put("jobs/1/input/second", stream(b"x"))

    assert seen == [*inodes(root / "jobs/1/input/second"), "named", *inodes(root / "jobs/1/input")]


async def test_a_folder_whose_maker_did_not_come_to_syncing_it_is_synced_by_the_next(blobs: Folder, root: Path) -> None:
    (root / "jobs/1/input").mkdir(parents=True)
    seen: list[object] = []

    with syncs(seen):
        await blobs.put(KEY, stream(b"x"))

    assert {*inodes(root, root / "jobs", root / "jobs/1")} <= {*seen}


async def test_the_way_to_a_new_root_is_synced(tmp_path: Path) -> None:
    blobs = Folder(tmp_path / "new" / "objects")
    seen: list[object] = []

    with syncs(seen):
        await blobs.size("x")
    await blobs.close()

    assert sorted(map(str, seen)) == sorted(map(str, inodes(tmp_path, tmp_path / "new")))


async def test_the_points_of_a_crash_are_passed_in_order(blobs: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    passed: list[str] = []
    monkeypatch.setattr(crashpoints, "hook", lambda point, _by: passed.append(point))

    await blobs.put("jobs/1/a", stream(b"x"))
    await blobs.put("jobs/1/in/b", stream(b"x"))
    await blobs.delete(["jobs/1/a", "jobs/1/missing"])
    await blobs.delete_all("jobs")

    put = ["blob.put.before", "blob.put.written", "blob.put.after"]
    assert passed == [*put, *put, "blob.delete.after", "blob.delete.after"]
    assert set(passed) <= crashpoints.POINTS


# --- all or nothing, whatever happens


async def test_a_put_leaves_the_object_and_nothing_else(blobs: Folder, root: Path) -> None:
    await blobs.put(KEY, stream(b"x"))

    assert tree(root) == ["jobs", "jobs/1", "jobs/1/input", KEY]


async def test_an_object_cannot_be_written_to_whatever_the_mask(blobs: Folder, root: Path) -> None:
    mask = os.umask(0o077)
    try:
        await blobs.put(KEY, stream(b"x"))
    finally:
        os.umask(mask)

    assert stat.S_IMODE((root / KEY).stat().st_mode) == 0o444


async def test_a_put_whose_sender_breaks_leaves_nothing_on_disk(blobs: Folder, root: Path) -> None:
    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * BLOCK
        assert len(tree(root)) == 1  # the unfinished one
        raise ConnectionResetError

    with pytest.raises(ConnectionResetError):
        await blobs.put(KEY, broken())

    assert tree(root) == []


async def test_what_the_disk_could_not_keep_is_an_error_even_if_it_says_so_on_the_way(
    blobs: Folder, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A system tells of it once: the sync at the end would find nothing wrong."""
    monkeypatch.setattr(store, "FLUSH", BLOCK)
    countdown = itertools.count()

    def fail_first(*_: Any) -> None:
        if next(countdown) == 0:
            failing(errno.EIO)()

    with watching(fail_first, "fsync"), pytest.raises(BlobUnavailable):
        await blobs.put(KEY, stream(b"x" * BLOCK, b"y"))

    assert tree(root) == []


async def test_nobody_waits_for_a_disk_that_was_only_asked_to_begin(
    blobs: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Uploads that come in faster than it writes must not keep others from being read."""
    monkeypatch.setattr(store, "FLUSH", BLOCK)
    may_end, is_asked = threading.Event(), asyncio.Event()

    async def half() -> AsyncIterator[bytes]:
        for _ in range(4):
            yield b"x" * BLOCK
        is_asked.set()
        await asyncio.to_thread(may_end.wait, LIMIT)

    def hold(*_: Any) -> None:
        may_end.wait(LIMIT)

    with watching(hold, "fsync"):
        puts = [asyncio.create_task(blobs.put(f"jobs/{n}/x", half())) for n in range(2 * store.THREADS)]
        await asyncio.wait_for(is_asked.wait(), LIMIT)
        found = await asyncio.wait_for(blobs.size("jobs/none"), LIMIT)
        may_end.set()
        await asyncio.gather(*puts)

    assert found is None


async def test_a_file_is_not_closed_while_it_is_flushed(
    blobs: Folder, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its number would be the next file's."""
    monkeypatch.setattr(store, "FLUSH", BLOCK)
    is_flushing, may_end = threading.Event(), threading.Event()

    def hold(*_: Any) -> None:
        is_flushing.set()
        may_end.wait(LIMIT)

    async def broken() -> AsyncIterator[bytes]:
        yield b"x" * BLOCK
        assert await asyncio.to_thread(is_flushing.wait, LIMIT)
        raise ConnectionResetError

    with watching(hold, "fsync"):
        put = asyncio.create_task(blobs.put(KEY, broken()))
        assert await asyncio.to_thread(is_flushing.wait, LIMIT)
        await asyncio.wait([put], timeout=0.1)
        held = opened(root)
        may_end.set()
        with pytest.raises(ConnectionResetError):
            await put

    assert held == 1
    assert opened(root) == 0


@pytest.mark.parametrize("flush", [FLUSH, BLOCK], ids=["at once", "flushed"])
async def test_a_put_that_fails_at_any_system_call_leaves_nothing(
    blobs: Folder, root: Path, monkeypatch: pytest.MonkeyPatch, flush: int
) -> None:
    monkeypatch.setattr(store, "FLUSH", flush)
    outcomes = []

    for nth in itertools.count(1):
        countdown = itertools.count(1 - nth)

        def fail_once(*_: Any, countdown: Iterator[int] = countdown) -> None:
            if next(countdown) == 0:
                failing(errno.EIO)()

        with watching(fail_once, *CALLS):
            try:
                outcomes.append(str(await blobs.put(KEY, stream(b"x" * BLOCK, b"y"))))
            except BlobUnavailable as error:
                outcomes.append(error.facts["reason"])
                assert tree(root) == []
        await blobs.delete_all("jobs")
        await blobs.abandon(older_than=0)
        if next(countdown) <= 0:  # it ended before the nth call
            break

    assert outcomes.count(os.strerror(errno.EIO)) > 20
    assert opened(root) == 0


@pytest.mark.parametrize("flush", [FLUSH, BLOCK], ids=["at once", "flushed"])
async def test_a_put_cancelled_at_any_system_call_leaves_nothing(
    blobs: Folder, root: Path, monkeypatch: pytest.MonkeyPatch, flush: int
) -> None:
    monkeypatch.setattr(store, "FLUSH", flush)
    loop = asyncio.get_running_loop()

    for nth in itertools.count(1):
        countdown = itertools.count(1 - nth)
        put = asyncio.create_task(blobs.put(KEY, stream(b"x" * BLOCK, b"y")))

        def cancel_once(*_: Any, countdown: Iterator[int] = countdown, put: asyncio.Task[Sum] = put) -> None:
            if next(countdown) == 0:
                asyncio.run_coroutine_threadsafe(cancelled(put), loop).result()

        with watching(cancel_once, *CALLS):
            [end] = await asyncio.gather(put, return_exceptions=True)
        if next(countdown) <= 0:
            break
        assert isinstance(end, asyncio.CancelledError)
        assert tree(root) == []

    assert nth > 20
    assert opened(root) == 0


async def test_a_put_cancelled_while_the_root_cannot_be_made_is_cancelled(root: Path) -> None:
    root.write_text("not a folder")
    blobs = Folder(root)
    loop = asyncio.get_running_loop()
    put = asyncio.create_task(blobs.put(KEY, stream(b"x")))

    def cancel_once(*_: Any) -> None:
        if not put.cancelling():
            asyncio.run_coroutine_threadsafe(cancelled(put), loop).result()

    with watching(cancel_once, "mkdir"):
        [end] = await asyncio.gather(put, return_exceptions=True)
    await blobs.close()

    assert isinstance(end, asyncio.CancelledError)


async def cancelled(task: asyncio.Task[Any]) -> None:
    task.cancel()
    await asyncio.sleep(0)  # let it hear
    task.cancel()  # an impatient caller


@pytest.fixture
def by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where nothing lies in memory."""
    monkeypatch.setattr(folder_tree, "NOWAIT", None)


@pytest.mark.usefixtures("by_threads")
async def test_a_read_cancelled_at_any_system_call_closes_the_file(blobs: Folder, root: Path) -> None:
    await blobs.put(KEY, stream(b"x" * 2 * CHUNK))
    loop = asyncio.get_running_loop()

    for nth in itertools.count(1):
        countdown = itertools.count(1 - nth)
        read = asyncio.create_task(content(blobs, KEY))

        def cancel_once(*_: Any, countdown: Iterator[int] = countdown, read: asyncio.Task[bytes] = read) -> None:
            if next(countdown) == 0:
                asyncio.run_coroutine_threadsafe(cancelled(read), loop).result()

        with watching(cancel_once, *CALLS):
            await asyncio.gather(read, return_exceptions=True)
        assert opened(root) == 0
        if next(countdown) <= 0:
            break

    assert nth > 5


@pytest.mark.parametrize("nowait", [folder_tree.NOWAIT, None, 1 << 30], ids=["at once", "by threads", "refused"])
async def test_a_read_is_the_same_whether_or_not_it_waits(
    blobs: Folder, monkeypatch: pytest.MonkeyPatch, nowait: int | None
) -> None:
    monkeypatch.setattr(folder_tree, "NOWAIT", nowait)
    written = os.urandom(CHUNK) + os.urandom(CHUNK) + b"end"
    await blobs.put(KEY, stream(written))

    found = [piece async for piece in blobs.read(KEY)]

    assert b"".join(found) == written
    assert [piece async for piece in blobs.read(KEY, start=CHUNK - 1, length=3)] == [written[CHUNK - 1 : CHUNK + 2]]


def test_what_lies_in_memory_is_read_at_once_or_not_at_all(tmp_path: Path) -> None:
    written = os.urandom(2 * CHUNK)
    (tmp_path / "file").write_bytes(written)

    with (tmp_path / "file").open("rb") as file:
        found = [
            folder_tree.read_cached(file.fileno(), 1000, start) for start in (0, CHUNK, len(written) - 10, len(written))
        ]

    expected = [written[:1000], written[CHUNK:][:1000], written[-10:], None]
    assert all(piece in (None, wanted) for piece, wanted in zip(found, expected, strict=True))


async def test_where_a_file_ends_is_said_by_who_waits(blobs: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """There are kernels that say none of what lies in memory although there is more."""
    written = os.urandom(3 * CHUNK)
    await blobs.put(KEY, stream(written))
    monkeypatch.setattr(os, "preadv", lambda *_: 0)

    assert await content(blobs, KEY) == written


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever else the machine has to do, pieces are taken soon enough."""
    monkeypatch.setattr(store, "SOON", 60.0)


@pytest.mark.usefixtures("quick")
async def test_others_have_a_turn_between_two_pieces(blobs: Folder) -> None:
    await blobs.put(KEY, stream(b"x" * (CHUNK + 4 * MAX_PIECE)))
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    seen = [turns async for _ in blobs.read(KEY)]
    beside.cancel()

    assert len(set(seen)) == 5


@pytest.mark.usefixtures("quick")
async def test_who_makes_nobody_wait_any_more_gets_small_pieces_and_waits_himself(
    blobs: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    """He may have vanished: the server would take all of it."""
    await blobs.put(KEY, stream(b"x" * (CHUNK + (BURST - 1) * MAX_PIECE + 2 * BURST * CHUNK)))
    pauses: list[float] = []

    async def in_loop(seconds: float) -> None:
        pauses.append(seconds)
        await asyncio.sleep(seconds)

    async def aside(_sleep: object, seconds: float) -> None:
        pauses.append(seconds)

    monkeypatch.setattr(store, "asyncio", SimpleNamespace(**{**vars(asyncio), "sleep": in_loop, "to_thread": aside}))
    sizes = [len(piece) async for piece in blobs.read(KEY)]

    assert sizes == [CHUNK, *[MAX_PIECE] * (BURST - 1), *[CHUNK] * 2 * BURST]
    turns = [0.0] * (BURST - 1)
    assert pauses == [*turns, BREATH, *turns, PAUSE, *turns, PAUSE]


@pytest.mark.usefixtures("quick")
async def test_who_makes_us_wait_soon_gets_large_pieces_without_end(blobs: Folder) -> None:
    await blobs.put(KEY, stream(b"x" * (CHUNK + 2 * BURST * MAX_PIECE)))
    sizes = []

    async for piece in blobs.read(KEY):
        sizes.append(len(piece))
        await asyncio.sleep(0)

    assert sizes == [CHUNK, *[MAX_PIECE] * 2 * BURST]


async def test_who_takes_his_time_gets_small_pieces(blobs: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "SOON", 0.0)
    await blobs.put(KEY, stream(b"x" * 5 * CHUNK))

    assert [len(piece) async for piece in blobs.read(KEY)] == [CHUNK] * 5


async def test_a_read_that_is_left_halfway_closes_the_file(blobs: Folder, root: Path) -> None:
    await blobs.put(KEY, stream(b"x" * 2 * CHUNK))
    reading = blobs.read(KEY)
    await anext(reading)
    assert opened(root) == 1

    await reading.aclose()

    assert opened(root) == 0


async def test_an_object_deleted_while_it_is_read_is_read_to_its_end(blobs: Folder) -> None:
    await blobs.put(KEY, stream(b"x" * 3 * CHUNK))
    reading = blobs.read(KEY)
    read = await anext(reading)

    await blobs.delete([KEY])

    assert read + b"".join([piece async for piece in reading]) == b"x" * 3 * CHUNK


async def test_small_chunks_are_written_together(blobs: Folder) -> None:
    writes: list[object] = []

    with watching(lambda *args: writes.append(args), "write"):
        await blobs.put(KEY, stream(*[b"x" * 1024] * 1024))

    assert len(writes) == 1024 * 1024 // BLOCK


async def test_a_short_write_is_continued(blobs: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.write
    monkeypatch.setattr(os, "write", lambda fd, data: real(fd, data[:1000] if in_store() else data))
    whole = bytes(range(256)) * 40

    await blobs.put(KEY, stream(whole))

    assert await content(blobs, KEY) == whole


# --- the disk says no


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EDQUOT])
async def test_a_put_the_disk_refuses_says_why_and_leaves_nothing(blobs: Folder, root: Path, code: int) -> None:
    with watching(failing(code), "write"), pytest.raises(BlobUnavailable) as refused:
        await blobs.put(KEY, stream(b"x"))

    assert refused.value.facts == {"reason": os.strerror(code)}
    assert tree(root) == []


@pytest.mark.parametrize("code", [errno.EACCES, errno.EIO, errno.EMFILE])
@pytest.mark.parametrize("part", ["jobs", "1"])
async def test_a_folder_that_cannot_be_opened_is_unavailable_not_empty(blobs: Folder, code: int, part: str) -> None:
    await blobs.put(KEY, stream(b"x"))

    def fail_there(_: str, path: object, *__: object) -> None:
        if path == part:
            failing(code)()

    for ask in (
        lambda: blobs.size(KEY),
        lambda: content(blobs, KEY),
        lambda: blobs.keys("jobs"),
        lambda: blobs.folders("jobs/1"),
        lambda: blobs.delete([KEY]),
        lambda: blobs.delete_all("jobs"),
    ):
        with watching(fail_there, "open"), pytest.raises(BlobUnavailable, match=os.strerror(code)):
            await ask()

    assert await blobs.size(KEY) == 1


async def test_a_root_that_went_away_is_unavailable_not_empty(blobs: Folder, root: Path, tmp_path: Path) -> None:
    (tmp_path / "source").write_bytes(b"x")
    (root / ".partial").mkdir(exist_ok=True)
    root.rename(tmp_path / "elsewhere")

    for ask in (
        lambda: blobs.put(KEY, stream(b"x")),
        lambda: blobs.put_file(KEY, tmp_path / "source"),
        lambda: content(blobs, KEY),
        lambda: blobs.size(KEY),
        lambda: blobs.fetch(KEY, tmp_path / "fetched"),
        lambda: blobs.keys("jobs"),
        lambda: blobs.folders("jobs"),
        lambda: blobs.delete([KEY]),
        lambda: blobs.delete_all("jobs"),
        lambda: blobs.abandon(0),
    ):
        with pytest.raises(BlobUnavailable):
            await ask()

    assert not root.exists()


async def test_a_root_that_is_a_file_is_unavailable(root: Path) -> None:
    root.write_text("not a folder")
    blobs = Folder(root)

    with pytest.raises(BlobUnavailable):
        await blobs.size(KEY)
    await blobs.close()


# --- names


async def test_an_object_and_a_folder_cannot_share_a_name(blobs: Folder, root: Path) -> None:
    await blobs.put("jobs/1/a", stream(b"x"))

    for key in ("jobs/1", "jobs/1/a/b", "jobs/1/a/b/c"):
        with pytest.raises(PathRefused):
            await blobs.put(key, stream(b"x"))

    assert tree(root) == ["jobs", "jobs/1", "jobs/1/a"]


@pytest.fixture
def outside(tmp_path: Path) -> Path:
    outside = tmp_path / "outside"
    (outside / "deep").mkdir(parents=True)
    (outside / "secret").write_bytes(b"secret")
    return outside


@pytest.mark.parametrize("key", ["jobs/1/file", "jobs/1/folder/secret", "jobs/1/dangling", "jobs/1/folder/deep/x"])
async def test_a_link_that_leads_outside_is_not_followed(
    blobs: Folder, root: Path, outside: Path, tmp_path: Path, key: str
) -> None:
    (root / "jobs/1").mkdir(parents=True)
    (root / "jobs/1/file").symlink_to(outside / "secret")
    (root / "jobs/1/folder").symlink_to(outside)
    (root / "jobs/1/dangling").symlink_to(outside / "new")
    before = tree(outside)

    assert await blobs.size(key) is None
    with pytest.raises(BlobNotFound):
        await content(blobs, key)
    with pytest.raises(BlobNotFound):
        await blobs.fetch(key, tmp_path / "fetched")
    with pytest.raises(PathRefused):
        await blobs.put(key, stream(b"x"))
    assert await blobs.keys("jobs") == await blobs.keys("jobs/1/folder") == await blobs.folders("jobs/1") == []
    await blobs.delete([key])
    await blobs.delete_all("jobs/1/folder")
    await blobs.delete_all("jobs")

    assert tree(outside) == before
    assert tree(root) == []


async def test_unfinished_puts_are_not_written_through_a_link(blobs: Folder, root: Path, outside: Path) -> None:
    (root / ".partial").symlink_to(outside)

    with pytest.raises(BlobUnavailable):
        await blobs.put(KEY, stream(b"x"))
    assert await blobs.abandon(older_than=-3600) == 0

    assert tree(outside) == ["deep", "secret"]


async def test_the_root_itself_may_be_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    blobs = Folder(tmp_path / "link")

    await blobs.put(KEY, stream(b"x"))
    await blobs.close()

    assert (tmp_path / "real" / KEY).read_bytes() == b"x"


async def test_what_strangers_left_is_not_listed_but_deleted_with_the_folder(blobs: Folder, root: Path) -> None:
    await blobs.put("jobs/1/a", stream(b"x"))
    for name in (b".DS_Store", b"caf\xe9", b"a\\b", b"a\nb"):
        Path(os.fsdecode(bytes(root / "jobs/1") + b"/" + name)).write_bytes(b"")
    (root / "jobs/.nfs").mkdir()
    os.mkfifo(root / "jobs/1/pipe")

    assert await blobs.keys("jobs") == ["jobs/1/a"]
    assert await blobs.folders("jobs") == ["1"]
    await blobs.delete_all("jobs")

    assert tree(root) == []


async def test_a_pipe_is_no_object_and_holds_nobody_up(blobs: Folder, root: Path, tmp_path: Path) -> None:
    (root / "jobs").mkdir()
    os.mkfifo(root / "jobs/pipe")
    os.mkfifo(tmp_path / "pipe")

    with pytest.raises(BlobNotFound):
        await content(blobs, "jobs/pipe")
    with pytest.raises(FileNotFoundError):
        await blobs.put_file(KEY, tmp_path / "pipe")


async def test_a_page_of_keys_opens_no_folder_it_does_not_need(blobs: Folder) -> None:
    await asyncio.gather(*(blobs.put(f"jobs/{number}/x", stream(b"x")) for number in range(10, 60)))
    scans: list[object] = []

    with watching(lambda *args: scans.append(args), "scandir"):
        assert await blobs.keys("jobs", after="jobs/30/x", limit=2) == ["jobs/31/x", "jobs/32/x"]

    assert len(scans) == 4  # jobs, and 30 to 32


# --- order


async def test_keys_come_in_the_order_of_strings_not_of_folders(blobs: Folder) -> None:
    keys = ["jobs/a/b", "jobs/a-b", "jobs/a.b/c", "jobs/a0", "jobs/a b", "jobs/a/b-c", "jobs/B", "jobs/ü", "jobs/a/c/d"]
    await asyncio.gather(*(blobs.put(key, stream(b"x")) for key in keys))

    assert await blobs.keys("jobs") == [
        "jobs/B",
        "jobs/a b",
        "jobs/a-b",
        "jobs/a.b/c",
        "jobs/a/b",
        "jobs/a/b-c",
        "jobs/a/c/d",
        "jobs/a0",
        "jobs/ü",
    ]


# --- pages of folders


@pytest.fixture
async def many(blobs: Folder, root: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """With a hundred folders, of which twenty are remembered at a time."""
    monkeypatch.setattr(folder_tree, "AHEAD", 20)
    for number in range(100):
        (root / "jobs" / f"{number:02}").mkdir(parents=True)
    return blobs


async def test_a_walk_does_not_read_the_whole_folder_for_each_page(many: Folder) -> None:
    scans: list[object] = []
    found = [""]

    with watching(lambda *args: scans.append(args), "scandir"):
        while page := await many.folders("jobs", after=found[-1], limit=5):
            found += page

    assert found[1:] == [f"{number:02}" for number in range(100)]
    assert len(scans) == 6  # five times twenty, and once to see that there is no more


async def test_a_folder_that_went_during_a_walk_is_not_named(many: Folder, root: Path) -> None:
    first = await many.folders("jobs", limit=3)
    (root / "jobs/04").rmdir()
    (root / "jobs/05").rmdir()
    (root / "jobs/05").write_bytes(b"")

    second = await many.folders("jobs", after=first[-1], limit=3)

    assert second == ["03", "06", "07"]


async def test_whoever_begins_anew_or_elsewhere_sees_what_has_come_since(many: Folder, root: Path) -> None:
    await many.folders("jobs", limit=3)
    (root / "jobs/00-new").mkdir()
    (root / "jobs/03-new").mkdir()

    assert await many.folders("jobs", limit=2) == ["00", "00-new"]
    assert await many.folders("jobs", after="03", limit=1) == ["03-new"]


# --- folders that come and go


async def test_the_last_object_takes_its_folders_along(blobs: Folder, root: Path) -> None:
    await blobs.put("jobs/1/in/a", stream(b"x"))
    await blobs.put("jobs/1/b", stream(b"x"))

    await blobs.delete(["jobs/1/in/a"])
    assert tree(root) == ["jobs", "jobs/1", "jobs/1/b"]
    await blobs.delete_all("jobs/1")

    assert tree(root) == []


async def test_deleting_finishes_what_a_killed_delete_began(blobs: Folder, root: Path) -> None:
    (root / "jobs/1/in").mkdir(parents=True)
    (root / "jobs/2/in").mkdir(parents=True)

    await blobs.delete(["jobs/1/in/a"])
    await blobs.delete_all("jobs/2")

    assert tree(root) == []


async def test_a_put_makes_its_folder_again_when_a_delete_took_it(blobs: Folder, root: Path) -> None:
    named: list[object] = []

    def prune_first(*args: Any) -> None:
        if not named:
            os.removedirs(root / "jobs/1/input")
        named.append(args)

    (root / "keep").mkdir()  # removedirs would take the root too
    with watching(prune_first, "link"):
        await blobs.put(KEY, stream(b"x"))

    assert len(named) == 2
    assert await content(blobs, KEY) == b"x"


async def test_a_put_whose_bytes_were_swept_away_says_so(blobs: Folder, root: Path) -> None:
    async def chunks() -> AsyncIterator[bytes]:
        yield b"x" * BLOCK
        assert await blobs.abandon(older_than=-3600) == 1

    with pytest.raises(BlobUnavailable):
        await blobs.put(KEY, chunks())

    assert tree(root) == []


async def test_only_old_unfinished_puts_are_abandoned(blobs: Folder, root: Path) -> None:
    await blobs.put(KEY, stream(b"x"))
    for name, at in (("old", 1_000), ("older", 1_000), ("young", None)):
        (root / ".partial" / name).write_bytes(b"half")
        if at is not None:
            os.utime(root / ".partial" / name, (at, at))

    assert await blobs.abandon(older_than=3600) == 2

    assert tree(root) == [".partial/young", "jobs", "jobs/1", "jobs/1/input", KEY]


# --- links


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("nobody")
async def test_a_fetched_object_is_a_link_not_a_copy(blobs: Folder, root: Path, tmp_path: Path) -> None:
    await blobs.put(KEY, stream(b"x"))

    await blobs.fetch(KEY, tmp_path / "fetched")

    assert (tmp_path / "fetched").samefile(root / KEY)


async def test_what_root_runs_cannot_change_the_object(
    blobs: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No mode keeps it from writing to what it was given."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    await blobs.put(KEY, stream(b"x" * CHUNK, b"y"))

    await blobs.fetch(KEY, tmp_path / "fetched")
    assert stat.S_IMODE((tmp_path / "fetched").stat().st_mode) == 0o444
    assert (tmp_path / "fetched").read_bytes() == b"x" * CHUNK + b"y"
    (tmp_path / "fetched").chmod(0o600)
    (tmp_path / "fetched").write_bytes(b"changed")

    assert await content(blobs, KEY) == b"x" * CHUNK + b"y"


@pytest.mark.usefixtures("nobody")
@pytest.mark.parametrize("code", [errno.EXDEV, errno.EPERM, errno.EMLINK, errno.ENOENT])
async def test_where_it_cannot_be_linked_an_object_is_copied(
    blobs: Folder, root: Path, tmp_path: Path, code: int
) -> None:
    await blobs.put(KEY, stream(b"x" * CHUNK, b"y"))

    with watching(failing(code), "link"):
        await blobs.fetch(KEY, tmp_path / "fetched")

    assert not (tmp_path / "fetched").samefile(root / KEY)
    assert (tmp_path / "fetched").read_bytes() == b"x" * CHUNK + b"y"
    assert stat.S_IMODE((tmp_path / "fetched").stat().st_mode) == 0o444


@pytest.mark.usefixtures("nobody")
async def test_a_copy_that_fails_leaves_no_half(blobs: Folder, tmp_path: Path) -> None:
    await blobs.put(KEY, stream(b"x"))

    with watching(failing(errno.EXDEV), "link"), watching(failing(errno.EIO), "fchmod"), pytest.raises(BlobUnavailable):
        await blobs.fetch(KEY, tmp_path / "fetched")

    assert not (tmp_path / "fetched").exists()


@pytest.mark.parametrize("code", [errno.EPERM, errno.EOPNOTSUPP, errno.ENOSYS])
async def test_a_disk_without_links_keeps_the_promise_too(blobs: Folder, root: Path, code: int) -> None:
    seen: list[object] = []

    with watching(failing(code), "link"), syncs(seen):
        await blobs.put(KEY, stream(b"first"))
        with pytest.raises(BlobExists):
            await blobs.put(KEY, stream(b"second"))

    assert await content(blobs, KEY) == b"first"
    assert tree(root) == ["jobs", "jobs/1", "jobs/1/input", KEY]
    assert seen[0] == (root / KEY).stat().st_ino
    assert {*inodes(root, root / "jobs", root / "jobs/1", root / "jobs/1/input")} <= {*seen[seen.index("named") :]}


async def test_on_a_disk_without_links_one_process_at_a_time_gives_names(blobs: Folder, root: Path) -> None:
    locked: list[bool] = []

    def look(*_: Any) -> None:
        mine = os.open(root, os.O_RDONLY)
        try:
            fcntl.flock(mine, fcntl.LOCK_EX | fcntl.LOCK_NB)
            locked.append(False)
        except BlockingIOError:
            locked.append(True)
        finally:
            os.close(mine)

    with watching(failing(errno.EPERM), "link"), watching(look, "rename", "listdir"):
        await blobs.put(KEY, stream(b"x"))

    assert locked == [True, True]


async def test_giving_up_on_a_folder_that_always_goes_leaves_nothing(blobs: Folder, root: Path) -> None:
    named: list[object] = []

    def never(*args: Any) -> None:
        named.append(args)
        failing(errno.ENOENT)()

    with watching(never, "link"), pytest.raises(BlobUnavailable):
        await blobs.put(KEY, stream(b"x"))

    assert len(named) == put.TRIES
    assert tree(root) == []
