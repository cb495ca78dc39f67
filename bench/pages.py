"""Every page over a big table: what the server needs to make it, on each store."""

from __future__ import annotations

import asyncio
import itertools
import secrets
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from litestar.testing import AsyncTestClient
from tests.servers.postgres import Postgres
from tests.servers.valkey import Valkey

from bench import jobs
from bench.book import Book, at_most, percentile
from bench.sizes import Sizes
from bench.viewers import fan_out, measure_viewers
from packhorse.auth import keys
from packhorse.core import json, lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Failure, Job, Result, TaskId
from packhorse.core.plan import Definition, Plan, Status
from packhorse.factory import open_store
from packhorse.settings import Settings
from packhorse.store.base import Filter, Store
from packhorse.store.collections.workers import publish_definitions
from packhorse.web.app import build

SECTION = "pages"
PLANS = [jobs.plan(f"bench{i}") for i in range(5)]
USERS = 1000
WIDE = 10_000  # elements of a job whose page is looked at, most of them completed
BATCH = 2000
AT_ONCE = 4
"""Batches under way while the table is filled."""
KINDS = ("no answer from the server", "the model has no input", "the disk is full")
QUICK_ENOUGH = at_most(300.0)
"""Milliseconds of the slowest but one in twenty."""


class PagesSection:
    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._places: dict[str, Settings] = {}
        self._ends: list[Callable[[], object]] = []
        self._rounds = 0

    async def round(self, book: Book) -> None:
        if not self._places:
            await self._fill(book)
        for name, settings in self._places.items():
            await self._look(book, name, settings)
        self._rounds += 1
        await measure_viewers(book, self._folder / f"viewers{self._rounds}", self._sizes)

    async def close(self) -> None:
        for end in self._ends:
            end()

    async def _fill(self, book: Book) -> None:
        for name, url in (await self._urls()).items():
            store = await open_store(url)
            began = time.monotonic()
            await fill(store, self._sizes.pages)
            rate = self._sizes.pages / (time.monotonic() - began)
            book.note(SECTION, f"filling with {self._sizes.pages:,} jobs", rate, "/s", of=name)
            await store.close()
            blobs = f"file://{self._folder / 'blobs' / name}"
            self._places[name] = Settings(keyless=True, store=url, blobs=blobs)

    async def _urls(self) -> dict[str, str]:
        postgres = await asyncio.to_thread(Postgres)
        folder = self._folder / "redis"
        folder.mkdir(parents=True)
        valkey = Valkey("--dir", str(folder), "--appendfsync", "everysec").start()
        self._ends += [postgres.close, valkey.remove]
        return {
            "sqlite": f"sqlite://{self._folder / 'packhorse.db'}",
            "postgresql": postgres.url(),
            "redis": f"redis://127.0.0.1:{valkey.port}/0",
        }

    async def _look(self, book: Book, name: str, settings: Settings) -> None:
        store = await open_store(settings.store)
        paths = await _paths(store)
        async with AsyncTestClient(build(settings), base_url="http://127.0.0.1") as http:
            for path, shown in paths.items():
                await _timed(http, path)  # templates are compiled once
                looks = [await _timed(http, path) for _ in range(self._sizes.looks)]
                taken = [each for each, _ in looks]
                book.note(SECTION, shown, percentile(taken, 0.95), "ms", of=name, bound=QUICK_ENOUGH)
                if name == "sqlite":  # pages are as large on the others
                    book.note(SECTION, f"{shown}, size", looks[-1][1] / 1024, "KiB", of=name)
        await store.close()


async def _timed(http: AsyncTestClient[Any], path: str) -> tuple[float, int]:
    """Milliseconds, and bytes."""
    began = time.perf_counter()
    answer = await http.get(path, follow_redirects=False)
    assert answer.status_code == 200, (path, answer.status_code, answer.text[:500])
    return 1000 * (time.perf_counter() - began), len(answer.content)


async def _paths(store: Store) -> dict[str, str]:
    """Each page as it is asked for, and how it is called in the table."""
    some = await store.find(Filter(tenant="default", status=Status.FAILED), limit=50)
    waiting = await store.find(Filter(tenant="default", status=Status.PENDING), limit=50)
    [group, *_] = await store.failure_groups("default")
    wide = await fan_out(store, WIDE, WIDE * 3 // 5)
    _, token = await keys.create_token(store, waiting[0], by="cli", client="", lasting=3600)
    plain = ["/", "/jobs", "/queues", "/schedules", "/failures", "/keys", "/audit", "/health"]
    filtered = [f"/jobs?status={status}" for status in ("pending", "failed", "completed", "cancelled")]
    rare = [
        "/jobs?user_id=user7",
        "/jobs?user_id=nobody",
        "/jobs?pipeline=bench3",
        "/jobs?pipeline=bench3&status=failed",
    ]
    return {
        **{path: path for path in (*plain, *filtered, *rare)},
        f"/jobs?cursor={waiting[-1].id}": "/jobs, the second page",
        "/jobs/new?pipeline=bench3": "/jobs/new",
        f"/jobs/{some[0].id}": "/jobs/{id}, failed",
        f"/jobs/{waiting[0].id}": "/jobs/{id}, waiting",
        f"/jobs/{wide.id}": f"/jobs/{{id}}, {WIDE:,} elements",
        f"/failures/groups/{group.fingerprint}": "/failures/groups/{fingerprint}",
        f"/p/{token}": "/p/{token}",
    }


async def fill(store: Store, count: int) -> None:
    """Half of them completed, a fiftieth failed, a hundredth cancelled, the rest waiting."""
    await publish_definitions(store, [_definition(plan) for plan in PLANS])
    lives = _lives(store, count)
    turn = asyncio.Semaphore(AT_ONCE)

    async def add(changes: list[list[Change]]) -> None:
        async with turn:
            await jobs.commit(store, [change for life in changes for change in life])

    async with asyncio.TaskGroup() as group:
        while batch := list(itertools.islice(lives, BATCH)):
            await turn.acquire()
            turn.release()
            group.create_task(add(batch))
    await store.trim()


def _definition(plan: Plan) -> Definition:
    return Definition("bench", plan.pipeline, json.encode(plan), b'{"type":"object","properties":{}}', plan.fingerprint)


def _lives(store: Store, count: int) -> Iterator[list[Change]]:
    for i, plan in zip(range(count), itertools.cycle(PLANS), strict=False):
        yield list(_life(plan, i, store.now()))


def _life(plan: Plan, i: int, now: float) -> Iterator[Change]:
    change = jobs.submit(plan, now, user=f"user{i % USERS}")
    yield change
    if i % 100 == 7:
        yield lifecycle.cancel(change.after, now=now) or change
    elif i % 2 == 0:
        yield from _run(change.after, i, now)


def _run(job: Job, i: int, now: float) -> Iterator[Change]:
    task = TaskId("only")
    token = secrets.token_hex(8)
    started = lifecycle.start(job, task, token=token, worker="bench", lease=60.0, now=now)
    yield started
    if i % 50 == 0:
        error = Failure("BROKEN", KINDS[i // 50 % len(KINDS)], permanent=True)
        yield lifecycle.fail(started.after, task, token=token, error=error, luck=0.0, now=now)
    else:
        yield lifecycle.finish(started.after, task, token=token, result=Result(b"1"), now=now)
