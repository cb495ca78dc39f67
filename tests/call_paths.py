"""Which modules a request passes through: traced on real calls, so that the list in the docs is not a guess.

`python -m tests.call_paths` prints the five paths of docs/architecture.md. What background tasks and polling loops do
meanwhile is left out, except for the tick, which is the work of one background task.
"""

from __future__ import annotations

import asyncio
import sys
import tempfile
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from types import CodeType, FrameType, ModuleType
from typing import Any
from unittest.mock import patch

import packhorse
from packhorse.background import scheduler
from packhorse.factory import open_both
from packhorse.http import feed, middleware, stream
from packhorse.http.routes import events
from packhorse.jobs import submit
from packhorse.schemas import progress
from packhorse.store.base import Store
from packhorse.store.sqlite import commit
from packhorse.store.sqlite.session import Writer
from packhorse.worker import attempt, process, reporter
from packhorse.worker.pool import describe
from packhorse.worker.worker import Worker
from tests.http.processes import SAMPLE, Place
from tests.http.unserved import Http, unserved

LIMIT = 180.0
"""Seconds for all of it: what is waited for below must come by then."""
SOURCE = str(Path(packhorse.__file__).parent) + "/"
BACKGROUND = SOURCE + "background/"
POLLS = frozenset(
    {"_reload_loop", "_pause_loop", "_renew_loop", "_check_leases", "watch_time", "watch_memory", "_until"}
)
"""Functions that do the same again and again, whether there is a job or not; the last one is ours."""


