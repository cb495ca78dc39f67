"""`python -m lab.real.soak`: mixed load with random kills for half an hour, and what memory, descriptors and rows do.

One worker is never killed: what it leaks stays. Ended jobs are kept for a minute. When the load ends, every job and
every file must go. Samples are written as CSV; `--plot` draws those of several stores into one picture.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import csv
import os
import signal
import sqlite3
import statistics
import sys
import time
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import asyncpg
import psutil
from tests.journey.site import Entry

from lab.real import tools
from lab.real.deployment import Acknowledged, Deployment
from lab.real.faults import network_cut, stage_killed, store_killed
from lab.real.places import PLACES, OnPostgres, OnRedis, Place
from lab.real.plot import draw
from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.store.base import Filter

EVERY = 5.0
"""Seconds between samples."""
PAUSE = 15.0
"""Seconds of peace after each fault."""
KEEP, ORPHAN = 60, 120
"""Seconds that an ended job is kept, and a file of an upload that the server did not live to submit."""
DRAINED = ORPHAN + 180.0
"""Seconds after the load in which everything that belongs to jobs is deleted, however busy the machine is."""
LEFT = 0.1
"""Rows per job that may stay: those about killed workers and actions with a key do not belong to a job."""
WARM_UP = 1 / 3
"""The share of the time in which caches fill."""
GROWTH, SLACK = 1.05, 2
"""A column levels off if the last third of the samples is at most this much above the third before it. By then the
caches of a worker are full; garbage in cycles waits until there are 20,000 new objects, which is one or two MiB."""
BOUNDED = ("tallies", "feed")
"""Tables with a bound of their own, however many jobs there are: counts of six hours, and the last 10,000 changes."""
COLUMNS = ("seconds", "worker_mib", "server_mib", "worker_fds", "server_fds", "rows", "store_mib", "files", "ended")
LEVEL = ("worker_mib", "worker_fds")
"""What must level off under load. The server is killed now and then. How many rows and files there are depends on when
the janitor trusts the clock, and so on how busy the machine is: they are judged by what is left in the end."""


class Soak:
    def __init__(self, place: Place, seed: int) -> None:
        kept = {
            "keep": KEEP,
            "failures_keep": KEEP,
            "runs_keep": KEEP,
            "orphan_after": ORPHAN,
            "audit_keep": 1000,
            "slots": 3,
        }
        self.site = Deployment(place, seed, **kept)
        self.place = place
        self.samples: list[dict[str, float]] = []
        self.failed: dict[str, Job] = {}
        self.missed: Counter[str] = Counter()
        """Samples that could not be taken, by reason: a process or the store was down."""
        self.unseen = 0.0
        """The longest time in which failed jobs were not noted. Those that failed and were purged in it look lost."""
        self.lost: list[str] = []
        self.kills = 0
        self._began = self._noted_at = 0.0

    async def run(self, seconds: float, out: Path) -> list[str]:
        """What is wrong after load and faults for so many seconds, and a time without either."""
        await self.site.open()
        self._began = self._noted_at = time.monotonic()
        with out.open("w", newline="") as file:
            self._writer = csv.DictWriter(file, COLUMNS)
            self._writer.writeheader()
            before, _ = await self._stored()
            async with self.site.under_load(pause=0.3):
                harm = asyncio.create_task(self._harm())
                try:
                    while time.monotonic() - self._began < seconds:
                        await self._next_sample()
                        file.flush()
                        if harm.done():
                            harm.result()
                finally:
                    harm.cancel()
                    await asyncio.gather(harm, return_exceptions=True)
            self._restart_all()
            under_load = list(self.samples)
            _, left = await self.site.settle(90)
            found = [f"I13: {len(left)} jobs have not ended"] if left else []
            found += await self._judge_jobs()
            found += await self._drain(before)
        return found + [text for column in LEVEL if (text := growth(under_load, column))]

    async def _next_sample(self) -> None:
        await asyncio.sleep(EVERY - (time.monotonic() - self._began) % EVERY)
        try:
            sample = await self._sample(time.monotonic() - self._began)
        except Exception as error:  # broad: clients of a store that is killed raise what they like
            self.missed[type(error).__name__] += 1
        else:
            self.samples.append(sample)
            self._writer.writerow(sample)

    async def _drain(self, before: int) -> list[str]:
        """Wait until everything that belongs to jobs is deleted."""
        most_rows = before + int(LEFT * len(self.site.load.jobs))
        deadline = time.monotonic() + DRAINED
        while time.monotonic() < deadline:
            await self._next_sample()
            last = self.samples[-1]
            if (
                not await self.site.jobs() and last["files"] <= 1 and last["rows"] <= most_rows
            ):  # a file says whose they are
                return []
        last = self.samples[-1]
        return [f"I11: {last['rows']:.0f} rows, {last['files']:.0f} files are left, of {before} rows before the load"]

    async def _harm(self) -> None:
        """One fault after the other. The first worker is left alone."""
        site = self.site
        kinds: list[Callable[[], Awaitable[None]]] = [
            self._kill_worker,
            self._kill_worker,
            self._kill_server,
            lambda: stage_killed(site, 2.0),
        ]
        if site.place.ways:
            kinds += [lambda: store_killed(site, 2.0), lambda: network_cut(site, 2.0)]
        while True:
            await asyncio.sleep(PAUSE)
            try:
                self._restart_all()  # as a service manager does: a server that starts while the store is down ends
                await site.chance.choice(kinds)()
            except Exception:  # broad: whatever the machine does not manage in time, the next fault comes all the same
                traceback.print_exc()
                await asyncio.sleep(PAUSE)
                self._restart_all()
            self.kills += 1

    async def _kill_worker(self) -> None:
        worker = self.site.workers.pop()
        worker.kill()
        worker.wait()
        await asyncio.sleep(2)
        self.site.start_numbered_worker(2)

    async def _kill_server(self) -> None:
        server = self.site.server
        assert server is not None
        server.kill()
        server.wait()
        await asyncio.sleep(1)
        self.site.start_server()

    def _restart_all(self) -> None:
        if self.site.server is not None and self.site.server.poll() is not None:
            self.site.start_server()
        if len(self.site.living_workers()) < 2:
            self.site.start_numbered_worker(2)
        if isinstance(self.place, OnPostgres | OnRedis):
            self.place.restart()

    async def _sample(self, at: float) -> dict[str, float]:
        assert self.site.server is not None
        await self._note_failed()
        rows, size = await self._stored()
        worker, server = psutil.Process(self.site.workers[0].pid), psutil.Process(self.site.server.pid)
        files = sum(len(names) for _, _, names in os.walk(self.place.data / "blobs"))
        ended = sum(entry.what == "end" or entry.stage in ("says", "tick") for entry in self.site.ledger())
        return {
            "seconds": round(at, 1),
            "worker_mib": round(worker.memory_info().rss / 2**20, 1),
            "server_mib": round(server.memory_info().rss / 2**20, 1),
            "worker_fds": worker.num_fds(),
            "server_fds": server.num_fds(),
            "rows": rows,
            "store_mib": round(size / 2**20, 1),
            "files": files,
            "ended": ended,
        }

    async def _note_failed(self) -> None:
        """Failed jobs are purged after a minute. A job without retries fails with its worker, maybe before it began."""
        store = await self.site.store()
        self.failed |= {job.id: job for job in await store.find(Filter(status=Status.FAILED), limit=1000)}
        self.unseen = max(self.unseen, time.monotonic() - self._noted_at)
        self._noted_at = time.monotonic()

    async def _stored(self) -> tuple[int, float]:
        """Rows or keys, and bytes, as the store itself counts them."""
        if isinstance(self.place, OnPostgres):
            own = await asyncpg.connect(self.place.server.dsn(), timeout=5)
            try:
                tables = await own.fetch(
                    "SELECT tablename FROM pg_tables WHERE schemaname = 'lab' AND tablename <> ALL ($1)", BOUNDED
                )
                rows = 0
                for table in tables:
                    rows += await own.fetchval(f"SELECT count(*) FROM lab.{table['tablename']}")
                return rows, await own.fetchval("SELECT pg_database_size('postgres')")
            finally:
                await own.close()
        if isinstance(self.place, OnRedis):
            with self.place.server.client() as client:
                return int(client.dbsize()), float(client.info("memory")["used_memory"])
        return await asyncio.to_thread(_sqlite_rows, self.place.data / "store.db")

    async def _judge_jobs(self) -> list[str]:
        found = []
        await self._note_failed()
        if self.unseen >= KEEP:
            found.append(f"LAB: failed jobs were not noted for {self.unseen:.0f} s and may be counted as lost")
        load = self.site.load
        self.lost = lost_jobs(load.jobs, self.site.ledger(), self.failed.keys() | load.cancelled)
        if self.lost:
            found.append(f"I1: {len(self.lost)} acknowledged jobs did not run to their end: {self.lost[:5]}")
        wrong = [job for job in self.failed.values() if job.plan.pipeline != "says"]  # that one has no retries
        if wrong:
            found.append(f"I4: {len(wrong)} jobs failed: {[(job.id, job.error) for job in wrong[:5]]}")
        return found


def lost_jobs(
    acknowledged: Mapping[str, Acknowledged], ledger: Iterable[Entry], may_stop: Collection[str]
) -> list[str]:
    """Jobs whose last stage never ran, except those that ``may_stop`` before it: they failed, or were cancelled.

    Ended jobs are purged, so what the stages wrote must tell. A job with an expected result has three stages, of which
    the last notes its end; the others have one stage, which notes its begin.
    """
    begun, joined = set(), set()
    for entry in ledger:
        begun.add(entry.job_id)
        if (entry.stage, entry.what) == ("join", "end"):
            joined.add(entry.job_id)
    return [
        job_id
        for job_id, job in acknowledged.items()
        if job_id not in may_stop and job_id not in (begun if job.expected is None else joined)
    ]


def growth(samples: Sequence[dict[str, float]], column: str) -> str:
    """What a column does if it does not level off; nothing if it does."""
    third = max(1, int(len(samples) * WARM_UP))
    parts = samples[third : 2 * third], samples[2 * third :]
    before, last = (statistics.median(sample[column] for sample in part) for part in parts)
    return f"{column} grows: {before:.1f}, then {last:.1f}" if last > before * GROWTH + SLACK else ""


def _sqlite_rows(path: Path) -> tuple[int, float]:
    with contextlib.closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=10)) as own:
        tables = {name for (name,) in own.execute("SELECT name FROM sqlite_master WHERE type = 'table'")}
        rows = sum(own.execute(f'SELECT count(*) FROM "{name}"').fetchone()[0] for name in tables.difference(BOUNDED))
    return rows, path.stat().st_size


async def soak(store: str, minutes: float, seed: int, out: Path) -> int:
    place = PLACES[store]()
    run: Soak | None = None
    try:
        await place.start(processes=3)
        run = Soak(place, seed)
        problems = await run.run(60 * minutes, out)
        jobs, failed, missed = len(run.site.load.jobs), len(run.failed), dict(run.missed)
        text = f"{store}: {jobs} jobs, {run.kills} faults in {minutes:.0f} min, {len(run.lost)} lost, {failed} failed"
        print(f"{text}, {len(run.samples)} samples, missed {missed}", *problems, sep="\n  ", flush=True)
        return 1 if problems else 0
    finally:
        if run is not None:
            await run.site.close()
        await place.close()


def run_until_terminated(main: Coroutine[Any, Any, int]) -> int:
    """Run it. SIGTERM cancels it, so that it ends the processes that it has started, as Ctrl-C does."""

    async def cancellable() -> int:
        task = asyncio.current_task()
        assert task is not None
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
        return await main

    try:
        return asyncio.run(cancellable())
    except asyncio.CancelledError:
        return 128 + signal.SIGTERM


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m lab.real.soak", description=__doc__)
    parser.add_argument("--store", choices=["sqlite", "postgresql", "redis"], default="sqlite")
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    parser.add_argument("--out", type=Path, default=None, help="the samples (default: soak-STORE.csv)")
    parser.add_argument(
        "--plot", nargs="+", type=Path, default=None, metavar="CSV", help="draw these instead, to --svg"
    )
    parser.add_argument("--svg", type=Path, default=Path("soak.svg"))
    args = parser.parse_args()
    if args.plot:
        args.svg.write_text(draw(args.plot))
        return 0
    tools.prepare()
    return run_until_terminated(soak(args.store, args.minutes, args.seed, args.out or Path(f"soak-{args.store}.csv")))


if __name__ == "__main__":
    sys.exit(main())
