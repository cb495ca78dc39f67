"""What people who look at a running job cost: bytes and the server's processor time, to load its page and per second.

A server as a process of its own, on SQLite; this process plays the workers, with changes at a fixed pace.
"""

from __future__ import annotations

import asyncio
import os
import secrets
import subprocess
import sys
import time
from contextlib import suppress
from itertools import count
from pathlib import Path

import psutil
import uuid_utils
from msgspec.structs import replace

from bench import http_load
from bench.book import Book
from bench.jobs import commit
from bench.sizes import Sizes
from packhorse.core import lifecycle
from packhorse.core.changes import Change, Effect, KeepResult, MakeDue, TakeBack
from packhorse.core.models import Job, Result, Spec, Task, TaskId
from packhorse.core.plan import Need, Plan, StagePlan, TaskStatus, fingerprint
from packhorse.factory import open_store
from packhorse.host import free_port
from packhorse.settings import PREFIX
from packhorse.store.base import Store

SECTION = "viewers"
ROOT = Path(__file__).parents[1]
WITHIN = 60.0
LOOK = 0.05
WIDTHS = (200, 10_000)
PER_SECOND = 20
"""Elements that start or end in a second."""
STATE_WITHIN = 30.0
"""Seconds in which every viewer must have the state of the job."""


