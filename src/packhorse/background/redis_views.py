"""Keeps Redis views: the keys that two apps designed for themselves, for programs that read those.

A view follows the store's feed from a bookmark and rewrites the keys of each changed job from the job's record, so a
crash loses nothing. One worker writes a view at a time. A view whose bookmark is missing, or older than the feed, is
built again from all jobs of its app. A prefix has one owner: the view does not write where another one does.
"""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, runtime_checkable

from packhorse.core import json
from packhorse.core.models import Job, Result, TaskId
from packhorse.core.plan import TaskStatus
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.jobs import deployment
from packhorse.jobs.services import read_readable
from packhorse.log import log
from packhorse.schemas import redis_views as shape
from packhorse.schemas.jobs import JobDocument, job_to_json, stage_values
from packhorse.store.base import Filter, Line, Sample, Store
from packhorse.store.collections.workers import list_definitions, plans_of

WAIT = 2.0  # seconds without a change after which what expires soon is written again
PAUSE = 0.2  # seconds between two looks: how long the view is behind
HOLD = 10.0  # seconds after which another worker takes over from one that died
PAGE = 20  # jobs written in one step
BYTES = 262_144  # of commands in one step, unless a single command is larger
PERIOD = 2.0  # seconds between two writes of a job's log, samples and results while its status stays the same
MEMBERS = 200  # of a set, looked through in one step
WEEK, DAY, HOUR = 604_800, 86_400, 3600
STREAM = "10000"  # entries kept in each stream
SAMPLES = 100
LOG_LINES, LOG_SIZE = 1000, 65_536  # of a log: lines that are read, and characters that are kept
SETS = ("active", "completed", "failed")
OWNER = "view:owner"  # key of the deployment and view that write under a prefix
FRESH = ("health:current", "health:services", "stats:cpu:current", "stats:memory:current")

Command = list[str]


@runtime_checkable
class ViewStore(Protocol):
    """What it needs of a store: only Redis has it."""

    def check_view(self, name: str, prefix: str) -> None:
        """Raise SettingError if the store cannot have a view with this prefix."""

    async def write_view(
        self,
        view: tuple[str, str],
        writer: str,
        seconds: float,
        commands: Sequence[Sequence[str | bytes]] = (),
        bookmark: Mapping[str, str] | None = None,
        *,
        takes: bool = False,
    ) -> tuple[dict[str, str], list[Any]] | None: ...


class Shown(NamedTuple):
    """A job with all that a view shows of it."""

    job: Job
    document: JobDocument
    results: Mapping[TaskId, Result]
    is_full: bool
    """Whether to write the log, samples and results, too: otherwise lines and samples are empty."""
    lines: Sequence[Line]
    samples: Sequence[Sample]


class Lost(Exception):
    """Another worker writes the view now."""


class View:
    """What one app's keys are. All commands are such that they may be repeated.

    A command names a key behind the view's prefix. ``shown`` instead of a key stands for the set of jobs that the view
    has shown, which is among packhorse's own keys.
    """

    name: str
    lasts: int  # seconds for which a job is shown after its last change

    def __init__(self) -> None:
        self.stages: Sequence[str] = ()
        """Of all pipelines of the app."""

    def signs(self) -> list[str]:
        """Keys that show that somebody uses a prefix."""
        return []

    def fresh(self, day: str, bookmark: Mapping[str, str]) -> list[Command]:  # noqa: ARG002 (a view may need them)
        """Commands for what expires soon."""
        return []

    def needs(self, job: Job) -> list[Command]:
        """What to read of the view before a job is written."""
        raise NotImplementedError

    def show(self, shown: Shown, before: Sequence[Any], now: float, *, is_rebuild: bool) -> Iterator[Command]:
        raise NotImplementedError

    def is_full(self, job: Job, before: Sequence[Any], now: float) -> bool:  # noqa: ARG002 (a view may need them)
        """Whether to write the log, samples and results of a job now."""
        return False

    def show_all(self, shown: Shown, now: float) -> Iterator[list[Command]]:  # noqa: ARG002 (a view may need them)
        """The log, samples and results of a job, in groups of commands that belong together."""
        yield from ()

    def late(self, now: float) -> list[str]:  # noqa: ARG002 (a view may need it)
        """Jobs whose log, samples and results were not written at their last change, and are due now."""
        return []

    def old(self, job_id: str) -> Command:
        """What to read of the view before a job that is gone is dropped."""
        raise NotImplementedError

    def drop(self, job_id: str, before: Any) -> list[Command]:
        raise NotImplementedError

    def bookmark(self) -> dict[str, str]:
        """Fields of the bookmark to store together with the commands made so far."""
        return {}

    def ends(self, job: Job, now: float) -> float:
        return (job.updated_at if job.status.is_terminal else max(now, job.updated_at)) + self.lasts


