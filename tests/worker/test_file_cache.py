"""Files that a worker keeps: loaded once, given out as copies, dropped for room and with time."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from packhorse.blobs.base import Blobs, Sum
from packhorse.errors import BlobUnavailable
from packhorse.jobs.transact import Transactor
from packhorse.settings import Settings
from packhorse.store.base import Store
from packhorse.worker import file_cache
from packhorse.worker.file_cache import FileCache
from packhorse.worker.pool import Description
from packhorse.worker.worker import Worker
from tests.contract.builders import claim_one, finish, needs, plan, stage, started
from tests.worker.puppets import Puppet, PuppetPool, resources, returns

LIMIT = 1000


class Remote:
    """An object store in memory that counts the loads."""

    def __init__(self) -> None:
        self.objects: dict[str, bytes] = {}
        self.loads: list[str] = []
        self.may_answer = asyncio.Event()
        self.may_answer.set()
        self.on_put: Callable[[], object] = bool

    async def fetch(self, key: str, to: Path) -> None:
        self.loads.append(key)
        await self.may_answer.wait()
        if key not in self.objects:
            raise BlobUnavailable(reason="away")
        to.write_bytes(self.objects[key])

    async def put_file(self, key: str, path: Path) -> Sum:
        self.on_put()
        self.objects[key] = path.read_bytes()
        return Sum(len(self.objects[key]), "")


@pytest.fixture
def remote() -> Remote:
    return Remote()


@pytest.fixture
async def cache(remote: Remote, tmp_path: Path) -> AsyncIterator[FileCache]:
    opened = FileCache(remote, tmp_path, LIMIT)
    yield opened
    opened.close()


async def fetched(cache: FileCache, key: str, to: Path) -> bytes:
    await cache.fetch(key, to)
    return to.read_bytes()


async def test_a_file_is_loaded_once(cache: FileCache, remote: Remote, tmp_path: Path) -> None:
    remote.objects["a"] = b"content"

    found = [await fetched(cache, "a", tmp_path / str(n)) for n in range(3)]

    assert found == [b"content"] * 3
    assert remote.loads == ["a"]


async def test_stages_that_begin_together_load_it_once(cache: FileCache, remote: Remote, tmp_path: Path) -> None:
    remote.objects["a"] = b"content" * 100
    remote.may_answer.clear()
    loads = [asyncio.create_task(fetched(cache, "a", tmp_path / str(n))) for n in range(5)]
    await asyncio.sleep(0)

    remote.may_answer.set()

    assert await asyncio.gather(*loads) == [b"content" * 100] * 5
    assert remote.loads == ["a"]


async def test_the_next_caller_loads_it_if_the_first_is_cancelled(
    cache: FileCache, remote: Remote, tmp_path: Path
) -> None:
    remote.objects["a"] = b"content"
    remote.may_answer.clear()
    first = asyncio.create_task(cache.fetch("a", tmp_path / "first"))
    second = asyncio.create_task(fetched(cache, "a", tmp_path / "second"))
    await asyncio.sleep(0)

    first.cancel()
    remote.may_answer.set()

    assert await second == b"content"
    assert remote.loads == ["a", "a"]


async def test_what_a_stage_does_to_its_copy_changes_no_other(cache: FileCache, remote: Remote, tmp_path: Path) -> None:
    remote.objects["a"] = b"content"
    await cache.fetch("a", tmp_path / "first")
    await cache.fetch("a", tmp_path / "second")
    assert (tmp_path / "second").stat().st_mode & 0o777 == 0o444

    for name in ("first", "second"):
        os.chmod(tmp_path / name, 0o600)
        (tmp_path / name).write_bytes(b"changed")

    assert await fetched(cache, "a", tmp_path / "third") == b"content"


async def test_a_file_that_was_put_is_not_loaded(cache: FileCache, remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(b"made")

    summed = await cache.put_file("a", tmp_path / "made")

    assert summed.size == 4
    assert await fetched(cache, "a", tmp_path / "in") == b"made"
    assert remote.loads == []


async def test_a_stage_that_still_writes_cannot_make_the_copy_differ_from_the_object(
    cache: FileCache, remote: Remote, tmp_path: Path
) -> None:
    made = tmp_path / "made"
    made.write_bytes(b"before")
    remote.on_put = lambda: made.write_bytes(b"behind")

    await cache.put_file("a", made)

    assert await fetched(cache, "a", tmp_path / "in") == remote.objects["a"]


async def test_a_put_that_fails_keeps_nothing(cache: FileCache, remote: Remote, tmp_path: Path) -> None:
    (tmp_path / "made").write_bytes(b"made")

    def fail() -> None:
        raise BlobUnavailable(reason="away")

    remote.on_put = fail
    with pytest.raises(BlobUnavailable):
        await cache.put_file("a", tmp_path / "made")

    with pytest.raises(BlobUnavailable):
        await cache.fetch("a", tmp_path / "in")
    assert remote.loads == ["a"]


async def test_the_file_used_longest_ago_makes_room(cache: FileCache, remote: Remote, tmp_path: Path) -> None:
    remote.objects |= {name: bytes(LIMIT // 2) for name in "abc"}
    for n, key in enumerate("abac"):  # a is used again, so c takes the place of b
        await cache.fetch(key, tmp_path / f"first-{n}")
    remote.loads.clear()

    for key in "acb":
        await cache.fetch(key, tmp_path / key)

    assert remote.loads == ["b"]


async def test_a_file_larger_than_the_limit_passes_through(cache: FileCache, remote: Remote, tmp_path: Path) -> None:
    remote.objects["a"] = bytes(LIMIT + 1)

    sizes = [len(await fetched(cache, "a", tmp_path / str(n))) for n in range(2)]

    assert sizes == [LIMIT + 1] * 2
    assert remote.loads == ["a", "a"]


async def test_stages_load_what_cannot_be_kept_side_by_side(cache: FileCache, remote: Remote, tmp_path: Path) -> None:
    remote.objects["a"] = bytes(LIMIT + 1)
    remote.may_answer.clear()
    first = asyncio.create_task(cache.fetch("a", tmp_path / "first"))
    others = [asyncio.create_task(cache.fetch("a", tmp_path / str(n))) for n in range(3)]
    await asyncio.sleep(0)
    remote.may_answer.set()
    await first
    remote.may_answer.clear()

    async with asyncio.timeout(10):
        while len(remote.loads) < 4:  # noqa: ASYNC110 (all of them, while none is answered)
            await asyncio.sleep(0.01)

    remote.may_answer.set()
    await asyncio.gather(*others)


async def test_a_pipe_in_place_of_a_file_is_left_to_the_upload(
    cache: FileCache, remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    os.mkfifo(tmp_path / "pipe")
    seen: list[Path] = []

    async def put_file(_key: str, path: Path) -> Sum:
        seen.append(path)
        return Sum(0, "")

    monkeypatch.setattr(remote, "put_file", put_file)

    async with asyncio.timeout(10):
        await cache.put_file("a", tmp_path / "pipe")

    assert seen == [tmp_path / "pipe"]


async def test_without_free_space_nothing_is_kept(
    cache: FileCache, remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_cache, "SPARE", 2**60)
    remote.objects["a"] = b"content"
    (tmp_path / "made").write_bytes(b"made")

    await cache.put_file("b", tmp_path / "made")
    found = [await fetched(cache, key, tmp_path / f"{n}") for n, key in enumerate("aab")]

    assert found == [b"content", b"content", b"made"]
    assert remote.loads == ["a", "a", "b"]


async def test_files_are_dropped_with_time(
    cache: FileCache, remote: Remote, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_cache, "SECONDS", 0.01)
    remote.objects["a"] = b"content"
    before = open_files(tmp_path)

    await cache.fetch("a", tmp_path / "first")

    assert open_files(tmp_path) == before + 1
    async with asyncio.timeout(10):
        while open_files(tmp_path) > before:  # noqa: ASYNC110 (the cache tells nobody)
            await asyncio.sleep(0.01)
    await cache.fetch("a", tmp_path / "second")
    assert remote.loads == ["a", "a"]


async def test_the_folder_shows_no_copy_and_closing_frees_all(cache: FileCache, remote: Remote, tmp_path: Path) -> None:
    remote.objects |= dict.fromkeys("ab", b"content")
    before = open_files(tmp_path)
    for key in "ab":
        await cache.fetch(key, tmp_path / key)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
    assert open_files(tmp_path) == before + 2

    cache.close()

    assert open_files(tmp_path) == before


async def test_only_what_a_further_stage_may_need_is_kept(store: Store, blobs: Blobs, tmp_path: Path) -> None:
    cache = FileCache(blobs, tmp_path, LIMIT)
    shared = resources(store, blobs, Transactor(store), tmp_path, PuppetPool(Puppet(returns())))
    shared.cache = cache

    alone = await started(store)
    first = await started(store, plan(stage("onnx"), stage("bie", needs("onnx"))))
    await finish(store, first)
    last = await claim_one(store)

    assert (shared.source(alone), shared.target(alone)) == (blobs, blobs)
    assert (shared.source(first), shared.target(first)) == (cache, cache)
    assert (shared.source(last), shared.target(last)) == (cache, blobs)


@pytest.mark.parametrize(
    ("url", "limit", "has_cache"),
    [("s3://bucket", 1, True), ("gs://bucket", 1, True), ("s3://bucket", 0, False), ("file:///objects", 1, False)],
)
async def test_a_worker_keeps_files_of_remote_stores_only(
    store: Store, blobs: Blobs, url: str, limit: int, has_cache: bool
) -> None:
    settings = Settings(blobs=url, file_cache=limit)

    worker = Worker(store, blobs, settings, Description([], {"cpu": frozenset({"only"})}))

    assert (worker._resources.cache is not None) is has_cache


def open_files(folder: Path) -> int:
    """Files without a name that this process has open in the folder."""
    links = [os.readlink(entry.path) for entry in os.scandir("/proc/self/fd") if os.path.lexists(entry.path)]
    return sum(link.startswith(str(folder)) and link.endswith("(deleted)") for link in links)
