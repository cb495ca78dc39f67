"""Making a change: guards first, then the job by its version, then effects and events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

from packhorse.core import json
from packhorse.core.changes import (
    Change,
    DropRecord,
    DropStages,
    Effect,
    EndLease,
    Foremost,
    Grant,
    Guard,
    Holds,
    KeepResult,
    KeepSpec,
    KeyUnused,
    MakeDue,
    NoteRecord,
    Overdue,
    PutRecord,
    RecordFailure,
    RecordIs,
    ReleaseSlot,
    RememberKey,
    SettleFailures,
    SlotFree,
    TakeBack,
    TakeSlot,
    Waiting,
)
from packhorse.core.models import Job, TaskId
from packhorse.errors import AlreadySubmitted, Conflict, LeaseLost, PackhorseError, SlotTaken, StoreError
from packhorse.store import sql_files
from packhorse.store.sqlite import failures, records, rows
from packhorse.store.sqlite.connection import Session
from packhorse.store.sqlite.rows import Plans
from packhorse.store.sqlite.writer import alone, is_careful

SQL = sql_files.load(__package__, "commit")

# Beginnings of statements: `Session.later` adds as many rows as wait.
READY = "(queue, kind, rank, job_id, stage, element)"
PUT_READY = f"INSERT OR IGNORE INTO ready {READY}"
PUT_DELAYED = "INSERT OR IGNORE INTO delayed (queue, kind, rank, job_id, stage, element, not_before)"
KEEP_SPEC = "INSERT INTO specs"
TELL = "INSERT INTO events"


MANY = 1000
"""Delayed entries that are looked at: more are due only when nobody has claimed for long."""

Entry = tuple[str, str, int, str, str, int]
Row = tuple[Any, ...]


def make_all(db: Session, changes: Sequence[Change], now: float, plans: Plans) -> list[PackhorseError | None]:
    """Make each, whole or not at all. What follows a refused change of its job was decided on what never was."""
    outcomes: list[PackhorseError | None] = []
    refused: set[str] = set()
    for change in changes:
        job_id = change.after.id
        if job_id in refused:
            outcomes.append(Conflict(job_id=job_id))
            continue
        outcome = alone(db, partial(make, change=change, now=now, plans=plans))
        outcomes.append(_refusal(outcome))
        if outcome is not None:
            refused.add(job_id)
    return outcomes


def make(db: Session, change: Change, now: float, plans: Plans) -> None:
    """Raise the refusal before anything is written, or write everything.

    Who ends a lease finds out by that whether he held it, and is not asked twice.
    """
    if _is_only_added(change) and not is_careful():
        _add(db, change, now, plans)
        return
    job = change.after
    for guard in change.guards:
        if not (isinstance(guard, Holds) and EndLease(guard.task) in change.effects):
            _check(db, guard, job, now)
    try:
        write(db, change, now, plans)
    except Conflict:
        for guard in change.guards:  # a late worker has to hear that its lease is lost
            _check(db, guard, job, now)
        raise


def _is_only_added(change: Change) -> bool:
    """A submit of which nothing has to be asked first. Whether there is such a job shows when it is added."""
    return change.before is None and not change.guards and ADDED.keys() >= {*map(type, change.effects)}


def _add(db: Session, change: Change, now: float, plans: Plans) -> None:
    """The same as `write`, with the submits that come in together. Nothing waits before all of it is made."""
    job = change.after
    made = [(rows.ADD, rows.row_of(job)), *[ADDED[type(effect)](effect, change, now) for effect in change.effects]]
    made.append((TELL, _told(change)))
    plans.keep_later(db, job.plan)
    for insert, row in made:
        db.later(insert, row)
    db.touched.add(job.id)


def write(db: Session, change: Change, now: float, plans: Plans) -> None:
    """Write a change whose guards hold, if the version has not moved."""
    job = change.after
    if change.before is None:
        plans.keep(db, job.plan)
        if not rows.insert(db, job):
            raise Conflict(f"There is a job {job.id} already.", job_id=job.id)
    elif not rows.update(db, change.before, job):
        raise Conflict(job_id=job.id)
    for effect in change.effects:
        APPLY[type(effect)](db, effect, change, now)
    if change.events:
        db.execute(f"{TELL} VALUES (?, ?, ?, ?, ?)", _told(change))
    elif change.id:  # nothing to tell, but whether it was made may be asked: a number that no event has
        db.execute(SQL.keep_change, (job.id, -job.version, change.id))
    db.touched.add(job.id)


def _refusal(outcome: Exception | None) -> PackhorseError | None:
    """Why a change was not made. Also what nobody foresaw is told to its own caller: the neighbours' changes stand."""
    if outcome is None or isinstance(outcome, PackhorseError):
        return outcome
    error = StoreError(f"{type(outcome).__name__}: {outcome}")
    error.__cause__ = outcome
    return error