class ConverterView(View):
    name = "converter"
    lasts = WEEK

    def signs(self) -> list[str]:
        return [f"queue:{name}" for name in (*self.stages, "done", "progress")]

    def needs(self, job: Job) -> list[Command]:
        return [["GET", f"job:{job.id}"]]

    def show(self, shown: Shown, before: Sequence[Any], now: float, *, is_rebuild: bool) -> Iterator[Command]:
        job, ends = shown.job, self.ends(shown.job, now)
        if ends <= now:
            return
        old: dict[str, Any] | None = json.decode(before[0]) if before[0] else None
        record, user = shape.converter_record(job, shown.document, ends), shape.user_name(job.tenant, job.user)
        yield ["shown", "SADD", job.id]
        yield ["SET", f"job:{job.id}", json.encode(record).decode(), "EXAT", f"{ends:.0f}"]
        yield ["SADD", f"user:{user}:jobs", job.id]
        for rule in ("NX", "GT"):  # never less than another job of the user asks for
            yield ["EXPIRE", f"user:{user}:jobs", f"{max(1.0, ends - now):.0f}", rule]
        if not job.status.is_terminal:
            yield ["SET", f"user:{user}:active_job", job.id, "EXAT", f"{ends:.0f}"]
        else:
            yield ["clear", f"user:{user}:active_job", job.id]
        if not (is_rebuild and old is None and job.status.is_terminal):
            yield from self._streams(old, record, job)

    def _streams(self, old: Mapping[str, Any] | None, record: Mapping[str, Any], job: Job) -> Iterator[Command]:
        for stage in shape.queued_stages(old, record):
            yield _add(f"queue:{stage}", job_id=job.id, stage=stage)
        moved = [None if each is None else (each["stage"], each["stage_progress"]) for each in (old, record)]
        if record["status"] not in shape.ENDED and record["stage_progress"] and moved[0] != moved[1]:
            progress = f"{record['stage_progress']:g}"
            yield _add("queue:progress", job_id=job.id, stage=record["stage"], progress=progress)
        for stage, status in shape.ended_stages(old, record, job):
            yield _add("queue:done", job_id=job.id, stage=stage, status=status)

    def old(self, job_id: str) -> Command:
        return ["GET", f"job:{job_id}"]

    def drop(self, job_id: str, before: Any) -> list[Command]:
        if not before:
            return []
        old: dict[str, Any] = json.decode(before)
        user = shape.user_name(old["tenant_id"], old["user_id"])
        return [
            ["DEL", f"job:{job_id}"],
            ["SREM", f"user:{user}:jobs", job_id],
            ["clear", f"user:{user}:active_job", job_id],
        ]


def _add(stream: str, **fields: str) -> Command:
    return ["XADD", stream, "MAXLEN", "~", STREAM, "*", *(text for pair in fields.items() for text in pair)]


