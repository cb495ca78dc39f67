"""Kill -9 of a worker amid running jobs: how long until each runs again, and whether any is lost or run twice."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from msgspec import Struct

from bench import stages
from bench.book import Book, Bound, at_least, at_most, percentile
from bench.site import Site, Submitted, WorkerProcess
from bench.sizes import Sizes
from packhorse.core.plan import Status
from packhorse.define.pipelines import Pipeline

SECTION = "crash"
SOON = at_most(2.0)
IN_TIME = at_most(1.5, of_ratio=True)
WATCHED = 20
"""Leases after which a job that does not run again is given up by this benchmark."""


class Case(Struct, frozen=True):
    name: str
    pipeline: Pipeline[Any]
    bound: Bound | None = None
    is_restarted: bool = False
    has_neighbour: bool = False
    boot: str | None = None
    """Given to the victim, so that the survivor can not see it die."""
    length: int = 1
    """Of a job, times the usual: starting twenty processes takes longer than that."""


ASYNC, SYNC = stages.long_async.pipeline, stages.long_sync.pipeline
CASES = (
    Case("restart at once", ASYNC, SOON, is_restarted=True),
    Case("restart at once, a process each", SYNC, is_restarted=True, length=5),
    Case("neighbour on the host", ASYNC, SOON, has_neighbour=True),
    Case("another host", ASYNC, IN_TIME, has_neighbour=True, boot="of-another-machine"),
)


class CrashSection:
    def __init__(self, folder: Path, sizes: Sizes) -> None:
        self._folder = folder
        self._sizes = sizes
        self._count = 0

    async def round(self, book: Book) -> None:
        for case in CASES:
            self._count += 1
            queues = f"long={self._sizes.crashed}"
            site = Site(self._folder / str(self._count), queues=queues, lease=self._sizes.lease)
            try:
                await self._case(book, site, case)
            finally:
                await site.close()

    async def close(self) -> None:
        pass

    async def _case(self, book: Book, site: Site, case: Case) -> None:
        survivor = await self._survivor(site) if case.has_neighbour else None
        victim = site.start_worker(boot=case.boot)
        await site.is_up(victim)
        seconds = self._sizes.crashed_seconds * case.length
        submitted = await site.submit_many(case.pipeline, self._sizes.crashed, callers=4, seconds=seconds)
        await site.noted("begin-1", {each.n for each in submitted})
        if survivor is not None:
            survivor.open_door()

        hit = site.ledger("begin-1").keys() - site.ledger("end").keys()
        killed_at = time.monotonic_ns()
        victim.kill()
        if case.is_restarted:
            site.start_worker()
        again = await site.noted("begin-2", hit, within=WATCHED * self._sizes.lease)
        jobs = await site.ended(submitted)

        never = WATCHED * self._sizes.lease
        self._note_times(book, case, [(again[n] - killed_at) / 1e9 if n in again else never for n in hit])
        completed = {job.id for job in jobs if job.status is Status.COMPLETED}
        if len(completed) < len(submitted):  # what has to be looked into must not go with the folder
            print(f"{case.name}: {Counter(job.status.value for job in jobs)}\n{site.log_tail()}", file=sys.stderr)
        self._note_counts(book, site, case, submitted, completed, len(hit))

    async def _survivor(self, site: Site) -> WorkerProcess:
        """Up for longer than a lease before anything happens, as it would be; its door is shut until the kill."""
        survivor = site.start_worker()
        await site.is_up(survivor)
        survivor.shut_door()
        await asyncio.sleep(1.2 * self._sizes.lease)
        return survivor

    def _note_times(self, book: Book, case: Case, times: list[float]) -> None:
        for part, name in ((0.5, "p50"), (1.0, "max")):
            value = percentile(times, part)
            bound = case.bound if name == "max" else None
            leases = value / self._sizes.lease
            book.note(SECTION, f"{case.name}: runs again, {name}", value, "s", ratio=leases, to="leases", bound=bound)

    def _note_counts(
        self, book: Book, site: Site, case: Case, submitted: list[Submitted], completed: set[str], hit: int
    ) -> None:
        all_of_them = self._sizes.crashed
        ends = site.ledger("end")
        twice = sum(len(ends.get(each.n, ())) > 1 for each in submitted)
        lost = sum(each.job_id not in completed for each in submitted)
        for name, value, bound in (
            ("running when killed", hit, None),
            ("finished", len(completed), at_least(all_of_them)),
            ("run twice to the end", twice, at_most(0)),
            ("lost", lost, at_most(0)),
        ):
            book.note(SECTION, f"{case.name}: {name}", value, "jobs", bound=bound)
