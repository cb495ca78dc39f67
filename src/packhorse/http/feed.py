"""Changes of jobs for everybody who watches: one reader of the store per process, however many watchers there are.

A watcher that does not keep up loses its place in memory, never in history: it is marked as behind and reads the store
from where it was.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from itertools import chain

from litestar.types import Receive

from packhorse.core.models import Event, Job, TaskId
from packhorse.errors import CorruptRecord, StoreError
from packhorse.http.stream import wait_for_disconnect
from packhorse.log import log
from packhorse.schemas.progress import PositionDocument, StageDocument, position_to_json, stages_to_json
from packhorse.store.base import Line, Progress, Store
from packhorse.store.collections.base import get_readable, log_unreadable

LOOK = 1.0
"""Seconds after which the store is read without a notification."""
PAUSE = 0.02
"""Seconds between two reads while jobs change: soon enough for people, seldom enough for the store."""
RETRY = 0.5
WAITING = 64
"""Changes kept for a watcher that is busy sending."""
HINT = 0.25
"""Seconds for which changes are collected before a page gets the signal to reload."""
ANY_JOB = frozenset({""})
"""Stands for changes of unknown jobs."""
LOOKED_UP = 200
"""Changed jobs whose owners are looked up; for more, every page reloads."""
PAGE = 500
"""Events, and log lines, per read of one job."""


class Moved:
    """What is new about one job, read once and shared by all its watchers."""

    def __init__(
        self, job: Job, events: Sequence[Event], lines: Sequence[Line], progress: Mapping[TaskId, Progress]
    ) -> None:
        self.job = job
        self.events = events
        self.lines = lines
        self.progress = progress

    @cached_property
    def position(self) -> PositionDocument:
        return position_to_json(self.job, self.progress)

    @cached_property
    def stages(self) -> dict[str, StageDocument]:
        return stages_to_json(self.job, self.progress)


class Watcher:
    """Somebody who watches a job. It starts behind: it reads the store, says how far that was, and gets the rest."""

    def __init__(self, topic: _Topic, *, wants_log: bool) -> None:
        self.wants_log = wants_log
        self.is_behind = True
        self.is_closed = False
        self._topic = topic
        self._waiting: deque[Moved] = deque()
        self._wake = asyncio.Event()

    def reached(self, n: int, line: int) -> None:
        """All up to these numbers was read from the store."""
        self._topic.begin(n, line)

    def catch_up(self) -> None:
        """Keep changes from here on: the watcher reads the store now."""
        self.is_behind = False
        self._waiting.clear()

    async def next(self, timeout: float) -> Moved | None:
        """The next change; None if there is none in time, or if this watcher is behind or closed."""
        if not self._waiting and not self.is_behind and not self.is_closed:
            self._wake.clear()
            try:
                async with asyncio.timeout(timeout):
                    await self._wake.wait()
            except TimeoutError:
                return None
        return self._waiting.popleft() if self._waiting else None

    def drain(self) -> list[Moved]:
        """All changes that are there now."""
        found = list(self._waiting)
        self._waiting.clear()
        return found

    def put(self, moved: Moved) -> None:
        if len(self._waiting) == WAITING:
            self.is_behind = True
            self._waiting.clear()
        elif not self.is_behind:
            self._waiting.append(moved)
        self._wake.set()

    def close(self) -> None:
        self.is_closed = True
        self._wake.set()


class Hints:
    """Somebody who only wants to know that jobs of a tenant have changed."""

    def __init__(self, tenant: str, user: str | None) -> None:
        self._tenant = tenant
        self._user = user
        self.is_closed = False
        self._wake = asyncio.Event()

    async def next(self, timeout: float) -> bool:
        """Wait for a change or for the timeout. False when it is closed."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        if not self.is_closed:
            await asyncio.sleep(HINT)
        self._wake.clear()
        return not self.is_closed

    def wake(self, jobs: Sequence[Job] | None) -> None:
        """Wake it if one of these jobs is of its tenant and user; None: the jobs are unknown."""
        if jobs is None or any(job.tenant == self._tenant and self._user in (None, job.user) for job in jobs):
            self._wake.set()

    def close(self) -> None:
        self.is_closed = True
        self._wake.set()