def announce(db: Session) -> None:
    """Tell watchers which jobs have something new, once for the whole transaction."""
    if db.touched:
        db.execute("INSERT INTO feed (job_ids) VALUES (?)", (json.encode(db.touched),))


def entry(job: Job, at: TaskId) -> Entry:
    """The key of a task in its queue. Rank is the negated priority, so that urgent comes first in key order."""
    stage = job.plan.stage(at.stage)
    return (stage.queue, stage.kind, -job.priority, job.id, at.stage, at.element)


def _check(db: Session, guard: Guard, job: Job, now: float) -> None:
    match guard:
        case Holds(task, token):
            if _lease(db, job, task)[0] != token:
                raise LeaseLost(job_id=job.id, stage=task.stage)
        case Overdue(task, token):
            held, until = _lease(db, job, task)
            if held != token or until > now:
                raise Conflict(f"The lease of {task.stage} was renewed in the meantime.", job_id=job.id)
        case Waiting(task):
            if db.execute(SQL.is_ready, entry(job, task)).fetchone() is None:
                raise Conflict(f"{task.stage} is not waiting in its queue any more.", job_id=job.id)
        case Foremost(task, kinds):
            if _is_overtaking(db, entry(job, task), kinds, now):
                raise Conflict(f"Something more urgent than {task.stage} is waiting.", job_id=job.id)
        case KeyUnused(key):
            row = db.execute(SQL.job_of_key, (key,)).fetchone()
            if row is not None:
                raise AlreadySubmitted(job_id=row[0], fingerprint=row[1])
        case SlotFree(slot):
            row = db.execute(SQL.holder, (slot,)).fetchone()
            if row is not None and row[0] != job.id:
                raise SlotTaken(active_job_id=row[0])
        case RecordIs(ref, stamp):
            if records.stamp(db, ref) != stamp:
                raise Conflict(f"The {ref.kind} {ref.id} has changed.", kind=ref.kind, id=ref.id, job_id=job.id)


def _is_overtaking(db: Session, task: Entry, kinds: tuple[str, ...], now: float) -> bool:
    """Looked up once for all that follow in one transaction: a look costs as much as starting the stage."""
    queue, _, rank, job_id, *_ = task
    if (queue, kinds) not in db.foremost:
        db.foremost[queue, kinds] = _foremost(db, queue, kinds, now)
    first = db.foremost[queue, kinds]
    return first is not None and first < (rank, job_id)


def _foremost(db: Session, queue: str, kinds: Collection[str], now: float) -> tuple[int, str] | None:
    found = [row for kind in kinds for row in db.execute(SQL.first_ready, (queue, kind))]
    # What was delayed until now, and is not among the ready yet. Looked at where it lies: a guard writes nothing.
    over = db.execute(SQL.delayed_until, (now, MANY))
    found += [(rank, job_id) for its_queue, kind, rank, job_id in over if its_queue == queue and kind in kinds]
    return min(found, default=None)


def _lease(db: Session, job: Job, at: TaskId) -> tuple[str | None, float]:
    row = db.execute(SQL.lease, (job.id, *at)).fetchone()
    return (None, 0.0) if row is None else (row[0], row[1])


def _told(change: Change) -> Row:
    return change.after.id, change.events[0].n, change.events[-1].n, change.id, json.encode(change.events)


def _due(effect: MakeDue, change: Change, now: float) -> tuple[str, Row]:
    key = entry(change.after, effect.task)
    return (PUT_READY, key) if effect.not_before <= now else (PUT_DELAYED, (*key, effect.not_before))


