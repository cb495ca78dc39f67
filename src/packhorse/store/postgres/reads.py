"""Questions about jobs. None of them reads more rows than it returns, give or take a few."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from packhorse.core import json
from packhorse.core.models import Event, Job, Result, Spec, TaskId
from packhorse.core.plan import Status
from packhorse.errors import PackhorseError
from packhorse.log import log
from packhorse.store.base import Count, Filter, Line, Progress, Sample
from packhorse.store.postgres import rows
from packhorse.store.postgres.connection import Session
from packhorse.store.postgres.rows import Plans


async def jobs(session: Session, job_ids: Sequence[str], plans: Plans) -> list[Job | None]:
    query = f"SELECT {rows.COLUMNS} FROM @jobs WHERE id = ANY($1::uuid[])"
    found = await rows.jobs_from(session, await session.fetch(query, rows.ids(set(job_ids))), plans)
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


class _Bindings(list[Any]):
    def put(self, value: Any) -> str:
        self.append(value)
        return f"${len(self)}"


def _listing(filter: Filter, before: str | None, limit: int) -> tuple[str, list[Any]]:
    """One statement, for one snapshot: a job that changed status between two walks would be found twice, or never."""
    put = (bindings := _Bindings()).put
    bounds = [*_earlier(before, put), *_ids(filter, put), *_times(filter, put)]
    most = f"ORDER BY id DESC LIMIT {put(limit)}"
    if _is_all(filter):
        where = f"WHERE {' AND '.join(bounds)}" if bounds else ""
        return f"SELECT {rows.COLUMNS} FROM @jobs {where} {most}", bindings
    merged, same = _walks(filter, put)
    if filter.user is not None and filter.pipeline is not None:
        same.append(f"pipeline = {put(filter.pipeline)}")
    walk = f"SELECT id FROM @jobs WHERE {' AND '.join([*same, *bounds])} {most}"
    ids = f"SELECT walk.id FROM {', '.join(merged)}, LATERAL ({walk}) AS walk {most}"
    columns = ", ".join(f"job.{name}" for name in rows.COLUMNS.split(", "))
    return f"SELECT {columns} FROM ({ids}) AS found JOIN @jobs AS job USING (id) ORDER BY job.id DESC", bindings


async def count(session: Session, filter: Filter, most: int) -> Count:
    """By the same walks, of which no more rows are looked at than agreed, whether they match or not."""
    if not _can_match(filter):
        return Count(0, True)
    put = (bindings := _Bindings()).put
    fits = ["NOT is_purging", *_times(filter, put)]
    if filter.user is not None and filter.pipeline is not None:
        fits.append(f"pipeline = {put(filter.pipeline)}")
    merged, same = ([], ["true"]) if _is_all(filter) else _walks(filter, put)
    # In the order in which those come first that are sure to match: ids say the time only roughly.
    order = "ASC" if filter.created_from is None and filter.created_until is not None else "DESC"
    looks = filter.looks(most)
    limit = f"LIMIT {put(looks)}"
    where = " AND ".join([*same, *_ids(filter, put)])
    walk = f"SELECT pipeline, created_at, is_purging FROM @jobs WHERE {where} ORDER BY id {order} {limit}"
    seen = f"SELECT walk.* FROM {', '.join([*merged, f'LATERAL ({walk}) AS walk'])} {limit}"
    query = f"SELECT count(*), count(*) FILTER (WHERE {' AND '.join(fits)}) FROM ({seen}) AS seen"
    [(all, fitting)] = await session.fetch(query, *bindings)
    return Count(min(fitting, most), all < looks and fitting <= most)


Put = Callable[[Any], str]


def _is_all(filter: Filter) -> bool:
    return filter.tenant is filter.user is filter.pipeline is filter.status is None


def _walks(filter: Filter, put: Put) -> tuple[list[str], list[str]]:
    """What is combined, and what the jobs of one combination have in common."""
    tenants = (
        f"SELECT {put(filter.tenant)}::text AS tenant" if filter.tenant is not None else _distinct("tenant", "true")
    )
    statuses = [filter.status] if filter.status is not None else list(Status)
    merged = [f"({tenants}) AS t", f"unnest({put([status.value for status in statuses])}::text[]) AS s (status)"]
    same = ["tenant = t.tenant", "status = s.status"]
    if filter.user is not None:
        return merged, [*same, f"user_id = {put(filter.user)}"]
    named = f"SELECT {put(filter.pipeline)}::text AS pipeline" if filter.pipeline is not None else None
    merged.append(f"LATERAL ({named or _distinct('pipeline', 'tenant = t.tenant')}) AS p")
    return merged, [*same, "pipeline = p.pipeline"]


def _earlier(before: str | None, put: Put) -> list[str]:
    return [] if before is None else [f"id < {put(before)}::uuid"]


def _ids(filter: Filter, put: Put) -> list[str]:
    bounds = zip((">=", "<"), filter.ids(), strict=True)
    return [f"id {sign} {put(value)}::uuid" for sign, value in bounds if value is not None]


def _times(filter: Filter, put: Put) -> list[str]:
    bounds = ((">=", filter.created_from), ("<", filter.created_until))
    return [f"created_at {sign} {rows.moment(put(value) + '::float8')}" for sign, value in bounds if value is not None]


def _distinct(column: str, where: str) -> str:
    """The few different values of an index's next column, by jumping from one to the next instead of reading all."""
    first = f"SELECT min({column}) AS {column} FROM @jobs WHERE {where}"
    following = f"SELECT min({column}) FROM @jobs WHERE {where} AND {column} > last.{column}"
    return (
        f"WITH RECURSIVE last AS ({first} UNION ALL SELECT ({following}) FROM last WHERE last.{column} IS NOT NULL)"
        f" SELECT {column} FROM last WHERE {column} IS NOT NULL"
    )


