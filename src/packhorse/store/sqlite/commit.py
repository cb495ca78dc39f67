"""Making a change: guards first, then the job by its version, then effects and events."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import cache, partial
from typing import Any

from packhorse.core import changes, json
from packhorse.core.changes import Change
from packhorse.core.models import Job, TaskId
from packhorse.errors import AlreadySubmitted, Conflict, LeaseLost, PackhorseError, SlotTaken, StoreError
from packhorse.store import sql_files
from packhorse.store.counters import Usage, refuse_usage
from packhorse.store.rows import Entry, due_entry, entry, kept_due, plan_row, split_due
from packhorse.store.sqlite import failures, limits, records
from packhorse.store.sqlite.connection import Session
from packhorse.store.sqlite.session import Handle, alone, is_careful, write

SQL = sql_files.load(__package__, "commit")

MOVING = (
    "status", "not_before", "started_at", "completed_at", "deadline_at", "purge_at", "is_purging", "is_stopping",
    "has_litter",
)  # fmt: skip
"""Columns that a change may move beside version, time and state."""

MANY = 1000
"""Delayed entries that are looked at: more are due only when nobody has claimed for long."""

Row = tuple[Any, ...]
Statement = tuple[str, Row]


class Commits(Handle):
    async def commit(self, changes: Sequence[Change]) -> list[PackhorseError | None]:
        try:
            return await self._make_all(changes)
        except StoreError as error:
            return [error] * len(changes)

    @write
    def _make_all(self, db: Session, changes: Sequence[Change]) -> list[PackhorseError | None]:
        """Make each, whole or not at all. What follows a refused change of its job was decided on what never was."""
        outcomes: list[PackhorseError | None] = []
        refused: set[str] = set()
        now = self.now()
        for change in changes:
            job_id = change.after.id
            if job_id in refused:
                outcomes.append(Conflict(job_id=job_id))
                continue
            outcome = alone(db, partial(make, change=change, now=now))
            outcomes.append(_refusal(outcome))
            if outcome is not None:
                refused.add(job_id)
        return outcomes


def make(db: Session, change: Change, now: float) -> None:
    """Raise the refusal before anything is written, or write everything.

    Who ends a lease finds out by that whether he held it, and is not asked twice.
    """
    if _is_only_added(change) and not is_careful():
        _add(db, change, now)
        return
    job = change.after
    for guard in change.guards:
        if not (isinstance(guard, changes.Holds) and changes.EndLease(guard.task) in change.effects):
            _check(db, guard, job, now)
    try:
        write_change(db, change, now)
    except Conflict:
        for guard in change.guards:  # a late worker has to hear that its lease is lost
            _check(db, guard, job, now)
        raise


def _is_only_added(change: Change) -> bool:
    """A submit that needs no read first: adding it shows whether the job already exists."""
    if change.before is not None or change.guards or change.after.plan.is_regulated:
        return False
    return ADDED.keys() >= {*map(type, change.effects)}


def _add(db: Session, change: Change, now: float) -> None:
    """The same as `write_change`, with the submits that come in together. Nothing waits before all of it is made."""
    job = change.after
    made = [(SQL.add_job, _job_row(job)), *[ADDED[type(effect)](effect, change, now) for effect in change.effects]]
    made.append((SQL.add_events, _events_row(change)))
    if all(row[0] != job.plan.fingerprint for row in db.waiting.get(SQL.keep_plan, ())):  # once for all jobs of it
        db.later(SQL.keep_plan, plan_row(job.plan))
    for insert, row in made:
        db.later(insert, row)
    db.touched.add(job.id)


def write_change(db: Session, change: Change, now: float) -> None:
    """Write a change whose guards hold, if the version has not moved."""
    job = change.after
    if change.before is None:
        db.execute(SQL.keep_plan, plan_row(job.plan))
        db.execute(SQL.add_new_job, _job_row(job))
        if db.changes() == 0:
            raise Conflict(f"There is a job {job.id} already.", job_id=job.id)
    elif not _move_job(db, change.before, job):
        raise Conflict(job_id=job.id)
    effects: Sequence[changes.Effect] = change.effects
    if (slot := changes.slot_to_wait_for(change)) is not None:
        effects = _join_line(db, change, slot)
    for effect in effects:
        APPLY[type(effect)](db, effect, change, now)
    if change.events:
        db.execute(SQL.add_events, _events_row(change))
    elif change.id:  # nothing to tell, but whether it was made may be asked: a number that no event has
        db.execute(SQL.keep_change, (job.id, -job.version, change.id))
    db.touched.add(job.id)


def _move_job(db: Session, before: Job, after: Job) -> bool:
    was, now = _moving(before), _moving(after)
    moved = tuple([i for i in range(len(MOVING)) if was[i] != now[i]])
    changed = (*[now[i] for i in moved], after.version, after.lineage, after.updated_at, json.state_of(after))
    db.execute(_move_statement(moved), (*changed, after.id, before.version, before.lineage))
    return db.changes() == 1


@cache
def _move_statement(moved: tuple[int, ...]) -> str:
    return SQL.move_job.format(moved=" ".join(f"{MOVING[i]} = ?," for i in moved))


def _job_row(job: Job) -> Row:
    return (
        job.id, job.tenant, job.user, job.client, job.plan.pipeline, job.plan.fingerprint, job.priority, job.created_at,
        job.trace_id, job.slot, job.version, job.lineage, job.updated_at, *_moving(job), json.state_of(job),
    )  # fmt: skip


def _moving(job: Job) -> Row:
    return (
        job.status.value, job.not_before, job.started_at, job.completed_at, job.deadline_at, job.purge_at,
        job.is_purging, job.stopping is not None, job.has_litter,
    )  # fmt: skip


def _refusal(outcome: Exception | None) -> PackhorseError | None:
    """Why a change was not made. Also an unforeseen error goes to its own caller: the neighbours' changes stand."""
    if outcome is None or isinstance(outcome, PackhorseError):
        return outcome
    error = StoreError(f"{type(outcome).__name__}: {outcome}")
    error.__cause__ = outcome
    return error


