"""Records and logs: everything the store keeps beside jobs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from packhorse.core.records import Drop, IndexEntry, LogEntry, Put, Record, Ref
from packhorse.errors import Conflict, JobNotFound, PackhorseError
from packhorse.store import sql_files
from packhorse.store.sqlite.connection import Session
from packhorse.store.sqlite.session import Handle, read, write

SQL = sql_files.load(__package__, "records")

LAST = 2**62
"""Above every number of a log."""
TRIMMED = 100
"""Old entries of a log that an append looks at, beside as many as it adds."""


class Records(Handle):
    @write
    def put(self, db: Session, writes: Sequence[Put | Drop], *, quiet: bool = False) -> list[int]:  # noqa: ARG002
        """Watchers look at the file, so they also wake for what is quiet."""
        return [_put(db, each) if isinstance(each, Put) else _drop(db, each) for each in writes]

    @read
    def fetch(self, db: Session, kind: str, ids: Sequence[str]) -> list[Record | None]:
        found = (db.execute(SQL.fetch, (kind, id)).fetchone() for id in ids)
        return [None if row is None else Record(*row) for row in found]

    @read
    def scan(
        self,
        db: Session,
        kind: str,
        index: str,
        *,
        after: str = "",
        before: str | None = None,
        limit: int = 50,
        newest: bool = False,
    ) -> list[Record]:
        if before is None:
            query = SQL.newest_after if newest else SQL.oldest_after
            found = db.execute(query, (kind, index, after, limit))
        else:
            query = SQL.newest_between if newest else SQL.oldest_between
            found = db.execute(query, (kind, index, after, before, limit))
        return [Record(*row) for row in found]

    async def take(self, kind: str, lane: str, limit: int, seconds: float) -> list[Record]:
        """Look first: a taker that finds nothing, as most do, need not wait for the one writer."""
        return await self._take(kind, lane, limit, seconds) if await self._has_due(kind, lane) else []

    @read
    def _has_due(self, db: Session, kind: str, lane: str) -> bool:
        return db.execute(SQL.due, (kind, lane, self.now(), 1)).fetchone() is not None

    @write
    def _take(self, db: Session, kind: str, lane: str, limit: int, seconds: float) -> list[Record]:
        now = self.now()
        due = db.execute(SQL.due, (kind, lane, now, limit)).fetchall()
        return [Record(*db.row(SQL.take, (now + seconds, kind, id))) for (id,) in due]

    @write
    def append(self, db: Session, log: str, entries: Sequence[LogEntry], *, keep: int, since: float = 0.0) -> None:
        if not entries:
            return
        [last] = db.row(SQL.advance_log, (log, len(entries)))
        topics = Counter(entry.topic for entry in entries)
        ends = {topic: db.row(SQL.advance_topic, (log, topic, count))[0] for topic, count in topics.items()}
        for n, entry in enumerate(entries, last - len(entries) + 1):
            nth = ends[entry.topic] - topics[entry.topic] + 1
            topics[entry.topic] -= 1
            db.execute(SQL.append, (log, n, entry.topic, nth, entry.at, entry.body))
        window = len(entries) + TRIMMED
        for topic, end in ends.items():
            db.execute(SQL.trim_topic, (log, topic, window, end - keep))
        db.execute(SQL.trim_old, (log, window, since))

    @read
    def tail(
        self, db: Session, log: str, *, topic: str = "", before: int | None = None, limit: int = 50
    ) -> list[LogEntry]:
        end = LAST if before is None else before
        if topic:
            found = db.execute(SQL.tail_topic, (log, topic, end, limit))
        else:
            found = db.execute(SQL.tail, (log, end, limit))
        return [LogEntry(*row) for row in found]


def put_if_possible(db: Session, each: Put) -> None:
    """Write it, or nothing where its stamp, its job or the record it needs is not what it must be."""
    if _refusal(db, each) is None:
        _write(db, each)


def note(db: Session, ref: Ref, text: bytes, index: Sequence[IndexEntry]) -> None:
    db.execute(SQL.note, (text, *ref))
    if db.changes():
        _list(db, ref, index)


def drop(db: Session, ref: Ref) -> None:
    db.execute(SQL.drop, ref)
    if db.changes():
        db.execute(SQL.unlist, ref)


def drop_of_job(db: Session, job_id: str) -> None:
    for kind, id in db.execute(SQL.of_job, (job_id,)).fetchall():
        drop(db, Ref(str(kind), str(id)))


def stamp(db: Session, ref: Ref) -> int:
    """0 if there is no such record."""
    row = db.execute(SQL.stamp, ref).fetchone()
    return 0 if row is None else int(row[0])


def _refusal(db: Session, each: Put) -> PackhorseError | None:
    if each.job_id is not None and db.execute(SQL.has_job, (each.job_id,)).fetchone() is None:
        return JobNotFound(job_id=each.job_id)
    if each.needs is not None and not stamp(db, each.needs):
        return Conflict(f"There is no {each.needs.kind} {each.needs.id}.", kind=each.kind, id=each.id)
    return None if each.stamp is None else _wrong_stamp(db, each, each.stamp)


def _wrong_stamp(db: Session, each: Put | Drop, expected: int) -> Conflict | None:
    found = stamp(db, Ref(each.kind, each.id))
    if found == expected:
        return None
    message = f"The {each.kind} {each.id} has stamp {found}, not {expected}."
    return Conflict(message, kind=each.kind, id=each.id)


def _put(db: Session, each: Put) -> int:
    error = _refusal(db, each)
    if error is not None:
        raise error
    return _write(db, each)


def _write(db: Session, each: Put) -> int:
    row = (each.kind, each.id, each.body, each.lane, each.due_at, each.attempts, each.job_id)
    stamp: int
    [stamp] = db.row(SQL.put, row)
    _list(db, Ref(each.kind, each.id), each.index, is_new=stamp == 1)
    return stamp


def _list(db: Session, ref: Ref, index: Sequence[IndexEntry], *, is_new: bool = False) -> None:
    """Replace the index entries, writing only those that differ."""
    had = set() if is_new else {IndexEntry(str(name), str(place)) for name, place in db.execute(SQL.entries, ref)}
    wanted = set(index)
    for entry in had - wanted:
        db.execute(SQL.unlist_at, (*ref, *entry))
    for entry in wanted - had:
        db.execute(SQL.list_at, (*ref, *entry))


def _drop(db: Session, each: Drop) -> int:
    if each.leaseless and db.execute(SQL.has_lease, (each.leaseless,)).fetchone() is not None:
        message = f"The worker {each.leaseless} still holds a lease."
        raise Conflict(message, kind=each.kind, id=each.id)
    error = None if each.stamp is None else _wrong_stamp(db, each, each.stamp)
    if error is not None:
        raise error
    drop(db, Ref(each.kind, each.id))
    return 0