class Touches:
    """Somebody who reads a job by themselves, and only wants to know when it is worth it."""

    def __init__(self) -> None:
        self.is_closed = False
        self._wake = asyncio.Event()

    async def next(self, timeout: float, pace: float) -> bool:
        """Wait for a change or for the timeout; whether there was a change. Those within ``pace`` seconds are one."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout):
                await self._wake.wait()
        if self._wake.is_set() and not self.is_closed:
            await asyncio.sleep(pace)
        is_touched = self._wake.is_set()
        self._wake.clear()
        return is_touched

    def wake(self) -> None:
        self._wake.set()

    def close(self) -> None:
        self.is_closed = True
        self._wake.set()


class Feed:
    def __init__(self, store: Store) -> None:
        self._store = store
        self._topics: dict[str, _Topic] = {}
        self._hints: set[Hints] = set()
        self._touches: dict[str, set[Touches]] = {}
        self._gathered: set[str] = set()
        """Jobs that have changed since pages were last told."""
        self._hint_at = 0.0
        self._watched = asyncio.Event()
        self._is_closed = False

    @contextmanager
    def watch(self, job_id: str, *, wants_log: bool = True) -> Iterator[Watcher]:
        topic = self._topics.setdefault(job_id, _Topic())
        watcher = Watcher(topic, wants_log=wants_log)
        watcher.is_closed = self._is_closed
        topic.watchers.add(watcher)
        self._watched.set()
        try:
            yield watcher
        finally:
            topic.watchers.discard(watcher)
            if not topic.watchers and self._topics.get(job_id) is topic:
                del self._topics[job_id]
            self._rest()

    @contextmanager
    def hints(self, tenant: str, user: str | None = None) -> Iterator[Hints]:
        """For the jobs of a tenant, or of one of its users."""
        hints = Hints(tenant, user)
        hints.is_closed = self._is_closed
        self._hints.add(hints)
        self._watched.set()
        try:
            yield hints
        finally:
            self._hints.discard(hints)
            if not self._hints:
                self._gathered.clear()
            self._rest()

    @contextmanager
    def touches(self, job_id: str) -> Iterator[Touches]:
        touches = Touches()
        touches.is_closed = self._is_closed
        self._touches.setdefault(job_id, set()).add(touches)
        self._watched.set()
        try:
            yield touches
        finally:
            self._touches[job_id].discard(touches)
            if not self._touches[job_id]:
                del self._touches[job_id]
            self._rest()

    async def wait_for_end(self, job_id: str, seconds: float, receive: Receive) -> Job | None:
        """The job when it has ended, or its state after ``seconds``, or when the client leaves or the server stops.

        None if it has been deleted.
        """
        waiting = asyncio.create_task(self._wait_for_end(job_id, time.monotonic() + seconds))
        gone = asyncio.create_task(wait_for_disconnect(receive))
        try:
            await asyncio.wait([waiting, gone], return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in (waiting, gone):
                task.cancel()
            await asyncio.gather(waiting, gone, return_exceptions=True)
        with suppress(asyncio.CancelledError):
            return waiting.result()
        return await self._present_job(job_id)

    async def _wait_for_end(self, job_id: str, end: float) -> Job | None:
        with self.watch(job_id, wants_log=False) as watcher:
            job: Job | None = None
            while not watcher.is_closed:
                if watcher.is_behind:
                    watcher.catch_up()
                    job = await self._present_job(job_id)
                    watcher.reached(0 if job is None else job.events, 0)
                left = end - time.monotonic()
                if job is None or job.status.is_terminal or left <= 0:
                    return job
                moved = await watcher.next(left)
                job = job if moved is None else moved.job
        return await self._present_job(job_id)

    async def _present_job(self, job_id: str) -> Job | None:
        [job] = await self._store.get([job_id])
        return None if job is None or job.is_purging else job

    def _rest(self) -> None:
        if not self._topics and not self._hints and not self._touches:
            self._watched.clear()

    def close(self) -> None:
        """Close all watchers, also those that come later."""
        self._is_closed = True
        for topic in self._topics.values():
            topic.close()
        for hints in self._hints:
            hints.close()
        for touches in chain.from_iterable(self._touches.values()):
            touches.close()

    async def run(self) -> None:
        mark: int | None = None
        cursor: int | None = None
        is_away = False
        while True:
            await self._watched.wait()
            try:
                mark = await self._store.wait_for_change(mark, LOOK)
                cursor, touched = await self._store.changed_jobs(cursor)
                self._touch(touched)
                await self._look(touched)
                await self._hint(touched)
                is_away = False
            except StoreError as error:
                if not is_away:
                    log.store_away(error)
                is_away = True
                for topic in self._topics.values():
                    topic.is_due = True  # this round may not have reached it
                self._touch(None)
                await asyncio.sleep(RETRY)
            await asyncio.sleep(PAUSE)

    def _touch(self, touched: Collection[str] | None) -> None:
        for job_id, waiting in self._touches.items():
            if touched is None or job_id in touched:
                for each in waiting:
                    each.wake()

    async def _look(self, touched: Collection[str] | None) -> None:
        due = {
            job_id: topic
            for job_id, topic in self._topics.items()
            if topic.n is not None and (topic.is_due or touched is None or job_id in touched)
        }
        if not due:
            return
        jobs = await get_readable(self._store, list(due))
        progress = await self._progress(list(due))
        for job_id, topic in due.items():
            if (job := jobs.get(job_id)) is None:  # deleted, or its record cannot be read
                topic.close()
                continue
            try:
                await self._tell(topic, job, progress.get(job_id, {}))
            except CorruptRecord as error:
                log.job_unreadable(job_id, error)
                topic.close()

    async def _progress(self, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
        """One by one only if that of one cannot be read: it is left out, and watchers of the others continue."""
        try:
            return await self._store.progress(job_ids)
        except CorruptRecord as error:
            if len(job_ids) == 1:
                log_unreadable("progress", job_ids[0], str(error))
                return {}
            return {id: found for one in job_ids for id, found in (await self._progress([one])).items()}

    async def _hint(self, touched: Collection[str] | None) -> None:
        """Tell the pages of the tenants whose jobs changed; after many changes at once, all pages."""
        if not self._hints:
            return
        self._gathered.update(ANY_JOB if touched is None else touched)
        if not self._gathered or time.monotonic() < self._hint_at:
            return
        gathered, self._gathered = self._gathered, set()
        self._hint_at = time.monotonic() + HINT
        jobs: list[Job] | None = None
        if len(gathered) <= LOOKED_UP and not gathered & ANY_JOB:
            found = await get_readable(self._store, list(gathered))
            jobs = [job for job in found.values() if job is not None]
        for hints in self._hints:
            hints.wake(jobs)

    async def _tell(self, topic: _Topic, job: Job, progress: Mapping[TaskId, Progress]) -> None:
        assert topic.n is not None
        wants_log = any(watcher.wants_log for watcher in topic.watchers)
        read = await self._store.events(job.id, after=topic.n, limit=PAGE) if job.events > topic.n else []
        events = [event for event in read if event.n <= job.events]  # later ones come with the job as it is then
        lines = await self._store.lines(job.id, after=topic.line, limit=PAGE) if wants_log else []
        topic.move(Moved(job, events, lines, progress))


class _Topic:
    """A watched job, and how far it was read."""

    def __init__(self) -> None:
        self.watchers: set[Watcher] = set()
        self.n: int | None = None
        self.line = 0
        self.is_due = False
        """Read it in the next round even if it has not changed."""
        self._last: Moved | None = None

    def begin(self, n: int, line: int) -> None:
        """Start where the first watcher has got to; later ones only wait for what is newer."""
        if self.n is None:
            self.n, self.line = n, line
            self.is_due = True

    def move(self, moved: Moved) -> None:
        assert self.n is not None
        self.is_due = len(moved.events) == PAGE or len(moved.lines) == PAGE
        if moved.events:
            self.n = moved.events[-1].n
        if moved.lines:
            self.line = moved.lines[-1].n
        if moved.events or moved.lines or self._last is None or self._last.progress != moved.progress:
            self._last = moved
            for watcher in self.watchers:
                watcher.put(moved)

    def close(self) -> None:
        for watcher in self.watchers:
            watcher.close()
