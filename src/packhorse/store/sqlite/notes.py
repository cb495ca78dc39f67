"""Progress, log and samples: what changes often and is not history."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby
from operator import attrgetter

import apsw

from packhorse.store import sql_files
from packhorse.store.base import Line, Report, Sample
from packhorse.store.sqlite.connection import Session

# The peak is the furthest point of this run, so that the whole never goes backwards when an attempt starts over.


SQL = sql_files.load(__package__, "notes")

LEAST = 1
"""Bytes that a line counts for at least: empty ones would be kept without end."""


def report(db: Session, reports: Sequence[Report]) -> None:
    for r in reports:
        written = (r.run, r.at, r.current, r.total, r.message, r.fraction)
        db.execute(SQL.report, (*written, r.job_id, *r.task, r.token))
        if db.changes():
            db.touched.add(r.job_id)


def log(db: Session, lines: Sequence[Line], keep: int) -> None:
    for job_id, group in groupby(sorted(lines, key=attrgetter("job_id")), key=attrgetter("job_id")):
        if _is_there(db, job_id):
            _append(db, job_id, group, keep)
            db.touched.add(job_id)


def _is_there(db: apsw.Connection, job_id: str) -> bool:
    """What comes after the purge must not bring anything back."""
    return db.execute(SQL.has_job, (job_id,)).fetchone() is not None


def _append(db: apsw.Connection, job_id: str, lines: Iterable[Line], keep: int) -> None:
    row = db.execute(SQL.log_size, (job_id,)).fetchone()
    last, size = row or (0, 0)
    for line in lines:
        last, size = last + 1, size + max(LEAST, len(line.text.encode()))
        db.execute(
            SQL.append_line,
            (job_id, last, *line.task, line.attempt, line.at, line.text),
        )
    if size > keep:
        size -= _drop_oldest(db, job_id, size - keep)
    db.execute(SQL.keep_size, (job_id, last, size))


def _drop_oldest(db: apsw.Connection, job_id: str, excess: int) -> int:
    """Drop whole lines from the front until at least ``excess`` is gone; how much that was."""
    dropped, until = 0, 0
    for n, length in db.execute(SQL.line_lengths, (job_id,)):
        dropped, until = dropped + max(LEAST, int(length)), n
        if dropped >= excess:
            break
    db.execute(SQL.drop_lines, (job_id, until))
    return dropped


def sample(db: apsw.Connection, samples: Sequence[Sample], keep: int) -> None:
    there = {job_id for job_id in {s.job_id for s in samples} if _is_there(db, job_id)}
    for s in (s for s in samples if s.job_id in there):
        db.execute(SQL.add_sample, (s.job_id, s.at, *s.task, s.cpu, s.memory))
    for job_id in there:
        db.execute(SQL.trim_samples, (job_id, job_id, keep))
