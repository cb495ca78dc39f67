"""The queue: claims, leases over time, and what is ready.

A claim picks what is most urgent, lets the lifecycle decide, commits, and hands over all that an attempt needs.
"""

from __future__ import annotations

import heapq
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any, Literal

from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.changes import Change, Grant
from packhorse.core.models import Job, Result, TaskId
from packhorse.errors import CorruptRecord, PackhorseError, SchemaTooNew
from packhorse.log import log
from packhorse.store import sql_files
from packhorse.store.base import Claim, Decide, Lease, OverdueTasks, Renewal
from packhorse.store.rows import Entry, Plans, claim_from, entry
from packhorse.store.sqlite import limits, reads
from packhorse.store.sqlite.commit import write_change
from packhorse.store.sqlite.connection import Session
from packhorse.store.sqlite.session import Handle, read, write

SQL = sql_files.load(__package__, "claim")

PROMOTE = 1000
"""Delayed entries made ready per transaction at most: what is left is found by the next."""
PASSED = 1000
"""Entries that a claim looks past, of a newer packhorse or stopped by limits: it holds the write lock meanwhile."""

FIRST = (-(2**63), "", "", 0)
LEFT: Literal["left"] = "left"  # a newer packhorse's jobs stay where they are
PARKED: Literal["parked"] = "parked"

Jobs = dict[str, tuple[Job, bytes | None]]
"""Jobs as the tasks started so far leave them, each with its spec: elements of one job are often claimed together."""
Cache = dict[tuple[str, str], tuple[Result, ...]]
"""Results by job and stage: the elements of one claim share what they need."""


class Queue(Handle):
    @write
    def claim(self, db: Session, wants: Mapping[str, int], kinds: Collection[str], decide: Decide) -> list[Claim]:
        now = self.now()
        _promote(db, now)
        jobs: Jobs = {}
        cache: Cache = {}
        started: list[Claim] = []
        for queue, limit in wants.items():
            passed, is_new = 0, limit > 0
            while is_new:  # what was woken meanwhile may lie before what was looked at
                is_new = False
                for found in _most_urgent(db, queue, kinds, limit):
                    outcome = _start(db, found, jobs, cache, decide, now, self._plans)
                    if isinstance(outcome, Claim):
                        started.append(outcome)
                    if outcome is LEFT or outcome is PARKED:  # these must not hide the rest
                        passed += 1
                        is_new = is_new or outcome is PARKED
                    else:
                        limit -= 1
                    if limit == 0 or passed == PASSED:
                        is_new = False
                        break
        return [replace(claimed, job=jobs[claimed.job.id][0]) for claimed in started]

    async def renew(self, leases: Sequence[Lease], seconds: float | None) -> Renewal:
        return await (self._check_leases(leases) if seconds is None else self._extend_leases(leases, seconds))

    @write
    def _extend_leases(self, db: Session, leases: Sequence[Lease], seconds: float) -> Renewal:
        until = self.now() + seconds
        for lease in leases:
            db.execute(SQL.renew, (until, lease.job_id, *lease.task, lease.token))
        return _renewal(db, leases)

    @read
    def _check_leases(self, db: Session, leases: Sequence[Lease]) -> Renewal:
        return _renewal(db, leases)

    @read
    def overdue(
        self, db: Session, limit: int, *, queued_after: float | None = None, leased_after: float | None = None
    ) -> OverdueTasks:
        now = self.now()
        query, moment = SQL.overdue, now
        if queued_after is not None:
            query, moment = SQL.queued_after, queued_after
        elif leased_after is not None:
            query, moment = SQL.leased_after, leased_after
        return OverdueTasks(now, _read_jobs(db, db.execute(query, (moment,)), limit, self._plans))

    @read
    def held_by(self, db: Session, worker: str, limit: int) -> list[tuple[Job, TaskId]]:
        return _read_jobs(db, db.execute(SQL.held_by, (worker,)), limit, self._plans)

    @read
    def ahead(self, db: Session, job: Job, task: TaskId, *, limit: int = 1000) -> int:
        queue, _, *place = entry(job, task)
        with db:  # one snapshot: what is promoted meanwhile would be counted twice
            [count] = db.row(SQL.delayed_before, (self.now(), queue, *place))
            for kind in _kinds(db, queue):
                if count < limit:
                    count += db.row(SQL.ready_before, (queue, kind, *place, limit - count))[0]
        return int(min(count, limit))

    @read
    def ready(self, db: Session, kinds: Mapping[str, Collection[str]], *, limit: int = 1000) -> dict[str, int]:
        found = dict.fromkeys(kinds, 0)
        for queue, names in kinds.items():
            for kind in names:
                found[queue] += db.row(SQL.ready, (queue, kind, limit - found[queue]))[0]
                found[queue] += limits.count_turns(db, queue, kind, limit - found[queue])
        return found


def _promote(db: Session, now: float) -> None:
    """Make ready what was delayed until now, once per transaction."""
    if db.is_promoted:
        return
    db.is_promoted = True
    over: list[Any] = db.execute(SQL.over, (now, PROMOTE)).fetchall()
    for at, *found, share in over:
        db.execute(SQL.drop_over, (at, *found))
        if share is None:
            db.execute(SQL.promote, found)
        else:
            queue, kind, *place = found
            limits.make_ready(db, (queue, kind, *place), limits.share_from(share))
    if limits.is_used(db):
        limits.wake_due(db, now)


