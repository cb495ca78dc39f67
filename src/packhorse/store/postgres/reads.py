"""Questions about jobs. None of them reads more rows than it returns, give or take a few."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from packhorse.core import json
from packhorse.core.models import Event, Job, Result, Spec, TaskId
from packhorse.core.plan import Status
from packhorse.errors import PackhorseError
from packhorse.log import log
from packhorse.store.base import Count, Filter, Line, Progress, Sample, Snapshot
from packhorse.store.postgres import rows
from packhorse.store.postgres.connection import Session
from packhorse.store.postgres.rows import Plans

SQL = rows.SQL


async def jobs(session: Session, job_ids: Sequence[str], plans: Plans) -> list[Job | None]:
    found = await rows.jobs_from(session, await session.fetch(SQL.by_id, rows.ids(set(job_ids))), plans)
    by_id = {job.id: job for job in map(_sure, found)}
    return [by_id.get(job_id) for job_id in job_ids]


def _sure(job: Job | PackhorseError) -> Job:
    if isinstance(job, PackhorseError):
        raise job
    return job


async def find(session: Session, filter: Filter, before: str | None, limit: int, plans: Plans) -> list[Job]:
    """Newest first. Filters by pipeline and status are merged from short walks of one index, one per combination."""
    if not _can_match(filter) or not (before is None or rows.is_id(before)):
        return []
    found: list[Job] = []
    while (wanted := limit - len(found)) > 0:  # what is left out must not make the list end early
        query, bindings = _listing(filter, before, wanted)
        page = await session.fetch(query, *bindings)
        for row, job in zip(page, await rows.jobs_from(session, page, plans), strict=True):
            if isinstance(job, Job):
                found.append(job)
            else:  # one of them must not hide all others; who asks for it is told
                log.job_unreadable(str(row["id"]), job)
        if len(page) < wanted:
            break
        before = str(page[-1]["id"])
    return found


async def count(session: Session, filter: Filter, most: int) -> Count:
    if not _can_match(filter):
        return Count(0, True)
    looks = filter.looks(most)
    query = SQL.count_all
    bindings: Sequence[Any] = (*filter.ids(), filter.created_from, filter.created_until, looks)
    if filter.user is not None:
        query = SQL.count_of_user
        bindings = (*bindings, filter.tenant, _statuses(filter), filter.user, filter.pipeline)
    elif not _is_all(filter):
        query, bindings = SQL.count_of_pipelines, (*bindings, filter.tenant, _statuses(filter), filter.pipeline)
    if filter.created_from is None and filter.created_until is not None:
        # The order in which those come first that are sure to match: ids say the time only roughly.
        query = query.replace("ORDER BY id DESC", "ORDER BY id")
    [(seen, fitting)] = await session.fetch(query, *bindings)
    return Count(min(fitting, most), seen < looks and fitting <= most)


def _listing(filter: Filter, before: str | None, limit: int) -> tuple[str, Sequence[Any]]:
    bindings = (before, *filter.ids(), filter.created_from, filter.created_until, limit)
    if filter.user is not None:
        return SQL.find_of_user, (*bindings, filter.tenant, _statuses(filter), filter.user, filter.pipeline)
    if _is_all(filter):
        return SQL.find_all, bindings
    return SQL.find_of_pipelines, (*bindings, filter.tenant, _statuses(filter), filter.pipeline)


def _is_all(filter: Filter) -> bool:
    return filter.tenant is filter.user is filter.pipeline is filter.status is None


def _statuses(filter: Filter) -> list[str]:
    return [status.value for status in ([filter.status] if filter.status is not None else Status)]


def _can_match(filter: Filter) -> bool:
    return all(text is None or _can_be_stored(text) for text in (filter.tenant, filter.user, filter.pipeline))


def _can_be_stored(text: str) -> bool:
    return "\x00" not in text and text == rows.clean(text)


async def snapshot(
    session: Session, job_id: str, events_limit: int, lines_limit: int, stage: str | None, plans: Plans
) -> Snapshot | None:
    [job] = await jobs(session, [job_id], plans)
    if job is None:
        return None
    last = [] if stage is None else await lines(session, job_id, 0, 1, None, True)  # first: nothing shown is newer
    shown = await lines(session, job_id, 0, lines_limit, stage, True)
    return Snapshot(
        job,
        (await specs(session, [job_id])).get(job_id),
        (await results(session, [job_id])).get(job_id, {}),
        (await progress(session, [job_id])).get(job_id, {}),
        await events(session, job_id, max(0, job.events - events_limit), events_limit),
        shown,
        max((line.n for line in (*last, *shown)), default=0),
        await samples(session, job_id),
    )


async def specs(session: Session, job_ids: Sequence[str]) -> dict[str, Spec]:
    found = await session.fetch(SQL.specs, rows.ids(job_ids))
    return {str(id): json.spec_from(body, str(id)) for id, body in found}


async def results(session: Session, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]:
    found: dict[str, dict[TaskId, Result]] = {}
    for id, stage, element, body in await session.fetch(SQL.results, rows.ids(job_ids)):
        found.setdefault(str(id), {})[TaskId(stage, element)] = json.result_from(body, str(id))
    return found


async def events(session: Session, job_id: str, after: int, limit: int) -> list[Event]:
    found: list[Event] = []
    if not rows.is_id(job_id):
        return found
    for (body,) in await session.fetch(SQL.events, job_id, after, limit):
        found += [event for event in json.events_from(body, job_id) if event.n > after]
    return found[:limit]


async def made(session: Session, job_id: str, change_id: str) -> bool:
    return rows.is_id(job_id) and bool(await session.value(SQL.has_change, job_id, change_id))


async def keyed(session: Session, key: str) -> tuple[str, str] | None:
    if not _can_be_stored(key):
        return None
    row = await session.row(SQL.idempotency_key, key)
    return None if row is None else (str(row["job_id"]), row["fingerprint"])


async def holder(session: Session, slot: str) -> str | None:
    if not _can_be_stored(slot):
        return None
    found = await session.value(SQL.slot_holder, slot)
    return None if found is None else str(found)


async def progress(session: Session, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
    found: dict[str, dict[TaskId, Progress]] = {}
    for id, stage, element, *values in await session.fetch(SQL.progress, rows.ids(job_ids)):
        found.setdefault(str(id), {})[TaskId(stage, element)] = Progress(TaskId(stage, element), *values)
    return found


async def lines(session: Session, job_id: str, after: int, limit: int, stage: str | None, newest: bool) -> list[Line]:
    if not rows.is_id(job_id) or not (stage is None or _can_be_stored(stage)):
        return []
    found = await session.fetch(SQL.newest_lines if newest else SQL.lines, job_id, after, limit, stage)
    found = found[::-1] if newest else found
    return [Line(job_id, TaskId(name, element), attempt, at, text, n) for n, name, element, attempt, at, text in found]


async def samples(session: Session, job_id: str) -> list[Sample]:
    found = await session.fetch(SQL.samples, rows.ids([job_id]))
    return [Sample(job_id, TaskId(stage, element), *values) for stage, element, *values in found]
