"""A place where workers are measured: a store, objects, worker processes, and a ledger that only the stages write."""

from __future__ import annotations

import asyncio
import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import psutil

from bench import stages
from packhorse.core.models import Job
from packhorse.define.pipelines import Pipeline
from packhorse.define.submit import Options
from packhorse.runtime import Runtime
from packhorse.settings import load
from packhorse.store.base import Store
from packhorse.store.collections import workers

ROOT = Path(__file__).parents[1]
LOOK = 0.1
"""Seconds between looks at what has to happen: what is measured has its time written down where it happens."""
WITHIN = 120.0


class Used(NamedTuple):
    """Of a worker: the supervisor, and all that it started."""

    supervisor: float
    children: float


class WorkerProcess:
    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process

    def shut_door(self) -> None:
        self.process.send_signal(signal.SIGUSR1)

    def open_door(self) -> None:
        self.process.send_signal(signal.SIGUSR2)

    def kill(self) -> None:
        """SIGKILL, and no zombie: it is as gone as a process can be."""
        self.process.kill()
        self.process.wait()

    async def stop(self) -> None:
        self.process.terminate()
        await asyncio.to_thread(self.process.wait)

    def cpu(self) -> Used:
        """Seconds so far. Children that have ended are counted by the one that waited for them."""
        times = psutil.Process(self.process.pid).cpu_times()
        ended = times.children_user + times.children_system
        return Used(times.user + times.system, ended + sum(_each(self._children(), _cpu)))

    def memory(self) -> Used:
        """Resident MiB."""
        own = psutil.Process(self.process.pid).memory_info().rss
        return Used(own / 2**20, sum(_each(self._children(), lambda child: child.memory_info().rss / 2**20)))

    def children(self) -> int:
        return len(self._children())

    def _children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children(recursive=True)


class Submitted(NamedTuple):
    n: int
    job_id: str


class Site:
    def __init__(self, folder: Path, **settings: Any) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self._ledger = folder / "ledger"
        given = {
            "app": str(Path(stages.__file__)),
            "store": f"sqlite://{folder / 'store.db'}",
            "blobs": f"file://{folder / 'blobs'}",
            "scratch": str(folder / "scratch"),
        } | settings
        self._env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")},
            **{f"PACKHORSE_{name.upper()}": str(value) for name, value in given.items()},
            "BENCH_LEDGER": str(self._ledger),
            "PYTHONPATH": os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]),
        }
        self._runtime = Runtime(load(given, env={}, folder=folder).settings)
        self._numbers = itertools.count(1)
        self._workers: list[WorkerProcess] = []
        self._log = (folder / "workers.log").open("ab")

    async def store(self) -> Store:
        store, _ = await self._runtime.open()
        return store

    def start_worker(self, *, boot: str | None = None) -> WorkerProcess:
        env = self._env | ({} if boot is None else {"BENCH_BOOT": boot})
        command = [sys.executable, "-m", "bench.worker_process"]
        process = subprocess.Popen(command, env=env, cwd=self.folder, stdout=self._log, stderr=self._log)
        worker = WorkerProcess(process)
        self._workers.append(worker)
        return worker

    async def is_up(self, worker: WorkerProcess) -> None:
        """Until the worker has said in the store that it is there."""
        store = await self.store()
        await self._until(lambda: self._is_enrolled(store, worker), "the worker did not come up")

    @staticmethod
    async def _is_enrolled(store: Store, worker: WorkerProcess) -> bool:
        return any(card.pid == worker.process.pid for card in await workers.list_all(store))

    async def submit(self, pipeline: Pipeline[Any], **parameters: Any) -> Submitted:
        n = next(self._numbers)
        params = pipeline.params(n=n, **parameters)
        handle = await self._runtime.a_submit(pipeline, params, Options(user="ann"))
        return Submitted(n, handle.id)

    async def submit_many(
        self, pipeline: Pipeline[Any], count: int, *, callers: int, **parameters: Any
    ) -> list[Submitted]:
        """By so many callers, each of which begins the next when the last is done."""
        left = iter(range(count))

        async def call() -> list[Submitted]:
            return [await self.submit(pipeline, **parameters) for _ in left]

        found = await asyncio.gather(*(call() for _ in range(callers)))
        return sorted(itertools.chain.from_iterable(found))

    async def ended(self, submitted: list[Submitted], within: float = WITHIN) -> list[Job]:
        """The jobs, when all of them have ended or the time is over."""
        store = await self.store()
        ids = [each.job_id for each in submitted]
        newest = ids[-200:]  # looked at first: asking for thousands again and again would be part of the measurement

        async def have_ended(some: list[str]) -> bool:
            return all(job is not None and job.status.is_terminal for job in await store.get(some))

        with suppress(TimeoutError):
            await self._until(lambda: have_ended(newest), "", within)
            await self._until(lambda: have_ended(ids), "", within)
        return [job for job in await store.get(ids) if job is not None]

    async def noted(self, what: str, keys: set[int], within: float = WITHIN) -> dict[int, int]:
        """When each key was first written down as this, in nanoseconds; those that were when the time is over."""

        async def are_noted() -> bool:
            return keys <= self.ledger(what).keys()

        with suppress(TimeoutError):
            await self._until(are_noted, "", within)
        return {key: times[0] for key, times in self.ledger(what).items() if key in keys}

    def ledger(self, what: str) -> dict[int, list[int]]:
        found: dict[int, list[int]] = {}
        if self._ledger.exists():
            for line in self._ledger.read_text().splitlines():
                name, key, at = line.split()
                if name == what:
                    found.setdefault(int(key), []).append(int(at))
        return found

    async def _until(self, look: Callable[[], Any], why: str, within: float = WITHIN) -> None:
        deadline = time.monotonic() + within
        while not await look():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{why}\n{self.log_tail()}")
            await asyncio.sleep(LOOK)

    def log_tail(self) -> str:
        return (self.folder / "workers.log").read_text()[-4000:]

    async def close(self) -> None:
        for worker in self._workers:
            if worker.process.poll() is None:
                worker.kill()
        await asyncio.to_thread(self._runtime.close)
        self._log.close()


def _cpu(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system + times.children_user + times.children_system)


def _each(processes: list[psutil.Process], measure: Callable[[psutil.Process], float]) -> list[float]:
    """What can still be measured: a child may end while we look."""
    found: list[float] = []
    for process in processes:
        with suppress(psutil.Error):
            found.append(measure(process))
    return found
