"""What is kept of a job: questions about it, the notes of its attempts, sweeps and the purge.

No question reads more rows than it returns, give or take a few.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.models import Event, Job, Result, Spec, TaskId
from packhorse.core.plan import Status
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.log import log
from packhorse.store import sql_files
from packhorse.store.base import Count, Filter, Line, Progress, Report, Sample, Snapshot
from packhorse.store.rows import Plans, events_from, job_from, lines_from, progress_from, results_from
from packhorse.store.sqlite import records
from packhorse.store.sqlite.connection import Session
from packhorse.store.sqlite.session import Handle, read, write

SQL = sql_files.load(__package__, "reads")
NOTES = sql_files.load(__package__, "notes")

LEAST = 1
"""Bytes that a line counts for at least: empty ones would be kept without end."""

Walk = tuple[str, list[Any]]
"""A condition that one index answers, and its values."""


class Notes(Handle):
    """Progress, log and samples: what changes often and is not history."""

    @write
    def report(self, db: Session, reports: Sequence[Report]) -> None:
        for r in reports:
            written = (r.run, r.at, r.current, r.total, r.message, r.fraction)
            db.execute(NOTES.report, (*written, r.job_id, *r.task, r.token))
            if db.changes():
                db.touched.add(r.job_id)

    @write
    def log(self, db: Session, lines: Sequence[Line], *, keep: int) -> None:
        for job_id, group in groupby(sorted(lines, key=attrgetter("job_id")), key=attrgetter("job_id")):
            if _is_there(db, job_id):
                _append(db, job_id, group, keep)
                db.touched.add(job_id)

    @write
    def sample(self, db: Session, samples: Sequence[Sample], *, keep: int) -> None:
        there = {job_id for job_id in {s.job_id for s in samples} if _is_there(db, job_id)}
        for s in (s for s in samples if s.job_id in there):
            db.execute(NOTES.add_sample, (s.job_id, s.at, *s.task, s.cpu, s.memory))
        for job_id in there:
            db.execute(NOTES.trim_samples, (job_id, job_id, keep))

    def _progress(self, db: Session, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Progress]]:
        return progress_from(row for job_id in job_ids for row in db.execute(NOTES.progress, (job_id,)))

    def _lines(
        self,
        db: Session,
        job_id: str,
        *,
        after: int = 0,
        limit: int = 1000,
        stage: str | None = None,
        newest: bool = False,
    ) -> list[Line]:
        found = db.execute(NOTES.newest_lines if newest else NOTES.lines, (job_id, after, limit, stage))
        return lines_from(found, job_id, newest=newest)

    def _samples(self, db: Session, job_id: str) -> list[Sample]:
        found = db.execute(NOTES.samples, (job_id,))
        return [Sample(job_id, TaskId(stage, element), *values) for stage, element, *values in found]

    progress = read(_progress)
    lines = read(_lines)
    samples = read(_samples)


class Reads(Notes):
    @read
    def get(self, db: Session, job_ids: Sequence[str]) -> list[Job | None]:
        return [read_job(db, job_id, self._plans) for job_id in job_ids]

    @read
    def find(self, db: Session, filter: Filter, *, before: str | None = None, limit: int = 50) -> list[Job]:
        """Newest first. Filters by pipeline and status are merged from short walks of one index."""
        found: list[Job] = []
        with db:  # one snapshot: a job that changed status between two walks would be found twice, or not at all
            walks = list(_walks(db, filter))
            while (wanted := limit - len(found)) > 0:  # what is left out must not make the list end early
                page = _page(db, walks, filter, before, wanted)
                found += _readable(db, page, self._plans)
                if len(page) < wanted:
                    break
                before = page[-1]
        return found

    @read
    def count(self, db: Session, filters: Sequence[Filter], *, most: int) -> list[Count]:
        found: list[Count] = []
        with db:  # one snapshot: a job that changes its status is not counted twice
            found += [self._count(db, each, most) for each in filters]
        return found

    def _count(self, db: Session, filter: Filter, most: int) -> Count:
        """By the same walks, of which no more rows are looked at than agreed, whether they match or not."""
        fits, values = _bounded(SQL.not_purging, [], _times(filter))
        walked = filter
        if filter.user is not None and filter.pipeline is not None:
            fits, values = _bounded(fits, values, [(SQL.with_pipeline, filter.pipeline)])
            walked = replace(filter, pipeline=None)
        # Those first that are sure to match: ids say the time only roughly.
        order = "ASC" if filter.created_from is None and filter.created_until is not None else "DESC"
        found, left = 0, filter.looks(most)
        for walk in _walks(db, walked):
            where, bindings = _bounded(*walk, _ids(filter))
            query = SQL.count.format(fits=fits, where=where, order=order)
            seen, fitting = db.row(query, (*values, *bindings, left))
            found += fitting
            left -= seen
            if left <= 0 or found > most:
                return Count(min(found, most), False)
        return Count(found, True)

    @read
    def snapshot(
        self, db: Session, job_id: str, *, events: int, lines: int, stage: str | None = None
    ) -> Snapshot | None:
        with db:  # one state of everything
            job = read_job(db, job_id, self._plans)
            shown = self._lines(db, job_id, limit=lines, stage=stage, newest=True)
            last = shown if stage is None else self._lines(db, job_id, limit=1, newest=True)
            found = (
                self._specs(db, [job_id]).get(job_id),
                self._results(db, [job_id]).get(job_id, {}),
                self._progress(db, [job_id]).get(job_id, {}),
                [] if job is None else self._events(db, job_id, after=max(0, job.events - events), limit=events),
                shown,
                last[-1].n if last else 0,
                self._samples(db, job_id),
            )
        return None if job is None else Snapshot(job, *found)

    def _specs(self, db: Session, job_ids: Sequence[str]) -> dict[str, Spec]:
        found = (row for job_id in job_ids for row in db.execute(SQL.specs, (job_id,)))
        return {job_id: json.spec_from(body, job_id) for job_id, body in found}

    def _results(self, db: Session, job_ids: Sequence[str]) -> dict[str, dict[TaskId, Result]]:
        return results_from(row for job_id in job_ids for row in db.execute(SQL.results, (job_id,)))

    def _events(self, db: Session, job_id: str, *, after: int = 0, limit: int = 1000) -> list[Event]:
        return events_from(db.execute(SQL.events, (job_id, after, limit)), job_id, after, limit)

    specs = read(_specs)
    results = read(_results)
    events = read(_events)

    @read
    def has_change(self, db: Session, job_id: str, change_id: str) -> bool:
        return db.execute(SQL.change, (job_id, change_id)).fetchone() is not None

    @read
    def find_by_key(self, db: Session, key: str) -> tuple[str, str] | None:
        row: tuple[str, str] | None = db.execute(SQL.job_of_key, (key,)).fetchone()
        return row

    @read
    def holder(self, db: Session, slot: str) -> str | None:
        row = db.execute(SQL.holder, (slot,)).fetchone()
        return None if row is None else str(row[0])

    @read
    def line(self, db: Session, slot: str, *, limit: int) -> list[str]:
        return [id for (id,) in db.execute(SQL.line, (slot, limit))]

    @read
    def existing_ids(self, db: Session, job_ids: Sequence[str]) -> set[str]:
        return {id for (id,) in db.execute(SQL.known, (json.encode(list(job_ids)).decode(),))}

    # Sweeps

    @read
    def expired(self, db: Session, limit: int) -> list[Job]:
        return _sweep(db, db.execute(SQL.expired, (self.now(),)), limit, self._plans)

    @read
    def purgeable(self, db: Session, limit: int) -> list[Job]:
        """Begun purges first, whatever the time: the clock that decided them may have been ahead of this one."""
        begun = _sweep(db, db.execute(SQL.purging), limit, self._plans)
        due = db.execute(SQL.purgeable, (self.now(),))
        return begun + _sweep(db, due, limit - len(begun), self._plans)

    @read
    def jobs_with_litter(self, db: Session, limit: int) -> list[Job]:
        return _sweep(db, db.execute(SQL.littered), limit, self._plans)

    @write
    def erase(self, db: Session, job_id: str) -> None:
        db.execute(SQL.erase_job, (job_id,))
        if db.changes():
            db.execute(SQL.erase_key, (job_id,))
            db.execute(SQL.erase_rest, (job_id,) * SQL.erase_rest.count("?"))
            records.drop_of_job(db, job_id)


def read_job(db: Session, job_id: str, plans: Plans) -> Job | None:
    row = db.execute(SQL.job, (job_id,)).fetchone()
    return None if row is None else job_of(db, row, plans)


def job_of(db: Session, row: Sequence[Any], plans: Plans) -> Job:
    """The job in a row that begins as the statement `job` selects it."""
    fingerprint = row[4]
    if fingerprint not in plans.known:
        for (body,) in db.execute(SQL.plan, (fingerprint,)):
            plans.add(fingerprint, body)
    return job_from(row[:12], row[12:19], row[19], plans)


def _page(db: Session, walks: Sequence[Walk], filter: Filter, before: str | None, limit: int) -> list[str]:
    ids: list[str] = []
    for walk in walks:
        where, bindings = _bounded(*walk, [(SQL.before, before), *_ids(filter), *_times(filter)])
        ids += [id for (id,) in db.execute(SQL.find.format(where=where), (*bindings, limit))]
    return sorted(ids, reverse=True)[:limit]


def _readable(db: Session, job_ids: Sequence[str], plans: Plans) -> Iterator[Job]:
    for job_id in job_ids:
        try:
            job = read_job(db, job_id, plans)
        except (CorruptRecord, SchemaTooNew) as error:  # one of them must not hide all others; a read of it raises
            log.job_unreadable(job_id, error)
        else:
            if job is not None:
                yield job


def _walks(db: Session, filter: Filter) -> Iterator[Walk]:
    if filter.tenant is filter.user is filter.pipeline is filter.status is None:
        yield SQL.all, []
        return
    statuses = [filter.status] if filter.status is not None else list(Status)
    for tenant in [filter.tenant] if filter.tenant is not None else _distinct(db, SQL.next_tenant):
        if filter.user is not None:
            for status in statuses:
                yield _bounded(SQL.of_user, [tenant, filter.user, status.value], [(SQL.with_pipeline, filter.pipeline)])
            continue
        named = [filter.pipeline] if filter.pipeline is not None else _distinct(db, SQL.next_pipeline, tenant)
        for pipeline in named:
            for status in statuses:
                yield SQL.of_pipeline, [tenant, pipeline, status.value]


Bounds = Iterable[tuple[str, Any]]


def _bounded(where: str, bindings: list[Any], bounds: Bounds) -> Walk:
    """The condition with those bounds that are given."""
    for clause, value in bounds:
        if value is not None:
            where, bindings = f"{where} AND {clause}", [*bindings, value]
    return where, bindings


def _ids(filter: Filter) -> Bounds:
    low, high = filter.ids()
    return (SQL.id_from, low), (SQL.id_until, high)


def _times(filter: Filter) -> Bounds:
    return (SQL.created_from, filter.created_from), (SQL.created_until, filter.created_until)


def _distinct(db: Session, query: str, *bindings: str) -> list[str]:
    """The few different values of an index's next column, by jumping from one to the next instead of reading all."""
    found: list[str] = []
    last = ""
    while (row := db.execute(query, (*bindings, last)).fetchone()) and row[0] is not None:
        found.append(last := row[0])
    return found


