"""The supervisor in this process, with a store whose claims can be held up."""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping
from dataclasses import replace
from pathlib import Path

import pytest

from packhorse.core.model import Status
from packhorse.define.loading import load
from packhorse.define.submitting import Options
from packhorse.engine import worker as worker_module
from packhorse.engine.describe import describe
from packhorse.engine.process import Child
from packhorse.engine.worker import Worker
from packhorse.errors import SettingError
from packhorse.store.base import Claim, Decide
from packhorse.store.sqlite import SqliteStore
from tests.journey.site import Site, until


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


APP = """
from packhorse import App

app = App("mine")

@app.job(retries=0)
def work() -> int:
    return 1
"""


async def test_an_app_that_cannot_be_loaded_for_a_while_costs_no_job_an_attempt(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(APP)
    site = Site(tmp_path, app=str(file), queues="default=1")
    store, blobs = await site.runtime.open()
    worker = Worker(store, blobs, site.settings, await describe(str(file)))
    pipeline = load(str(file)).pipelines["work"]
    file.write_text(APP + "oops(")
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))
    handles = [await site.runtime.a_submit(pipeline, pipeline.params(), Options()) for _ in range(2)]

    async def has_heard() -> bool | None:
        lines = [line.text for handle in handles for line in await store.lines(handle.id)]
        return any("SyntaxError" in line for line in lines) or None

    await until(has_heard, 20, site.log_text)
    meanwhile = [(await site.job(handle)).status for handle in handles]
    file.write_text(APP)
    ended = [await handle.a_wait(20) for handle in handles]
    stop.set()
    await running

    assert Status.FAILED not in meanwhile
    assert [(job.status, job.result) for job in ended] == [(Status.COMPLETED, 1)] * 2
    assert [(await site.job(handle)).retry_count for handle in handles] == [0, 0]
    await site.close()


async def test_a_sample_that_fails_does_not_end_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site(tmp_path)
    store, blobs = await site.runtime.open()
    measured, calls = worker_module._measured, 0

    def failing_first(children: list[Child]) -> dict[Child, tuple[float, int]]:
        nonlocal calls
        calls += 1
        if calls == 1:
            raise RuntimeError("the process table is on fire")
        return measured(children)

    monkeypatch.setattr(worker_module, "_measured", failing_first)
    monkeypatch.setattr(worker_module, "SAMPLE", 0.05)
    worker = Worker(store, blobs, site.settings, await describe(site.settings.app))
    stop = asyncio.Event()
    running = asyncio.create_task(worker.run(stop))

    async def is_sampled_again() -> bool | None:
        assert not running.done()
        return calls > 2 or None

    await until(is_sampled_again, 20, site.log_text)
    stop.set()
    await running
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
