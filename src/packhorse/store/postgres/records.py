"""Records and logs: compare-and-set writes, reads by id and index, taking what is due.

A write first goes out as one statement that relies on what its snapshot shows. Where that does not hold, it is repeated
under locks, taken in the order of the keys, and each write is judged in turn.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core.changes import DropRecord, NoteRecord, PutRecord
from packhorse.core.records import Drop, IndexEntry, LogEntry, Put, Record, Ref
from packhorse.errors import Conflict, InvalidInput, JobNotFound, PackhorseError
from packhorse.store import sql_files
from packhorse.store.postgres.connection import Clock, Raced, Row, Session
from packhorse.store.postgres.session import (
    Handle,
    Outdated,
    Parts,
    clean,
    columns,
    is_id,
    is_storable,
    keep,
    read,
    write_parts,
)

SQL = sql_files.load(__package__, "records")

Write = Put | Drop | NoteRecord
RecordEffect = PutRecord | NoteRecord | DropRecord

LAST = 2**63 - 1


class Records(Handle):
    async def put(self, writes: Sequence[Put | Drop], *, quiet: bool = False) -> list[int]:
        self._check_open()
        for each in writes:
            _check_names(each)
        if not writes:
            return []
        try:
            stamps = await self._put(writes, quiet=quiet)
        except Outdated:
            stamps = await self._put_locked(writes, quiet=quiet)
        if not quiet:
            self._watch.tell()
        return stamps

    @keep
    async def _put(self, session: Session, writes: Sequence[Put | Drop], *, quiet: bool) -> list[int]:
        """In one statement. Raises `Outdated` where anything of it does not hold, or it is not as simple as that."""
        refs = [_ref(each) for each in writes]
        if not all(map(is_storable, refs)):
            raise Outdated
        puts = [each for each in writes if isinstance(each, Put)]
        needs = {each.needs for each in puts if each.needs is not None}
        if len(set(refs)) < len(refs) or not needs.isdisjoint(refs) or not all(map(is_storable, needs)):
            raise Outdated
        jobs = {each.job_id for each in puts if each.job_id is not None}
        workers = {each.leaseless for each in writes if isinstance(each, Drop) and each.leaseless}
        if not all(map(is_id, jobs)):
            raise Outdated
        parts: Parts = {}
        counts: dict[str, int] = {}
        for name, values, count in (
            ("record_jobs", [sorted(jobs)], len(jobs)),
            ("record_needs", columns(sorted(needs)), len(needs)),
            ("record_leases", [sorted(workers)], 0),
        ):
            if any(values):
                parts[name], counts[name] = values, count
        written, expected = _parts(writes)
        parts |= written
        if not quiet:
            parts["woken"] = []
        found = await write_parts(session, parts, self._clock, counts | expected, is_last=True)
        stamps = dict.fromkeys(refs, 0)
        if found is not None and puts:
            stamps |= dict(zip(sorted(map(_ref, puts)), found["record_puts"], strict=True))
        return [stamps[ref] for ref in refs]

    @keep
    async def _put_locked(self, session: Session, writes: Sequence[Put | Drop], *, quiet: bool) -> list[int]:
        """The same under locks, to say what does not hold."""
        held = await _hold(session, writes)
        stamps = []
        for each in writes:
            error = held.refusal(each)
            if error is not None:
                raise error
            stamps.append(held.add(each))
        await held.write(session, self._clock, {} if quiet else {"woken": []})
        return stamps

    @read
    async def fetch(self, session: Session, kind: str, ids: Sequence[str]) -> list[Record | None]:
        asked = [id for id in dict.fromkeys(ids) if is_storable([id])]
        found = {row["id"]: Record(*row) for row in await session.fetch(SQL.fetch, kind, asked)} if asked else {}
        return [found.get(id) for id in ids]

    @read
    async def scan(
        self,
        session: Session,
        kind: str,
        index: str,
        *,
        after: str = "",
        before: str | None = None,
        limit: int = 50,
        newest: bool = False,
    ) -> list[Record]:
        if not is_storable([index]):
            return []
        asked = (kind, index, clean(after), limit)
        if before is None:
            found = await session.fetch(SQL.newest_after if newest else SQL.oldest_after, *asked)
        else:
            query = SQL.newest_between if newest else SQL.oldest_between
            found = await session.fetch(query, *asked, clean(before))
        return [Record(*row) for row in found]

    async def take(self, kind: str, lane: str, limit: int, seconds: float) -> list[Record]:
        """Look first: a taker that finds nothing, as most do, need not begin a transaction."""
        return await self._take(kind, lane, limit, seconds) if await self._has_due(kind, lane) else []

    @read
    async def _has_due(self, session: Session, kind: str, lane: str) -> bool:
        return await session.row(SQL.has_due, self._clock.parameter(), kind, lane) is not None

    @keep
    async def _take(self, session: Session, kind: str, lane: str, limit: int, seconds: float) -> list[Record]:
        found = await session.whole(SQL.take, self._clock.parameter(), kind, lane, limit, seconds)
        return [Record(*record) for *record, _ in sorted(found, key=lambda row: (row["was_due"], row["id"]))]

    async def append(self, log: str, entries: Sequence[LogEntry], *, keep: int, since: float = 0.0) -> None:
        if entries:
            await self._append(log, entries, keep, since)

    @keep
    async def _append(self, session: Session, log: str, entries: Sequence[LogEntry], keep: int, since: float) -> None:
        bodies, topics = [entry.body for entry in entries], [clean(entry.topic) for entry in entries]
        await session.whole(SQL.append, log, bodies, topics, [entry.at for entry in entries], keep, since)

    @read
    async def tail(
        self, session: Session, log: str, *, topic: str = "", before: int | None = None, limit: int = 50
    ) -> list[LogEntry]:
        most = LAST if before is None else before
        if topic:
            found = await session.fetch(SQL.tail_topic, log, most, limit, clean(topic))
        else:
            found = await session.fetch(SQL.tail, log, most, limit)
        return [LogEntry(*row) for row in found]


async def apply(session: Session, effects: Sequence[RecordEffect], jobs: Collection[str], clock: Clock) -> None:
    """Make the effects of a commit under locks, without those that do not hold. ``jobs`` are there."""
    writes = [_write_of(effect) for effect in effects]
    held = await _hold(session, writes, jobs)
    for each in writes:
        if held.refusal(each) is None:
            held.add(each)
    await held.write(session, clock, {})


def parts_of(effects: Sequence[RecordEffect], jobs: Collection[str]) -> tuple[Parts, dict[str, int]] | None:
    """The effects as parts of the commit's own statement: new records and notes. None if there is anything else."""
    adds: dict[Ref, Put] = {}
    notes: dict[Ref, NoteRecord] = {}
    for effect in effects:
        if isinstance(effect, NoteRecord):
            notes[effect.ref] = effect
        elif isinstance(effect, PutRecord) and effect.put.stamp == 0 and _ref(effect.put) not in adds:
            adds[_ref(effect.put)] = effect.put
        else:
            return None
    needs = {each.needs for each in adds.values() if each.needs is not None}
    if not adds.keys().isdisjoint(notes) or not adds.keys().isdisjoint(needs):
        return None
    if any(each.job_id is not None and each.job_id not in jobs for each in adds.values()):
        return None
    if not all(map(is_storable, needs)):
        return None
    parts: Parts = {}
    if adds:
        parts["add_needs"] = columns(sorted(needs)) or [[], []]
        parts["record_adds"] = columns(
            (*ref, each.body, each.lane, each.due_at, each.attempts, each.job_id, *(each.needs or _NOTHING))
            for ref, each in sorted(adds.items())
        )
        parts["add_entries"] = _entries((ref, each.index) for ref, each in adds.items())
    written, counts = _note_parts(sorted(notes.items()))
    return parts | written, counts