def _sweep(db: Session, found: Iterable[Sequence[Any]], limit: int, plans: Plans) -> list[Job]:
    jobs: list[Job] = []
    for row in found:
        if len(jobs) == limit:
            break
        with suppress(CorruptRecord, SchemaTooNew):  # a sweep skips what we cannot read; a read of it raises
            jobs.append(job_of(db, row, plans))
    return jobs


# Notes


def _is_there(db: Session, job_id: str) -> bool:
    """What comes after the purge must not bring anything back."""
    return db.execute(NOTES.has_job, (job_id,)).fetchone() is not None


def _append(db: Session, job_id: str, lines: Iterable[Line], keep: int) -> None:
    row = db.execute(NOTES.log_size, (job_id,)).fetchone()
    last, size = row or (0, 0)
    for line in lines:
        last, size = last + 1, size + max(LEAST, len(line.text.encode()))
        db.execute(NOTES.append_line, (job_id, last, *line.task, line.attempt, line.at, line.text))
    if size > keep:
        size -= _drop_oldest(db, job_id, size - keep)
    db.execute(NOTES.keep_size, (job_id, last, size))


def _drop_oldest(db: Session, job_id: str, excess: int) -> int:
    """Drop whole lines from the front until at least ``excess`` is gone; how much that was."""
    dropped, until = 0, 0
    for n, length in db.execute(NOTES.line_lengths, (job_id,)):
        dropped, until = dropped + max(LEAST, int(length)), n
        if dropped >= excess:
            break
    db.execute(NOTES.drop_lines, (job_id, until))
    return dropped