def _check(db: Session, guard: changes.Guard, job: Job, now: float) -> None:
    match guard:
        case changes.Holds(task, token):
            if _lease(db, job, task)[0] != token:
                raise LeaseLost(job_id=job.id, stage=task.stage)
        case changes.Overdue(task, token):
            held, until = _lease(db, job, task)
            if held != token or until > now:
                raise Conflict(f"The lease of {task.stage} was renewed in the meantime.", job_id=job.id)
        case changes.Waiting(task):
            found = db.execute(SQL.is_ready, entry(job, task)).fetchone() or limits.is_next(db, job.id, task)
            if not found:
                raise Conflict(f"{task.stage} is not waiting in its queue any more.", job_id=job.id)
        case changes.Foremost(task, kinds):
            if _is_overtaking(db, entry(job, task), kinds, now):
                raise Conflict(f"Something more urgent than {task.stage} is waiting.", job_id=job.id)
        case changes.WithinLimits(task, uses):
            if (full := limits.first_full(db, uses, now)) is not None:
                raise Conflict(f"{task.stage} would exceed the limit {full.name}.", job_id=job.id)
        case changes.KeyUnused(key):
            row = db.execute(SQL.job_of_key, (key,)).fetchone()
            if row is not None:
                raise AlreadySubmitted(job_id=row[0], fingerprint=row[1])
        case changes.SlotFree(slot):
            row = db.execute(SQL.holder, (slot,)).fetchone()
            if row is not None and row[0] != job.id:
                raise SlotTaken(active_job_id=row[0])
        case changes.HasRoom(tenant):
            refusal = refuse_usage(usage(db, tenant), guard)
            if refusal is not None:
                raise refusal
        case changes.RecordIs(ref, stamp):
            if records.stamp(db, ref) != stamp:
                raise Conflict(f"The {ref.kind} {ref.id} has changed.", kind=ref.kind, id=ref.id, job_id=job.id)


def usage(db: Session, tenant: str) -> Usage:
    row = db.execute(SQL.usage, (tenant,)).fetchone()
    return Usage() if row is None else Usage(*row)


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


def _events_row(change: Change) -> Row:
    return change.after.id, change.events[0].n, change.events[-1].n, change.id, json.encode(change.events)


def _due(effect: changes.MakeDue, change: Change, now: float) -> Statement:
    return _due_row(change.after.id, effect, now)


def _due_row(job_id: str, effect: changes.MakeDue, now: float) -> Statement:
    key = due_entry(job_id, effect)
    at = effect.not_before
    if at <= now:
        return SQL.put_ready, key
    return SQL.put_delayed, (*key, at, at - effect.delay, None if effect.share is None else json.encode(effect.share))


def _make_due(db: Session, effect: changes.MakeDue, change: Change, now: float) -> None:
    _make_due_of(db, change.after.id, effect, now)


def _make_due_of(db: Session, job_id: str, effect: changes.MakeDue, now: float) -> None:
    if effect.not_before <= now and (effect.limits or effect.share is not None):
        limits.make_due(db, due_entry(job_id, effect), effect, now)
    else:
        db.execute(*_due_row(job_id, effect, now))


def _grant(db: Session, effect: changes.Grant, change: Change, now: float) -> None:
    job_id = change.after.id
    db.execute(SQL.grant, (job_id, *effect.task, effect.token, effect.worker, now + effect.seconds))
    if effect.limits or effect.share is not None:
        limits.count(db, job_id, effect, now, change.after.plan.stage(effect.task.stage).queue)


