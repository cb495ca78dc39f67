"""Objects in Google Cloud Storage, against a stand-in for the calls that obstore makes. It never ran against Google."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from hashlib import sha256
from pathlib import Path

import pytest

from packhorse.blobs import open_blobs
from packhorse.blobs.base import Blobs
from packhorse.blobs.gcs import UNFINISHED
from packhorse.blobs.s3.transfer import PART
from packhorse.errors import BlobExists, BlobNotFound, BlobUnavailable, PathRefused, SettingError, TooLarge
from tests.blobs.gcs_server import Bucket, gcs
from tests.contract.blob_fixtures import content, stream

LARGE = bytes(range(256)) * (PART // 256) + b"and more"


@pytest.fixture
def bucket() -> Iterator[Bucket]:
    with gcs() as found:
        yield found


@pytest.fixture
async def blobs(bucket: Bucket) -> AsyncIterator[Blobs]:
    found = open_blobs(bucket.url.replace("?", "/below?"))
    yield found
    await found.close()


@pytest.mark.parametrize("data", [b"", b"small", LARGE], ids=["empty", "small", "large"])
async def test_an_object_is_written_whole_and_never_again(bucket: Bucket, blobs: Blobs, data: bytes) -> None:
    written = await blobs.put("jobs/1/a.bin", stream(data[:10], data[10:]))
    with pytest.raises(BlobExists):
        await blobs.put("jobs/1/a.bin", stream(data + b"other"))

    assert (written.size, written.sha256) == (len(data), sha256(data).hexdigest())
    assert await content(blobs, "jobs/1/a.bin") == data
    assert await blobs.size("jobs/1/a.bin") == len(data)
    assert bucket.objects.keys() == {"below/jobs/1/a.bin"}


async def test_parts_of_an_object_are_read_and_a_missing_one_is_said_to_be_missing(
    blobs: Blobs, tmp_path: Path
) -> None:
    await blobs.put("a/b", stream(b"0123456789"))
    await blobs.fetch("a/b", tmp_path / "b")

    assert await content(blobs, "a/b", start=3, length=4) == b"3456"
    assert (tmp_path / "b").read_bytes() == b"0123456789"
    assert await blobs.size("a/none") is None
    with pytest.raises(BlobNotFound):
        await content(blobs, "a/none")
    with pytest.raises(BlobNotFound):
        await blobs.copy("a/none", "a/c")
    with pytest.raises(PathRefused):
        await blobs.size("../b")


async def test_a_copy_takes_no_name_that_is_taken(blobs: Blobs) -> None:
    await blobs.put("a", stream(b"one"))
    await blobs.put("b", stream(b"two"))
    await blobs.copy("a", "c")
    with pytest.raises(BlobExists):
        await blobs.copy("a", "b")

    assert [await content(blobs, key) for key in "abc"] == [b"one", b"two", b"one"]


async def test_keys_and_folders_are_listed_in_pages_and_deleted(blobs: Blobs) -> None:
    names = [f"jobs/{job}/{file}" for job in ("1", "2", "3") for file in ("a", "b", "c")]
    for name in [*names, "jobs-too/x"]:
        await blobs.put(name, stream(b"."))

    assert await blobs.keys("jobs") == names
    assert await blobs.keys("jobs", after=names[3], limit=2) == names[4:6]
    assert await blobs.folders("jobs") == ["1", "2", "3"]
    assert await blobs.folders("jobs", after="1", limit=1) == ["2"]
    await blobs.delete([names[0], "jobs/none"])
    await blobs.delete_all("jobs/2")
    assert await blobs.keys("jobs") == [*names[1:3], *names[6:]]
    assert await blobs.keys("jobs-too") == ["jobs-too/x"]


async def test_a_put_that_fails_leaves_nothing_behind(bucket: Bucket, blobs: Blobs) -> None:
    async def breaking() -> AsyncIterator[bytes]:
        yield LARGE
        raise ConnectionResetError("gone")

    with pytest.raises(TooLarge):
        await blobs.put("a", stream(b"x" * 10, b"y"), limit=10)
    with pytest.raises(ConnectionResetError, match="gone"):
        await blobs.put("a", breaking())
    with pytest.raises(TooLarge):
        await blobs.put("a", stream(LARGE, LARGE), limit=len(LARGE) + 1)
    await blobs.put(f"{UNFINISHED}/left", stream(b"by a worker that was killed"))

    assert (list(bucket.objects), list(bucket.uploads)) == ([f"below/{UNFINISHED}/left"], [])
    assert (await blobs.abandon(older_than=3600), await blobs.abandon(older_than=0)) == (0, 1)
    assert bucket.objects == {}


@pytest.mark.parametrize("data", [b"small", LARGE], ids=["small", "large"])
async def test_a_cancelled_put_leaves_nothing_behind(bucket: Bucket, blobs: Blobs, data: bytes) -> None:
    with bucket.lock:  # no answer until the put has been cancelled
        put = asyncio.create_task(blobs.put("a", stream(data)))
        await asyncio.to_thread(bucket.arrived.wait, 30)
        put.cancel()
        await asyncio.sleep(0)
    with pytest.raises(asyncio.CancelledError):
        await put

    assert (bucket.objects, bucket.uploads) == ({}, {})


async def test_an_object_is_kept_whose_answer_was_lost(bucket: Bucket, blobs: Blobs) -> None:
    bucket.losing += [503, 503]
    await blobs.put("a", stream(b"one"))
    bucket.losing += [503]
    await blobs.copy("a", "b")

    assert [await content(blobs, key) for key in "ab"] == [b"one", b"one"]


async def test_a_missing_bucket_is_not_an_empty_one(bucket: Bucket) -> None:
    blobs = open_blobs(bucket.url.replace("ns-temp-bucket", "missing"))

    with pytest.raises(BlobUnavailable):
        await blobs.keys("jobs")
    with pytest.raises(BlobUnavailable):
        await blobs.size("jobs/1/a")
    await blobs.close()


async def test_a_server_that_is_busy_is_asked_again(bucket: Bucket, blobs: Blobs) -> None:
    bucket.failing += [503, 429]

    await blobs.put("a", stream(b"one"))

    assert await content(blobs, "a") == b"one"


@pytest.mark.parametrize("url", ["gs://", "gs://user@b", "gs://b?key=secret", "gs://b/../c", "gs://b#x"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(SettingError, match="gs://BUCKET/PREFIX"):
        open_blobs(url)
