"""What changes on the page of a job, for everybody who looks at it: read once, written once, sent to all of them.

A viewer gets the state as it begins, then only what differs: words and bars of stages, elements with another state, and
new lines of the log. States are absolute, so one that is sent twice does no harm. When stages or the job begin or
end, ``shape`` changes, and the page asks for itself again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from packhorse.core import json
from packhorse.core.models import Job
from packhorse.errors import JobNotFound, PackhorseError
from packhorse.http.feed import PAGE, Moved, Watcher
from packhorse.http.services import HttpServices
from packhorse.jobs.explain import estimate_job
from packhorse.log import log
from packhorse.store.base import Line
from packhorse.web.widgets import formatting, stages
from packhorse.web.widgets.job import line_parts

PACE = 0.25
"""Seconds for which changes are collected before viewers get them."""
PING = 15.0
"""Seconds of silence after which a ping is sent."""
LINGER = 0.5
"""Seconds after the end of a job for which the last lines of its log may come."""
UNSENT = 64
"""Messages kept for a viewer that does not keep up; then it has to connect again."""
MOST_LINES = 2000
"""Lines of log that a viewer is sent as it begins: the page has the rest on demand."""

State = dict[str, Any]


class Viewer:
    """Somebody who looks at the page."""

    def __init__(self) -> None:
        self._waiting: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self.is_closed = False

    def put(self, frame: bytes) -> None:
        if len(self._waiting) == UNSENT:
            self.close()
        else:
            self._waiting.append(frame)
        self._wake.set()

    def close(self) -> None:
        self.is_closed = True
        self._wake.set()

    async def next(self) -> bytes | None:
        """The next message, or a ping after a silence; None once it is closed and has got them all."""
        if not self._waiting and not self.is_closed:
            self._wake.clear()
            try:
                async with asyncio.timeout(PING):
                    await self._wake.wait()
            except TimeoutError:
                return b": ping\n\n"
        return self._waiting.popleft() if self._waiting else None


class Broadcast:
    """One job that is looked at. It reads while it has viewers."""

    def __init__(self, services: HttpServices, job_id: str) -> None:
        self._services = services
        self._job_id = job_id
        self.viewers: set[Viewer] = set()
        self.state: State | None = None
        """As all viewers know it; None before it was first read."""
        self.line = 0
        """The number of the last line that all viewers know."""
        self.is_ready = asyncio.Event()

    async def run(self) -> None:
        try:
            with self._services.feed.watch(self._job_id) as watcher:
                while self.viewers and not watcher.is_closed:
                    if await self._step(watcher):
                        self._send(_frame("end", {}))
                        return
        except JobNotFound:
            pass
        except PackhorseError as error:
            log.stream_cut(f"/jobs/{self._job_id}/live", error)
        finally:
            for viewer in self.viewers:
                viewer.close()
            self.is_ready.set()

    async def _step(self, watcher: Watcher) -> bool:
        """Tell what has changed; whether that was the last of it."""
        if watcher.is_behind:
            job = await self._catch_up(watcher)
        else:
            moved = await watcher.next(PING)
            if moved is None:
                return False
            await asyncio.sleep(PACE)
            found = [moved, *watcher.drain()]
            if watcher.is_behind:  # more came than it keeps
                return False
            job = found[-1].job
            self._tell(await self._read(found[-1]), [line for each in found for line in each.lines])
        if not job.status.is_terminal:
            return False
        await asyncio.sleep(LINGER)
        await self._catch_up(watcher)
        return True

    async def _catch_up(self, watcher: Watcher) -> Job:
        watcher.catch_up()
        services = self._services
        [job] = await services.store.get([self._job_id])
        if job is None:
            raise JobNotFound(job_id=self._job_id)
        progress = (await services.store.progress([job.id])).get(job.id, {})
        lines: list[Line] = []
        if self.state is None:
            newest = await services.store.lines(job.id, limit=1, newest=True)
            self.line = newest[-1].n if newest else 0
        else:
            lines = await services.store.lines(job.id, after=self.line, limit=PAGE)
        self._tell(await self._read(Moved(job, (), (), progress)), lines)
        watcher.reached(job.events, self.line)
        self.is_ready.set()
        return job

    async def _read(self, moved: Moved) -> State:
        job = moved.job
        document = {"run": job.run, "status": job.status, "stopping": job.stopping, "stages": moved.stages}
        past, _ = await self._services.past_durations(job.plan.pipeline)
        left = estimate_job(job, moved.progress, past, self._services.store.now())
        return {
            "shape": stages.shape(document),
            "progress": moved.position["progress"],
            **({} if left.seconds is None else {"left": formatting.between(left.seconds, left.most)}),
            "stages": {
                name: [each["progress"], stages.stage_text(each), stages.node_text(each)]
                for name, each in moved.stages.items()
            },
            "cells": stages.cells(job),
        }

    def _tell(self, state: State, lines: Sequence[Line]) -> None:
        old, self.state = self.state, state
        told: dict[str, Any] = {} if old is None else difference(old, state)
        if lines := [line for line in lines if line.n > self.line]:
            told |= {"lines": [line_parts(line) for line in lines], "gap": lines[0].n != self.line + 1}
            self.line = lines[-1].n
        if told:
            self._send(_frame("delta", told))

    def _send(self, frame: bytes) -> None:
        for viewer in self.viewers:
            viewer.put(frame)


def difference(old: State, new: State) -> dict[str, Any]:
    """What of the new state a viewer of the old one does not know."""
    told = {name: new[name] for name in ("shape", "progress", "left") if name in new and new[name] != old.get(name)}
    changed = {name: each for name, each in new["stages"].items() if each != old["stages"].get(name)}
    cells = {
        name: found
        for name, text in new["cells"].items()
        if len(text) == len(known := old["cells"].get(name, "")) and (found := stages.changed_cells(known, text))
    }
    return told | ({"stages": changed} if changed else {}) | ({"cells": cells} if cells else {})


_BROADCASTS: WeakKeyDictionary[HttpServices, dict[str, tuple[Broadcast, asyncio.Task[None]]]] = WeakKeyDictionary()
"""Of each server of this process, by job."""


async def frames(services: HttpServices, job_id: str, log_after: int) -> AsyncGenerator[bytes]:
    """What a viewer is sent whose page has the log up to that line."""
    yield b"retry: 1000\n\n"
    running = _BROADCASTS.setdefault(services, {})
    broadcast, task = running.get(job_id, (None, None))
    if broadcast is None or task is None or task.done():
        broadcast = Broadcast(services, job_id)
        task = asyncio.create_task(broadcast.run())
        running[job_id] = broadcast, task
    viewer = Viewer()
    broadcast.viewers.add(viewer)  # before the task takes its first step
    try:
        await broadcast.is_ready.wait()
        if broadcast.state is not None:
            yield _frame("state", _whole(broadcast.state))
            known = broadcast.line
            after = max(log_after, known - MOST_LINES)
            lines = await services.store.lines(job_id, after=after, limit=MOST_LINES) if after < known else []
            if lines := [line for line in lines if line.n <= known]:
                gap = lines[0].n != log_after + 1
                yield _frame("delta", {"lines": [line_parts(each) for each in lines], "gap": gap})
        while (frame := await viewer.next()) is not None:
            yield frame
    finally:
        broadcast.viewers.discard(viewer)
        if not broadcast.viewers:
            task.cancel()
            if running.get(job_id) == (broadcast, task):
                del running[job_id]


def _whole(state: Mapping[str, Any]) -> dict[str, Any]:
    return {**state, "cells": {name: stages.pack(text) for name, text in state["cells"].items()}}


def _frame(type: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (type.encode(), json.encode(data))
