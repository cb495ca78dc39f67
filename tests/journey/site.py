"""A place where journeys happen: a store, objects, worker processes, and a ledger that only the stages write."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import psutil

from packhorse.background.janitor import Janitor
from packhorse.core import lifecycle
from packhorse.core.models import Event, Job, TaskId
from packhorse.core.plan import Status
from packhorse.define.submit import Options
from packhorse.errors import StoreUnavailable
from packhorse.jobs.artifacts import referenced_keys
from packhorse.jobs.deployment import MARK
from packhorse.jobs.transact import Transactor
from packhorse.runtime import Handle, Runtime
from packhorse.settings import Settings, load
from packhorse.store.base import Filter, Store
from packhorse.store.collections.workers import put_bookmark
from tests.journey import stages
from tests.servers import forks
from tests.servers.forks import Program, Started

T = TypeVar("T")

ROOT = Path(__file__).parents[2]
LEASE = 2.0
"""Seconds: on a busy machine a worker may well be kept waiting for one of them."""
GRACE = 2.0
"""Seconds: likewise, for a stage that tidies up."""


class Entry(NamedTuple):
    what: str
    job_id: str
    stage: str
    element: int
    attempt: int
    pid: int
    at: float


class Site:
    def __init__(self, folder: Path, **settings: Any) -> None:
        self.folder = folder
        self.ledger_path = folder / "ledger"
        given = {
            "app": str(Path(stages.__file__)),
            "store": f"sqlite://{folder / 'store.db'}",
            "blobs": f"file://{folder / 'blobs'}",
            "scratch": str(folder / "scratch"),
            "lease": LEASE,
            "grace": GRACE,
            "drain": 5,
            "sweep": 0.3,
            "slots": 2,
        } | settings
        self.env = {
            **{name: value for name, value in os.environ.items() if not name.startswith("PACKHORSE_")},
            **{f"PACKHORSE_{name.upper()}": str(value) for name, value in given.items()},
            "JOURNEY_LEDGER": str(self.ledger_path),
            "PYTHONPATH": str(ROOT),
        }
        self.settings: Settings = load(given, env={}, folder=folder).settings
        self.runtime = Runtime(self.settings)
        self.workers: list[Started] = []
        self.log = (folder / "workers.log").open("ab")

    # Processes.

    def start_worker(self, *, crash: str | None = None, **settings: Any) -> Program:
        env = self.env | {f"PACKHORSE_{name.upper()}": str(value) for name, value in settings.items()}
        if crash is not None:
            env["JOURNEY_CRASH"] = crash
        worker = forks.start("tests.journey.worker_process", env=env, cwd=self.folder, stdout=self.log, stderr=self.log)
        self.workers.append(worker)
        return worker

    async def stop(self, worker: Started) -> None:
        """SIGSTOP, at a moment when it is not writing: who sleeps with SQLite's lock keeps everybody from writing."""
        store = await self.store()
        while True:
            worker.send_signal(signal.SIGSTOP)
            try:
                await asyncio.wait_for(asyncio.shield(put_bookmark(store, "journey", "awake")), LEASE / 3)
            except (TimeoutError, StoreUnavailable):
                worker.send_signal(signal.SIGCONT)
                await put_bookmark(store, "journey", "awake")
            else:
                return

    async def close(self) -> None:
        for worker in self.workers:
            if worker.poll() is None:
                worker.send_signal(signal.SIGCONT)
                worker.kill()
            worker.wait()
        await asyncio.to_thread(self.runtime.close)
        self.log.close()

    def log_text(self) -> str:
        return (self.folder / "workers.log").read_text()

    # Jobs.

    async def store(self) -> Store:
        store, _ = await self.runtime.open()
        return store

    async def submit(
        self, name: str, user: str = "ann", options: dict[str, Any] | None = None, **parameters: Any
    ) -> Handle[Any]:
        pipeline = stages.app.code.pipelines[name]
        return await self.runtime.a_submit(
            pipeline, pipeline.params(**parameters), Options(user=user, **(options or {}))
        )

    async def abandon_as_if_on_another_host(self, handle: Handle[Any]) -> None:
        """Claim the job for a worker that nobody here can see, and never come back."""
        store = await self.store()
        kinds = [stage.kind for stage in (await self.job(handle)).plan.stages]
        claimed = await store.claim(
            {"default": 1},
            kinds,
            lambda job, task: lifecycle.start(job, task, token="away", worker="away", lease=LEASE, now=store.now()),
        )
        assert [claim.job.id for claim in claimed] == [handle.id]

    async def job(self, handle: Handle[Any]) -> Job:
        [job] = await (await self.store()).get([handle.id])
        assert job is not None
        return job

    async def ended(self, handle: Handle[Any], within: float = 40.0) -> Job:
        """The job when it has ended."""

        async def look() -> Job | None:
            job = await self.job(handle)
            return job if job.status.is_terminal else None

        job = await until(look, within, lambda: f"{handle.id} has not ended\n{self.log_text()[-3000:]}")
        told = [e.type for e in await self.events(job.id) if is_end(e) and e.data["run"] == job.run]
        assert told == [job.status.value], f"I2: run {job.run} of {job.id} is {job.status}, but was told as {told}"
        return job

    async def started(self, handle: Handle[Any], stage: str | None = None, within: float = 40.0) -> Entry:
        """What the stage itself wrote when it began."""

        async def look() -> Entry | None:
            mine = [e for e in self.ledger() if e.job_id == handle.id and e.what == "begin"]
            return next((e for e in mine if stage is None or e.stage == stage), None)

        return await until(look, within, lambda: f"{handle.id} has not begun\n{self.log_text()[-3000:]}")

    async def started_again(self, handle: Handle[Any], within: float = 40.0) -> Entry:
        async def look() -> Entry | None:
            mine = [e for e in self.ledger() if e.job_id == handle.id and e.what == "begin" and e.attempt > 1]
            return mine[0] if mine else None

        return await until(look, within, lambda: f"{handle.id} was not begun again\n{self.log_text()[-3000:]}")

    def ledger(self) -> list[Entry]:
        if not self.ledger_path.exists():
            return []
        rows = (line.split() for line in self.ledger_path.read_text().splitlines())
        return [Entry(w, j, s, int(e), int(a), int(p), float(t)) for w, j, s, e, a, p, t in rows]

    async def jobs(self) -> list[Job]:
        return await (await self.store()).find(Filter(), limit=10_000)

    async def events(self, job_id: str) -> list[Event]:
        return await (await self.store()).events(job_id, limit=10_000)

    async def object_keys(self, jobs: Iterable[Job]) -> set[str]:
        """The objects that these jobs refer to."""
        store, ids = await self.store(), [job.id for job in jobs]
        specs, results = await store.specs(ids), await store.results(ids)
        inputs = {each.file.key for spec in specs.values() for each in spec.inputs}
        return inputs.union(*(referenced_keys(result) for result in results.values()))

    # What must hold.

    async def assert_whole(self) -> None:
        """Invariants I1 to I7 after quiet: from the store, the objects, and the ledger that only the stages write."""
        jobs = await self.jobs()
        for job in jobs:
            assert job.status.is_terminal, f"I1: {job.id} is {job.status}"
            self._assert_events(job, await self.events(job.id))
            self._assert_attempts(job)
            self._assert_ledger(job)
        await self._assert_nothing_held(jobs)
        await self._assert_objects(jobs)

    def _assert_events(self, job: Job, events: list[Event]) -> None:
        assert [event.n for event in events] == list(range(1, job.events + 1)), f"I6: {job.id}"
        ends = [event for event in events if is_end(event)]
        assert len(ends) == job.run, f"I2: {job.id} ended {len(ends)} times in {job.run} runs"
        assert ends[-1].type == job.status.value, f"I2: {job.id}"
        run, done = 1, []
        for event in events:
            run = event.data["run"] if event.data.get("why") == "retry" else run
            if event.type == "stage_completed":
                done.append((run, event.data["stage"], event.data.get("element")))
        assert len(done) == len(set(done)), f"I3: {job.id} counted a stage twice in one run: {done}"

    def _assert_attempts(self, job: Job) -> None:
        for plan, stage in zip(job.plan.stages, job.stages, strict=True):
            for task in stage.tasks or ():
                assert task.attempt <= plan.retries + 1, f"I4: {job.id} {plan.name} had {task.attempt} attempts"

    def _assert_ledger(self, job: Job) -> None:
        """What the stages themselves wrote: nobody began more often than it may, and nobody ended without beginning."""
        mine = [entry for entry in self.ledger() if entry.job_id == job.id]
        for plan in job.plan.stages:
            begun = [(e.element, e.attempt) for e in mine if e.stage == plan.name and e.what == "begin"]
            ended = [(e.element, e.attempt) for e in mine if e.stage == plan.name and e.what == "end"]
            most = (plan.retries + 1) * job.run
            assert all(len([b for b in begun if b[0] == e]) <= most for e, _ in begun), (
                f"I4: {job.id} {plan.name}: {begun}"
            )
            assert set(ended) <= set(begun), f"I1: {job.id} {plan.name} ended without beginning: {ended}"
            if job.status is Status.COMPLETED and any(e.stage == plan.name for e in self.ledger()):
                assert begun, f"I1: {job.id} is completed, but {plan.name} never ran"

    async def _assert_nothing_held(self, jobs: list[Job]) -> None:
        """Asked as anybody could ask, so that it can be asked of every store."""
        store = await self.store()
        held = {job.slot: await store.holder(job.slot) for job in jobs if job.slot is not None}
        assert set(held.values()) <= {None}, f"I5: {held}"
        workers = {e.data["worker"] for job in jobs for e in await self.events(job.id) if e.type == "stage_started"}
        leased = {worker: await store.held_by(worker, limit=10) for worker in workers}
        assert not any(leased.values()), f"I5: {leased}"
        stages = {(stage.queue, stage.kind) for job in jobs for stage in job.plan.stages}
        waiting: list[tuple[str, TaskId]] = []
        await store.claim(
            {queue: 100 for queue, _ in stages},
            {kind for _, kind in stages},
            lambda job, task: waiting.append((job.id, task)),
        )
        assert waiting == [], f"I5: {waiting}"

    async def _assert_objects(self, jobs: list[Job]) -> None:
        store, blobs = await self.runtime.open()
        await Janitor(store, blobs, Transactor(store), orphan_after=0, period=0).tick()
        wanted = await self.object_keys(jobs)
        found: set[str] = set()
        while page := await blobs.keys("jobs", after=max(found, default=None)):
            found |= set(page)
        assert found == wanted, f"I7: orphans {found - wanted}, dangling {wanted - found}"
        assert await blobs.abandon(older_than=0) == 0, "I7: something was left unfinished"
        folder = self.folder / "blobs"
        on_disk = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} - {MARK}
        assert on_disk in (wanted, set()), f"I7: {on_disk - wanted}"  # of a folder store; others keep nothing here


async def until(look: Callable[[], Awaitable[T | None]], within: float, why: Callable[[], str]) -> T:
    """Look until there is something to see, which is neither None nor False; fail with a reason when there never is."""
    start = time.monotonic()
    while (waited := time.monotonic() - start) < within:
        found = await look()
        if found is not None and found is not False:
            return found
        await asyncio.sleep(0.02 if waited < 0.2 else 0.06)  # what takes long is asked for less often
    raise AssertionError(why())


def is_end(event: Event) -> bool:
    return event.type in Status._value2member_map_ and Status(event.type).is_terminal


def is_running(pid: int) -> bool:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False


def descendants(process: Started) -> Iterator[psutil.Process]:
    with contextlib.suppress(psutil.Error):
        yield from psutil.Process(process.pid).children(recursive=True)
