"""Questions about jobs. None of them walks all jobs, and none keeps the server long."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from urllib.parse import quote

import msgspec

from packhorse.core import json
from packhorse.core.models import Event, Job, Result, Spec, TaskId
from packhorse.core.plan import Status
from packhorse.errors import CorruptRecord, PackhorseError
from packhorse.log import log
from packhorse.store.base import Count, Filter, Line, Progress, Sample, Snapshot
from packhorse.store.redis import keys
from packhorse.store.redis import rows as records
from packhorse.store.redis.client import Link, ServerClock
from packhorse.store.redis.commit import Kept
from packhorse.store.redis.rows import FIELDS, Plans

BUDGET = 250
"""Records looked at by one script, about: who filters a user's jobs by status may have to look at many for few."""

_pack = msgspec.msgpack.Encoder().encode
_kept = msgspec.json.Decoder(Kept)

Gone = list[tuple[str, str]]
"""Indexes and the ids in them that have no record any more."""


async def jobs(link: Link, job_ids: Sequence[str], plans: Plans) -> list[Job | None]:
    rows = await link.ask([["HMGET", keys.job(job_id), *FIELDS] for job_id in job_ids])
    found = dict(await records.jobs_from(list(zip(job_ids, rows, strict=True)), plans, link.ask))
    return [_readable(found.get(job_id)) for job_id in job_ids]


def _readable(found: Job | PackhorseError | None) -> Job | None:
    if isinstance(found, PackhorseError):
        raise found
    return found


async def find(link: Link, filter: Filter, before: str | None, limit: int, plans: Plans) -> tuple[list[Job], Gone]:
    """Newest first; and what the indexes still name although its record has gone."""
    indexes = await _indexes(link, filter)
    found: list[Job] = []
    gone: Gone = []
    after = before or ""
    while indexes and len(found) < limit:  # what is left out must not make the list end early
        asked = _asked(filter, indexes, after, limit - len(found))
        goes_on, rows, dangling = await link.run("find", asked, *FIELDS)
        page = [(rows[i].decode(), rows[i + 1]) for i in range(0, len(rows), 2)]
        for job_id, job in await records.jobs_from(page, plans, link.ask):
            if isinstance(job, Job):
                found.append(job)
            elif job is not None:  # one of them must not hide all others; who asks for it is told
                log.job_unreadable(job_id, job)
        gone += [(dangling[i].decode(), dangling[i + 1].decode()) for i in range(0, len(dangling), 2)]
        after = goes_on.decode()
        if not after:
            break
    return found, gone


async def count(link: Link, filter: Filter, most: int) -> Count:
    """By the same script: which entries are dangling or being purged, and which are of whom, only the records say.

    One index after the other: for a number nobody has to merge them.
    """
    found, left = 0, filter.looks(most)
    for index in await _indexes(link, filter):
        after, is_over = "", False
        while not is_over:
            asked = _asked(filter, [index], after, BUDGET)
            goes_on, rows, _ = await link.run("find", asked, *FIELDS[:5], "is_purging")
            found += sum(not fields[5] for fields in rows[1::2])
            after = goes_on.decode()
            is_over = not after
            left -= len(rows) // 2 if is_over else BUDGET
            if found > most or (left <= 0 and not is_over):
                return Count(min(found, most), False)
    return Count(found, True)


def _asked(filter: Filter, indexes: list[str], after: str, limit: int) -> bytes:
    checks = [filter.tenant, filter.status, filter.pipeline, _time(filter.created_from), _time(filter.created_until)]
    return _pack([indexes, after, min(limit, BUDGET), BUDGET, *(check or "" for check in checks)])


async def _indexes(link: Link, filter: Filter) -> list[str]:
    """The narrowest indexes that together name every job the filter may match."""
    if filter.user is not None and filter.tenant is not None:
        return [keys.user(filter.tenant, filter.user)]
    names = list(keys.WHOLE) if filter.status is None else [_index_of(filter.status)]
    if filter.user is filter.tenant is filter.pipeline is None:
        return [keys.index(name) for name in names]
    if filter.status is Status.RUNNING and filter.user is None:
        return [keys.index("running")]
    pairs = await _pairs(link, filter)
    if filter.user is not None:
        owner = quote(filter.user, safe="")
        return [f"user:{tenant}/{owner}:jobs" for tenant in sorted({pair.partition("/")[0] for pair in pairs})]
    return [keys.index(name, pair) for pair in pairs for name in names]


def _index_of(status: Status) -> str:
    """The running are as many as there are workers' slots, so that the pending are found among the active."""
    return "running" if status is Status.RUNNING else keys.index_of(status)


async def _pairs(link: Link, filter: Filter) -> list[str]:
    first, last = "-", "+"
    if filter.tenant is not None:
        tenant = quote(filter.tenant, safe="")
        first, last = f"[{tenant}/", f"({tenant}0"  # the character after the slash
    [found] = await link.ask([["ZRANGEBYLEX", keys.PAIRS, first, last]])
    pairs = [pair.decode() for pair in found]
    if filter.pipeline is not None:
        pairs = [pair for pair in pairs if pair.partition("/")[2] == quote(filter.pipeline, safe="")]
    return pairs


def _time(value: float | None) -> str:
    return "" if value is None else str(value)


