"""A real worker with real children: how much it drains, how soon it starts, and what it uses."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from bench import stages
from bench.book import Book, percentile
from bench.disk import synced_writes
from bench.pick_up import pick_ups
from bench.servers import STORES
from bench.site import Site, Submitted, WorkerProcess
from bench.sizes import Sizes
from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.define.pipelines import Pipeline

SECTION = "engine"
QUEUES = "async=100,sync=2"
TO = "x raw"

LIGHT, PLAIN = stages.light.pipeline, stages.plain.pipeline


class EngineSection:
    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._count = 0
        self._server = STORES[sizes.store](folder / "server")

    async def round(self, book: Book) -> None:
        self._count += 1
        store = await self._server.empty(self._count)
        site = Site(self._folder / str(self._count), queues=QUEUES, store=store)
        try:
            worker = site.start_worker()
            await site.is_up(worker)
            for pipeline in (LIGHT, PLAIN):
                await _completed(site, await site.submit_many(pipeline, self._sizes.warm, callers=4))
            await self._drain(book, site, worker, LIGHT, "async stages, 100 slots", self._sizes.drain)
            await self._drain(book, site, worker, PLAIN, "sync stages, 2 slots", self._sizes.drain_sync)
            await self._pipelines(book, site)
            await self._pick_ups(book, site, LIGHT, "async stage")
            await self._pick_ups(book, site, PLAIN, "sync stage")
            await self._quiet_pick_ups(book, site)
            memory = worker.memory()
            book.note(SECTION, "resident memory, supervisor", memory.supervisor, "MiB")
            book.note(SECTION, "resident memory, its children", memory.children, "MiB")
            book.note(SECTION, "children, the guard included", worker.children(), "processes")
            await worker.stop()
        finally:
            await site.close()

    async def close(self) -> None:
        await self._server.close()

    async def _drain(
        self, book: Book, site: Site, worker: WorkerProcess, pipeline: Pipeline[Any], name: str, count: int
    ) -> None:
        """Fill the queue before a closed door, open it, and look at the times in the records."""
        worker.shut_door()
        began = time.perf_counter()
        submitted = await site.submit_many(pipeline, count, callers=self._sizes.callers)
        submit_rate = count / (time.perf_counter() - began)
        raw = synced_writes(self._folder, self._sizes.disk_seconds)
        before = worker.cpu()
        worker.open_door()
        jobs = await _completed(site, submitted)
        after = worker.cpu()

        _check_ran_once(site, pipeline.name, submitted)
        taken = max(job.completed_at or 0.0 for job in jobs) - min(job.started_at or 0.0 for job in jobs)
        book.note(SECTION, f"drain, {name}", count / taken, "/s", ratio=count / taken / raw, to=TO)
        book.note(SECTION, f"  CPU of the supervisor, {name}", (after[0] - before[0]) / count * 1e6, "us/job")
        book.note(SECTION, f"  CPU of its children, {name}", (after[1] - before[1]) / count * 1e6, "us/job")
        if pipeline is LIGHT:
            label = f"submit from Python, {self._sizes.callers} callers"
            book.note(SECTION, label, submit_rate, "/s", ratio=submit_rate / raw, to=TO)

    async def _pipelines(self, book: Book, site: Site) -> None:
        """From the first submit call to the last job's end, client and worker on the same machine."""
        count = self._sizes.pipelines
        raw = synced_writes(self._folder, self._sizes.disk_seconds)
        began = time.time()
        submitted = await site.submit_many(stages.three, count, callers=self._sizes.callers)
        jobs = await _completed(site, submitted)
        for stage in stages.three.stages:
            _check_ran_once(site, stage, submitted)
        rate = count / (max(job.completed_at or 0.0 for job in jobs) - began)
        book.note(SECTION, "3-stage jobs, submitted meanwhile", rate, "/s", ratio=rate / raw, to=TO)

    async def _pick_ups(self, book: Book, site: Site, pipeline: Pipeline[Any], name: str) -> None:
        raw = synced_writes(self._folder, self._sizes.disk_seconds)
        found = await pick_ups(site, pipeline, self._sizes.pick_ups, self._sizes.pick_up_gap)
        for part in (50, 95, 99):
            value = percentile(found, part / 100)
            book.note(SECTION, f"pick-up, {name}, p{part}", value, "ms", ratio=value / (1000 / raw), to="raw writes")

    async def _quiet_pick_ups(self, book: Book, site: Site) -> None:
        found = await pick_ups(site, LIGHT, self._sizes.quiet_pick_ups, self._sizes.quiet_gap)
        book.note(SECTION, "pick-up after a quiet while, p50", percentile(found, 0.5), "ms")
        book.note(SECTION, "pick-up after a quiet while, max", max(found), "ms")


async def _completed(site: Site, submitted: list[Submitted]) -> list[Job]:
    jobs = await site.ended(submitted)
    if any(job.status is not Status.COMPLETED for job in jobs) or len(jobs) < len(submitted):
        raise RuntimeError("not every job was completed; the worker's log is in the folder given by --folder")
    return jobs


def _check_ran_once(site: Site, what: str, submitted: list[Submitted]) -> None:
    """A rate counts only if every job really ran, and once."""
    runs = site.ledger(what)
    if any(len(runs.get(each.n, ())) != 1 for each in submitted):
        raise RuntimeError("not every job ran exactly once")
