"""What is kept of a job: questions about it, the notes of its attempts, sweeps and the purge.

No question reads more rows than it returns, give or take a few.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from itertools import count
from math import isnan, nan
from typing import Any

from packhorse.core import json
from packhorse.core.models import Event, Job, Result, Spec, TaskId
from packhorse.core.plan import Status
from packhorse.errors import CorruptRecord, PackhorseError
from packhorse.log import log
from packhorse.store import sql_files
from packhorse.store.base import Count, Filter, Line, Progress, Report, Sample, Snapshot
from packhorse.store.postgres import records
from packhorse.store.postgres.connection import Row, Session
from packhorse.store.postgres.session import Handle, clean, columns, ids, is_id, is_storable, read, write
from packhorse.store.rows import Plans, events_from, job_from, lines_from, progress_from, results_from

SQL = sql_files.load(__package__, "reads")
NOTES = sql_files.load(__package__, "notes")

LEAST = 1
"""Bytes that a line counts for at least: empty ones would be kept without end."""

TIMES = struct.Struct("<7d")
"""Created, not before, started, completed, updated, deadline, purge: exact, where a column rounds; nan for none."""


class Notes(Handle):
    """Progress, log and samples: what changes often and is not history."""

    @write
    async def report(self, session: Session, reports: Sequence[Report]) -> None:
        latest: dict[tuple[str, str, int, str], Report] = {}
        peaks: dict[tuple[str, str, int, str, int], float] = {}
        for r in reports:
            if is_id(r.job_id):
                at = (r.job_id, *r.task, r.token)
                latest[at] = r
                peaks[*at, r.run] = max(r.fraction, peaks.get((*at, r.run), 0.0))
        if latest:
            values = (
                (*at, r.run, r.at, r.current, r.total, clean(r.message), peaks[*at, r.run]) for at, r in latest.items()
            )
            await session.fetch(NOTES.report, *columns(values))

    @write
    async def log(self, session: Session, lines: Sequence[Line], *, keep: int) -> None:
        texts: dict[str, list[tuple[Line, str]]] = {}
        for line in lines:
            if is_id(line.job_id):
                texts.setdefault(line.job_id, []).append((line, clean(line.text)))
        sizes = {id: sum(max(LEAST, len(text.encode())) for _, text in found) for id, found in texts.items()}
        if not texts:
            return
        asked = (list(texts), [len(found) for found in texts.values()], list(sizes.values()))
        there = {str(id): (last, size) for id, last, size in await session.fetch(NOTES.count_lines, *asked)}
        if not there:
            return
        values = (
            (id, n, *line.task, line.attempt, line.at, text)
            for id, (last, _) in there.items()
            for n, (line, text) in zip(count(last - len(texts[id]) + 1), texts[id], strict=False)
        )
        await session.fetch(NOTES.add_lines, list(there), *columns(values))
        excess = {id: size - keep for id, (_, size) in there.items() if size > keep}
        if excess:
            await session.fetch(NOTES.drop_lines, list(excess), list(excess.values()))

    @write
    async def sample(self, session: Session, samples: Sequence[Sample], *, keep: int) -> None:
        latest = {(s.job_id, s.at, *s.task): (s.cpu, s.memory) for s in samples if is_id(s.job_id)}
        if latest:
            await session.fetch(NOTES.add_samples, *columns((*at, *found) for at, found in latest.items()))
            await session.fetch(NOTES.drop_samples, ids({at[0] for at in latest}), keep)

    async def _progress(self, session: Session, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
        return progress_from(await session.fetch(NOTES.progress, ids(job_ids)))

    async def _lines(
        self,
        session: Session,
        job_id: str,
        *,
        after: int = 0,
        limit: int = 1000,
        stage: str | None = None,
        newest: bool = False,
    ) -> list[Line]:
        if not is_id(job_id) or not (stage is None or is_storable([stage])):
            return []
        found = await session.fetch(NOTES.newest_lines if newest else NOTES.lines, job_id, after, limit, stage)
        return lines_from(found, job_id, newest=newest)

    async def _samples(self, session: Session, job_id: str) -> list[Sample]:
        found = await session.fetch(NOTES.samples, ids([job_id]))
        return [Sample(job_id, TaskId(stage, element), *values) for stage, element, *values in found]

    progress = read(_progress)
    lines = read(_lines)
    samples = read(_samples)


class Reads(Notes):
    async def _get(self, session: Session, job_ids: Sequence[str]) -> list[Job | None]:
        found = await jobs_from(session, await session.fetch(SQL.by_id, ids(set(job_ids))), self._plans)
        by_id = {job.id: job for job in map(_sure, found)}
        return [by_id.get(job_id) for job_id in job_ids]

    @read
    async def find(self, session: Session, filter: Filter, *, before: str | None = None, limit: int = 50) -> list[Job]:
        """Newest first. Filters by pipeline and status are merged from short walks of one index."""
        if not _can_match(filter) or not (before is None or is_id(before)):
            return []
        query, _, values = _walk(filter)
        found: list[Job] = []
        while (wanted := limit - len(found)) > 0:  # what is left out must not make the list end early
            bounds = (before, *filter.ids(), filter.created_from, filter.created_until, wanted)
            page = await session.fetch(query, *bounds, *values)
            for row, job in zip(page, await jobs_from(session, page, self._plans), strict=True):
                if isinstance(job, Job):
                    found.append(job)
                else:  # one of them must not hide all others; a read of it raises
                    log.job_unreadable(str(row["id"]), job)
            if len(page) < wanted:
                break
            before = str(page[-1]["id"])
        return found

    @read
    async def count(self, session: Session, filters: Sequence[Filter], *, most: int) -> list[Count]:
        return [await self._count(session, each, most) for each in filters]

    async def _count(self, session: Session, filter: Filter, most: int) -> Count:
        if not _can_match(filter):
            return Count(0, True)
        looks = filter.looks(most)
        _, query, values = _walk(filter)
        bounds = (*filter.ids(), filter.created_from, filter.created_until, looks)
        order = "ASC" if filter.created_from is None and filter.created_until is not None else "DESC"
        [(seen, fitting)] = await session.fetch(query.format(order=order), *bounds, *values)
        return Count(min(fitting, most), seen < looks and fitting <= most)

    @read
    async def snapshot(
        self, session: Session, job_id: str, *, events: int, lines: int, stage: str | None = None
    ) -> Snapshot | None:
        [job] = await self._get(session, [job_id])
        if job is None:
            return None
        # The last line first: nothing shown is newer.
        last = [] if stage is None else await self._lines(session, job_id, limit=1, newest=True)
        shown = await self._lines(session, job_id, limit=lines, stage=stage, newest=True)
        return Snapshot(
            job,
            (await self._specs(session, [job_id])).get(job_id),
            (await self._results(session, [job_id])).get(job_id, {}),
            (await self._progress(session, [job_id])).get(job_id, {}),
            await self._events(session, job_id, after=max(0, job.events - events), limit=events),
            shown,
            max((line.n for line in (*last, *shown)), default=0),
            await self._samples(session, job_id),
        )

    async def _specs(self, session: Session, job_ids: Sequence[str]) -> dict[str, Spec]:
        found = await session.fetch(SQL.specs, ids(job_ids))
        return {str(id): json.spec_from(body, str(id)) for id, body in found}

    async def _results(self, session: Session, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]:
        return results_from(await session.fetch(SQL.results, ids(job_ids)))

    async def _events(self, session: Session, job_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        found = await session.fetch(SQL.events, job_id, after, limit) if is_id(job_id) else []
        return events_from(found, job_id, after, limit)

    get = read(_get)
    specs = read(_specs)
    results = read(_results)
    events = read(_events)

    @read
    async def has_change(self, session: Session, job_id: str, change_id: str) -> bool:
        return is_id(job_id) and bool(await session.value(SQL.has_change, job_id, change_id))

    @read
    async def find_by_key(self, session: Session, key: str) -> tuple[str, str] | None:
        row = await session.row(SQL.idempotency_key, key) if is_storable([key]) else None
        return None if row is None else (str(row["job_id"]), row["fingerprint"])

    @read
    async def holder(self, session: Session, slot: str) -> str | None:
        found = await session.value(SQL.slot_holder, slot) if is_storable([slot]) else None
        return None if found is None else str(found)

    @read
    async def line(self, session: Session, slot: str, *, limit: int) -> list[str]:
        rows = await session.fetch(SQL.slot_line, slot, limit) if is_storable([slot]) else []
        return [str(id) for (id,) in rows]

    @read
    async def existing_ids(self, session: Session, job_ids: Sequence[str]) -> set[str]:
        return {str(id) for (id,) in await session.fetch(SQL.known, ids(job_ids))}

    # Sweeps

    @read
    async def expired(self, session: Session, limit: int) -> list[Job]:
        return await self._sweep(session, SQL.expired, self._clock.parameter(), limit)

    @read
    async def purgeable(self, session: Session, limit: int) -> list[Job]:
        """Begun purges first, whatever the time: the clock that decided them may have been ahead of this one."""
        begun = await self._sweep(session, SQL.purging, None, limit)
        return begun + await self._sweep(session, SQL.purgeable, self._clock.parameter(), limit - len(begun))

    @read
    async def jobs_with_litter(self, session: Session, limit: int) -> list[Job]:
        return await self._sweep(session, SQL.littered, None, limit)

    async def _sweep(self, session: Session, query: str, value: Any, limit: int) -> list[Job]:
        if limit <= 0:
            return []
        return [job for job, _ in await readable(session, query, value, limit, self._plans)]

    @write
    async def erase(self, session: Session, job_id: str) -> None:
        if not is_id(job_id) or await session.row(SQL.erase_job, job_id) is None:
            return
        await session.fetch(SQL.erase_key, job_id)
        await session.fetch(SQL.erase_rest, job_id)
        await records.drop_of_job(session, job_id)


async def readable(session: Session, query: str, value: Any, limit: int, plans: Plans) -> list[tuple[Job, Row]]:
    """A sweep skips what we cannot read, looking further instead; a read of such a job raises."""
    page = limit
    while True:
        found = await session.fetch(query, value, page)
        jobs = await jobs_from(session, found, plans)
        sure = [(job, row) for job, row in zip(jobs, found, strict=True) if isinstance(job, Job)]
        if len(sure) >= limit or len(found) < page:
            return sure[:limit]
        page *= 2


async def load_plans(session: Session, found: Iterable[Row], plans: Plans) -> None:
    """Read the plans of these jobs that nobody here has read yet."""
    missing = {row["plan"] for row in found} - plans.known.keys()
    if missing:
        for fingerprint, body in await session.look(SQL.plans, list(missing)):
            plans.add(fingerprint, body)


async def jobs_from(session: Session, found: Sequence[Row], plans: Plans) -> list[Job | PackhorseError]:
    """Each row's job, or why it cannot be read."""
    await load_plans(session, found, plans)
    return [read_job(row, plans) for row in found]