async def snapshot(
    link: Link, job_id: str, events_limit: int, lines_limit: int, stage: str | None, plans: Plans
) -> Snapshot | None:
    [job] = await jobs(link, [job_id], plans)
    if job is None:
        return None
    last = [] if stage is None else await lines(link, job_id, 0, 1, None, True)  # first: nothing shown is newer
    shown = await lines(link, job_id, 0, lines_limit, stage, True)
    return Snapshot(
        job,
        (await specs(link, [job_id])).get(job_id),
        (await results(link, [job_id])).get(job_id, {}),
        (await progress(link, [job_id])).get(job_id, {}),
        await events(link, job_id, max(0, job.events - events_limit), events_limit),
        shown,
        max((line.n for line in (*last, *shown)), default=0),
        await samples(link, job_id),
    )


async def specs(link: Link, job_ids: Sequence[str]) -> dict[str, Spec]:
    bodies = await link.ask([["HGET", keys.job(job_id), "spec"] for job_id in job_ids])
    found = zip(job_ids, bodies, strict=True)
    return {job_id: json.spec_from(body, job_id) for job_id, body in found if body is not None}


async def results(link: Link, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]:
    answers = await link.ask([["HGETALL", keys.result(job_id)] for job_id in job_ids])
    return {
        job_id: {at: json.result_from(body, job_id) for at, body in sorted(_by_task(flat).items())}
        for job_id, flat in zip(job_ids, answers, strict=True)
        if flat
    }


def _by_task(flat: Sequence[bytes]) -> dict[TaskId, bytes]:
    return {keys.task_from(flat[i].decode()): flat[i + 1] for i in range(0, len(flat), 2)}


async def events(link: Link, job_id: str, after: int, limit: int) -> list[Event]:
    """One element per event, so that its number is its place."""
    [bodies] = await link.ask([["LRANGE", keys.events(job_id), str(after), str(after + limit - 1)]])
    return [Event(kept.n, kept.type, kept.at, kept.data) for kept in (_event(body, job_id) for body in bodies)]


async def made(link: Link, job_id: str, change_id: str) -> bool:
    told, untold = await link.ask([["LRANGE", of(job_id), "0", "-1"] for of in (keys.events, keys.changes)])
    return change_id.encode() in untold or any(_event(body, job_id).change == change_id for body in told)


def _event(body: bytes, job_id: str) -> Kept:
    try:
        return _kept.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise CorruptRecord(what="events", job_id=job_id, reason=str(error)) from error


async def keyed(link: Link, key: str) -> tuple[str, str] | None:
    [value] = await link.ask([["GET", keys.idempotency(key)]])
    if value is None:
        return None
    job_id, _, fingerprint = value.decode().partition(" ")
    return job_id, fingerprint


async def holder(link: Link, slot: str) -> str | None:
    [value] = await link.ask([["GET", keys.slot(slot)]])
    return None if value is None else value.decode()


async def known(link: Link, job_ids: Sequence[str]) -> set[str]:
    answers = await link.ask([["EXISTS", keys.job(job_id)] for job_id in job_ids])
    return {job_id for job_id, is_there in zip(job_ids, answers, strict=True) if is_there}


# Notes


async def progress(link: Link, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
    answers = await link.ask([["HGETALL", keys.progress(job_id)] for job_id in job_ids])
    return {
        job_id: {at: _progress(at, text) for at, text in _by_task(flat).items()}
        for job_id, flat in zip(job_ids, answers, strict=True)
        if flat
    }


def _progress(at: TaskId, text: bytes) -> Progress:
    run, peak, body = text.split(b" ", 2)
    time, current, total, message = json.record(body, tuple[float, float, float | None, str])
    return Progress(at, int(run), time, current, total, message, float(peak))


async def lines(link: Link, job_id: str, after: int, limit: int, stage: str | None, newest: bool) -> list[Line]:
    found = await link.run("lines", job_id, after, limit, stage or "", int(newest))
    return [_line(job_id, text.decode()) for text in (found[::-1] if newest else found)]


def _line(job_id: str, text: str) -> Line:
    head, _, said = text.partition("\n")
    n, attempt, at, task = head.split(" ", 3)
    return Line(job_id, keys.task_from(task), int(attempt), float(at), said, int(n))


async def samples(link: Link, job_id: str) -> list[Sample]:
    cpu, memory = await link.ask([["ZRANGE", keys.metrics(job_id, what), "0", "-1"] for what in ("cpu", "memory")])
    used = dict(text.decode().rpartition(" ")[::2] for text in memory)
    found: list[Sample] = []
    for text in cpu:
        where, _, value = text.decode().rpartition(" ")
        at, _, task = where.partition(" ")
        if where in used:
            found.append(Sample(job_id, keys.task_from(task), float(at), float(value), int(used[where])))
    return sorted(found, key=lambda sample: (sample.at, sample.task))


async def ahead(link: Link, clock: ServerClock, job: Job, at: TaskId, limit: int) -> int:
    queue, entry = job.plan.stage(at.stage).queue, keys.entry(job.id, at)
    return int(await link.run("ahead", clock.argument(), queue, -job.priority, entry, limit))


async def ready(link: Link, kinds: Mapping[str, Collection[str]], limit: int) -> dict[str, int]:
    pairs = [(queue, kind) for queue, names in kinds.items() for kind in names]
    counts = await link.ask([["ZCARD", keys.ready(*pair)] for pair in pairs])
    found = dict.fromkeys(kinds, 0)
    for (queue, _), count in zip(pairs, counts, strict=True):
        found[queue] = min(found[queue] + count, limit)
    return found