def _spec(effect: changes.KeepSpec, change: Change, _now: float) -> Statement:
    key = next((e.key for e in change.effects if isinstance(e, changes.RememberKey)), None)
    return SQL.keep_spec, (change.after.id, key, json.encode(effect.spec))


ADDED: Mapping[type, Callable[[Any, Change, float], Statement]] = {changes.KeepSpec: _spec, changes.MakeDue: _due}
"""The row that an effect only adds, and how it is inserted."""


def _join_line(db: Session, change: Change, slot: str) -> Sequence[changes.Effect]:
    """What of the change is made now: all of it, unless another job holds the slot."""
    held = db.execute(SQL.holder, (slot,)).fetchone()
    if held is None or held[0] == change.after.id:
        return change.effects
    due, rest = split_due(change)
    db.execute(SQL.join_line, (slot, change.after.id, json.encode(due)))
    return rest


def _release_slot(db: Session, effect: changes.ReleaseSlot, change: Change, now: float) -> None:
    slot, job_id = effect.slot, change.after.id
    held = db.execute(SQL.holder, (slot,)).fetchone()
    if held is None or held[0] != job_id:
        db.execute(SQL.leave_line, (slot, job_id))
        return
    first = db.execute(SQL.first_in_line, (slot,)).fetchone()
    if first is None:
        db.execute(SQL.free_slot, (slot,))
        return
    following, due = first
    db.execute(SQL.leave_line, (slot, following))
    db.execute(SQL.take_slot, (slot, following))
    for each in kept_due(due, following):
        _make_due_of(db, following, each, now)
    db.touched.add(following)


def _end_lease(db: Session, effect: changes.EndLease, change: Change, now: float) -> None:
    job_id, at = change.after.id, effect.task
    task = change.before.task(at) if change.before is not None else None
    token = task.token if task is not None else None
    db.execute(SQL.end_lease, (job_id, *at, token)) if token else db.execute(SQL.drop_lease, (job_id, *at))
    if db.changes() == 0:
        raise LeaseLost(job_id=job_id, stage=at.stage)
    if effect.limits:
        limits.let_go(db, job_id, at, effect.limits, now)


def _take_back(db: Session, effect: changes.TakeBack, change: Change, now: float) -> None:
    if change.after.plan.is_regulated:
        limits.take_back(db, change.after.id, effect.task)
    key = entry(change.after, effect.task)
    db.execute(SQL.drop_ready, key)
    if db.changes() == 0 and change.before is not None:
        task = change.before.task(effect.task)
        if task is not None and task.ready_at is not None:
            db.execute(SQL.drop_delayed, (task.ready_at, *key))
    if effect.limits:
        limits.wake_others(db, effect.limits, now)


def _drop_stages(db: Session, effect: changes.DropStages, change: Change, _now: float) -> None:
    for stage in effect.stages:
        db.execute(SQL.drop_results, (change.after.id, stage))
        db.execute(SQL.drop_progress, (change.after.id, stage))


APPLY: Mapping[type, Callable[[Session, Any, Change, float], object]] = {
    changes.MakeDue: _make_due,
    changes.TakeBack: _take_back,
    changes.Grant: _grant,
    changes.EndLease: _end_lease,
    changes.TakeSlot: lambda db, effect, change, _: db.execute(SQL.take_slot, (effect.slot, change.after.id)),
    changes.ReleaseSlot: _release_slot,
    changes.KeepSpec: lambda db, effect, change, now: db.execute(*_spec(effect, change, now)),
    changes.CountUsage: lambda db, effect, *_: db.execute(SQL.count_usage, (effect.tenant, effect.jobs, effect.bytes)),
    changes.RememberKey: lambda db, effect, change, _: db.execute(
        SQL.remember_key, (effect.key, change.after.id, effect.fingerprint)
    ),
    changes.KeepResult: lambda db, effect, change, _: db.execute(
        SQL.keep_result, (change.after.id, *effect.task, json.encode(effect.result))
    ),
    changes.DropStages: _drop_stages,
    changes.RecordFailure: lambda db, effect, change, _: failures.apply(db, change.after.id, effect),
    changes.SettleFailures: lambda db, effect, change, _: failures.apply(db, change.after.id, effect),
    changes.PutRecord: lambda db, effect, *_: records.put_if_possible(db, effect.put),
    changes.NoteRecord: lambda db, effect, *_: records.note(db, effect.ref, effect.note, effect.index),
    changes.DropRecord: lambda db, effect, *_: records.drop(db, effect.ref),
}
"""How each effect is written. Looked up by type: comparing with one type after the other took longer than the SQL."""
