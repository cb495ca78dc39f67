"""Making changes: look under locks, judge each by what is there, gather what they leave, and write it at once."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

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
from packhorse.core.models import Job
from packhorse.errors import (
    AlreadySubmitted,
    Conflict,
    InvalidInput,
    LeaseLost,
    PackhorseError,
    SlotTaken,
    StoreError,
)
from packhorse.store.postgres import records, rows
from packhorse.store.postgres.batch import Batch
from packhorse.store.postgres.connection import Clock, Session
from packhorse.store.postgres.lookups import Facts, entry
from packhorse.store.postgres.rows import Plans
from packhorse.store.postgres.watch import Notice

WRITTEN = -1
"""Stands for the stamp of a record that an earlier change of the group writes: nobody has seen what it becomes."""


class Member(NamedTuple):
    """A change, and the number of the call that brought it."""

    call: int
    change: Change

    @property
    def fold(self) -> tuple[int, str]:
        """Changes of one job in one call follow each other."""
        return self.call, self.change.after.id


class Made(NamedTuple):
    outcomes: list[PackhorseError | None]
    plans: set[str]
    """Fingerprints of the plans that are now in the store."""


async def make_all(
    session: Session,
    members: Sequence[Member],
    refused: Collection[tuple[int, str]],
    clock: Clock,
    plans: Plans,
    notice: Notice,
    *,
    is_trusting: bool,
) -> Made:
    """Make each, or say why not. A refusal is its own; what this raises is the whole group's.

    ``notice`` may go with it, to tell others.
    """
    facts, batch, broken = Facts(), Batch(plans), set(refused)
    unfit = [_refuse_follower(member, broken) or _find_unstorable(member.change) for member in members]
    asked = [member.change for member, error in zip(members, unfit, strict=True) if error is None]
    await facts.look(session, asked, clock, is_trusting=is_trusting)
    outcomes: list[PackhorseError | None] = []
    for member, error in zip(members, unfit, strict=True):
        outcomes.append(error or _refuse_follower(member, broken) or judge(member.change, facts, batch, clock))
        if outcomes[-1] is not None:
            broken.add(member.fold)
    await batch.send(session, facts, clock, notice, is_trusting=is_trusting)
    return Made(outcomes, set(batch.plans))


def _refuse_follower(member: Member, broken: Collection[tuple[int, str]]) -> PackhorseError | None:
    """What follows a refused change of its job was decided on what never was."""
    return Conflict(job_id=member.change.after.id) if member.fold in broken else None


def _find_unstorable(change: Change) -> PackhorseError | None:
    """Names that PostgreSQL cannot hold. They are not replaced, for that would make one name of two."""
    if change.before is not None:
        return None
    job, keys = change.after, [effect.key for effect in change.effects if isinstance(effect, RememberKey)]
    named = [("user_id", job.user), ("tenant_id", job.tenant), *(("Idempotency-Key", key) for key in keys)]
    for field, text in named:
        if rows.clean(text) != text:
            return InvalidInput(f"{field} has a character in it that cannot be stored.", field=field)
    return None if rows.is_id(job.id) else StoreError(f"{job.id!r} cannot be the id of a job: it is no UUID.")


def judge(change: Change, facts: Facts, batch: Batch, clock: Clock) -> PackhorseError | None:
    """Gather what the change writes; or say why it is refused, and gather nothing."""
    try:
        make(change, facts, batch, clock)
    except PackhorseError as error:
        return error
    except Exception as error:  # broad: whatever one member trips over must not take its neighbours along
        return describe_error(error)
    return None


def describe_error(error: Exception) -> StoreError:
    """What nobody foresaw, for the caller of the one change that it is about."""
    said = getattr(error, "message", None) or error  # without the detail that PostgreSQL adds: it is the user's data
    failure = StoreError(f"{type(error).__name__}: {said}")
    failure.__cause__ = error
    return failure


def make(change: Change, facts: Facts, batch: Batch, clock: Clock) -> None:
    """Raise the refusal before anything is gathered, or gather everything."""
    job = change.after
    for guard in change.guards:
        _check(guard, job, facts)
    known = facts.versions.get(job.id)
    if change.before is None:
        if known is not None:
            raise Conflict(f"There is a job {job.id} already.", job_id=job.id)
    elif known != change.before.version:
        raise Conflict(job_id=job.id)
    events, bodies = json.encode(change.events), [_encode(effect) for effect in change.effects]
    facts.versions[job.id] = job.version
    batch.job(change)
    batch.history(change, events)
    for effect, body in zip(change.effects, bodies, strict=True):
        _apply(effect, body, change, facts, batch, clock)


def _check(guard: Guard, job: Job, facts: Facts) -> None:
    match guard:
        case Holds(task, token):
            if facts.leases.get((job.id, *task), (None, False))[0] != token:
                raise LeaseLost(job_id=job.id, stage=task.stage)
        case Overdue(task, token):
            if facts.leases.get((job.id, *task)) != (token, True):
                raise Conflict(f"The lease of {task.stage} was renewed in the meantime.", job_id=job.id)
        case Waiting(task):
            if entry(job, task) not in facts.waiting:
                raise Conflict(f"{task.stage} is not waiting in its queue any more.", job_id=job.id)
        case Foremost(task, kinds):
            queue, _, rank, id, *_ = entry(job, task)
            if facts.heads.get((queue, kinds), (rank, id)) < (rank, id):
                raise Conflict(f"Something more urgent than {task.stage} is waiting.", job_id=job.id)
        case KeyUnused(key):
            if key in facts.keys:
                raise AlreadySubmitted(job_id=facts.keys[key][0], fingerprint=facts.keys[key][1])
        case SlotFree(slot):
            if facts.slots.get(slot, job.id) != job.id:
                raise SlotTaken(active_job_id=facts.slots[slot])
        case RecordIs(ref, stamp):
            if facts.records.get(ref, 0) != stamp:
                raise Conflict(f"The {ref.kind} was changed in the meantime.", job_id=job.id, kind=ref.kind, id=ref.id)


def _encode(effect: Effect) -> bytes:
    """What cannot be written down is found out here, before anything is gathered."""
    match effect:
        case KeepSpec(spec):
            return json.encode(spec)
        case KeepResult(result=result):
            return json.encode(result)
        case PutRecord() | NoteRecord() | DropRecord():
            records.check_effect(effect)
    return b""


def _apply(effect: Effect, body: bytes, change: Change, facts: Facts, batch: Batch, clock: Clock) -> None:
    job = change.after
    match effect:
        case MakeDue(task, not_before=not_before):
            batch.due[entry(job, task)] = not_before
            if not_before <= clock.now():
                facts.waiting.add(entry(job, task))
        case TakeBack(task):
            batch.take_back(change, task, is_due=entry(job, task) in facts.waiting)
            facts.waiting.discard(entry(job, task))
        case Grant(task, token, worker, seconds):
            batch.leases[(job.id, *task)] = (token, worker, seconds)
            facts.leases[(job.id, *task)] = (token, False)
        case EndLease(task):
            if batch.leases.pop((job.id, *task), None) is None:
                batch.lease_drops[(job.id, *task)] = facts.trusted.get((job.id, *task))
            facts.leases.pop((job.id, *task), None)
        case TakeSlot(slot):
            facts.slots[slot] = job.id
        case ReleaseSlot(slot):
            if slot not in facts.stored_slots:
                batch.slot_drops.add((slot, job.id))
            elif facts.slots.get(slot) == job.id:
                del facts.slots[slot]
        case KeepSpec(spec):
            key = next((e.key for e in change.effects if isinstance(e, RememberKey)), None)
            batch.specs[job.id] = (key, body, spec.parameters)
        case RememberKey(key, fingerprint):
            facts.keys[key] = (job.id, fingerprint)
        case KeepResult(task, result):
            batch.results[(job.id, *task)] = (body, result.value)
        case DropStages(stages):
            batch.drop_stages(job.id, stages)
        case RecordFailure() | SettleFailures():
            batch.failures.append((job.id, effect))
        case PutRecord() | NoteRecord() | DropRecord():
            batch.records.append(effect)
            facts.records[records.ref_of(effect)] = WRITTEN
