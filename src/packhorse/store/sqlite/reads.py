"""Questions about jobs. None of them reads more rows than it returns, give or take a few."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import apsw
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.models import Event, Job, Result, Spec, TaskId
from packhorse.core.plan import Status
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.log import log
from packhorse.store import sql_files
from packhorse.store.base import Count, Filter, Line, Progress, Sample, Snapshot
from packhorse.store.sqlite import rows
from packhorse.store.sqlite.rows import Plans

SQL = sql_files.load(__package__, "lookups")

Walks = Sequence[tuple[str, list[Any]]]


def jobs(db: apsw.Connection, job_ids: Sequence[str], plans: Plans) -> list[Job | None]:
    return [rows.read(db, job_id, plans) for job_id in job_ids]


def find(db: apsw.Connection, filter: Filter, before: str | None, limit: int, plans: Plans) -> list[Job]:
    """Newest first. Filters by pipeline and status are merged from short walks of one index, one per combination."""
    found: list[Job] = []
    with db:  # one snapshot: a job that changed status between two walks would be found twice, or not at all
        walks = list(_walks(db, filter))
        while (wanted := limit - len(found)) > 0:  # what is left out must not make the list end early
            page = _page(db, walks, filter, before, wanted)
            found += _readable(db, page, plans)
            if len(page) < wanted:
                break
            before = page[-1]
    return found


def count(db: apsw.Connection, filter: Filter, most: int) -> Count:
    """By the same walks, of which no more rows are looked at than agreed, whether they match or not."""
    fits, values = _bounded("NOT is_purging", [], _times(filter))
    walked = filter
    if filter.user is not None and filter.pipeline is not None:
        fits, values, walked = f"{fits} AND pipeline = ?", [*values, filter.pipeline], replace(filter, pipeline=None)
    found, left = 0, filter.looks(most)
    with db:
        for walk in _walks(db, walked):
            where, bindings = _bounded(*walk, _ids(filter))
            rows = (
                f"SELECT pipeline, created_at, is_purging FROM jobs WHERE {where} ORDER BY id {_order(filter)} LIMIT ?"
            )
            query = f"SELECT count(*), count(*) FILTER (WHERE {fits}) FROM ({rows})"
            answer: Any = db.execute(query, (*values, *bindings, left)).fetchone()
            seen, fitting = answer
            found += fitting
            left -= seen
            if left <= 0 or found > most:
                return Count(min(found, most), False)
    return Count(found, True)


def _page(db: apsw.Connection, walks: Walks, filter: Filter, before: str | None, limit: int) -> list[str]:
    ids: list[str] = []
    for walk in walks:
        where, bindings = _bounded(*walk, [("id < ?", before), *_ids(filter), *_times(filter)])
        query = f"SELECT id FROM jobs WHERE {where} ORDER BY id DESC LIMIT ?"
        ids += [row[0] for row in db.execute(query, (*bindings, limit))]
    return sorted(ids, reverse=True)[:limit]


def _readable(db: apsw.Connection, job_ids: Sequence[str], plans: Plans) -> list[Job]:
    found: list[Job] = []
    for job_id in job_ids:
        try:
            found += [job for job in jobs(db, [job_id], plans) if job is not None]
        except (CorruptRecord, SchemaTooNew) as error:  # one of them must not hide all others; who asks for it is told
            log.job_unreadable(job_id, error)
    return found


def _walks(db: apsw.Connection, filter: Filter) -> Iterator[tuple[str, list[Any]]]:
    if filter.tenant is filter.user is filter.pipeline is filter.status is None:
        yield "1", []
        return
    tenants = [filter.tenant] if filter.tenant is not None else _distinct(db, "tenant", "1")
    statuses = [filter.status] if filter.status is not None else list(Status)
    for tenant in tenants:
        if filter.user is not None:
            yield from (_of_user(tenant, filter, status) for status in statuses)
            continue
        named = [filter.pipeline] if filter.pipeline is not None else _distinct(db, "pipeline", "tenant = ?", tenant)
        for pipeline in named:
            for status in statuses:
                yield "tenant = ? AND pipeline = ? AND status = ?", [tenant, pipeline, status.value]


def _of_user(tenant: str, filter: Filter, status: Status) -> tuple[str, list[Any]]:
    where, bindings = "tenant = ? AND user = ? AND status = ?", [tenant, filter.user, status.value]
    return (where, bindings) if filter.pipeline is None else (f"{where} AND pipeline = ?", [*bindings, filter.pipeline])


Bounds = Iterable[tuple[str, Any]]


def _bounded(where: str, bindings: list[Any], bounds: Bounds) -> tuple[str, list[Any]]:
    for clause, value in bounds:
        if value is not None:
            where, bindings = f"{where} AND {clause}", [*bindings, value]
    return where, bindings


def _ids(filter: Filter) -> Bounds:
    low, high = filter.ids()
    return ("id >= ?", low), ("id < ?", high)


def _times(filter: Filter) -> Bounds:
    return ("created_at >= ?", filter.created_from), ("created_at < ?", filter.created_until)


def _order(filter: Filter) -> str:
    """In which those come first that are sure to match: ids say the time only roughly."""
    return "ASC" if filter.created_from is None and filter.created_until is not None else "DESC"


def _distinct(db: apsw.Connection, column: str, where: str, *bindings: str) -> list[str]:
    """The few different values of an index's next column, by jumping from one to the next instead of reading all."""
    found: list[str] = []
    query = f"SELECT min({column}) FROM jobs INDEXED BY jobs_by_kind WHERE {where} AND {column} > ?"
    last = ""
    while (row := db.execute(query, (*bindings, last)).fetchone()) and row[0] is not None:
        found.append(last := row[0])
    return found


