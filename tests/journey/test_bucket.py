"""The whole way with objects in a bucket: real workers, a real S3 server."""

from __future__ import annotations

import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from packhorse.blobs import open_blobs
from packhorse.core.plan import Status
from packhorse.define import File
from tests.journey.site import Site, until
from tests.servers import seaweed
from tests.tiers import sampled


@pytest.fixture
async def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Site]:
    for name, value in seaweed.ENV.items():
        monkeypatch.setenv(name, value)
    site = Site(tmp_path, blobs=seaweed.running().place())
    try:
        yield site
    finally:
        await site.close()


async def words(site: Site, size: int = 0) -> File:
    text = site.folder / "in.txt"
    text.write_text("one three fifteen" + " " * size)
    return File(text)


async def test_a_job_with_a_file_goes_through_its_three_stages(site: Site) -> None:
    site.start_worker()

    handle = await site.submit("words", text=await words(site, 6 * 1024 * 1024))
    snapshot = await handle.a_wait(40)

    assert snapshot.status is Status.COMPLETED, site.log_text()
    assert snapshot.result.read_text() == "3,5,7"
    await site.assert_whole()


@pytest.mark.parametrize(
    "point",
    sampled(
        ["blob.put.written:1", "blob.put.after:2", "blob.put.before:1", "blob.put.written:2", "attempt.published:1"], 2
    ),
)
async def test_a_worker_killed_there_costs_nothing_but_an_attempt(site: Site, point: str) -> None:
    handle = await site.submit("words", text=await words(site))
    worker = site.start_worker(crash=point)

    async def look() -> int | None:
        return worker.poll()

    assert await until(look, 40, site.log_text) == -signal.SIGKILL
    site.start_worker()
    job = await site.ended(handle)

    assert job.status is Status.COMPLETED
    await site.assert_whole()


async def test_an_expired_job_takes_its_objects_along(site: Site) -> None:
    site.start_worker()
    await site.submit("brief", text=await words(site))
    blobs = open_blobs(site.settings.blobs)

    async def gone() -> bool | None:
        return True if not await site.jobs() and not await blobs.keys("jobs") else None

    await until(gone, 40, site.log_text)
    await blobs.close()


async def test_a_job_outlives_a_restart_of_the_server(site: Site) -> None:
    handle = await site.submit("words", text=await words(site))
    server = seaweed.running()

    server.kill()
    site.start_worker()
    server.start()
    job = await site.ended(handle, within=60)

    assert job.status is Status.COMPLETED, site.log_text()
    await site.assert_whole()
