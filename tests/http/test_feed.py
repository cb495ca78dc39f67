"""The feed, on every store: one reader for all watchers, bounded memory, and nobody misses a number."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from types import SimpleNamespace
from typing import Any

import apsw
import pytest

from packhorse.auth.access import LOCAL, Caller
from packhorse.core import lifecycle
from packhorse.core.models import Job, Spec, TaskId
from packhorse.core.plan import Plan, StagePlan
from packhorse.errors import CorruptRecord, StoreUnavailable
from packhorse.factory import open_store
from packhorse.http import feed as feeds
from packhorse.http.feed import Feed, Hints, Watcher
from packhorse.http.routes.events import _Following
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Line, Report, Store
from packhorse.store.sqlite import SqliteStore
from tests.contract.builders import job_id

PLAN = Plan("p", (StagePlan("s", retries=10**6),), fingerprint="f")
AT = TaskId("s")
ONE, TWO = job_id(1), job_id(2)
LIMIT = 40.0


@pytest.fixture
async def store(anywhere: str) -> AsyncIterator[Store]:
    store = await open_store(anywhere)
    yield store
    await store.close()


@asynccontextmanager
async def fed(store: Any) -> AsyncIterator[Feed]:
    feed = Feed(store)
    running = asyncio.create_task(feed.run())
    yield feed
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def admitted(store: Store, id: str = ONE) -> Job:
    change = lifecycle.submit(PLAN, Spec(b"{}"), job_id=id, user="u", now=store.now())
    assert await store.commit([change]) == [None]
    return change.after


async def moved(store: Store, id: str = ONE) -> None:
    """Two events: an attempt started, and handed back."""
    transact = Transactor(store)
    await transact(id, lambda job: lifecycle.start(job, AT, token="t", worker="w", lease=60, now=store.now()))
    await transact(id, lambda job: lifecycle.hand_back(job, AT, token="t", now=store.now()))


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(LIMIT):
        while not condition():  # noqa: ASYNC110 (a flag, as the stream reads it)
            await asyncio.sleep(0.01)


async def numbers(watcher: Watcher, count: int) -> list[int]:
    found: list[int] = []
    async with asyncio.timeout(LIMIT):
        while len(found) < count:
            got = await watcher.next(1.0)
            assert not watcher.is_behind
            found += [event.n for event in got.events] if got else []
    return found


async def test_a_watcher_is_handed_what_happens_after_what_it_read(store: Store) -> None:
    job = await admitted(store)
    async with fed(store) as feed:
        with feed.watch(ONE) as watcher:
            watcher.catch_up()
            watcher.reached(job.events, 0)

            await moved(store)

            assert await numbers(watcher, 3) == [2, 3, 4]


async def test_what_happened_between_reading_and_watching_is_not_missed(store: Store) -> None:
    """Though nothing touches the job any more after the watcher has said how far it read."""
    job = await admitted(store)
    async with fed(store) as feed:
        with feed.watch(ONE) as watcher:
            watcher.catch_up()
            await moved(store)
            await asyncio.sleep(0.1)

            watcher.reached(job.events, 0)

            assert await numbers(watcher, 3) == [2, 3, 4]


async def test_a_job_that_ends_while_it_is_read_is_told_as_ended(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its last event must not travel with the job as it was before: nothing would come after it."""
    job = await admitted(store)
    real = store.events

    async def ending(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr(store, "events", real)
        await Transactor(store)(ONE, lambda job: lifecycle.cancel(job, now=store.now()))
        return await real(*args, **options)

    async with fed(store) as feed:
        with feed.watch(ONE) as watcher:
            watcher.catch_up()
            watcher.reached(job.events, 0)
            await asyncio.wait_for(watcher.next(60), 60)
            monkeypatch.setattr(store, "events", ending)

            await moved(store)

            found: list[tuple[int, bool]] = []
            async with asyncio.timeout(LIMIT):
                while not found or not found[-1][1]:
                    got = await watcher.next(1.0)
                    found += [(event.n, got.job.status.is_terminal) for event in got.events] if got else []
    assert [n for n, _ in found] == [2, 3, 4, 5]


async def test_a_stream_repeats_nothing_that_the_feed_tells_while_it_reads_the_store(store: Store) -> None:
    await admitted(store)
    await moved(store)
    feed = Feed(store)

    async def get_job(_caller: Caller, id: str) -> Job:
        [job] = await store.get([id])
        assert job is not None
        return job

    async def document(_job: Job, _caller: Caller) -> dict[str, Any]:
        return {"stages": {}, "stage": None, "stage_progress": 0.0, "progress": 0.0}

    async def end() -> None:
        await Transactor(store)(ONE, lambda job: lifecycle.cancel(job, now=store.now()))
        await feed._look({ONE})

    services: Any = SimpleNamespace(feed=feed, store=store, job=get_job, document=document)
    on_the_way = {1: lambda: feed._look({ONE}), 4: end}
    sent: list[int] = []
    with feed.watch(ONE) as another:
        another.catch_up()
        another.reached(1, 0)

        async with asyncio.timeout(LIMIT):
            async for frame in _Following(services, LOCAL, ONE, 0, None).frames():
                if number := re.match(rb"id: (\d+)", frame):
                    sent.append(int(number[1]))
                    if do := on_the_way.pop(sent[-1], None):
                        await do()

    assert sent == [1, 2, 3, 4, 5]


async def test_a_hundred_watchers_cost_one_reader(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await admitted(store)
    reads = 0
    real = store.events

    async def counted(*args: Any, **options: Any) -> Any:
        nonlocal reads
        reads += 1
        return await real(*args, **options)

    async with fed(store) as feed:
        watchers = [feed.watch(ONE) for _ in range(100)]
        entered = [watcher.__enter__() for watcher in watchers]
        for watcher in entered:
            watcher.catch_up()
            watcher.reached(job.events, 0)
        monkeypatch.setattr(store, "events", counted)

        await moved(store)

        assert [await numbers(watcher, 3) for watcher in entered] == [[2, 3, 4]] * 100
        assert reads <= 3
        for each in watchers:
            each.__exit__(None, None, None)


async def test_nobody_watching_costs_no_reader(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    job = await admitted(store)
    async with fed(store) as feed:
        with feed.watch(ONE) as watcher:
            watcher.catch_up()
            watcher.reached(job.events, 0)
            await moved(store)
            await numbers(watcher, 3)
        await asyncio.sleep(0.1)
        asked = 0

        async def counted(*_: Any) -> Any:
            nonlocal asked
            asked += 1
            return 0

        monkeypatch.setattr(store, "wait_for_change", counted)
        await asyncio.sleep(0.2)

    assert asked == 0


async def test_a_watcher_that_does_not_keep_up_is_told_so_and_holds_little(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "WAITING", 3)
    monkeypatch.setattr(feeds, "PAUSE", 0.0)
    job = await admitted(store)
    async with fed(store) as feed:
        with feed.watch(ONE) as slow:
            slow.catch_up()
            slow.reached(job.events, 0)
            for _ in range(20):
                await moved(store)
                await asyncio.sleep(0.01)

            await until(lambda: slow.is_behind)

            assert await slow.next(0.1) is None
            slow.catch_up()
            [now] = await store.get([ONE])
            assert now is not None
            slow.reached(now.events, 0)
            await moved(store)
            found = await numbers(slow, 1)
            while found[-1] < now.events + 2:
                found += await numbers(slow, 1)
            # What moved while the store was read may have been handed over as well.
            assert [n for n in found if n > now.events] == [now.events + 1, now.events + 2]


async def test_lines_and_progress_come_along(store: Store) -> None:
    job = await admitted(store)
    transact = Transactor(store)
    await transact(ONE, lambda job: lifecycle.start(job, AT, token="t", worker="w", lease=60, now=store.now()))
    async with fed(store) as feed:
        with feed.watch(ONE) as watcher, feed.watch(ONE, wants_log=False):
            watcher.catch_up()
            watcher.reached(job.events + 2, 0)

            await store.report([Report(ONE, AT, "t", 1, store.now(), 1.0, 4.0, "first")])
            await store.log([Line(ONE, AT, 1, store.now(), "hello")], keep=1000)

            lines: list[str] = []
            progress: set[float] = set()
            async with asyncio.timeout(LIMIT):
                while not lines or 25.0 not in progress:
                    got = await watcher.next(1.0)
                    if got is not None:
                        lines += [line.text for line in got.lines]
                        progress.add(got.position["progress"])
    assert lines == ["hello"]


async def test_after_an_outage_of_the_store_watchers_get_the_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(feeds, "RETRY", 0.01)
    job = await admitted(store)
    real, is_away = store.get, True

    async def flaky(*args: Any) -> Any:
        if is_away:
            raise StoreUnavailable
        return await real(*args)

    async with fed(store) as feed:
        with feed.watch(ONE) as watcher:
            watcher.catch_up()
            watcher.reached(job.events, 0)
            await moved(store)
            monkeypatch.setattr(store, "get", flaky)
            await asyncio.sleep(0.1)

            is_away = False

            assert await numbers(watcher, 3) == [2, 3, 4]


async def test_a_job_that_is_gone_lets_its_watchers_go(store: Store) -> None:
    job = await admitted(store)
    transact = Transactor(store)
    async with fed(store) as feed:
        with feed.watch(ONE) as watcher:
            watcher.catch_up()
            await transact(ONE, lambda job: lifecycle.cancel(job, now=store.now()))
            await transact(ONE, lambda job: lifecycle.purge(job, now=store.now() + 1e9))
            await store.erase(ONE)

            watcher.reached(job.events, 0)

            await until(lambda: watcher.is_closed)
            assert watcher.is_closed


def spoil(db: apsw.Connection) -> None:
    """As a newer packhorse would leave it: moved, told to watchers, and not to be understood here."""
    db.execute("UPDATE jobs SET state = X'00' WHERE id = ?", (ONE,))
    db.execute("INSERT INTO feed (job_ids) VALUES (?)", (f'["{ONE}"]',))


@pytest.mark.parametrize("anywhere", ["sqlite"], indirect=True)  # which can be spoiled
async def test_a_record_that_cannot_be_read_silences_no_other_job(store: Store) -> None:
    assert isinstance(store, SqliteStore)
    await admitted(store, ONE)
    other = await admitted(store, TWO)
    async with fed(store) as feed:
        with feed.watch(ONE) as broken, feed.watch(TWO) as watcher:
            for each in (broken, watcher):
                each.catch_up()
                each.reached(other.events, 0)
            await store._writer.run(spoil)

            await moved(store, TWO)

            assert await numbers(watcher, 3) == [2, 3, 4]
            await until(lambda: broken.is_closed)


class Torn:
    """A store in which one part of a job cannot be read."""

    def __init__(self, store: Store, what: str) -> None:
        self._store = store
        self._what = what

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._store, name)

        async def read(asked: Any, **options: Any) -> Any:
            if ONE in asked:
                raise CorruptRecord(what=name, job_id=ONE, reason="torn")
            return await found(asked, **options)

        return read if name == self._what else found


@pytest.mark.parametrize("what", ["progress", "events"])
async def test_a_part_that_cannot_be_read_silences_no_other_job(store: Store, what: str) -> None:
    await admitted(store, ONE)
    other = await admitted(store, TWO)
    async with fed(Torn(store, what)) as feed:
        with feed.watch(ONE) as broken, feed.watch(TWO) as watcher:
            for each in (broken, watcher):
                each.catch_up()
                each.reached(other.events, 0)

            await moved(store, ONE)
            await moved(store, TWO)

            assert await numbers(watcher, 3) == [2, 3, 4]


async def test_a_closed_feed_lets_everybody_go(store: Store) -> None:
    async with fed(store) as feed:
        with feed.watch(ONE) as watcher:
            watcher.catch_up()
            waiting = asyncio.create_task(watcher.next(60.0))
            await asyncio.sleep(0.01)

            feed.close()

            assert await asyncio.wait_for(waiting, 30) is None
            assert watcher.is_closed
        with feed.watch(TWO) as late:
            assert late.is_closed


class Woken:
    """A page that counts how often it was told to look again by something that moved."""

    def __init__(self, hints: Hints) -> None:
        self.times = 0
        self._hints = hints
        self._task = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while await self._hints.next(3600):
            self.times += 1

    def end(self) -> None:
        self._task.cancel()


async def test_pages_are_told_of_jobs_of_their_own_tenant_and_user_only(store: Store) -> None:
    async with fed(store) as feed:
        with (
            feed.hints("default") as all_of_it,
            feed.hints("default", "u") as own,
            feed.hints("default", "v") as other,
            feed.hints("acme") as foreign,
        ):
            pages = [Woken(each) for each in (all_of_it, own, other, foreign)]
            await until(lambda: all(page.times == 1 for page in pages))  # at first, anything may have moved
            await admitted(store)
            await until(lambda: pages[0].times == pages[1].times == 2)
            await moved(store)
            await until(lambda: pages[0].times >= 3)  # one for both moves, or one for each

            assert [pages[2].times, pages[3].times] == [1, 1]
            for each in pages:
                each.end()


async def test_a_page_is_told_of_many_moves_at_once(store: Store) -> None:
    async with fed(store) as feed:
        with feed.hints("default") as hints:
            page = Woken(hints)
            for n in range(20):
                await admitted(store, job_id(n + 1))
            await until(lambda: page.times > 0)

            assert page.times < 20
            page.end()