class VideoView(View):
    name = "video"
    lasts = DAY

    def __init__(self) -> None:
        super().__init__()
        self._day = ""
        self._today = 0
        self._written: dict[str, float] = {}
        """When the log, samples and results of a job were written, for the last seconds."""
        self._late: set[str] = set()

    def signs(self) -> list[str]:
        return [*(f"jobs:{name}" for name in SETS), "stats:total_jobs", "stats:processed_today"]

    def fresh(self, day: str, bookmark: Mapping[str, str]) -> list[Command]:
        commands: list[Command] = [["copy", key] for key in FRESH]
        self._day, self._today = day, int(bookmark.get("today", 0)) if bookmark.get("day") == day else 0
        if bookmark.get("day") != day:
            commands.append(self._processed())
        return commands

    def _processed(self) -> Command:
        return ["SET", "stats:processed_today", str(self._today), "EX", str(DAY)]

    def needs(self, job: Job) -> list[Command]:
        fields = ("status", "current_frame", "total_frames")
        processors = [["HMGET", f"job:{job.id}:processor:{name}", *fields] for name in job.plan.index]
        return [*(["SISMEMBER", f"jobs:{name}", job.id] for name in SETS), *processors]

    def show(self, shown: Shown, before: Sequence[Any], now: float, *, is_rebuild: bool) -> Iterator[Command]:
        job, id = shown.job, shown.job.id
        place = _place(job)
        was = dict(zip(SETS, before[:3], strict=True))
        yield from (["SREM", f"jobs:{name}", id] for name in SETS if was[name] and name != place)
        if not was[place]:
            yield ["shown", "SADD", id]
            yield ["SADD", f"jobs:{place}", id]
            if not any(was.values()):
                yield ["INCR", "stats:total_jobs"]
            if job.completed_at is not None and job.status.is_terminal and _day(job.completed_at) == self._day:
                self._today += 1
                yield self._processed()
        ends = self.ends(job, now)
        if ends <= now:
            return
        whole = shape.video_job(job, shown.document)
        until = f"{ends:.0f}"
        yield from _hash(f"job:{id}", whole, until)
        yield ["SET", f"job:{id}:status", whole["status"], "EXAT", until]
        is_quiet = is_rebuild and job.status.is_terminal
        for (name, stage), old in zip(shown.document["stages"].items(), before[3:], strict=True):
            if stage["status"] is TaskStatus.SKIPPED:
                continue
            fields = shape.video_processor(name, stage, job.updated_at)
            yield from _hash(f"job:{id}:processor:{name}", fields, until)
            for leaf, field in shape.LEAVES.items():
                yield ["SET", f"job:{id}:processor:{name}:{leaf}", fields[field], "EXAT", until]
            error = whole["last_error"] or "failed"
            texts = [None if each is None else each.decode() for each in old]
            for message in () if is_quiet else shape.video_messages(texts, fields, stage["message"] or "", error):
                yield ["publish", f"progress:{id}", message]

    def is_full(self, job: Job, before: Sequence[Any], now: float) -> bool:
        found = [job.stage_status(name) for name in job.plan.index]
        statuses = [None if each is TaskStatus.SKIPPED else shape.video_status(each).encode() for each in found]
        is_same = before[SETS.index(_place(job))] and statuses == [old[0] for old in before[3:]]
        if is_same and self._written.get(job.id, 0.0) + PERIOD > now:
            self._late.add(job.id)
            return False
        self._late.discard(job.id)
        self._written[job.id] = now
        return True

    def late(self, now: float) -> list[str]:
        self._written = {id: at for id, at in self._written.items() if at + PERIOD > now}
        due = self._late - self._written.keys()
        self._late -= due
        return sorted(due)

    def show_all(self, shown: Shown, now: float) -> Iterator[list[Command]]:
        job, id, ends = shown.job, shown.job.id, self.ends(shown.job, now)
        if ends <= now:
            return
        until = f"{ends:.0f}"
        results: list[Command] = [["DEL", f"result:{id}"]]  # a retry may have dropped them
        for name, value in stage_values(job, shown.results).items():
            results += _hash(f"result:{id}", {name: json.encode(value).decode()}, until)
        yield results
        output: list[Command] = [["DEL", f"output:{id}"], ["DEL", f"metrics:{id}:duration"]]
        files = [shown.document["result_object_keys"].get(plan.name) for plan in job.plan.sinks]
        found = next((each for each in files if each), None)
        if found is not None:
            output.append(["SET", f"output:{id}", found if isinstance(found, str) else found[0], "EXAT", until])
        took = shown.document["duration_ms"]
        if took is not None:
            output.append(["SET", f"metrics:{id}:duration", str(took), "EXAT", until])
        yield output
        if shown.lines:
            yield [["SET", f"log:{id}", shape.video_log(shown.lines, LOG_SIZE), "EXAT", until]]
        last = max((each.at for each in shown.samples), default=0.0)
        if last + HOUR > now:
            for what, each in shape.video_samples(shown.samples, SAMPLES).items():
                key = f"metrics:{id}:{what}"
                yield [["DEL", key], ["RPUSH", key, *each], ["EXPIREAT", key, f"{last + HOUR:.0f}"]]

    def bookmark(self) -> dict[str, str]:
        return {"day": self._day, "today": str(self._today)}

    def old(self, job_id: str) -> Command:
        return ["EXISTS", f"job:{job_id}"]

    def drop(self, job_id: str, before: Any) -> list[Command]:
        keys = [f"{kind}:{job_id}" for kind in ("job", "result", "output", "log")]
        keys += [f"job:{job_id}:status", *(f"metrics:{job_id}:{what}" for what in ("cpu", "memory", "duration"))]
        for stage in self.stages:
            keys += [f"job:{job_id}:processor:{stage}{end}" for end in ("", *(f":{leaf}" for leaf in shape.LEAVES))]
        if not before:  # expired
            keys = []
        return [*(["DEL", key] for key in keys), *(["SREM", f"jobs:{name}", job_id] for name in SETS)]