async def lock(session: Session, refs: Collection[Ref], missing: Collection[Ref]) -> dict[Ref, int]:
    """The stamps of these records, which stay so until the transaction ends; 0 for one that is not there.

    Of those that are expected to be ``missing`` that holds, too.
    """
    found = {}
    refs = [ref for ref in refs if is_storable(ref)]
    missing = [ref for ref in missing if is_storable(ref)]
    there = sorted(set(refs).difference(missing))
    if there:
        found = _stamps(await session.fetch(SQL.lock, *columns(there)))
    if missing:
        found |= _stamps(await session.fetch(SQL.reserve, *columns(sorted(missing))))
        await session.fetch(SQL.unreserve, *columns(sorted(missing)))
    return found


async def drop_of_job(session: Session, job_id: str) -> None:
    gone = await session.fetch(SQL.drop_of_job, job_id)
    if gone:  # a statement of its own: it sees what was written while we waited for the records
        await session.fetch(SQL.drop_entries, *columns(tuple(row) for row in gone))


_NOTHING = (None, None)


class _Held:
    """Records as they are now, and what is to be written of them."""

    def __init__(self, stamps: dict[Ref, int], jobs: set[str], busy: set[str]) -> None:
        self._stamps = stamps
        self._jobs = jobs
        self._busy = busy
        self._rounds: list[list[Write]] = []
        """A statement writes a record once, so later writes of it go out in another."""
        self._count: dict[Ref, int] = {}

    def refusal(self, each: Write) -> PackhorseError | None:
        ref = _ref(each)
        stamp = self._stamps.get(ref, 0)
        match each:
            case Put(needs=needs, job_id=job_id):
                if job_id is not None and job_id not in self._jobs:
                    return JobNotFound(job_id=job_id)
                holds = each.stamp in (None, stamp) and (needs is None or self._stamps.get(needs, 0) > 0)
            case Drop(leaseless=worker):
                holds = each.stamp in (None, stamp) and worker not in self._busy
            case _:
                holds = stamp > 0
        return None if holds else Conflict(f"The {ref.kind} was changed in the meantime.", kind=ref.kind, id=ref.id)

    def add(self, each: Write) -> int:
        """Write it, too; returns its stamp afterwards."""
        ref = _ref(each)
        stamp = self._stamps.get(ref, 0)
        if isinstance(each, Drop) and stamp == 0:
            return 0
        n = self._count[ref] = self._count.get(ref, -1) + 1
        if n == len(self._rounds):
            self._rounds.append([])
        self._rounds[n].append(each if isinstance(each, NoteRecord) else replace(each, stamp=stamp))
        self._stamps[ref] = 0 if isinstance(each, Drop) else stamp + 1
        return self._stamps[ref]

    async def write(self, session: Session, clock: Clock, beside: Parts) -> None:
        for n, writes in enumerate(self._rounds):
            parts, counts = _parts(writes)
            try:
                await write_parts(session, parts | (beside if n == 0 else {}), clock, counts)
            except Outdated as error:  # somebody else has just added what was not there
                raise Raced from error


