"""Submitting and following jobs from Python, directly in the store. Starts no worker."""

from __future__ import annotations

import asyncio
import atexit
import shutil
import tempfile
import threading
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from packhorse.auth import access
from packhorse.auth.access import Caller
from packhorse.blobs.base import Blobs
from packhorse.core import lifecycle
from packhorse.core.models import Event, Job, Result, Stored, TaskId
from packhorse.core.plan import Status, TaskStatus
from packhorse.define.files import ANYTHING, File
from packhorse.define.pipelines import Pipeline
from packhorse.define.stages import Failed, Marker, Stage
from packhorse.define.submit import JobHandle, JobSnapshot, Options, SubmitOptions, options_from
from packhorse.define.values import decode_result
from packhorse.errors import ArtifactNotFound, InvalidInput, JobNotFound, NotFinished, PackhorseError
from packhorse.factory import open_both
from packhorse.jobs import artifacts
from packhorse.jobs.submit import MOST, Draft, NewJob, submit_all
from packhorse.jobs.transact import Transactor, Verb
from packhorse.schemas.jobs import results_of_stage
from packhorse.schemas.progress import Reported, job_percent
from packhorse.settings import Settings, load
from packhorse.store.base import Store

if TYPE_CHECKING:
    from packhorse.http.feed import Feed

T = TypeVar("T")
R = TypeVar("R")

LOOK = 1.0  # seconds between reads of a job while waiting for a change
QUIET = 5.0  # seconds without a change after which a watcher reads its job, so that it sees that the store is gone