def _hash(key: str, fields: Mapping[str, str], until: str) -> list[Command]:
    return [["HSET", key, *(text for pair in fields.items() for text in pair)], ["EXPIREAT", key, until]]


def _place(job: Job) -> str:
    """The set that a job is in."""
    return shape.video_status(job.status) if job.status.is_terminal else "active"


def _size(commands: Sequence[Command]) -> int:
    return sum(len(text) if text.isascii() else len(text.encode()) for command in commands for text in command)


def _day(at: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(at))


VIEWS: Mapping[str, type[View]] = {each.name: each for each in (ConverterView, VideoView)}


class RedisViews:
    """Keeps the views of ``prefixes``, each under its prefix, with the jobs of the app of that name."""

    def __init__(self, store: Store, prefixes: Mapping[str, str], writer: str) -> None:
        assert isinstance(store, ViewStore), "the settings allow views on Redis only"
        self._store = store
        self._views: ViewStore = store
        for view in prefixes.items():
            store.check_view(*view)
        self._kept = [(VIEWS[name](), prefix) for name, prefix in prefixes.items()]
        self._writer = writer
        self._mark: int | None = None
        self._refused: dict[str, str] = {}
        """Views that are not written, with the owner of their prefix."""
        self._apps: dict[str, str] = {}
        """The app of each pipeline."""

    async def tick(self) -> float:
        self._mark = await self._store.wait_for_change(self._mark, WAIT)
        for view, prefix in self._kept:
            try:
                await self._follow(view, prefix)
            except Lost:
                continue
        return PAUSE

    async def _follow(self, view: View, prefix: str) -> None:
        bookmark, [owner] = await self._write(view, prefix, [["GET", OWNER]], takes=True)
        if owner is None or owner.decode() != bookmark.get("owner"):
            owner = await self._claim(view, prefix, owner)
            if owner is None:
                return
        now = self._store.now()
        await self._write(view, prefix, view.fresh(_day(now), bookmark), view.bookmark())
        is_known = bookmark.get("prefix") == prefix and bookmark.get("cursor")
        since = int(bookmark["cursor"]) if is_known else None
        cursor, changed = await self._store.changed_jobs(since)
        if changed is None:
            found = await self._rebuild(view, prefix, cursor)
        else:
            await self._show_changed(view, prefix, {*changed, *view.late(now)})
            found = cursor
        if found is not None and found != since:
            await self._write(view, prefix, bookmark={"cursor": str(found), "prefix": prefix})

    async def _show_changed(self, view: View, prefix: str, changed: Collection[str]) -> None:
        ids = sorted(changed)
        for first in range(0, len(ids), PAGE):
            await self._show(view, prefix, ids[first : first + PAGE])

    async def _claim(self, view: View, prefix: str, owner: bytes | None) -> bytes | None:
        """The owner of the prefix if that is this deployment, which becomes it if nobody uses the prefix."""
        ours = f"{await deployment.get_id(self._store) or 'new'}/{view.name}"
        if owner is None:
            await self._learn_apps(view)
            _, found = await self._write(view, prefix, [["EXISTS", key] for key in view.signs()])
            if not any(found):
                _, [_, owner] = await self._write(view, prefix, [["SET", OWNER, ours, "NX"], ["GET", OWNER]])
        theirs = "another program" if owner is None else owner.decode()
        if theirs == ours:
            await self._write(view, prefix, bookmark={"owner": ours})
            self._refused.pop(view.name, None)
            return owner
        if self._refused.get(view.name) != theirs:  # once, not in every round
            self._refused[view.name] = theirs
            log.redis_view_refused(view.name, prefix, theirs, f"SET {prefix}{OWNER} {ours}")
        return None

    async def _write(
        self,
        view: View,
        prefix: str,
        commands: Sequence[Command] = (),
        bookmark: Mapping[str, str] | None = None,
        *,
        takes: bool = False,
    ) -> tuple[dict[str, str], list[Any]]:
        found = await self._views.write_view((view.name, prefix), self._writer, HOLD, commands, bookmark, takes=takes)
        if found is None:
            raise Lost
        return found

    async def _learn_apps(self, view: View) -> None:
        definitions = await list_definitions(self._store)
        self._apps = {each.pipeline: each.app for each in definitions}
        plans = plans_of([each for each in definitions if each.app == view.name])
        view.stages = list(dict.fromkeys(stage.name for plan in plans.values() for stage in plan.stages))

    async def _rebuild(self, view: View, prefix: str, cursor: int) -> int | None:
        """Show all jobs, and between pages what has changed since ``cursor``: a rebuild may take longer than the feed
        keeps its entries. Return how far the view is; None if the feed lost entries anyway."""
        is_whole = True
        async for _ in self._rebuild_pages(view, prefix):
            cursor, changed = await self._store.changed_jobs(cursor)
            is_whole = is_whole and changed is not None
            await self._show_changed(view, prefix, changed or ())
        return cursor if is_whole else None

    async def _rebuild_pages(self, view: View, prefix: str) -> AsyncIterator[None]:
        """The newest jobs first: they are what people ask for. Then remove the jobs that are gone."""
        await self._learn_apps(view)
        for pipeline in [name for name, app in self._apps.items() if app == view.name]:
            before: str | None = None
            while jobs := await self._store.find(Filter(pipeline=pipeline), before=before, limit=PAGE):
                await self._show_jobs(view, prefix, jobs, is_rebuild=True)
                before = jobs[-1].id
                yield
        at = ""
        while at != "0":
            _, [(cursor, found)] = await self._write(
                view, prefix, [["shown", "SSCAN", at or "0", "COUNT", str(MEMBERS)]]
            )
            ids = [id.decode() for id in found]
            await self._drop(view, prefix, sorted(set(ids) - await self._store.existing_ids(ids)))
            at = cursor.decode()
            yield

    async def _drop(self, view: View, prefix: str, ids: Sequence[str]) -> None:
        """Remove jobs that are gone, if the view has shown them."""
        asked = [["shown", "SISMEMBER", id] for id in ids]
        _, answers = await self._write(view, prefix, [*asked, *(view.old(id) for id in ids)])
        commands = list[Command]()
        for id, is_shown, old in zip(ids, answers[: len(ids)], answers[len(ids) :], strict=True):
            if is_shown:
                commands += [*view.drop(id, old), ["shown", "SREM", id]]
        if commands:
            await self._write(view, prefix, commands)

    async def _show(self, view: View, prefix: str, ids: Sequence[str]) -> None:
        found = {job.id: job for job in await self._read(ids)}
        if any(job.plan.pipeline not in self._apps for job in found.values()):
            await self._learn_apps(view)
        gone = [id for id in ids if id not in found]
        if gone:
            if not view.stages:
                await self._learn_apps(view)
            await self._drop(view, prefix, gone)
        of_app = [job for job in found.values() if self._apps.get(job.plan.pipeline) == view.name]
        await self._show_jobs(view, prefix, of_app)

    async def _read(self, ids: Sequence[str]) -> list[Job]:
        """Those that can be read and are not being purged; the log names what cannot be read."""
        try:
            return [job for job in await self._store.get(ids) if job is not None and not job.is_purging]
        except (CorruptRecord, SchemaTooNew) as error:
            if len(ids) == 1:
                log.job_unreadable(ids[0], error)
                return []
            return [job for id in ids for job in await self._read([id])]

    async def _show_jobs(self, view: View, prefix: str, jobs: Sequence[Job], *, is_rebuild: bool = False) -> None:
        if not jobs:
            return

        jobs = [job for job in jobs if not job.is_purging]
        asked = {job.id: view.needs(job) for job in jobs}
        _, answers = await self._write(view, prefix, [command for needs in asked.values() for command in needs])
        answer = iter(answers)
        before = {id: [next(answer) for _ in needs] for id, needs in asked.items()}
        now = self._store.now()
        full = {job.id for job in jobs if view.is_full(job, before[job.id], now)}

        async def read(some: Sequence[Job]) -> list[Shown]:
            return await self._read_all(some, full)

        steps = list[tuple[list[Command], dict[str, str]]]()
        for each in await read_readable(read, jobs):
            main = list(view.show(each, before[each.job.id], now, is_rebuild=is_rebuild))
            groups = list(view.show_all(each, now)) if each.is_full else []
            steps.append((main, view.bookmark()))
            for group in groups:
                parts = [group] if _size(group) <= BYTES else [[command] for command in group]
                steps += [(part, view.bookmark()) for part in parts]
        await self._write_steps(view, prefix, steps)

    async def _write_steps(
        self, view: View, prefix: str, steps: Sequence[tuple[list[Command], dict[str, str]]]
    ) -> None:
        """Write as many steps at a time as ``BYTES`` allows, each together with its bookmark."""
        commands, bookmark, size = list[Command](), dict[str, str](), 0
        for step, fields in steps:
            more = _size(step)
            if commands and size + more > BYTES:
                await self._write(view, prefix, commands, bookmark)
                commands, size = [], 0
            commands, bookmark, size = commands + step, fields, size + more
        if commands:
            await self._write(view, prefix, commands, bookmark)

    async def _read_all(self, jobs: Sequence[Job], full: Collection[str]) -> list[Shown]:
        ids, store = [job.id for job in jobs], self._store
        specs, results, progress = await store.specs(ids), await store.results(ids), await store.progress(ids)
        found = []
        for job in jobs:
            of_job = results.get(job.id, {})
            document = job_to_json(job, specs.get(job.id), of_job, progress.get(job.id, {}))
            is_full = job.id in full
            lines = await store.lines(job.id, limit=LOG_LINES, newest=True) if is_full else ()
            samples = await store.samples(job.id) if is_full else ()
            found.append(Shown(job, document, of_job, is_full, lines, samples))
        return found
