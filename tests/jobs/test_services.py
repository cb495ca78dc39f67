"""What the use cases share: values that are read once for all callers, and lists without what cannot be read."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Sequence
from typing import Any

import pytest

from packhorse.auth.access import LOCAL
from packhorse.blobs.base import Blobs
from packhorse.errors import CorruptRecord, StoreUnavailable
from packhorse.jobs import view
from packhorse.jobs.services import Cached, Services
from packhorse.settings import Settings
from packhorse.store.base import Filter, Store
from tests.contract.builders import submit


class Source:
    """Counts how often each key is read, and answers when it is told to."""

    def __init__(self) -> None:
        self.reads: list[str] = []
        self.may_answer = {"slow": asyncio.Event(), "quick": asyncio.Event()}
        self.error: Exception | None = None
        self.now = 100.0
        self.cached = Cached(self.read, 10.0, lambda: self.now)

    async def read(self, key: str) -> str:
        self.reads.append(key)
        await self.may_answer[key].wait()
        if self.error is not None:
            raise self.error
        return key.upper()

    async def ask(self, *keys: str) -> list[asyncio.Task[tuple[str, float]]]:
        """Callers at the same time, each of which waits for its key."""
        asking = [asyncio.create_task(self.cached(key)) for key in keys]
        for _ in range(3):
            await asyncio.sleep(0)
        return asking


async def settle(asking: Sequence[asyncio.Task[Any]]) -> list[Any]:
    async with asyncio.timeout(60):
        return await asyncio.gather(*asking, return_exceptions=True)


async def test_callers_at_the_same_time_share_one_read_until_it_is_too_old() -> None:
    source = Source()
    asking = await source.ask("slow", "slow", "slow")

    source.may_answer["slow"].set()

    assert await settle(asking) == [("SLOW", 100.0)] * 3
    source.now = 110.0
    assert await source.cached("slow") == ("SLOW", 100.0)
    assert source.reads == ["slow"]
    source.now = 110.5
    assert await source.cached("slow") == ("SLOW", 110.5)
    assert source.reads == ["slow", "slow"]


async def test_a_refresh_reads_what_is_still_young_and_callers_get_what_it_found() -> None:
    source = Source()
    source.may_answer["slow"].set()
    await source.cached("slow")
    source.now = 101.0

    await source.cached.refresh("slow")

    assert await source.cached("slow") == ("SLOW", 101.0)
    assert source.reads == ["slow", "slow"]


async def test_a_slow_read_of_one_key_does_not_delay_another() -> None:
    source = Source()
    async with asyncio.timeout(60):
        slow, quick = await source.ask("slow", "quick")

        source.may_answer["quick"].set()

        assert await quick == ("QUICK", 100.0)
        assert not slow.done()
        source.may_answer["slow"].set()
        assert await slow == ("SLOW", 100.0)


async def test_all_callers_of_a_failed_read_get_its_error_and_the_next_one_reads_again() -> None:
    source = Source()
    source.error = StoreUnavailable("away")
    asking = await source.ask("slow", "slow", "slow")

    source.may_answer["slow"].set()

    assert await settle(asking) == [source.error] * 3
    assert source.reads == ["slow"]
    source.error = None
    assert await source.cached("slow") == ("SLOW", 100.0)


async def test_a_caller_that_is_cancelled_does_not_end_the_read_of_the_others() -> None:
    source = Source()
    asking = await source.ask("slow", "slow")

    asking[0].cancel()
    await asyncio.wait(asking[:1])
    source.may_answer["slow"].set()

    assert asking[0].cancelled()
    assert await settle(asking[1:]) == [("SLOW", 100.0)]
    assert source.reads == ["slow"]


async def test_an_error_that_no_caller_waits_for_any_more_is_not_reported_as_lost() -> None:
    source = Source()
    source.error = StoreUnavailable("away")
    lost: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: lost.append(context))
    asking = await source.ask("slow", "slow")

    for each in asking:
        each.cancel()
    await asyncio.wait(asking)
    source.may_answer["slow"].set()
    await asyncio.wait(asyncio.all_tasks() - {asyncio.current_task()}, timeout=60)
    source.error = None
    del asking, each  # which refer to the read
    gc.collect()

    assert lost == []
    assert await source.cached("slow") == ("SLOW", 100.0)


async def test_a_job_whose_progress_cannot_be_read_hides_no_other_from_the_page(
    store: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first, bad, last = [await submit(store) for _ in range(3)]
    real = store.progress

    async def progress(job_ids: Sequence[str]) -> Any:
        if bad.id in job_ids:
            raise CorruptRecord(what="progress", job_id=bad.id, reason="torn")
        return await real(job_ids)

    monkeypatch.setattr(store, "progress", progress)
    rows, _ = await view.job_rows(Services(Settings(), store, blobs), LOCAL, Filter(), limit=10)

    assert {row["job_id"] for row in rows} == {first.id, last.id}
    assert caplog.text.count(f"job {bad.id} cannot be read and is left out") == 1
