"""What changes on the page of a job, for everybody who looks at it: read once, written once, sent to all of them.

A viewer gets the state as it begins, then only what differs: words and bars of stages, elements with another state, new
lines of the log; and when stages or the job begin or end, the parts of the page that this changes. States are absolute,
so one that is sent twice does no harm.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncGenerator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any
from weakref import WeakKeyDictionary

from packhorse.core import json
from packhorse.errors import JobNotFound, PackhorseError
from packhorse.http.feed import PAGE, Touches
from packhorse.http.services import HttpServices
from packhorse.jobs import view
from packhorse.log import log
from packhorse.store.base import Line
from packhorse.web import sections
from packhorse.web.pages import job as job_page
from packhorse.web.picture import Picture, State
from packhorse.web.sections import Rights
from packhorse.web.widgets import stages
from packhorse.web.widgets.job import line_parts

PACE = 0.25
"""Seconds for which changes are collected before viewers get them."""
PING = 15.0
"""Seconds of silence after which a ping is sent."""
STEADY = 10.0
"""Seconds after which all of the job is read anyway: the place in a queue changes without an event of the job."""
PARTS_PACE = 1.0
"""Seconds between two times that parts are made, unless the job itself has begun or ended."""
REPORTS = 5000
"""Reports of running tasks read per second, at most: a stage with many elements has many."""
LINGER = 0.5
"""Seconds after the end of a job for which the last lines of its log may come."""
UNSENT = 64
"""Messages kept for a viewer that does not keep up; then it has to connect again."""
MOST_LINES = 2000
"""Lines of log that a viewer is sent as it begins: the page has the rest on demand."""


class Viewer:
    """Somebody who looks at the page."""

    def __init__(self, rights: Rights) -> None:
        self.rights = rights
        self._waiting: deque[bytes] = deque()
        self._wake = asyncio.Event()
        self.is_closed = False

    def put(self, frame: bytes) -> None:
        if len(self._waiting) == UNSENT:
            self.close()
        elif not self.is_closed:
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
                return _frame("ping", {})
        return self._waiting.popleft() if self._waiting else None


class Broadcast:
    """One job that is looked at. It reads while it has viewers."""

    def __init__(self, services: HttpServices, job_id: str) -> None:
        self._services = services
        self._job_id = job_id
        self.viewers: set[Viewer] = set()
        self.picture: Picture | None = None
        """As all viewers know it; None before it was first read."""
        self.state: State = {}
        self.line = 0
        """The number of the last line that all viewers know."""
        self.is_ready = asyncio.Event()
        self._parts = _Parts(services, job_id)
        self._read_at = self._parts_at = self._reports_at = 0.0
        self._reports_due = False

    async def run(self) -> None:
        try:
            with self._services.feed.touches(self._job_id) as touches:
                await self._begin()
                while self.viewers and not touches.is_closed:
                    if await self._step(touches):
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

    async def parts_for(self, rights: Rights) -> dict[str, Any]:
        """All parts, for a viewer whose page shows the job as it was before."""
        assert self.picture is not None
        return await self._parts.whole(rights, self.picture.n)

    async def _begin(self) -> None:
        newest = await self._services.store.lines(self._job_id, limit=1, newest=True)
        self.line = newest[-1].n if newest else 0
        self.picture = await self._read()
        past, _ = await self._services.past_durations(self.picture.job.plan.pipeline)
        self.state = self.picture.state(past, self._services.store.now())
        self.is_ready.set()

    async def _step(self, touches: Touches) -> bool:
        """Tell what has changed; whether that was the last of it."""
        assert self.picture is not None
        if not self.picture.job.status.is_terminal:
            is_touched = await touches.next(self._timeout(), PACE)
            await self._look(is_touched)
            return False
        await asyncio.sleep(LINGER)
        await self._look(is_touched=True)
        return self.picture.job.status.is_terminal

    def _timeout(self) -> float:
        """Until something is due that nobody will say."""
        due = [self._read_at + STEADY]
        if self._parts.are_due:
            due.append(self._parts_at + PARTS_PACE)
        if self._reports_due:
            due.append(self._reports_at)
        return max(0.01, min(due) - time.monotonic())

    async def _look(self, is_touched: bool) -> None:
        """Read what is new. Only if more has changed than elements of running stages, read all of the job."""
        picture, store = self.picture, self._services.store
        assert picture is not None
        events = await store.events(self._job_id, after=picture.n, limit=PAGE) if is_touched else []
        lines = await store.lines(self._job_id, after=self.line, limit=PAGE) if is_touched else []
        self._reports_due = self._reports_due or is_touched
        is_known = len(events) < PAGE and picture.take(events)
        if not is_known or time.monotonic() >= self._read_at + STEADY:
            picture = await self._read()
        elif self._reports_due and time.monotonic() >= self._reports_at:
            picture.report((await store.progress([self._job_id])).get(self._job_id, {}))
            self._pace_reports(picture)
        await self._tell(picture, lines)
        if len(lines) == PAGE:
            await self._look(is_touched=True)

    async def _read(self) -> Picture:
        """All of it, which takes time by the number of its elements."""
        store = self._services.store
        [job] = await store.get([self._job_id])
        if job is None:
            raise JobNotFound(job_id=self._job_id)
        picture = Picture(job, (await store.progress([job.id])).get(job.id, {}))
        self._read_at = time.monotonic()
        self._pace_reports(picture)
        return picture

    def _pace_reports(self, picture: Picture) -> None:
        self._reports_due = False
        self._reports_at = time.monotonic() + picture.report_count / REPORTS

    async def _tell(self, picture: Picture, lines: Sequence[Line]) -> None:
        known, before, self.picture = self.picture, self.state, picture
        assert known is not None
        past, _ = await self._services.past_durations(picture.job.plan.pipeline)
        self.state = picture.state(past, self._services.store.now())
        told = difference(before, self.state)
        if picture is not known:
            picture.follow(known)
        if cells := picture.changed_cells():
            told["cells"] = cells
        if lines := [line for line in lines if line.n > self.line]:
            told |= {"lines": [line_parts(line) for line in lines], "gap": lines[0].n != self.line + 1}
            self.line = lines[-1].n
        if told:
            self._send(_frame("delta", told))
        is_other_job = _job_shape(before) != _job_shape(self.state)
        if (picture is not known and (picture.is_waiting or picture.losses != known.losses)) or "shape" in told:
            self._parts.are_due = True
        if self._parts.are_due and (is_other_job or time.monotonic() >= self._parts_at + PARTS_PACE):
            await self._send_parts()

    async def _send_parts(self) -> None:
        self._parts_at = time.monotonic()
        groups: dict[Rights, list[Viewer]] = {}
        for viewer in self.viewers:
            groups.setdefault(viewer.rights, []).append(viewer)
        for rights, told in (await self._parts.changed(list(groups))).items():
            frame = _frame("parts", told)
            for viewer in groups[rights]:
                viewer.put(frame)

    def _send(self, frame: bytes) -> None:
        for viewer in self.viewers:
            viewer.put(frame)


class _Parts:
    """The parts of the page as they were last sent."""

    def __init__(self, services: HttpServices, job_id: str) -> None:
        self._services = services
        self._job_id = job_id
        self._sent: dict[Rights, dict[str, str]] = {}
        self._rows: dict[str, object] = {}
        self._grids: object = None
        self._whole: dict[Rights, dict[str, Any]] = {}
        self._whole_n = 0
        self.are_due = False

    async def whole(self, rights: Rights, n: int) -> dict[str, Any]:
        """As of event ``n`` or later. Many viewers may come back at once."""
        if self._whole_n != n:
            self._whole, self._whole_n = {}, n
        if rights not in self._whole:
            found, told = await self._describe()
            self._whole[rights] = {
                **_about(told, sections.shape(found)),
                "parts": sections.render_parts(told, rights, sections.PARTS),
                "rows": sections.render_rows(told, rights, told["job"]["stages"]),
            }
        return self._whole[rights]

    async def changed(self, groups: Sequence[Rights]) -> dict[Rights, dict[str, Any]]:
        """By what viewers may do. Read once; rendered once for all who may do the same."""
        self.are_due = False
        found, told = await self._describe()
        rows, grids = sections.row_keys(found), sections.grid_key(told)
        changed = [name for name, key in rows.items() if key != self._rows.get(name)]
        names = [name for name in sections.PARTS if name != "elements" or grids != self._grids]
        self._rows, self._grids = rows, grids
        answer = {}
        for rights in groups:
            known = self._sent.get(rights, {})
            parts = sections.render_parts(told, rights, names)
            self._sent[rights] = known | parts
            fresh = {name: text for name, text in parts.items() if name in sections.ALWAYS or text != known.get(name)}
            answer[rights] = {
                **_about(told, sections.shape(found)),
                "parts": fresh,
                "rows": sections.render_rows(told, rights, changed),
            }
        return answer

    async def _describe(self) -> tuple[view.JobPage, dict[str, Any]]:
        snapshot = await self._services.store.snapshot(self._job_id, events=job_page.EVENTS, lines=1)
        if snapshot is None:
            raise JobNotFound(job_id=self._job_id)
        found = await view.compose_job_page(self._services, snapshot)
        return found, job_page.describe(found, datetime.now(UTC))


def _about(told: Mapping[str, Any], shape: str) -> dict[str, Any]:
    line, job = told["line"], told["job"]
    return {
        "shape": shape,
        "title": f"{job['source_filename'] or job['pipeline']} {job['status']}",
        "begin": line.begin.isoformat(),
        "seconds": line.seconds,
    }


def difference(old: State, new: State) -> dict[str, Any]:
    """What of the new state a viewer of the old one does not know."""
    told = {name: new[name] for name in ("shape", "progress", "left") if name in new and new[name] != old.get(name)}
    changed = {name: each for name, each in new["stages"].items() if each != old["stages"].get(name)}
    return told | ({"stages": changed} if changed else {})


def _job_shape(state: State) -> str:
    """Of the job without its stages."""
    return str(state["shape"]).rpartition(".")[0]


_BROADCASTS: WeakKeyDictionary[HttpServices, dict[str, tuple[Broadcast, asyncio.Task[None]]]] = WeakKeyDictionary()
"""Of each server of this process, by job."""


async def frames(
    services: HttpServices, job_id: str, rights: Rights, log_after: int, shape: str
) -> AsyncGenerator[bytes]:
    """What a viewer is sent whose page has the log up to that line, and shows the job as it was in that shape."""
    yield b"retry: 1000\n\n"
    running = _BROADCASTS.setdefault(services, {})
    broadcast, task = running.get(job_id, (None, None))
    if broadcast is None or task is None or task.done():
        broadcast = Broadcast(services, job_id)
        task = asyncio.create_task(broadcast.run())
        running[job_id] = broadcast, task
    viewer = Viewer(rights)
    broadcast.viewers.add(viewer)  # before the task takes its first step
    try:
        await broadcast.is_ready.wait()
        if broadcast.picture is not None:
            known = broadcast.line
            yield _frame("state", broadcast.state | {"cells": _packed(broadcast.picture)})
            if shape != broadcast.state["shape"]:
                yield _frame("parts", await broadcast.parts_for(rights))
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


def _packed(picture: Picture) -> dict[str, str]:
    return {name: stages.pack(text) for name, text in picture.cells().items()}


def _frame(type: str, data: Mapping[str, Any]) -> bytes:
    return b"event: %s\ndata: %s\n\n" % (type.encode(), json.encode(data))
