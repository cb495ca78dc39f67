"""Claiming: pick what is most urgent, let the lifecycle decide, commit, and hand over all an attempt needs."""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any, Literal

import apsw
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.models import Job, Result, Spec, TaskId
from packhorse.errors import CorruptRecord, PackhorseError, SchemaTooNew
from packhorse.log import log
from packhorse.store.base import Claim, Decide
from packhorse.store.sqlite import reads, rows
from packhorse.store.sqlite.commit import READY, SQL, Entry, write
from packhorse.store.sqlite.connection import Session
from packhorse.store.sqlite.rows import Plans

PROMOTE = 1000
"""Delayed entries made ready per transaction at most: what is left is found by the next."""
PASSED = 1000
"""Entries of a newer packhorse that a claim looks past: it holds the write lock meanwhile."""

ORDER = "rank, job_id, stage, element"
AFTER = f"queue = ? AND kind = ? AND ({ORDER}) > (?, ?, ?, ?)"
WALK = f"SELECT {READY[1:-1]} FROM ready WHERE {AFTER} ORDER BY {ORDER} LIMIT ?"
FIRST = (-(2**63), "", "", 0)

BEFORE = f"queue = ? AND kind = ? AND ({ORDER}) < (?, ?, ?, ?)"
COUNT = f"SELECT count(*) FROM (SELECT 1 FROM ready WHERE {BEFORE} LIMIT ?)"
READY_OF = "SELECT count(*) FROM (SELECT 1 FROM ready WHERE queue = ? AND kind = ? LIMIT ?)"
NEXT_KIND = "SELECT kind FROM ready WHERE queue = ? AND kind > ? ORDER BY kind LIMIT 1"
DELAYED = f"SELECT count(*) FROM delayed WHERE not_before <= ? AND queue = ? AND ({ORDER}) < (?, ?, ?, ?)"
"""What was delayed until now and not claimed since: little, unless nobody serves the queue."""

LEFT: Literal["left"] = "left"

Jobs = dict[str, tuple[Job, bytes | None]]
"""Jobs as the tasks started so far leave them, each with its spec: elements of one job are often claimed together."""
Cache = dict[tuple[str, str], tuple[Result, ...]]
"""Results by job and stage: the elements of one claim share what they need."""


def claim(
    db: Session, wants: Mapping[str, int], kinds: Collection[str], decide: Decide, now: float, plans: Plans
) -> list[Claim]:
    _promote(db, now)
    jobs: Jobs = {}
    cache: Cache = {}
    started: list[Claim] = []
    for queue, limit in wants.items():
        passed = 0
        for entry in _most_urgent(db, queue, kinds, limit) if limit > 0 else ():
            outcome = _start(db, entry, jobs, cache, decide, now, plans)
            if isinstance(outcome, Claim):
                started.append(outcome)
            if outcome is LEFT:  # a newer packhorse's jobs stay where they are, and must not hide the rest
                passed += 1
            else:
                limit -= 1
            if limit == 0 or passed == PASSED:
                break
    return [replace(claimed, job=jobs[claimed.job.id][0]) for claimed in started]


def _promote(db: Session, now: float) -> None:
    """Make ready what was delayed until now, once per transaction."""
    if db.is_promoted:
        return
    db.is_promoted = True
    due = db.execute(
        f"SELECT not_before, {READY[1:-1]} FROM delayed WHERE not_before <= ? ORDER BY not_before LIMIT ?",
        (now, PROMOTE),
    ).fetchall()
    for row in due:
        db.execute(f"DELETE FROM delayed WHERE (not_before, {READY[1:-1]}) = (?, ?, ?, ?, ?, ?, ?)", row)
        db.execute(f"INSERT OR IGNORE INTO ready {READY} VALUES (?, ?, ?, ?, ?, ?)", row[1:])


def _most_urgent(db: Session, queue: str, kinds: Collection[str], page: int) -> Iterable[Entry]:
    """Entries in order, from a walk per kind: those of a kind this worker lacks can not hide others."""
    walks = [_walk(db, queue, kind, page) for kind in kinds]
    return walks[0] if len(walks) == 1 else heapq.merge(*walks, key=lambda entry: entry[2:])


def _walk(db: Session, queue: str, kind: str, page: int) -> Iterator[Entry]:
    """A page at a time, because what is handed out is deleted meanwhile."""
    after: tuple[Any, ...] = FIRST
    while found := db.execute(WALK, (queue, kind, *after, page)).fetchall():
        yield from found  # type: ignore[misc]
        if len(found) < page:
            return
        after = found[-1][2:]


def _start(
    db: Session,
    entry: Entry,
    jobs: Jobs,
    cache: Cache,
    decide: Decide,
    now: float,
    plans: Plans,
) -> Claim | Literal["left", "dropped"]:
    """Start one task in the job as it is now, which an earlier task of the same claim may have moved."""
    job_id, task = entry[3], TaskId(entry[4], entry[5])
    try:
        found = jobs.get(job_id) or rows.read_with_spec(db, job_id, plans)
        change = decide(found[0], task) if found is not None else None
        if found is not None and change is not None:
            write(db, change, now, plans)  # its guard holds: the entry was read in this transaction
            jobs[job_id] = change.after, found[1]
            return _claim(db, change.after, task, found[1], cache)
    except SchemaTooNew:  # an upgrade is under way: a newer worker will understand it
        return LEFT
    except PackhorseError as error:
        # A job nobody can read, or an entry the lifecycle will not start: it must not stop those behind it.
        log.entry_dropped(job_id, task.stage, error)
    db.execute(SQL.drop_ready, entry)
    return "dropped"


def _claim(db: Session, job: Job, task: TaskId, spec: bytes | None, cache: Cache) -> Claim:
    try:
        upstream = {need.stage: _results(db, job, need.stage, cache) for need in job.plan.stage(task.stage).needs}
        return Claim(job, task, _spec(job, spec), upstream)
    except CorruptRecord as error:
        return Claim(job, task, Spec(b"null"), {}, trouble=error)


def _spec(job: Job, body: bytes | None) -> Spec:
    if body is None:
        raise CorruptRecord(what="spec", job_id=job.id, reason="it is missing")
    return json.spec_from(body, job.id)


def _results(db: Session, job: Job, stage: str, cache: Cache) -> tuple[Result, ...]:
    if (job.id, stage) not in cache:
        cache[job.id, stage] = reads.results_of(db, job.id, stage)
    return cache[job.id, stage]


def ahead(db: apsw.Connection, entry: Entry, limit: int, now: float) -> int:
    queue, _, *place = entry
    with db:  # one snapshot: what is promoted meanwhile would be counted twice
        count = _count(db, DELAYED, now, queue, *place)
        for kind in _kinds(db, queue):
            if count < limit:
                count += _count(db, COUNT, queue, kind, *place, limit - count)
    return min(count, limit)


def ready(db: apsw.Connection, kinds: Mapping[str, Collection[str]], limit: int) -> dict[str, int]:
    found: dict[str, int] = {}
    for queue, names in kinds.items():
        found[queue] = 0
        for kind in names:
            found[queue] += _count(db, READY_OF, queue, kind, limit - found[queue])
    return found


def _count(db: apsw.Connection, query: str, *bindings: Any) -> int:
    [(count,)] = db.execute(query, bindings).fetchall()
    return int(count)  # type: ignore[arg-type]


def _kinds(db: apsw.Connection, queue: str) -> Iterator[str]:
    """Of what is ready in the queue, by a step from each to the next: it may hold a million of one kind."""
    kind = ""
    while row := db.execute(NEXT_KIND, (queue, kind)).fetchone():
        kind = row[0]
        yield kind
