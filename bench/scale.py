"""A short queue and a very long one: what a claim, a pick-up and a question cost with either."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import statistics
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from functools import partial
from pathlib import Path

from bench import jobs, stages
from bench.book import Book, at_most, percentile
from bench.pick_up import pick_ups
from bench.site import Site
from bench.sizes import Sizes
from packhorse.core.changes import Change
from packhorse.core.plan import Status
from packhorse.store.base import Filter, Store
from packhorse.store.sqlite import SqliteStore
from packhorse.store.sqlite.connection import connect

SECTION = "scale"
PLANS = [jobs.plan(f"bench{i}") for i in range(5)]
USERS = 20
"""Few enough that each has fifty jobs in the short queue too."""
URGENT = 10
AT_A_TIME = 10
FILTERS = {
    "": Filter(tenant="default"),
    " of a user": Filter(tenant="default", user="user7"),
    " pending": Filter(tenant="default", status=Status.PENDING),
    " completed": Filter(tenant="default", status=Status.COMPLETED),
    " of a pipeline": Filter(tenant="default", pipeline=PLANS[3].pipeline),
}
FLAT = at_most(2.0, of_ratio=True)
"""A claim is a short walk and a question reads about as many rows as it returns, however many there are."""


class Held:
    """A store with so many queued jobs."""

    def __init__(self, site: Site, queued: int) -> None:
        self.site = site
        self.queued = queued
        self.ids: list[str] = []
        """Some of them."""
        self._users = itertools.cycle(f"user{i}" for i in range(USERS))

    @property
    def name(self) -> str:
        return f"{self.queued:,} queued"

    async def seed(self, count: int) -> None:
        store = await self.site.store()
        await jobs.seed(store, self._submits(store, count))

    def _submits(self, store: Store, count: int) -> Iterator[Change]:
        for i, plan in zip(range(count), itertools.cycle(PLANS), strict=False):
            change = jobs.submit(plan, store.now(), user=next(self._users))
            if i % max(1, count // 1000) == 0:
                self.ids.append(change.after.id)
            yield change


Work = Callable[[Held, Store], Awaitable[None]]


class ScaleSection:
    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._held: list[Held] = []

    async def round(self, book: Book) -> None:
        if not self._held:
            await self._seed(book)
        await self._claims(book)
        await self._looks(book)
        await self._workers(book)
        for held in self._held:
            await held.seed(1 + self._sizes.claims + 100 * (1 + self._sizes.batches))  # what the claims have taken

    async def close(self) -> None:
        for held in self._held:
            await held.site.close()

    async def _seed(self, book: Book) -> None:
        for count in (self._sizes.few, self._sizes.many):
            held = Held(Site(self._folder / str(count), queues="async=100"), count)
            self._held.append(held)
            began = time.perf_counter()
            await held.seed(count)
            book.note(SECTION, f"seeding, {held.name}", time.perf_counter() - began, "s")
            store = await held.site.store()
            assert isinstance(store, SqliteStore)
            size = await asyncio.to_thread(_size, store.path)
            book.note(SECTION, f"database, {held.name}", size / count, "bytes/job")

    async def _claims(self, book: Book) -> None:
        """By the mean, which has its share of checkpoints in it."""
        one, hundred = partial(_carry, limit=1), partial(_carry, limit=100)
        times = await self._in_turn(one, self._sizes.claims)
        self._compare(book, "claim+finish, 1 at a time", map(statistics.mean, times))
        times = await self._in_turn(hundred, self._sizes.batches)
        self._compare(book, "claim+finish, 100 at a time", (statistics.mean(each) / 100 for each in times))
        times = await self._in_turn(_urgent, self._sizes.claims)
        self._compare(book, "urgent: submit+claim+finish", map(statistics.mean, times))

    async def _looks(self, book: Book) -> None:
        async def get(held: Held, store: Store) -> None:
            await store.get([chance.choice(held.ids)])

        async def find(_: Held, store: Store, filter: Filter) -> None:
            await store.find(filter)

        chance = random.Random(7)
        for name, filter in FILTERS.items():
            times = await self._in_turn(partial(find, filter=filter), self._sizes.looks)
            self._compare(book, f"find newest 50{name}", map(statistics.median, times))
        times = await self._in_turn(get, self._sizes.looks)
        self._compare(book, "get one", map(statistics.median, times))

    async def _workers(self, book: Book) -> None:
        """An idle worker of another queue in each store, a few jobs here, a few there."""
        pipeline = stages.light.pipeline
        workers = [held.site.start_worker() for held in self._held]
        for held, worker in zip(self._held, workers, strict=True):
            await held.site.is_up(worker)
            await held.site.ended(await held.site.submit_many(pipeline, self._sizes.warm, callers=4))
        found: list[list[float]] = [[] for _ in self._held]
        for _ in range(0, self._sizes.pick_ups, AT_A_TIME):
            for held, mine in zip(self._held, found, strict=True):
                mine += await pick_ups(held.site, pipeline, AT_A_TIME, self._sizes.pick_up_gap)
        for worker in workers:
            await worker.stop()
        for part in (0.5, 0.95):
            values = (percentile(each, part) / 1000 for each in found)
            self._compare(book, f"pick-up by a worker, p{part * 100:.0f}", values)

    async def _in_turn(self, work: Work, times: int) -> list[list[float]]:
        """Seconds of each go, one on the short queue, one on the long one: what else happens here hits both."""
        stores = [(held, await held.site.store()) for held in self._held]
        for held, store in stores:
            await work(held, store)  # what is read and opened once
        taken: list[list[float]] = [[] for _ in stores]
        for _ in range(times):
            for (held, store), mine in zip(stores, taken, strict=True):
                began = time.perf_counter()
                await work(held, store)
                mine.append(time.perf_counter() - began)
        return taken

    def _compare(self, book: Book, name: str, values: Iterable[float]) -> None:
        base, seconds = values
        few, many = self._held
        book.note(SECTION, f"{name}, {few.name}", base * 1000, "ms")
        ratio, to = seconds / base, f"x {few.name}"
        book.note(SECTION, f"{name}, {many.name}", seconds * 1000, "ms", ratio=ratio, to=to, bound=FLAT)


async def _carry(_: Held, store: Store, limit: int) -> None:
    claims = await jobs.claim(store, PLANS, limit)
    assert len(claims) == limit
    await jobs.commit(store, [jobs.finish(claim, store.now()) for claim in claims])


async def _urgent(_: Held, store: Store) -> None:
    """A submit that goes before all others, and the claim that finds it."""
    change = jobs.submit(PLANS[0], store.now(), priority=URGENT)
    await jobs.commit(store, [change])
    [claim] = await jobs.claim(store, PLANS, 1)
    assert claim.job.id == change.after.id
    await jobs.commit(store, [jobs.finish(claim, store.now())])


def _size(path: Path) -> int:
    """Bytes of the database, with nothing left in its log."""
    with contextlib.closing(connect(path)) as db:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size
