"""What went wrong: failures, counted in their groups in the step that brings or takes them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import apsw
from msgspec.structs import replace

from packhorse.core import failures as rules
from packhorse.core import json
from packhorse.core.changes import SettleFailures
from packhorse.core.failures import new_alert, put_action
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.store.failures import FailureFilter, FailureGroup, Recent
from packhorse.store.sqlite import records

READ = "SELECT body, status, settled, is_counted FROM failures"
PUT = "INSERT INTO failures VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, NULL, ?)"
PUT_GROUP = """
INSERT INTO failure_groups VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET seen = excluded.seen, body = excluded.body
"""
PUT_USER = """
INSERT INTO failure_users VALUES (?, ?, ?, 1) ON CONFLICT DO UPDATE SET count = count + 1
"""
ONE_USER = "tenant = ? AND fingerprint = ? AND user = ?"


def record(db: apsw.Connection, failure: FailedRun) -> None:
    user = (failure.tenant, failure.fingerprint, failure.user)
    is_known = db.execute(f"SELECT 1 FROM failure_users WHERE {ONE_USER}", user).fetchone() is not None
    before = group(db, failure.tenant, failure.fingerprint)
    after, is_counted, alert = rules.add_to_group(before, failure, is_known=is_known)
    if is_counted:
        db.execute(PUT_USER, user)
    _put_group(db, after)
    row = (
        failure.id, failure.tenant, failure.fingerprint, failure.job_id, failure.user, failure.pipeline, failure.code,
        failure.schedule, failure.status.value, is_counted, json.encode(failure),
    )  # fmt: skip
    db.execute(PUT, row)
    if alert is not None:
        records.put_if_possible(db, put_action(new_alert(failure, alert)))


def settle(db: apsw.Connection, job_id: str, effect: SettleFailures) -> None:
    found = db.execute(f"{READ} WHERE job_id = ? AND status = ?", (job_id, effect.was.value)).fetchall()
    for failure, _ in map(_read, found):
        _move(db, failure, effect.now, effect.settled or failure.settled)


def dismiss(
    db: apsw.Connection, ids: Sequence[str], settled: Settled, whole: tuple[str, str] | None = None
) -> list[str]:
    done = []
    for failure in by_id(db, list(dict.fromkeys(ids))):
        if failure.status is FailureStatus.OPEN:
            _move(db, failure, FailureStatus.DISMISSED, settled)
            done.append(failure.id)
    held = None if whole is None else group(db, *whole)
    if held is not None:
        _put_group(db, replace(held, dismissal=settled))
    return done


def _move(db: apsw.Connection, failure: FailedRun, to: FailureStatus, settled: Settled | None) -> None:
    put = "UPDATE failures SET status = ?, settled = ? WHERE id = ?"
    db.execute(put, (to.value, json.encode(settled), failure.id))
    held = group(db, failure.tenant, failure.fingerprint)
    if held is not None:
        _put_group(db, rules.move_in_group(held, failure.status, to))


def has_older(db: apsw.Connection, until: float) -> bool:
    return db.execute("SELECT 1 FROM failures WHERE id < ? LIMIT 1", (rules.first_id(until),)).fetchone() is not None


def forget(db: apsw.Connection, until: float, limit: int) -> int:
    found = db.execute(f"{READ} WHERE id < ? ORDER BY id LIMIT ?", (rules.first_id(until), limit)).fetchall()
    for failure, is_counted in map(_read, found):
        db.execute("DELETE FROM failures WHERE id = ?", (failure.id,))
        _leave(db, failure, is_counted=is_counted)
    return len(found)


def _leave(db: apsw.Connection, failure: FailedRun, *, is_counted: bool) -> None:
    user = (failure.tenant, failure.fingerprint, failure.user)
    is_last = False
    if is_counted:
        db.execute(f"DELETE FROM failure_users WHERE {ONE_USER} AND count = 1", user)
        is_last = db.changes() == 1
        if not is_last:
            db.execute(f"UPDATE failure_users SET count = count - 1 WHERE {ONE_USER}", user)
    held = group(db, failure.tenant, failure.fingerprint)
    less = None if held is None else rules.remove_from_group(held, failure, is_counted=is_counted, is_last=is_last)
    if less is None:
        db.execute("DELETE FROM failure_groups WHERE tenant = ? AND fingerprint = ?", user[:2])
    else:
        _put_group(db, less)


def _put_group(db: apsw.Connection, group: FailureGroup) -> None:
    db.execute(PUT_GROUP, (group.tenant, group.fingerprint, group.seen, json.encode(group)))


# Asked


def find(db: apsw.Connection, wanted: FailureFilter, before: str | None, limit: int) -> list[FailedRun]:
    clauses, values = zip(*_where(wanted, before), strict=True)
    query = f"{READ} WHERE {' AND '.join(clauses)} ORDER BY id DESC LIMIT ?"
    return [_read(row)[0] for row in db.execute(query, (*values, limit))]


def _where(wanted: FailureFilter, before: str | None) -> Iterator[tuple[str, Any]]:
    yield "tenant = ?", wanted.tenant
    for name in ("fingerprint", "job_id", "user", "pipeline", "code", "status", "schedule"):
        value = getattr(wanted, name)
        if value is not None:
            yield f"{name} = ?", str(value)
    if before is not None:
        yield "id < ?", before
    if wanted.since is not None:
        yield "id >= ?", rules.first_id(wanted.since)
    if wanted.until is not None:
        yield "id < ?", rules.first_id(wanted.until)


def by_id(db: apsw.Connection, ids: Sequence[str]) -> list[FailedRun]:
    rows = [db.execute(f"{READ} WHERE id = ?", (id,)).fetchone() for id in ids]
    return [_read(row)[0] for row in rows if row is not None]


def groups(
    db: apsw.Connection,
    tenant: str,
    fingerprints: Sequence[str] | None,
    before: str | None,
    limit: int,
    recent: Recent | None,
) -> list[FailureGroup]:
    if fingerprints is not None:
        found = [each for name in fingerprints if (each := group(db, tenant, name)) is not None]
    else:
        query = "SELECT body FROM failure_groups WHERE tenant = ? AND seen < ? ORDER BY seen DESC LIMIT ?"
        page = db.execute(query, (tenant, "~" if before is None else before, limit))
        found = [json.record(body, FailureGroup) for (body,) in page]
    return found if recent is None else [replace(each, times=_times(db, each, recent)) for each in found]


def _times(db: apsw.Connection, group: FailureGroup, recent: Recent) -> tuple[float, ...]:
    """From the index alone."""
    query = "SELECT id FROM failures WHERE tenant = ? AND fingerprint = ? AND id >= ? ORDER BY id DESC LIMIT ?"
    wanted = (group.tenant, group.fingerprint, rules.first_id(recent.since), recent.limit)
    return tuple(rules.time_of(id) for (id,) in db.execute(query, wanted))


def group(db: apsw.Connection, tenant: str, fingerprint: str) -> FailureGroup | None:
    query = "SELECT body FROM failure_groups WHERE tenant = ? AND fingerprint = ?"
    row = db.execute(query, (tenant, fingerprint)).fetchone()
    return None if row is None else json.record(row[0], FailureGroup)


def _read(row: Sequence[Any]) -> tuple[FailedRun, bool]:
    body, status, settled, is_counted = row
    became = None if settled is None else json.record(settled, Settled)
    return replace(json.record(body, FailedRun), status=FailureStatus(status), settled=became), bool(is_counted)