def snapshot(
    db: apsw.Connection, job_id: str, events_limit: int, lines_limit: int, stage: str | None, plans: Plans
) -> Snapshot | None:
    with db:  # one state of everything
        [job] = jobs(db, [job_id], plans)
        shown = lines(db, job_id, 0, lines_limit, stage, True)
        last = shown if stage is None else lines(db, job_id, 0, 1, None, True)
        found = (
            specs(db, [job_id]).get(job_id),
            results(db, [job_id]).get(job_id, {}),
            progress(db, [job_id]).get(job_id, {}),
            [] if job is None else events(db, job_id, max(0, job.events - events_limit), events_limit),
            shown,
            last[-1].n if last else 0,
            [Sample(job_id, TaskId(row[0], row[1]), *row[2:]) for row in db.execute(SQL.samples, (job_id,))],
        )
    return None if job is None else Snapshot(job, *found)


def specs(db: apsw.Connection, job_ids: Sequence[str]) -> dict[str, Spec]:
    found = _by_job(db, "SELECT job_id, body FROM specs WHERE job_id = ?", job_ids)
    return {row[0]: json.spec_from(row[1], row[0]) for row in found}


def results(db: apsw.Connection, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]:
    found: dict[str, dict[TaskId, Result]] = {}
    query = "SELECT job_id, stage, element, body FROM results WHERE job_id = ? ORDER BY stage, element"
    for job_id, stage, element, body in _by_job(db, query, job_ids):
        found.setdefault(job_id, {})[TaskId(stage, element)] = json.result_from(body, job_id)
    return found


def results_of(db: apsw.Connection, job_id: str, stage: str) -> tuple[Result, ...]:
    query = "SELECT body FROM results WHERE job_id = ? AND stage = ? ORDER BY element"
    return tuple(json.result_from(body, job_id) for (body,) in db.execute(query, (job_id, stage)))


def events(db: apsw.Connection, job_id: str, after: int, limit: int) -> list[Event]:
    found: list[Event] = []
    # From the row that contains the number after `after`: rows hold ranges, and `last` of the one before is in it.
    query = "SELECT body FROM events WHERE job_id = ? AND last > ? ORDER BY n LIMIT ?"
    for (body,) in db.execute(query, (job_id, after, limit)):
        found += [event for event in json.events_from(body, job_id) if event.n > after]
    return found[:limit]


def progress(db: apsw.Connection, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
    found: dict[str, dict[TaskId, Progress]] = {}
    query = "SELECT job_id, stage, element, run, at, current, total, message, peak FROM progress WHERE job_id = ?"
    for job_id, stage, element, *values in _by_job(db, query, job_ids):
        task = TaskId(stage, element)
        found.setdefault(job_id, {})[task] = Progress(task, *values)
    return found


def lines(db: apsw.Connection, job_id: str, after: int, limit: int, stage: str | None, newest: bool) -> list[Line]:
    where, bindings = ("", []) if stage is None else (" AND stage = ?", [stage])
    order = "n DESC" if newest else "n"
    query = (
        f"SELECT n, stage, element, attempt, at, text FROM log WHERE job_id = ? AND n > ?{where}"
        f" ORDER BY {order} LIMIT ?"
    )
    found = [
        Line(job_id, TaskId(name, element), attempt, at, text, n)
        for n, name, element, attempt, at, text in db.execute(query, (job_id, after, *bindings, limit))
    ]
    return found[::-1] if newest else found


def touched(db: apsw.Connection, since: int | None) -> tuple[int, set[str] | None]:
    # Two questions, for each of which one end of the table is enough: min and max in one would read all of it.
    ends = "SELECT coalesce((SELECT min(seq) FROM feed), 1), coalesce((SELECT max(seq) FROM feed), 0)"
    row = db.execute(ends).fetchone()
    assert row is not None
    first, last = row
    if since is None or since + 1 < first or last - since > MANY:
        return last, None
    found = db.execute("SELECT job_ids FROM feed WHERE seq > ? AND seq <= ?", (since, last))
    return last, {job_id for (body,) in found for job_id in json.record(body, list[str])}


MANY = 1_000
"""Transactions past which it is cheaper to look at what one watches than at what has moved."""


def _by_job(db: apsw.Connection, query: str, job_ids: Sequence[str]) -> Iterable[tuple[Any, ...]]:
    for job_id in job_ids:
        yield from db.execute(query, (job_id,))
