"""The store alone: durable writes per second, by one caller and by many, against raw synced writes of the same disk."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from bench import jobs
from bench.book import Book, at_least
from bench.disk import synced_writes
from bench.servers import STORES
from bench.sizes import Sizes
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.factory import open_store
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store

SECTION = "store"
TO = "x raw"
"""Durable writes to synced writes."""
TOGETHER = at_least(2.5, of_ratio=True)
"""Callers of SQLite that wait together share one sync, so they have to get more done than the disk has syncs."""
PAIR = "claim+finish"
"""Counted in pairs, and compared as what it is: two durable writes, one after the other."""
QUEUED = 10_000
"""Jobs for each second of claiming. Who runs out stops early, and its rate is of the time it took."""

Step = Callable[[], Awaitable[bool]]
"""One operation; False if there is nothing left to do."""


class StoreSection:
    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._count = 0
        self._server = STORES[sizes.store](folder / "server")

    async def round(self, book: Book) -> None:
        callers = self._sizes.callers
        measured = [
            (name, many, await self._beside_the_disk(partial(kind, many)))
            for name, kind in (("adds", self._adds), ("commits", self._commits), (PAIR, self._claims))
            for many in (1, callers)
        ]
        measured.append((f"{PAIR}, 100 at a time", 0, await self._beside_the_disk(self._batches)))

        book.note(SECTION, "raw append 4 KiB + fdatasync", statistics.median(raw for _, _, (_, raw) in measured), "/s")
        for name, many, (rate, raw) in measured:
            label = {0: name, 1: f"{name}, 1 caller"}.get(many, f"{name}, {many} callers")
            ratio = rate * (2 if name.startswith(PAIR) else 1) / raw
            bound = TOGETHER if many > 1 and self._sizes.store == "sqlite" else None
            book.note(SECTION, label, rate, "/s", ratio=ratio, to=TO, bound=bound)

    async def _beside_the_disk(self, measure: Callable[[], Awaitable[float]]) -> tuple[float, float]:
        """A rate, and raw writes right before and after it: a shared disk is not as fast now as a minute ago."""
        before = synced_writes(self._folder, self._sizes.disk_seconds)
        rate = await measure()
        after = synced_writes(self._folder, self._sizes.disk_seconds)
        return rate, (before + after) / 2

    async def close(self) -> None:
        await self._server.close()

    async def _adds(self, callers: int) -> float:
        plan = jobs.plan()
        store = await self._fresh()

        async def add() -> bool:
            await jobs.commit(store, [jobs.submit(plan, store.now())])
            return True

        return await self._rate(store, [add] * callers)

    async def _commits(self, callers: int) -> float:
        """Cancel and retry in turn, each caller its own job, through the door that every verb goes through."""
        plan = jobs.plan()
        store = await self._fresh()
        transact = Transactor(store)
        changes = [jobs.submit(plan, store.now()) for _ in range(callers)]
        await jobs.commit(store, changes)

        def moving(job_id: str) -> Step:
            async def move() -> bool:
                await transact(job_id, turn)
                return True

            return move

        def turn(job: Job) -> Change | None:
            verb = lifecycle.retry if job.status.is_terminal else lifecycle.cancel
            return verb(job, now=store.now())

        return await self._rate(store, [moving(change.after.id) for change in changes])

    async def _claims(self, callers: int) -> float:
        plan = jobs.plan()
        store = await self._filled()

        async def carry() -> bool:
            claims = await jobs.claim(store, [plan], 1)
            await jobs.commit(store, [jobs.finish(claim, store.now()) for claim in claims])
            return bool(claims)

        return await self._rate(store, [carry] * callers)

    async def _batches(self) -> float:
        """As a worker with a hundred slots does it."""
        plan = jobs.plan()
        store = await self._filled()
        done = 0

        async def carry() -> bool:
            nonlocal done
            claims = await jobs.claim(store, [plan], 100)
            await jobs.commit(store, [jobs.finish(claim, store.now()) for claim in claims])
            done += len(claims)
            return bool(claims)

        began = time.perf_counter()
        await self._rate(store, [carry])
        return done / (time.perf_counter() - began)

    async def _rate(self, store: Store, steps: list[Step]) -> float:
        """Operations per second of callers that each begin the next when the last is done."""
        done = 0
        began = time.perf_counter()
        until = began + self._sizes.seconds

        async def call(step: Step) -> None:
            nonlocal done
            while time.perf_counter() < until and await step():
                done += 1

        await asyncio.gather(*(call(step) for step in steps))
        rate = done / (time.perf_counter() - began)
        await store.close()
        return rate

    async def _filled(self) -> Store:
        store = await self._fresh()
        plan = jobs.plan()
        await jobs.seed(store, (jobs.submit(plan, store.now()) for _ in range(int(self._sizes.seconds * QUEUED))))
        return store

    async def _fresh(self) -> Store:
        self._count += 1
        return await open_store(await self._server.empty(self._count))
