"""The supervisor in this process, with a store whose claims can be held up."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from packhorse.core.model import Status
from packhorse.engine.describe import describe
from packhorse.engine.worker import Worker
from packhorse.errors import SettingError
from packhorse.store.base import Claim, Decide
from packhorse.store.sqlite import SqliteStore
from tests.journey.site import Site


class Held(SqliteStore):
    """Answers a claim that found something only when it is told to; what it has committed is committed."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.has_claimed = asyncio.Event()
        self.may_answer = asyncio.Event()

    async def claim(self, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        claims = await super().claim(wants, kinds, decide)
        if claims:
            self.has_claimed.set()
            await self.may_answer.wait()
        return claims


async def test_a_claim_under_way_when_the_worker_is_told_to_leave_is_not_stranded(tmp_path: Path) -> None:
    site = Site(tmp_path, drain=0.1, queues="default=1")
    store = Held(tmp_path / "store.db")
    _, blobs = await site.runtime.open()
    handle = await site.submit("polite", seconds=60)
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    await store.has_claimed.wait()

    stop.set()
    await asyncio.sleep(0)
    store.may_answer.set()
    await asyncio.wait_for(running, 30)

    job = await site.job(handle)
    assert (job.status, job.retry_count) == (Status.RUNNING, 0)
    assert job.running() == []
    assert await store.workers() == []
    await store.close()
    await site.close()


async def test_a_worker_says_which_stages_it_has_code_for(tmp_path: Path) -> None:
    site = Site(tmp_path)
    store, blobs = await site.runtime.open()
    described = await describe(site.settings.app)

    worker = Worker(store, blobs, site.settings, described)

    assert set(worker.card.kinds) == described.kinds
    await site.close()


async def test_a_queue_that_no_stage_uses_is_refused_by_name(tmp_path: Path) -> None:
    site = Site(tmp_path)
    store, blobs = await site.runtime.open()
    settings = replace(site.settings, queues={"onxn": 2})

    with pytest.raises(SettingError, match="'onxn'"):
        Worker(store, blobs, settings, await describe(site.settings.app))

    await site.close()