def read_job(row: Row, plans: Plans) -> Job | PackhorseError:
    """The job in a row that begins as the statement `by_id` selects it, or why it cannot be read."""
    uuid, *fields, body = tuple(row)[:13]
    id = str(uuid)
    try:
        if len(body) < TIMES.size:
            raise CorruptRecord(what="state", job_id=id, reason="it is too short")
        times = [None if isnan(time) else time for time in TIMES.unpack_from(body)]
        return job_from((id, *fields), times, body[TIMES.size :], plans)
    except PackhorseError as error:
        return error


def fixed_columns(job: Job) -> tuple[Any, ...]:
    """What a job keeps from its first row on, in the order of the part `added`."""
    plan = job.plan
    return (
        job.tenant, job.user, job.client, plan.pipeline, plan.fingerprint, job.priority, job.trace_id, job.slot,
        job.created_at,
    )  # fmt: skip


def moving_columns(job: Job) -> tuple[Any, ...]:
    """What a change may move, in the order of the part `moved`."""
    error = None
    if job.status is Status.FAILED:
        error = clean(job.error.message) if job.error is not None else ""
    times = (
        job.created_at, job.not_before, job.started_at, job.completed_at, job.updated_at, job.deadline_at, job.purge_at
    )  # fmt: skip
    exact = TIMES.pack(*(nan if time is None else time for time in times))
    return (
        job.status.value, job.version, job.lineage, job.retry_count, job.not_before, job.started_at,
        job.completed_at, job.updated_at, job.deadline_at, job.purge_at, job.is_purging, job.stopping is not None,
        job.has_litter, error, exact + json.state_of(job),
    )  # fmt: skip


def _sure(job: Job | PackhorseError) -> Job:
    if isinstance(job, PackhorseError):
        raise job
    return job


def _walk(filter: Filter) -> tuple[str, str, Sequence[Any]]:
    """The statements that list and count the jobs along one index, and the values they take behind the bounds."""
    statuses = [status.value for status in ([filter.status] if filter.status is not None else Status)]
    if filter.user is not None:
        return SQL.find_of_user, SQL.count_of_user, (filter.tenant, statuses, filter.user, filter.pipeline)
    if filter.tenant is filter.pipeline is filter.status is None:
        return SQL.find_all, SQL.count_all, ()
    return SQL.find_of_pipelines, SQL.count_of_pipelines, (filter.tenant, statuses, filter.pipeline)


def _can_match(filter: Filter) -> bool:
    return is_storable(text for text in (filter.tenant, filter.user, filter.pipeline) if text is not None)