class Viewers:
    """Connections to the stream of a job, and the bytes that came over them."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._tasks: list[asyncio.Task[None]] = []
        self.bytes = 0
        self.ready = 0

    async def join(self, job_id: str, number: int) -> None:
        page = (await _load(self._port, job_id)).decode()
        shape = page.partition('data-shape="')[2].partition('"')[0]
        path = f"/jobs/{job_id}/live?shape={shape}"
        self._tasks = [asyncio.create_task(self._look(path)) for _ in range(number)]
        until = time.monotonic() + STATE_WITHIN
        while self.ready < number:
            assert time.monotonic() < until, f"{self.ready} of {number} viewers have the state"
            await asyncio.sleep(LOOK)

    async def leave(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _look(self, path: str) -> None:
        reader, writer = await asyncio.open_connection(http_load.HOST, self._port)
        try:
            writer.write(http_load.request("GET", path))
            is_new = True
            while piece := await reader.read(65_536):
                self.bytes += len(piece)
                if is_new and b"event: state" in piece:
                    is_new, self.ready = False, self.ready + 1
        finally:
            writer.close()


async def measure_viewers(book: Book, folder: Path, sizes: Sizes) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    port, address = free_port(), f"sqlite://{folder / 'packhorse.db'}"
    store = await open_store(address)
    env = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)} | {
        "PACKHORSE_STORE": address,
        "PACKHORSE_BLOBS": f"file://{folder / 'blobs'}",
        "PACKHORSE_PORT": str(port),
        "PACKHORSE_KEYLESS": "yes",
        "PACKHORSE_STREAMS_LIMIT": "100000",
        "PACKHORSE_API_LIMIT": "0",
    }
    with (folder / "server.log").open("ab") as log:
        command = [sys.executable, "-m", "packhorse.cli", "serve"]
        process = subprocess.Popen(command, env=env, cwd=ROOT, stdout=log, stderr=log)
    try:
        server = psutil.Process(process.pid)
        await _up(port)
        for width in WIDTHS:
            await _measure(book, store, server, port, width, sizes)
    finally:
        process.terminate()
        process.wait()
        await store.close()


async def _measure(book: Book, store: Store, server: psutil.Process, port: int, width: int, sizes: Sizes) -> None:
    job = await fan_out(store, width)
    of = f"{width:,} elements"
    await _load(port, job.id)  # templates are compiled once
    before = _cpu(server)
    loads = [await _load(port, job.id) for _ in range(sizes.page_loads)]
    book.note(SECTION, "bytes of the page", len(loads[-1]) / 1024, "KiB", of=of)
    book.note(SECTION, "server time of the page", 1000 * (_cpu(server) - before) / len(loads), "ms", of=of)
    job, idle, _, _ = await _watch(store, server, port, job, 0, sizes.watched_seconds)
    for number in (1, sizes.page_viewers):
        job, used, sent, updates = await _watch(store, server, port, job, number, sizes.watched_seconds)
        who = f"{number:,} {'viewer' if number == 1 else 'viewers'}"
        book.note(SECTION, f"server time per second, {who}", 1000 * (used - idle), "ms", of=of)
        book.note(SECTION, f"bytes per second and viewer, {who}", sent / number, "B", of=of)
        book.note(SECTION, f"elements that changed in a second, {who}", updates, "/s", of=of)


async def _watch(
    store: Store, server: psutil.Process, port: int, job: Job, number: int, seconds: float
) -> tuple[Job, float, float, float]:
    """Per second, while elements start and end at a fixed pace: processor time, bytes to all viewers, and changes."""
    viewers = Viewers(port)
    await viewers.join(job.id, number)
    await asyncio.sleep(LOOK)
    viewers.bytes, used, began, made = 0, _cpu(server), time.monotonic(), 0
    for made in count():
        if (late := began + made / PER_SECOND - time.monotonic()) > 0:
            await asyncio.sleep(late)
        if time.monotonic() - began >= seconds:
            break
        change = _next(job, store.now())
        await commit(store, [change])
        job = change.after
    await asyncio.sleep(0.5)  # what was collected is sent
    took = time.monotonic() - began
    found = (_cpu(server) - used) / took, viewers.bytes / took, made / took
    await viewers.leave()
    return job, *found


def _next(job: Job, now: float) -> Change:
    """The running element ends, or the next one starts."""
    tasks = job.stage("page").tasks or ()
    for n, task in enumerate(tasks):
        at = TaskId("page", n)
        if task.token is not None:
            return lifecycle.finish(job, at, token=task.token, result=Result(b"1"), now=now)
        if task.started_at is None:
            return _start(job, at, now)
    raise AssertionError("all elements have ended: fewer seconds")


def _start(job: Job, at: TaskId, now: float) -> Change:
    return lifecycle.start(job, at, token=secrets.token_hex(8), worker="bench", lease=3600.0, now=now)


async def fan_out(store: Store, width: int, done: int = 0) -> Job:
    """A job whose elements are known; of these so many have completed, and none runs."""
    pages = StagePlan("page", needs=(Need("split", "split", "each"),), kind="page", elements=width)
    bare = Plan("bench", (StagePlan("split", kind="split"), pages))
    plan = replace(bare, fingerprint=fingerprint(bare))
    now = store.now()
    change = lifecycle.submit(plan, Spec(b"{}"), job_id=str(uuid_utils.uuid7()), user="ann", now=now)
    await commit(store, [change])
    [task] = [each.task for each in change.effects if isinstance(each, MakeDue)]
    change = _start(change.after, task, now)
    await commit(store, [change])
    token = change.after.stage("split").tasks[0].token  # type: ignore[index]
    assert token is not None
    finished = lifecycle.finish(change.after, task, token=token, result=Result(b"[]"), width=width, now=store.now())
    await commit(store, [finished])
    if not done:
        return finished.after
    ended = _with_results(finished.after, done, store.now())
    await commit(store, [ended])
    return ended.after


def _with_results(job: Job, done: int, now: float) -> Change:
    """The first elements have completed: one change instead of two for each of them."""
    split, page = job.stages
    tasks = list(page.tasks or ())
    effects: list[Effect] = []
    for n in range(done):
        tasks[n] = Task(TaskStatus.COMPLETED, 1, None, now - 60 + n / done * 60, now, now - 60)
        effects += [TakeBack(TaskId("page", n)), KeepResult(TaskId("page", n), Result(b'{"words":120}'))]
    after = replace(job, version=job.version + 1, stages=(split, replace(page, tasks=tuple(tasks))))
    return Change(job, after, effects=tuple(effects), id=secrets.token_hex(8))


async def _load(port: int, job_id: str) -> bytes:
    reader, writer = await asyncio.open_connection(http_load.HOST, port)
    writer.write(http_load.request("GET", f"/jobs/{job_id}"))
    status, body = await http_load.answer(reader)
    writer.close()
    assert status == 200, body[:300]
    return body


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _up(port: int) -> None:
    until = time.monotonic() + WITHIN
    while True:
        with suppress(OSError):
            await asyncio.open_connection(http_load.HOST, port)
            return
        assert time.monotonic() < until, "the server did not come up"
        await asyncio.sleep(LOOK)
