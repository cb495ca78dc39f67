"""What is run when, and what became of each tick."""

from __future__ import annotations

from itertools import islice
from typing import Any

import apsw
from msgspec.structs import astuple

from packhorse.core import json
from packhorse.core.changes import MarkRun, RunUndecided
from packhorse.core.models import Job
from packhorse.core.schedules import MAX_VERSIONS, Move, Revision, Run, Schedule
from packhorse.errors import Conflict
from packhorse.store.schedules import PAGE, RUN_FIELDS, revision_from, schedule_from
from packhorse.store.sqlite.connection import Session
from packhorse.store.tolerant_reads import readable

COLUMNS = ", ".join(RUN_FIELDS)
OPEN = "status IN ('due', 'fired')"
OF = "tenant = ? AND schedule = ?"
ADD_RUN = f"INSERT INTO runs ({COLUMNS}) VALUES ({', '.join('?' for _ in RUN_FIELDS)}) ON CONFLICT DO NOTHING"
SET_RUN = f"UPDATE runs SET {', '.join(f'{name} = ?' for name in RUN_FIELDS)} WHERE {OF} AND tick = ? AND stamp = ?"
MARK = (
    "UPDATE runs SET status = ?, message = ?, job_id = ?, trace_id = ?, started_at = ?, ended_at = ?, due_at = NULL,"
    f" stamp = stamp + 1 WHERE {OF} AND tick = ?"
)
DUE = "SELECT tenant, schedule, tick FROM runs WHERE due_at <= ? ORDER BY due_at, tick LIMIT ?"
TAKE = f"UPDATE runs SET due_at = ?, stamp = stamp + 1 WHERE {OF} AND tick = ? RETURNING {COLUMNS}"


def move(db: apsw.Connection, move: Move) -> None:
    after = move.after
    row = (after.stamp, after.next_at, json.encode(after), after.tenant, after.id)
    if move.before is None:
        put = "INSERT INTO schedules (stamp, next_at, body, tenant, id) VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING"
        db.execute(put, row)
    else:
        put = "UPDATE schedules SET stamp = ?, next_at = ?, body = ? WHERE tenant = ? AND id = ? AND stamp = ?"
        db.execute(put, (*row, move.before.stamp))
    _check(db, after)
    if (revision := move.revision) is not None:
        of = (revision.tenant, revision.schedule)
        db.execute("INSERT INTO revisions VALUES (?, ?, ?, ?)", (*of, revision.version, json.encode(revision)))
        db.execute(f"DELETE FROM revisions WHERE {OF} AND version <= ?", (*of, revision.version - MAX_VERSIONS))
    for run in move.runs:
        db.execute(ADD_RUN, astuple(run))
        _check(db, after)


def schedule(db: apsw.Connection, tenant: str, id: str) -> Schedule | None:
    row = db.execute("SELECT body FROM schedules WHERE tenant = ? AND id = ?", (tenant, id)).fetchone()
    return None if row is None else schedule_from(row[0])


def schedules(db: apsw.Connection, tenant: str | None, after: tuple[str, str] | None, limit: int) -> list[Schedule]:
    query = (
        "SELECT tenant || '/' || id, body FROM schedules WHERE (?1 IS NULL OR tenant = ?1) AND (tenant, id) > (?2, ?3)"
        " ORDER BY tenant, id"
    )
    return list(islice(readable(db.execute(query, (tenant, *(after or ("", "")))), Schedule), limit))


def upcoming(db: apsw.Connection, until: float, limit: int) -> list[Schedule]:
    query = "SELECT tenant || '/' || id, body FROM schedules WHERE next_at <= ? ORDER BY next_at"
    return list(islice(readable(db.execute(query, (until,)), Schedule), limit))


def revisions(db: apsw.Connection, tenant: str, id: str, before: int | None, limit: int) -> list[Revision]:
    query = f"SELECT body FROM revisions WHERE {OF} AND version < ? ORDER BY version DESC LIMIT ?"
    most = 2**62 if before is None else before
    return [revision_from(body) for (body,) in db.execute(query, (tenant, id, most, limit))]


def runs(db: apsw.Connection, tenant: str, id: str, before: float | None, limit: int, open_only: bool) -> list[Run]:
    status = OPEN if open_only else "TRUE"
    query = f"SELECT {COLUMNS} FROM runs WHERE {OF} AND tick < ? AND {status} ORDER BY tick DESC LIMIT ?"
    most = float("inf") if before is None else before
    return [_run(row) for row in db.execute(query, (tenant, id, most, limit))]


def run(db: apsw.Connection, tenant: str, id: str, tick: float) -> Run | None:
    row = db.execute(f"SELECT {COLUMNS} FROM runs WHERE {OF} AND tick = ?", (tenant, id, tick)).fetchone()
    return None if row is None else _run(row)


def put_run(db: apsw.Connection, before: Run, after: Run) -> None:
    db.execute(SET_RUN, (*astuple(after), before.tenant, before.schedule, before.tick, before.stamp))
    if db.changes() == 0:
        raise Conflict("Somebody else has decided on this run.")


def has_due(db: apsw.Connection, now: float) -> bool:
    return db.execute(DUE, (now, 1)).fetchone() is not None


def take(db: apsw.Connection, now: float, limit: int, seconds: float) -> list[Run]:
    due = db.execute(DUE, (now, limit)).fetchall()
    return [_run(db.execute(TAKE, (now + seconds, *key)).fetchall()[0]) for key in due]


def trim_runs(db: apsw.Connection, tenant: str, id: str, older_than: float, keep: int) -> None:
    last = db.execute(f"SELECT tick FROM runs WHERE {OF} ORDER BY tick DESC LIMIT 1 OFFSET ?", (tenant, id, keep))
    crowded = last.fetchone()
    until = max(older_than, crowded[0] + 1e-6) if crowded is not None else older_than
    query = f"SELECT tick FROM runs WHERE {OF} AND tick < ? AND NOT {OPEN} ORDER BY tick LIMIT ?"
    for (tick,) in db.execute(query, (tenant, id, until, PAGE)).fetchall():
        db.execute(f"DELETE FROM runs WHERE {OF} AND tick = ?", (tenant, id, tick))


def drop(db: apsw.Connection, schedule: Schedule) -> None:
    key = (schedule.tenant, schedule.id)
    if db.execute(f"SELECT 1 FROM runs WHERE {OF} LIMIT 1", key).fetchone() is not None:
        return
    db.execute("DELETE FROM schedules WHERE tenant = ? AND id = ? AND stamp = ?", (*key, schedule.stamp))
    if db.changes() == 1:
        db.execute(f"DELETE FROM revisions WHERE {OF}", key)


def is_undecided(db: Session, job: Job, guard: RunUndecided) -> bool:
    query = f"SELECT stamp FROM runs WHERE {OF} AND tick = ?"
    return db.execute(query, (job.tenant, guard.schedule, guard.tick)).fetchone() == (guard.stamp,)


def mark(db: Session, job: Job, effect: MarkRun) -> None:
    said = (effect.status, effect.message, job.id, job.trace_id, effect.started_at, effect.ended_at)
    db.execute(MARK, (*said, job.tenant, effect.schedule, effect.tick))


def _check(db: apsw.Connection, schedule: Schedule) -> None:
    if db.changes() == 0:
        raise Conflict(f"The schedule {schedule.id} has moved on.", schedule_id=schedule.id)


def _run(row: tuple[Any, ...]) -> Run:
    found = dict(zip(RUN_FIELDS, row, strict=True))
    return Run(**{**found, "is_manual": bool(found["is_manual"])})