def _make_due(db: Session, effect: MakeDue, change: Change, now: float) -> None:
    insert, row = _due(effect, change, now)
    db.execute(f"{insert} VALUES ({', '.join('?' * len(row))})", row)


def _grant(db: Session, effect: Grant, change: Change, now: float) -> None:
    db.execute(SQL.grant, (change.after.id, *effect.task, effect.token, effect.worker, now + effect.seconds))


def _end_lease(db: Session, effect: EndLease, change: Change, _now: float) -> None:
    job_id, at = change.after.id, effect.task
    task = change.before.task(at) if change.before is not None else None
    db.execute(SQL.end_lease, (job_id, *at, task.token if task is not None else None))
    if db.changes() == 0:
        raise LeaseLost(job_id=job_id, stage=at.stage)


def _take_back(db: Session, effect: TakeBack, change: Change, _now: float) -> None:
    key = entry(change.after, effect.task)
    db.execute(SQL.drop_ready, key)
    if db.changes() == 0 and change.before is not None:
        task = change.before.task(effect.task)
        if task is not None and task.ready_at is not None:
            db.execute(SQL.drop_delayed, (task.ready_at, *key))


def _take_slot(db: Session, effect: TakeSlot, change: Change, _now: float) -> None:
    db.execute(SQL.take_slot, (effect.slot, change.after.id))


def _release_slot(db: Session, effect: ReleaseSlot, change: Change, _now: float) -> None:
    db.execute(SQL.release_slot, (effect.slot, change.after.id))


def _spec(effect: KeepSpec, change: Change, _now: float) -> tuple[str, Row]:
    key = next((e.key for e in change.effects if isinstance(e, RememberKey)), None)
    return KEEP_SPEC, (change.after.id, key, json.encode(effect.spec))


def _keep_spec(db: Session, effect: KeepSpec, change: Change, now: float) -> None:
    insert, row = _spec(effect, change, now)
    db.execute(f"{insert} VALUES (?, ?, ?)", row)


def _remember_key(db: Session, effect: RememberKey, change: Change, _now: float) -> None:
    db.execute(SQL.remember_key, (effect.key, change.after.id, effect.fingerprint))


def _keep_result(db: Session, effect: KeepResult, change: Change, _now: float) -> None:
    db.execute(SQL.keep_result, (change.after.id, *effect.task, json.encode(effect.result)))


def _drop_stages(db: Session, effect: DropStages, change: Change, _now: float) -> None:
    for stage in effect.stages:
        db.execute(SQL.drop_results, (change.after.id, stage))
        db.execute(SQL.drop_progress, (change.after.id, stage))


def _record_failure(db: Session, effect: RecordFailure, _change: Change, _now: float) -> None:
    failures.record(db, effect.failure)


def _settle_failures(db: Session, effect: SettleFailures, change: Change, _now: float) -> None:
    failures.settle(db, change.after.id, effect)


def _put_record(db: Session, effect: PutRecord, _change: Change, _now: float) -> None:
    records.put_if_possible(db, effect.put)


def _note_record(db: Session, effect: NoteRecord, _change: Change, _now: float) -> None:
    records.note(db, effect.ref, effect.note, effect.index)


def _drop_record(db: Session, effect: DropRecord, _change: Change, _now: float) -> None:
    records.drop(db, effect.ref)


APPLY: Mapping[type[Effect], Callable[[Session, Any, Change, float], None]] = {
    MakeDue: _make_due,
    TakeBack: _take_back,
    Grant: _grant,
    EndLease: _end_lease,
    TakeSlot: _take_slot,
    ReleaseSlot: _release_slot,
    KeepSpec: _keep_spec,
    RememberKey: _remember_key,
    KeepResult: _keep_result,
    DropStages: _drop_stages,
    RecordFailure: _record_failure,
    SettleFailures: _settle_failures,
    PutRecord: _put_record,
    NoteRecord: _note_record,
    DropRecord: _drop_record,
}
"""How each effect is written. Looked up by type: comparing with one type after the other took longer than the SQL."""

ADDED: Mapping[type[Effect], Callable[[Any, Change, float], tuple[str, Row]]] = {KeepSpec: _spec, MakeDue: _due}
"""The row that an effect only adds, and how it is inserted."""
