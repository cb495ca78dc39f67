"""Leases over time, sweeps, purge, and who is there."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import apsw

from packhorse.core.models import Job, TaskId
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.store.base import Lease, Renewal
from packhorse.store.sqlite import records, rows
from packhorse.store.sqlite.rows import COLUMNS, Plans

FEED = 10_000
"""Transactions kept in the feed for watchers that are a little behind; who is further behind looks at everything."""

PER_JOB = ("specs", "results", "events", "leases", "progress", "log", "log_size", "samples")


def renew(db: apsw.Connection, leases: Sequence[Lease], until: float) -> Renewal:
    for lease in leases:
        db.execute(
            "UPDATE leases SET until = ? WHERE job_id = ? AND stage = ? AND element = ? AND token = ?",
            (until, lease.job_id, *lease.task, lease.token),
        )
    return standing(db, leases)


def standing(db: apsw.Connection, leases: Sequence[Lease]) -> Renewal:
    lost, stopping = set(), set()
    query = (
        "SELECT jobs.is_stopping FROM leases JOIN jobs ON jobs.id = leases.job_id"
        " WHERE job_id = ? AND stage = ? AND element = ? AND token = ?"
    )
    for lease in leases:
        row = db.execute(query, (lease.job_id, *lease.task, lease.token)).fetchone()
        if row is None:
            lost.add(lease)
        elif row[0]:
            stopping.add(lease)
    return Renewal(frozenset(lost), frozenset(stopping))


def overdue(db: apsw.Connection, now: float, limit: int, plans: Plans) -> list[tuple[Job, TaskId]]:
    return _leased(db, "until <= ? ORDER BY until", now, limit, plans)


def held_by(db: apsw.Connection, worker: str, limit: int, plans: Plans) -> list[tuple[Job, TaskId]]:
    return _leased(db, "worker = ? ORDER BY until", worker, limit, plans)


def _leased(db: apsw.Connection, where: str, value: float | str, limit: int, plans: Plans) -> list[tuple[Job, TaskId]]:
    found: list[tuple[Job, TaskId]] = []
    for job_id, stage, element in db.execute(f"SELECT job_id, stage, element FROM leases WHERE {where}", (value,)):
        if len(found) == limit:
            break
        with suppress(CorruptRecord, SchemaTooNew):  # a sweep goes round what we cannot read; who asks for it is told
            job = rows.read(db, str(job_id), plans)
            if job is not None:
                found.append((job, TaskId(str(stage), int(element))))
    return found


def expired(db: apsw.Connection, now: float, limit: int, plans: Plans) -> list[Job]:
    return _jobs(db, "deadline_at <= ? AND NOT is_stopping ORDER BY deadline_at", (now,), limit, plans)


def purgeable(db: apsw.Connection, now: float, limit: int, plans: Plans) -> list[Job]:
    """Begun purges first, whatever the time: the clock that decided them may have been ahead of this one."""
    begun = _jobs(db, "is_purging ORDER BY id", (), limit, plans)
    return begun + _jobs(db, "purge_at <= ? AND NOT is_purging ORDER BY purge_at", (now,), limit - len(begun), plans)


def littered(db: apsw.Connection, limit: int, plans: Plans) -> list[Job]:
    return _jobs(db, "has_litter AND completed_at IS NOT NULL AND NOT is_purging ORDER BY id", (), limit, plans)


def _jobs(db: apsw.Connection, where: str, bindings: tuple[float, ...], limit: int, plans: Plans) -> list[Job]:
    found: list[Job] = []
    for row in db.execute(f"SELECT {COLUMNS} FROM jobs WHERE {where}", bindings):
        if len(found) == limit:
            break
        with suppress(CorruptRecord, SchemaTooNew):  # as above
            found.append(rows.job_from(db, row, plans))
    return found


def erase(db: apsw.Connection, job_id: str) -> None:
    db.execute("DELETE FROM jobs WHERE id = ? AND is_purging", (job_id,))
    if db.changes() == 0:
        return
    db.execute("DELETE FROM idempotency WHERE key = (SELECT idempotency_key FROM specs WHERE job_id = ?)", (job_id,))
    for table in PER_JOB:
        db.execute(f"DELETE FROM {table} WHERE job_id = ?", (job_id,))
    records.drop_of_job(db, job_id)


def trim(db: apsw.Connection) -> None:
    db.execute("DELETE FROM feed WHERE seq <= (SELECT max(seq) FROM feed) - ?", (FEED,))