class Trace:
    """The modules whose functions ran while it was on, in the order of their first call."""

    def __init__(self) -> None:
        self.modules: dict[str, None] = {}
        self._is_on = False
        self._within: tuple[str, ...] = ()
        self._thread = threading.local()

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Enter it before any thread is started: a thread is traced from its beginning or never."""
        submit, run = ThreadPoolExecutor.submit, Writer.run

        def submit_marked(pool: ThreadPoolExecutor, work: Callable[..., Any], *args: Any, **kw: Any) -> Future[Any]:
            return submit(pool, self._marked(work), *args, **kw)

        async def run_marked(writer: Writer, operation: Callable[..., Any]) -> Any:
            return await run(writer, self._marked(operation))

        threading.setprofile(self._called)
        sys.setprofile(self._called)
        with patch.object(ThreadPoolExecutor, "submit", submit_marked), patch.object(Writer, "run", run_marked):
            yield

    @contextmanager
    def on(self, *within: str) -> Iterator[list[str]]:
        """``within`` are files or folders, of which one is on the stack of every call of the path."""
        modules: list[str] = []
        self.modules = {}
        self._within = within
        self._is_on = True
        yield modules
        self._is_on = False
        modules += self.modules

    def has_seen(self, *modules: ModuleType) -> bool:
        return all(_file(module)[len(SOURCE) :] in self.modules for module in modules)

    def _marked(self, work: Callable[..., Any]) -> Callable[..., Any]:
        """What a thread does is on the path if whoever wants it done is."""
        is_on_path = self._is_on_path(sys._getframe())

        def run(*args: Any, **kw: Any) -> Any:
            self._thread.is_on_path = is_on_path
            try:
                return work(*args, **kw)
            finally:
                self._thread.is_on_path = False

        return run

    def _called(self, frame: FrameType, event: str, _: Any) -> None:
        if not self._is_on or event != "call":
            return
        code = frame.f_code
        file = code.co_filename
        is_module = file.startswith(SOURCE) and file.endswith(".py")  # templates run as code, too
        if is_module and not code.co_name.startswith("<") and self._is_on_path(frame):
            self.modules[file[len(SOURCE) :]] = None

    def _is_on_path(self, frame: FrameType) -> bool:
        stack = list(_stack(frame))
        if not any(code.co_name == "run_forever" for code in stack):  # no event loop, but a thread that does one thing
            return getattr(self._thread, "is_on_path", False)
        if any(code.co_name in POLLS for code in stack):
            return False
        files = {code.co_filename for code in stack}
        is_background = any(file.startswith(BACKGROUND) for file in files)
        return any(file.startswith(self._within) for file in files) and is_background == (
            _file(scheduler) in self._within
        )


def _file(module: ModuleType) -> str:
    assert module.__file__ is not None
    return module.__file__


def _stack(frame: FrameType | None) -> Iterator[CodeType]:
    while frame is not None:
        yield frame.f_code
        frame = frame.f_back


async def _until(is_true: Callable[[], Awaitable[Any]]) -> None:
    while not await is_true():  # noqa: ASYNC110 (no event tells it)
        await asyncio.sleep(0.1)


async def paths() -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    trace = Trace()
    with tempfile.TemporaryDirectory() as folder, trace.installed():
        settings = Place(Path(folder)).settings
        store, blobs = await open_both(settings)
        worker = Worker(store, blobs, settings, await describe(str(SAMPLE)))
        stop = asyncio.Event()
        async with asyncio.timeout(LIMIT), asyncio.TaskGroup() as group, unserved(settings) as http:
            group.create_task(worker.run(stop))
            await _job(trace, found, worker, http)
            await _progress(trace, found, store, http)
            await _tick(trace, found, http)
            stop.set()
        await store.close()
        await blobs.close()
    return found


async def _job(trace: Trace, found: dict[str, list[str]], worker: Worker, http: Http) -> None:
    """A submit, the stage that follows, and the page of the job."""

    async def is_published() -> bool:
        return bool((await http.get("pipelines")).json()["items"])

    async def has_ended() -> bool:
        return trace.has_seen(attempt) and not worker._tasks

    body = {"pipeline": "add", "user_id": "ann", "parameters": {"a": 1}}
    await _until(is_published)
    await http.post("jobs", json=body)  # the first submit of a process also fills caches
    with trace.on(_file(middleware)) as found["submit"]:
        answer = await http.post("jobs", json=body)
    job_id = answer.json()["job_id"]
    with trace.on(SOURCE + "worker/") as found["stage"]:
        await _until(has_ended)
    with trace.on(_file(middleware)) as found["page"]:
        assert (await http.get(f"http://127.0.0.1/jobs/{job_id}")).status_code == 200


async def _progress(trace: Trace, found: dict[str, list[str]], store: Store, http: Http) -> None:
    """A report of a running stage, until the stream of events has sent it on."""

    async def has_reported() -> bool:
        return bool((await store.progress([job_id])).get(job_id))

    async def has_sent() -> bool:
        return trace.has_seen(reporter, progress, stream)

    body = {"pipeline": "hold", "user_id": "ann", "parameters": {"seconds": 3.0}}
    job_id = (await http.post("jobs", json=body)).json()["job_id"]
    # In a thread: this client blocks the loop it is in until the response has ended.
    response = asyncio.create_task(asyncio.to_thread(asyncio.run, http.get(f"jobs/{job_id}/events")))
    await _until(has_reported)
    with trace.on(*map(_file, (process, reporter, feed, events, stream))) as found["progress"]:
        await _until(has_sent)
    assert "progress" in (await response).text


async def _tick(trace: Trace, found: dict[str, list[str]], http: Http) -> None:
    """A schedule that fires, and the submit of its job."""

    async def has_fired() -> bool:
        return trace.has_seen(submit, commit)

    terms = {"cron": "* * * * * *", "pipeline": "add", "user_id": "tim", "parameters": {"a": 1}}
    assert (await http.put("schedules/often", json=terms)).is_success
    with trace.on(_file(scheduler)) as found["tick"]:
        await _until(has_fired)


if __name__ == "__main__":
    for name, modules in asyncio.run(paths()).items():
        print(f"{name}: {len(modules)} modules", *modules, sep="\n    ")
