"""Server-sent events: what happens to one job, and ``/live``, which tells pages to reload."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from typing import Annotated

from litestar import get
from litestar.params import FromQuery, HeaderParameter
from litestar.types import ASGIApp

from packhorse.auth.access import Caller
from packhorse.core import json
from packhorse.core.models import Event, Job
from packhorse.errors import InvalidInput, JobNotFound, TooManyStreams
from packhorse.http.feed import PAGE, Moved, Watcher
from packhorse.http.openapi import error_responses, response_spec
from packhorse.http.requests import Id, Number
from packhorse.http.services import FromCaller, FromServices, HttpServices
from packhorse.http.stream import Streamed
from packhorse.schemas.job_details import event_to_json, line_to_json
from packhorse.schemas.jobs import public_event
from packhorse.schemas.progress import PositionDocument, StageDocument
from packhorse.store.base import Line

PING = 15.0
"""Seconds of silence after which a ping is sent."""
LINGER = 0.2
"""Seconds for which the last lines of a log may come after the end of the job: workers write a few times a second."""

STEADY = 5.0
"""Seconds after which pages reload in any case: workers, queues and schedules change without a job."""

HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


TYPES = {
    "snapshot": "the whole job, first of all",
    "submitted": "`pipeline`, `user_id`",
    "started": "`run`: the first stage of this run has begun",
    "stage_started": "`stage`, `element`, `attempt`, `worker`",
    "stage_completed": "`stage`, `element`, `attempt`",
    "stage_failed": "`stage`, `element`, `attempt`, `code`, `message`: no retry follows; "
    "`tolerated` if the element is left out and the run continues",
    "stage_skipped": "`stage`, `element`, `attempt`, `reason`: on purpose",
    "retrying": "`stage`, `element`, `attempt`, `not_before`, and why: `code` and `message`, or `why` `later` or "
    "`handed_back`; with `why` `retry`, a person has started `run`",
    "replaced": "`by`: the job that takes its place; it is cancelled",
    "cancelling": "what runs has been asked to stop",
    "progress": "`stage`, `stage_progress`, `progress`, and of `stages` those that look different",
    "log": "a line that a stage printed: `n`, `stage`, `element`, `attempt`, `at`, `text`",
    "gap": "something is not there any more: `what` (`events`, `log`), `after`, and `last_event` or `next`",
    "completed": "`run`",
    "failed": "`run`, `code`, `message`, `stage`",
    "cancelled": "`run`",
}
"""Event types and their fields besides `n`, `type` and `at`; `element` only for a stage that runs once per element."""
UNNUMBERED = frozenset({"snapshot", "progress", "log", "gap"})
"""Not history: sent without an id, and not repeated after a reconnect."""

STREAM = response_spec(str, "text/event-stream", f"Events of the types {', '.join(TYPES)}, each with JSON as its data.")
LastEvent = Annotated[
    str | None,
    HeaderParameter(name="Last-Event-ID", description="Overrides `after`.", schema_extra={"pattern": "^[0-9]{0,15}$"}),
]


@get(
    "/jobs/{job_id:str}/events",
    scope="read",
    tokens=True,
    responses={**error_responses(JobNotFound, TooManyStreams), 200: STREAM},
)
async def events(
    services: FromServices,
    caller: FromCaller,
    job_id: Id,
    after: Number = 0,
    log: FromQuery[bool] = True,
    log_after: Number = 0,
    last_event_id: LastEvent = None,
) -> ASGIApp:
    """A snapshot, then every event after number `after` (or Last-Event-ID) until the run has ended.

    Events of type progress and log have no id: they are not history. `log_after` is the number of the last line of log
    that is already known; `log=false` leaves the log out. A token is sent no log.
    """
    after = last_event(last_event_id, after)
    wants_log = log and caller.job_id is None
    return await stream_events(services, caller, job_id, after, log_after if wants_log else None)


async def stream_events(
    services: HttpServices, caller: Caller, job_id: str, after: int, log_after: int | None
) -> ASGIApp:
    """Events after that number, and lines of log after that one; None leaves the log out. Raises JobNotFound."""
    await services.job(caller, job_id)
    services.streams.check(caller)
    following = _Following(services, caller, job_id, after, log_after)
    return Streamed(services.streams.count(caller, following.frames()), HEADERS, ended=services.key_end(caller))


class _Following:
    def __init__(self, services: HttpServices, caller: Caller, job_id: str, after: int, line: int | None) -> None:
        self._services = services
        self._caller = caller
        self._job_id = job_id
        self._n = after
        self._line = line or 0
        self._wants_log = line is not None
        self._stages: dict[str, StageDocument] = {}
        self._position: PositionDocument | None = None
        self._is_over = False

    async def frames(self) -> AsyncGenerator[bytes]:
        with self._services.feed.watch(self._job_id, wants_log=self._wants_log) as watcher:
            job = await self._services.job(self._caller, self._job_id)
            yield await self._snapshot(job)
            if self._n > job.events:
                yield _frame("gap", {"what": "events", "after": self._n, "last_event": job.events})
                self._n = job.events
            while not self._is_over and not watcher.is_closed:
                async for frame in self._step(watcher):
                    yield frame

    async def _snapshot(self, job: Job) -> bytes:
        shape = await self._services.document(job, self._caller)
        self._stages = shape["stages"]
        self._position = {
            "stage": shape["stage"],
            "stage_progress": shape["stage_progress"],
            "progress": shape["progress"],
        }
        return b"retry: 1000\n" + _frame("snapshot", shape)

    async def _step(self, watcher: Watcher) -> AsyncIterator[bytes]:
        if watcher.is_behind:
            watcher.catch_up()
            async for frame in self._from_store():
                yield frame
            watcher.reached(self._n, self._line)
            return
        moved = await watcher.next(PING)
        if moved is None:
            yield b": ping\n\n"
        elif self._wants_log and moved.job.status.is_terminal:
            watcher.is_behind = True  # the store knows the rest of the log
        else:
            for frame in self._from(moved):
                yield frame

    def _from(self, moved: Moved) -> list[bytes]:
        frames = [frame for line in moved.lines for frame in self._written(line)]
        frames += [self._happened(event) for event in moved.events if event.n > self._n]
        self._is_over = moved.job.status.is_terminal and self._n >= moved.job.events
        return frames if self._is_over else frames + self._progress(moved)

    def _progress(self, moved: Moved) -> list[bytes]:
        """Only the stages that have changed since they were sent."""
        stages = {name: stage for name, stage in moved.stages.items() if stage != self._stages.get(name)}
        if not stages and moved.position == self._position:
            return []
        self._stages, self._position = moved.stages, moved.position
        return [_frame("progress", {**moved.position, "stages": stages})]

    async def _from_store(self) -> AsyncIterator[bytes]:
        job = await self._services.job(self._caller, self._job_id)
        if self._wants_log and job.completed_at is not None and self._services.store.now() - job.completed_at < LINGER:
            await asyncio.sleep(LINGER)
        async for each in self._in_order(job):
            if isinstance(each, Event):
                yield self._happened(each)
            else:
                for frame in self._written(each):
                    yield frame
        self._is_over = job.status.is_terminal and self._n >= job.events

    async def _in_order(self, job: Job) -> AsyncIterator[Event | Line]:
        """Events and lines by their time; the end of the run after everything else."""
        lines = self._lines()
        line = await anext(lines, None)
        async for event in self._events():
            is_last = job.status.is_terminal and event.n >= job.events
            while line is not None and (is_last or line.at <= event.at):
                yield line
                line = await anext(lines, None)
            yield event
        while line is not None:
            yield line
            line = await anext(lines, None)

    async def _events(self) -> AsyncIterator[Event]:
        while page := await self._services.store.events(self._job_id, after=self._n, limit=PAGE):
            for event in page:
                yield event

    async def _lines(self) -> AsyncIterator[Line]:
        after = self._line
        while self._wants_log and (page := await self._services.store.lines(self._job_id, after=after, limit=PAGE)):
            for line in page:
                yield line
            after = page[-1].n

    def _happened(self, event: Event) -> bytes:
        self._n = event.n
        data = event_to_json(event)
        return _frame(event.type, data if self._caller.job_id is None else public_event(data), event.n)

    def _written(self, line: Line) -> list[bytes]:
        known, self._line = self._line, max(self._line, line.n)
        if not self._wants_log or line.n <= known:
            return []
        dropped = [] if line.n == known + 1 else [_frame("gap", {"what": "log", "after": known, "next": line.n})]
        return [*dropped, _frame("log", line_to_json(line))]


def _frame(type: str, data: Mapping[str, object], n: int | None = None) -> bytes:
    number = b"" if n is None else b"id: %d\n" % n
    return b"%sevent: %s\ndata: %s\n\n" % (number, type.encode(), json.encode(data))


def last_event(header: str | None, after: int) -> int:
    """A browser that reconnects sends its first address again, with the header: the header is newer."""
    if header is None or header == "":
        return after
    if not (header.isascii() and header.isdigit()) or len(header) > 15:
        raise InvalidInput("Last-Event-ID must be the number of an event.", field="Last-Event-ID")
    return int(header)


@get("/live", scope="read", include_in_schema=False)
async def live(services: FromServices, caller: FromCaller) -> ASGIApp:
    """Server-sent events of the type ``changed``, without end."""
    services.streams.check(caller)
    hints = services.streams.count(caller, _hints(services, caller))
    return Streamed(hints, HEADERS, ended=services.key_end(caller))


async def _hints(services: HttpServices, caller: Caller) -> AsyncGenerator[bytes]:
    yield b"retry: 1000\n\n"
    with services.feed.hints(caller.tenant, caller.user) as hints:
        while await hints.next(STEADY):
            yield b"event: changed\ndata: {}\n\n"