class Runtime:
    """A store and an object store, and a thread with an event loop for callers without one."""

    def __init__(self, settings: Settings | None = None) -> None:
        self.settings = settings or load().settings
        self._opened: dict[asyncio.AbstractEventLoop, tuple[Store, Blobs]] = {}
        """One per event loop, because connections belong to the loop that opened them."""
        self._keeping: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}
        self._lock = threading.Lock()
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._feeds: dict[asyncio.AbstractEventLoop, tuple[Feed, asyncio.Task[None]]] = {}
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread: threading.Thread | None = None
        self._downloads: Path | None = None

    async def open(self) -> tuple[Store, Blobs]:
        loop = asyncio.get_running_loop()
        if loop not in self._opened:
            with self._lock:
                opening = self._opening.setdefault(loop, asyncio.Lock())
            async with opening:
                if loop not in self._opened:
                    self._keeping[loop] = self._hold_open(loop)
                    await anext(self._keeping[loop])
        return self._opened[loop]

    async def _hold_open(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """Keep both open until closed. `asyncio.run` closes async generators before it ends its loop."""
        both = self._opened[loop] = await self._open_both()
        try:
            yield
        finally:
            if (feed := self._feeds.pop(loop, None)) is not None:
                feed[0].close()
                feed[1].cancel()
                await asyncio.wait([feed[1]])
            for registered in (self._opened, self._keeping, self._opening):
                registered.pop(loop, None)
            store, blobs = both
            try:
                await store.close()
            finally:
                await blobs.close()

    async def feed(self) -> Feed:
        """Reads what changes for all who watch jobs in this event loop."""
        from packhorse.http.feed import Feed  # a program that only submits does not need a web framework

        store, _ = await self.open()
        loop = asyncio.get_running_loop()
        if loop not in self._feeds:
            feed = Feed(store)
            self._feeds[loop] = feed, loop.create_task(feed.run())
        return self._feeds[loop][0]

    async def _open_both(self) -> tuple[Store, Blobs]:
        return await open_both(self.settings)

    def submit(self, pipeline: Pipeline[Any], params: object, options: Options) -> Handle[Any]:
        return self.wait_for(self.a_submit(pipeline, params, options))

    async def a_submit(self, pipeline: Pipeline[Any], params: object, options: Options) -> Handle[Any]:
        data, files = pipeline.schema.encode(params)
        store, blobs = await self.open()
        async with NewJob(store, blobs, self.settings) as new_job:
            await _take_files(new_job, store, pipeline, files)
            job = await new_job.admit(pipeline.plan(), data, options, origin="python")
        return Handle(self, job.id, pipeline)

    async def a_submit_many(
        self, pipeline: Pipeline[Any], jobs: Sequence[tuple[object, SubmitOptions]]
    ) -> list[JobHandle[Any] | PackhorseError]:
        store, blobs = await self.open()
        plan = pipeline.plan()

        def decider(params: object, options: SubmitOptions) -> Callable[[NewJob], Awaitable[Draft]]:
            async def decide(new_job: NewJob) -> Draft:
                checked = options_from(**options)
                data, files = pipeline.schema.encode(params)
                await _take_files(new_job, store, pipeline, files)
                return await new_job.decide(plan, data, checked, origin="python")

            return decide

        def new_job() -> NewJob:
            return NewJob(store, blobs, self.settings)

        handles: list[JobHandle[Any] | PackhorseError] = []
        for some in (jobs[at : at + MOST] for at in range(0, len(jobs), MOST)):
            for each in await submit_all(new_job, [decider(*job) for job in some], store):
                if isinstance(each, Exception):
                    handles.append(each if isinstance(each, PackhorseError) else _foreign(each))
                else:
                    handles.append(Handle(self, each.job.id, pipeline))
        return handles

    async def a_find(self, pipeline: Pipeline[Any], job_id: str, user: str) -> Handle[Any]:
        store, _ = await self.open()
        [found] = [None] if "\0" in job_id else await store.get([job_id])
        job = access.job(Caller(access.OPERATOR, frozenset(), user=user), found, job_id)
        if job.plan.pipeline != pipeline.name:
            raise JobNotFound(job_id=job_id)
        return Handle(self, job.id, pipeline)

    def wait_for(self, work: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine from code without an event loop."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                self._thread = threading.Thread(target=self._loop.run_forever, name="packhorse-runtime", daemon=True)
                self._thread.start()
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def close(self) -> None:
        """Close everything. Call it from a thread that runs none of the event loops in use."""
        for loop, kept in list(self._keeping.items()):
            if loop.is_running():
                asyncio.run_coroutine_threadsafe(kept.aclose(), loop).result()
        if self._loop is not None and self._thread is not None:
            self._loop.call_soon_threadsafe(self._loop.stop)
            self._thread.join()
            self._loop.close()
            self._loop = self._thread = None

    async def fetch(self, job_id: str, stored: Stored) -> File:
        """Download a file of a result, unless it is here already."""
        _, blobs = await self.open()
        path = self.downloads(job_id) / stored.key.replace("/", "-")
        if not path.exists():
            await blobs.fetch(stored.key, path)
        return File(path, stored.name)

    def downloads(self, job_id: str) -> Path:
        """Folder for files of results, deleted when the process ends."""
        if self._downloads is None:
            self._downloads = Path(tempfile.mkdtemp(prefix="packhorse-"))
            atexit.register(shutil.rmtree, self._downloads, ignore_errors=True)
        folder = self._downloads / job_id
        folder.mkdir(exist_ok=True)
        return folder


class Handle(JobHandle[R]):
    def __init__(self, runtime: Runtime, job_id: str, pipeline: Pipeline[Any]) -> None:
        self.id = job_id
        self._runtime = runtime
        self._pipeline = pipeline

    def __repr__(self) -> str:
        return f"<job {self.id} of {self._pipeline.name}>"

    def wait(self, timeout: float | None = None) -> JobSnapshot[R]:
        return self._runtime.wait_for(self.a_wait(timeout))

    async def a_wait(self, timeout: float | None = None) -> JobSnapshot[R]:
        store, _ = await self._runtime.open()
        deadline = None if timeout is None else time.monotonic() + timeout
        mark: int | None = None
        while not (job := await self._job(store)).status.is_terminal:
            left = LOOK if deadline is None else deadline - time.monotonic()
            if left <= 0:
                break
            mark = await store.wait_for_change(mark, min(left, LOOK))
        return await self._snapshot(job)

    def events(self, after: int = 0) -> Iterator[Event]:
        return self._iterate(self.a_events(after))

    async def a_events(self, after: int = 0) -> AsyncIterator[Event]:
        store, _ = await self._runtime.open()
        mark: int | None = None
        while True:
            is_over = (await self._job(store)).status.is_terminal
            for event in await store.events(self.id, after=after):
                after = event.n
                yield event
            if is_over and after >= (await self._job(store)).events:
                return
            mark = await store.wait_for_change(mark, LOOK)

    def watch(self) -> Iterator[JobSnapshot[R]]:
        return self._iterate(self.a_watch())

    async def a_watch(self) -> AsyncIterator[JobSnapshot[R]]:
        store, _ = await self._runtime.open()
        seen: tuple[Status, float] | None = None
        reported: Reported | None = None
        with (await self._runtime.feed()).watch(self.id, wants_log=False) as watcher:
            watcher.catch_up()
            job = await self._job(store)
            watcher.reached(job.events, 0)
            while True:
                snapshot = await self._snapshot(job, reported)
                if seen != (snapshot.status, snapshot.progress):
                    seen = snapshot.status, snapshot.progress
                    yield snapshot
                if snapshot.status.is_terminal:
                    return
                if (moved := await watcher.next(QUIET)) is not None:
                    job, reported = moved.job, moved.progress
                    continue
                if watcher.is_closed:  # the job was deleted, or this runtime is closed: the read below fails
                    await asyncio.sleep(LOOK)
                watcher.catch_up()
                job, reported = await self._job(store), None

    def cancel(self) -> JobSnapshot[R]:
        return self._runtime.wait_for(self.a_cancel())

    async def a_cancel(self) -> JobSnapshot[R]:
        store, _ = await self._runtime.open()
        return await self._transact(store, lambda job: lifecycle.cancel(job, now=store.now()))

    def retry(self, stage: str | None = None, *, failed_elements: bool = False) -> JobSnapshot[R]:
        return self._runtime.wait_for(self.a_retry(stage, failed_elements=failed_elements))

    async def a_retry(self, stage: str | None = None, *, failed_elements: bool = False) -> JobSnapshot[R]:
        store, _ = await self._runtime.open()
        retry = partial(lifecycle.retry, stage=stage, failed_elements=failed_elements)
        return await self._transact(store, lambda job: retry(job, now=store.now()))

    def result_of(self, stage: Any) -> Any:
        return self._runtime.wait_for(self.a_result_of(stage))

    async def a_result_of(self, stage: Any) -> Any:
        store, _ = await self._runtime.open()
        job = await self._job(store)
        named = stage.stage if isinstance(stage, Marker) else stage
        return await self._value(job, await self._results(store), named)

    def _iterate(self, items: AsyncIterator[T]) -> Iterator[T]:
        while True:
            try:
                yield self._runtime.wait_for(_next(items))
            except StopAsyncIteration:
                return

    async def _transact(self, store: Store, verb: Verb) -> JobSnapshot[R]:
        return await self._snapshot(await Transactor(store)(self.id, verb))

    async def _job(self, store: Store) -> Job:
        [job] = await store.get([self.id])
        if job is None:
            raise JobNotFound(job_id=self.id)
        return job

    async def _results(self, store: Store) -> dict[TaskId, Result]:
        return (await store.results([self.id])).get(self.id, {})

    async def _snapshot(self, job: Job, reported: Reported | None = None) -> JobSnapshot[R]:
        store, _ = await self._runtime.open()
        if reported is None:
            reported = (await store.progress([self.id])).get(self.id, {})
        value = None
        if job.status is Status.COMPLETED:
            results = await self._results(store)
            values = {
                plan.name: None
                if job.stage(plan.name).reason is not None
                else await self._value(job, results, self._pipeline.stages[plan.name])
                for plan in job.plan.sinks
            }
            value = next(iter(values.values())) if len(values) == 1 else values
        return JobSnapshot(self.id, job.status, job_percent(job, reported), job.error, value)

    async def _value(self, job: Job, results: dict[TaskId, Result], stage: Stage[..., Any]) -> Any:
        if not job.stage(stage.name).is_done or job.stage(stage.name).reason is not None:
            status, reason = job.stage_status(stage.name), job.stage(stage.name).reason
            how = f"not started ({job.skip_reason})" if status is TaskStatus.SKIPPED else status.value
            how = how if reason is None else f"skipped ({reason})"
            message = f"Stage {stage.name} of job {self.id} is {how} and has no result."
            raise NotFinished(message, job_id=self.id, status=status.value, verb="give its result")
        values: list[Any] = []
        for result in results_of_stage(results, stage.name):
            if result.is_skipped:
                continue
            if result.error is not None:
                values.append(Failed(result.error.element or 0, result.error.code, result.error.message))
                continue
            files = [await self._runtime.fetch(self.id, artifact.file) for artifact in result.files]
            values.append(decode_result(result.value, stage.returns, files))
        return values if job.plan.stage(stage.name).over is not None else values[0]


async def _take_files(
    new_job: NewJob, store: Store, pipeline: Pipeline[Any], files: Sequence[tuple[str, int, File]]
) -> None:
    for parameter, _, file in files:
        if file.made_by is None:
            await new_job.take(parameter, file.path, file.name)
        else:
            accepts = pipeline.schema.accepts.get(parameter, ANYTHING)
            await new_job.copy(parameter, await _earlier(store, parameter, *file.made_by), accepts)


def _foreign(error: Exception) -> PackhorseError:
    """An error that is not ours, such as of a file that went away: of one job among many."""
    found = PackhorseError(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found


async def _earlier(store: Store, parameter: str, job_id: str, name: str) -> Stored:
    try:
        return await artifacts.find_artifact(store, job_id, name)
    except ArtifactNotFound as error:
        raise InvalidInput(error.message, field=parameter) from error


async def _next(items: AsyncIterator[T]) -> T:
    return await anext(items)
