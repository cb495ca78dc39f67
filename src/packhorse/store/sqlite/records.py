"""Records and logs: everything the store keeps beside jobs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import apsw

from packhorse.core.records import Drop, IndexEntry, LogEntry, Put, Record, Ref
from packhorse.errors import Conflict, JobNotFound, PackhorseError
from packhorse.store import sql_files

SQL = sql_files.load(__package__, "records")

LAST = 2**62
"""Above every number of a log."""


def put(db: apsw.Connection, writes: Sequence[Put | Drop]) -> list[int]:
    return [_put(db, write) if isinstance(write, Put) else _drop(db, write) for write in writes]


def put_if_possible(db: apsw.Connection, write: Put) -> None:
    """Write it, or nothing where its stamp, its job or the record it needs is not what it must be."""
    if refusal(db, write) is None:
        _write(db, write)


def note(db: apsw.Connection, ref: Ref, text: bytes, index: Sequence[IndexEntry]) -> None:
    db.execute(SQL.note, (text, *ref))
    if db.changes():
        _list(db, ref, index)


def drop(db: apsw.Connection, ref: Ref) -> None:
    db.execute(SQL.drop, ref)
    if db.changes():
        db.execute(SQL.unlist, ref)


def drop_of_job(db: apsw.Connection, job_id: str) -> None:
    for kind, id in db.execute(SQL.of_job, (job_id,)).fetchall():
        drop(db, Ref(str(kind), str(id)))


def stamp(db: apsw.Connection, ref: Ref) -> int:
    """0 if there is no such record."""
    row = db.execute(SQL.stamp, ref).fetchone()
    return 0 if row is None else int(row[0])


def refusal(db: apsw.Connection, write: Put) -> PackhorseError | None:
    if write.job_id is not None and db.execute(SQL.has_job, (write.job_id,)).fetchone() is None:
        return JobNotFound(job_id=write.job_id)
    if write.needs is not None and not stamp(db, write.needs):
        return Conflict(f"There is no {write.needs.kind} {write.needs.id}.", kind=write.kind, id=write.id)
    return None if write.stamp is None else _wrong_stamp(db, write, write.stamp)


def _wrong_stamp(db: apsw.Connection, write: Put | Drop, expected: int) -> Conflict | None:
    found = stamp(db, Ref(write.kind, write.id))
    if found == expected:
        return None
    message = f"The {write.kind} {write.id} has stamp {found}, not {expected}."
    return Conflict(message, kind=write.kind, id=write.id)


def _put(db: apsw.Connection, write: Put) -> int:
    error = refusal(db, write)
    if error is not None:
        raise error
    return _write(db, write)


def _write(db: apsw.Connection, write: Put) -> int:
    row = (write.kind, write.id, write.body, write.lane, write.due_at, write.attempts, write.job_id)
    stamp = _number(db, SQL.put, row)
    _list(db, Ref(write.kind, write.id), write.index, is_new=stamp == 1)
    return stamp


def _list(db: apsw.Connection, ref: Ref, index: Sequence[IndexEntry], *, is_new: bool = False) -> None:
    """Replace the index entries, writing only those that differ."""
    had = set() if is_new else {IndexEntry(str(name), str(place)) for name, place in db.execute(SQL.entries, ref)}
    wanted = set(index)
    for entry in had - wanted:
        db.execute(SQL.unlist_at, (*ref, *entry))
    for entry in wanted - had:
        db.execute(SQL.list_at, (*ref, *entry))


def _drop(db: apsw.Connection, write: Drop) -> int:
    if write.leaseless and db.execute(SQL.has_lease, (write.leaseless,)).fetchone() is not None:
        message = f"The worker {write.leaseless} still holds a lease."
        raise Conflict(message, kind=write.kind, id=write.id)
    error = None if write.stamp is None else _wrong_stamp(db, write, write.stamp)
    if error is not None:
        raise error
    drop(db, Ref(write.kind, write.id))
    return 0


def fetch(db: apsw.Connection, kind: str, ids: Sequence[str]) -> list[Record | None]:
    found = (db.execute(SQL.fetch, (kind, id)).fetchone() for id in ids)
    return [None if row is None else _record(row) for row in found]


def scan(
    db: apsw.Connection, kind: str, index: str, after: str, before: str | None, limit: int, newest: bool
) -> list[Record]:
    if before is None:
        query = SQL.newest_after if newest else SQL.oldest_after
        found = db.execute(query, (kind, index, after, limit))
    else:
        query = SQL.newest_between if newest else SQL.oldest_between
        found = db.execute(query, (kind, index, after, before, limit))
    return [_record(row) for row in found]


def has_due(db: apsw.Connection, kind: str, lane: str, now: float) -> bool:
    return db.execute(SQL.due, (kind, lane, now, 1)).fetchone() is not None


def take(db: apsw.Connection, kind: str, lane: str, limit: int, now: float, seconds: float) -> list[Record]:
    due = db.execute(SQL.due, (kind, lane, now, limit)).fetchall()
    return [_record(db.execute(SQL.take, (now + seconds, kind, id)).fetchall()[0]) for (id,) in due]


def append(db: apsw.Connection, log: str, entries: Sequence[LogEntry], keep: int) -> None:
    if not entries:
        return
    last = _number(db, SQL.advance_log, (log, len(entries)))
    for n, entry in enumerate(entries, last - len(entries) + 1):
        db.execute(SQL.append, (log, n, entry.topic, entry.body))
    db.execute(SQL.trim_log, (log, last - keep))


def tail(db: apsw.Connection, log: str, topic: str, before: int | None, limit: int) -> list[LogEntry]:
    end = LAST if before is None else before
    found = db.execute(SQL.tail_topic, (log, topic, end, limit)) if topic else db.execute(SQL.tail, (log, end, limit))
    return [LogEntry(bytes(body), str(topic), int(n)) for body, topic, n in found]


def _number(db: apsw.Connection, statement: str, bindings: tuple[Any, ...]) -> int:
    """What a statement returns that writes one row. Read to its end, which is when SQLite has written it."""
    [(number,)] = db.execute(statement, bindings).fetchall()
    assert isinstance(number, int)
    return number


def _record(row: Sequence[Any]) -> Record:
    return Record(*row)