def _most_urgent(db: Session, queue: str, kinds: Collection[str], page: int) -> Iterable[Entry]:
    """Entries in order, from a walk per kind: those of a kind this worker lacks can not hide others."""
    walks = [_walk(db, queue, kind, page) for kind in kinds]
    ordered = walks[0] if len(walks) == 1 else heapq.merge(*walks, key=lambda entry: entry[2:])
    return _with_turns(ordered, limits.turns(db, queue, kinds)) if limits.is_used(db) else ordered


def _with_turns(ordered: Iterable[Entry], turns: Iterator[Entry]) -> Iterator[Entry]:
    """Both together: what goes by priority and age, and what takes turns."""
    rest = iter(ordered)
    one, other = next(rest, None), next(turns, None)
    while one is not None or other is not None:
        if other is None or (one is not None and one[2:4] < (limits.priority_rank(other), other[3])):
            assert one is not None
            yield one
            one = next(rest, None)
        else:
            yield other
            other = next(turns, None)


def _walk(db: Session, queue: str, kind: str, page: int) -> Iterator[Entry]:
    """A page at a time, because what is handed out is deleted meanwhile."""
    after: tuple[Any, ...] = FIRST
    while found := db.execute(SQL.walk, (queue, kind, *after, page)).fetchall():
        yield from found  # type: ignore[misc]
        if len(found) < page:
            return
        after = found[-1][2:]


def _start(
    db: Session, entry: Entry, jobs: Jobs, cache: Cache, decide: Decide, now: float, plans: Plans
) -> Claim | Literal["left", "parked", "dropped"]:
    """Start one task in the job as it is now, which an earlier task of the same claim may have moved."""
    job_id, task = entry[3], TaskId(entry[4], entry[5])
    try:
        found = jobs.get(job_id) or _job_and_spec(db, job_id, plans)
        change = decide(found[0], task) if found is not None else None
        if found is not None and change is not None:
            grant = _limited(found[0], task, change)
            full = None if grant is None else limits.first_full(db, grant.limits, now)
            if grant is not None and full is not None:
                _leave_queue(db, entry)
                limits.park(db, entry, grant, full, now)
                return PARKED
            write_change(db, change, now)  # its guards hold: the entry was read in this transaction
            jobs[job_id] = change.after, found[1]
            return claim_from(change.after, task, found[1], partial(_results, db, job_id, cache))
    except SchemaTooNew:  # an upgrade is running: a newer worker will understand it
        return LEFT
    except PackhorseError as error:
        # A job nobody can read, or an entry the lifecycle will not start: it must not stop those behind it.
        log.entry_dropped(job_id, task.stage, error)
    _leave_queue(db, entry)
    limits.look_at_all(db)
    return "dropped"


def _leave_queue(db: Session, entry: Entry) -> None:
    db.execute(SQL.drop_ready, entry)
    if db.changes() == 0:
        limits.take_back(db, entry[3], TaskId(entry[4], entry[5]))


def _limited(job: Job, task: TaskId, change: Change) -> Grant | None:
    """The start that limits may stop."""
    if not job.plan.is_regulated or not job.plan.stage(task.stage).limits:
        return None
    return next((effect for effect in change.effects if isinstance(effect, Grant)), None)


def _job_and_spec(db: Session, job_id: str, plans: Plans) -> tuple[Job, bytes | None] | None:
    row = db.execute(SQL.job_and_spec, (job_id,)).fetchone()
    return None if row is None else (reads.job_of(db, row, plans), row[-1])


def _results(db: Session, job_id: str, cache: Cache, stage: str) -> tuple[Result, ...]:
    if (job_id, stage) not in cache:
        found = db.execute(SQL.upstream, (job_id, stage))
        cache[job_id, stage] = tuple(json.result_from(body, job_id) for (body,) in found)
    return cache[job_id, stage]


def _renewal(db: Session, leases: Sequence[Lease]) -> Renewal:
    lost, stopping = set(), set()
    for lease in leases:
        row = db.execute(SQL.is_stopping, (lease.job_id, *lease.task, lease.token)).fetchone()
        if row is None:
            lost.add(lease)
        elif row[0]:
            stopping.add(lease)
    return Renewal(frozenset(lost), frozenset(stopping))


def _read_jobs(db: Session, found: Iterable[Sequence[Any]], limit: int, plans: Plans) -> list[tuple[Job, TaskId]]:
    tasks: list[tuple[Job, TaskId]] = []
    for job_id, *task in found:
        if len(tasks) == limit:
            break
        with suppress(CorruptRecord, SchemaTooNew):  # a sweep skips what we cannot read; a read of it raises
            job = reads.read_job(db, job_id, plans)
            if job is not None:
                tasks.append((job, TaskId(*task)))
    return tasks


def _kinds(db: Session, queue: str) -> Iterator[str]:
    """Of what is ready in the queue, by a step from each to the next: it may hold a million of one kind."""
    kind = ""
    while row := db.execute(SQL.next_kind, (queue, kind)).fetchone():
        kind = row[0]
        yield kind