async def _hold(session: Session, writes: Sequence[Write], jobs: Collection[str] = ()) -> _Held:
    puts = [each for each in writes if isinstance(each, Put)]
    asked = sorted({each.job_id for each in puts if each.job_id is not None and is_id(each.job_id)}.difference(jobs))
    found = {str(id) for (id,) in await session.fetch(SQL.lock_jobs, asked)} if asked else set()
    refs = {_ref(each) for each in writes} | {each.needs for each in puts if each.needs is not None}
    asked_refs = sorted(filter(is_storable, refs))
    workers = sorted({each.leaseless for each in writes if isinstance(each, Drop) and each.leaseless})
    stamps = _stamps(await session.fetch(SQL.lock, *columns(asked_refs))) if asked_refs else {}
    busy = {worker for (worker,) in await session.fetch(SQL.busy_workers, workers)} if workers else set()
    return _Held(stamps, found | set(jobs), busy)


def _parts(writes: Sequence[Write]) -> tuple[Parts, dict[str, int]]:
    """What to write of records that are all different, and how many rows that must be."""
    puts = sorted((_ref(each), each) for each in writes if isinstance(each, Put))
    drops = sorted((_ref(each), each.stamp) for each in writes if isinstance(each, Drop))
    parts: Parts = {}
    counts: dict[str, int] = {}
    if puts:
        parts["record_news"] = columns(
            (*ref, each.body, each.stamp, each.lane, each.due_at, each.attempts, each.job_id) for ref, each in puts
        )
        parts["record_puts"] = []
        counts["record_puts"] = len(puts)
    if drops:
        parts["record_gone"] = columns((*ref, stamp) for ref, stamp in drops)
        parts["record_drops"] = []
        counts["record_drops"] = sum(stamp is not None for _, stamp in drops)
    if puts or drops:
        parts["index_news"] = _entries((ref, each.index) for ref, each in puts)
        parts["index_drops"] = columns(sorted([*(ref for ref, _ in puts), *(ref for ref, _ in drops)]))
        parts["index_puts"] = []
    notes, expected = _note_parts(sorted((each.ref, each) for each in writes if isinstance(each, NoteRecord)))
    return parts | notes, counts | expected


def _note_parts(notes: Sequence[tuple[Ref, NoteRecord]]) -> tuple[Parts, dict[str, int]]:
    if not notes:
        return {}, {}
    parts: Parts = {
        "record_noted": columns((*ref, each.note) for ref, each in notes),
        "record_notes": [],
        "note_news": _entries((ref, each.index) for ref, each in notes),
        "note_drops": [],
        "note_puts": [],
    }
    return parts, {"record_notes": 0}


def _entries(indexed: Iterable[tuple[Ref, Iterable[IndexEntry]]]) -> list[Sequence[Any]]:
    found = sorted({(ref.kind, entry.name, entry.place, ref.id) for ref, index in indexed for entry in index})
    return columns(found) or [[], [], [], []]


def _stamps(found: Iterable[Row]) -> dict[Ref, int]:
    return {Ref(kind, id): stamp for kind, id, stamp in found}


def _ref(each: Write) -> Ref:
    return each.ref if isinstance(each, NoteRecord) else Ref(each.kind, each.id)


def _write_of(effect: RecordEffect) -> Write:
    match effect:
        case PutRecord(put):
            return put
        case DropRecord(ref):
            return Drop(ref.kind, ref.id)
    return effect


def _check_names(each: Write) -> None:
    """Names that PostgreSQL cannot hold. They are not replaced, for that would make one name of two."""
    if isinstance(each, Drop):
        return
    lane = each.lane if isinstance(each, Put) else ""
    for name in (*_ref(each), lane, *(part for entry in each.index for part in entry)):
        if not is_storable([name]):
            raise InvalidInput(f"{name!r} has a character in it that cannot be stored.")


def ref_of(effect: RecordEffect) -> Ref:
    return _ref(_write_of(effect))


def check_effect(effect: RecordEffect) -> None:
    _check_names(_write_of(effect))