def _can_match(filter: Filter) -> bool:
    return all(text is None or _can_be_stored(text) for text in (filter.tenant, filter.user, filter.pipeline))


def _can_be_stored(text: str) -> bool:
    return "\x00" not in text and text == rows.clean(text)


async def specs(session: Session, job_ids: Sequence[str]) -> dict[str, Spec]:
    query = "SELECT job_id, body FROM @specs WHERE job_id = ANY($1::uuid[])"
    found = await session.fetch(query, rows.ids(job_ids))
    return {str(id): json.spec_from(body, str(id)) for id, body in found}


async def results(session: Session, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]:
    found: dict[str, dict[TaskId, Result]] = {}
    query = (
        "SELECT job_id, stage, element, body FROM @results WHERE job_id = ANY($1::uuid[])"
        " ORDER BY job_id, stage, element"
    )
    for id, stage, element, body in await session.fetch(query, rows.ids(job_ids)):
        found.setdefault(str(id), {})[TaskId(stage, element)] = json.result_from(body, str(id))
    return found


async def events(session: Session, job_id: str, after: int, limit: int) -> list[Event]:
    found: list[Event] = []
    if not rows.is_id(job_id):
        return found
    # From the row that contains the number after `after`: rows hold ranges, and `last` of the one before is in it.
    query = "SELECT body FROM @events WHERE job_id = $1 AND last > $2 ORDER BY n LIMIT $3"
    for (body,) in await session.fetch(query, job_id, after, limit):
        found += [event for event in json.events_from(body, job_id) if event.n > after]
    return found[:limit]


async def made(session: Session, job_id: str, change_id: str) -> bool:
    query = "SELECT EXISTS (SELECT FROM @events WHERE job_id = $1 AND change_id = $2)"
    return rows.is_id(job_id) and bool(await session.value(query, job_id, change_id))


async def keyed(session: Session, key: str) -> tuple[str, str] | None:
    if not _can_be_stored(key):
        return None
    row = await session.row("SELECT job_id, fingerprint FROM @idempotency WHERE key = $1", key)
    return None if row is None else (str(row["job_id"]), row["fingerprint"])


async def holder(session: Session, slot: str) -> str | None:
    if not _can_be_stored(slot):
        return None
    found = await session.value("SELECT job_id FROM @slots WHERE slot = $1", slot)
    return None if found is None else str(found)


async def progress(session: Session, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
    found: dict[str, dict[TaskId, Progress]] = {}
    query = (
        "SELECT job_id, stage, element, run, at, current, total, message, peak FROM @progress"
        " WHERE job_id = ANY($1::uuid[])"
    )
    for id, stage, element, *values in await session.fetch(query, rows.ids(job_ids)):
        found.setdefault(str(id), {})[TaskId(stage, element)] = Progress(TaskId(stage, element), *values)
    return found


async def lines(session: Session, job_id: str, after: int, limit: int, stage: str | None, newest: bool) -> list[Line]:
    if not rows.is_id(job_id) or not (stage is None or _can_be_stored(stage)):
        return []
    where, bindings = ("", []) if stage is None else (" AND stage = $4", [stage])
    order = "n DESC" if newest else "n"
    query = (
        f"SELECT n, stage, element, attempt, at, text FROM @log WHERE job_id = $1 AND n > $2{where}"
        f" ORDER BY {order} LIMIT $3"
    )
    found = await session.fetch(query, job_id, after, limit, *bindings)
    found = found[::-1] if newest else found
    return [Line(job_id, TaskId(name, element), attempt, at, text, n) for n, name, element, attempt, at, text in found]


async def samples(session: Session, job_id: str) -> list[Sample]:
    query = "SELECT stage, element, at, cpu, memory FROM @samples WHERE job_id = ANY($1::uuid[]) ORDER BY at"
    found = await session.fetch(query, rows.ids([job_id]))
    return [Sample(job_id, TaskId(stage, element), *values) for stage, element, *values in found]
