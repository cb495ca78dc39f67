"""Making changes: look under locks, judge each by what is there, gather what they leave, and write it at once."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Sequence
from functools import partial
from typing import NamedTuple

import asyncpg

from packhorse import errors
from packhorse.core import changes, json
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.store.base import is_own_work
from packhorse.store.batching import Group
from packhorse.store.counters import Usage, refuse_usage
from packhorse.store.postgres import records
from packhorse.store.postgres.batch import Batch, Facts, version_of
from packhorse.store.postgres.connection import Address, Clock, Session
from packhorse.store.postgres.session import Handle, Outdated, describe_error, is_id, is_storable
from packhorse.store.postgres.starts import prepared_start
from packhorse.store.postgres.watch import Notice
from packhorse.store.rows import Plans, entry

Outcome = errors.PackhorseError | None

WRITTEN = -1
"""Stands for the stamp of a record that an earlier change of the group writes: nobody has seen what it becomes."""

BLAMED = (asyncpg.PostgresError, errors.StoreError, TypeError, ValueError, OverflowError)
"""Something in one member cannot be written, or what is to be counted with it cannot be read, such as the group of its
failure: the others are to be written without it."""


class Member(NamedTuple):
    """A change, and the number of the call that brought it."""

    call: int
    change: Change

    @property
    def fold(self) -> tuple[int, str]:
        """Changes of one job in one call follow each other."""
        return self.call, self.change.after.id


class Made(NamedTuple):
    outcomes: list[errors.PackhorseError | None]
    plans: set[str]
    """Fingerprints of the plans that are now in the store."""


class Commits(Handle):
    def __init__(self, address: Address, clock: Callable[[], float] | None = None) -> None:
        super().__init__(address, clock)
        self._commits: Group[Member, Outcome] = self._group(self._make)
        self._calls = itertools.count(1)

    async def commit(self, changes: Sequence[Change]) -> list[errors.PackhorseError | None]:
        if self._is_closed:
            return [errors.StoreUnavailable("The store is closed.") for _ in changes]
        call = next(self._calls)
        return list(await self._commits([Member(call, change) for change in changes]))

    async def _make(self, members: Sequence[Member], refused: Collection[tuple[int, str]] = ()) -> list[Outcome]:
        """One transaction for all. Where the server will not take one of them, each half goes alone, and so on."""
        try:
            return await self._make_once(members, refused)
        except (errors.StoreUnavailable, errors.UnknownOutcome) as error:
            return [error for _ in members]
        except BLAMED as error:  # nothing of the transaction was made
            if len(members) == 1:
                return [error if isinstance(error, errors.PackhorseError) else describe_error(error)]
        half = len(members) // 2
        first = await self._make(members[:half], refused)
        broken = {member.fold for member, outcome in zip(members, first, strict=False) if outcome is not None}
        return first + await self._make(members[half:], {*refused, *broken})

    async def _make_once(self, members: Sequence[Member], refused: Collection[tuple[int, str]]) -> list[Outcome]:
        notice = self._watch.notice()
        make = partial(make_all, members=members, refused=refused, clock=self._clock, plans=self._plans, notice=notice)
        try:
            found = await self._connections.write(partial(make, is_trusting=True))
        except (asyncpg.UniqueViolationError, Outdated):  # the state has changed since: look before writing
            found = await self._connections.write(partial(make, is_trusting=False))
        self._plans.stored |= found.plans
        own = all(is_own_work(member.change) for member in members)
        self._watch.tell(is_told=notice.is_told, is_own_work=own)
        return found.outcomes


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
    outcomes: list[errors.PackhorseError | None] = []
    for member, error in zip(members, unfit, strict=True):
        outcomes.append(error or _refuse_follower(member, broken) or judge(member.change, facts, batch, clock))
        if outcomes[-1] is not None:
            broken.add(member.fold)
    await batch.send(session, facts, clock, notice, is_trusting=is_trusting)
    return Made(outcomes, set(batch.plans))


def _refuse_follower(member: Member, broken: Collection[tuple[int, str]]) -> errors.PackhorseError | None:
    """What follows a refused change of its job was decided on what never was."""
    return errors.Conflict(job_id=member.change.after.id) if member.fold in broken else None


def _find_unstorable(change: Change) -> errors.PackhorseError | None:
    """Names that PostgreSQL cannot hold. They are not replaced, for that would make one name of two."""
    if change.before is not None:
        return None
    job, keys = change.after, [effect.key for effect in change.effects if isinstance(effect, changes.RememberKey)]
    named = [("user_id", job.user), ("tenant_id", job.tenant), *(("Idempotency-Key", key) for key in keys)]
    for field, text in named:
        if not is_storable([text]):
            return errors.InvalidInput(f"{field} has a character in it that cannot be stored.", field=field)
    return None if is_id(job.id) else errors.StoreError(f"{job.id!r} cannot be the id of a job: it is no UUID.")


def judge(change: Change, facts: Facts, batch: Batch, clock: Clock) -> errors.PackhorseError | None:
    """Gather what the change writes; or say why it is refused, and gather nothing. Raises `Outdated`."""
    try:
        make(change, facts, batch, clock)
    except errors.PackhorseError as error:
        return error
    except Outdated:
        raise
    except Exception as error:  # broad: whatever one member trips over must not take its neighbours along
        return describe_error(error)
    return None


def make(change: Change, facts: Facts, batch: Batch, clock: Clock) -> None:
    """Raise the refusal before anything is gathered, or gather everything."""
    job = change.after
    for guard in change.guards:
        if isinstance(guard, changes.HasRoom):
            _check_room(guard, facts, batch)
        else:
            _check(guard, job, facts)
    known = facts.versions.get(job.id)
    if change.before is None:
        if known is not None:
            raise errors.Conflict(f"There is a job {job.id} already.", job_id=job.id)
    elif known != version_of(change.before):
        raise errors.Conflict(job_id=job.id)
    events, bodies = json.encode(change.events), [_encode(effect) for effect in change.effects]
    facts.versions[job.id] = version_of(job)
    batch.job(change)
    batch.history(change, events)
    slot = changes.slot_to_wait_for(change)
    waits = slot is not None and batch.join_line(change, slot, facts)
    for effect, body in zip(change.effects, bodies, strict=True):
        if not (waits and isinstance(effect, changes.MakeDue | changes.TakeSlot)):
            _apply(effect, body, change, facts, batch, clock)


def _check(guard: changes.Guard, job: Job, facts: Facts) -> None:
    match guard:
        case changes.Holds(task, token):
            if facts.leases.get((job.id, *task), (None, False))[0] != token:
                raise errors.LeaseLost(job_id=job.id, stage=task.stage)
        case changes.Overdue(task, token):
            if facts.leases.get((job.id, *task)) != (token, True):
                raise errors.Conflict(f"The lease of {task.stage} was renewed in the meantime.", job_id=job.id)
        case changes.Waiting(task):
            if entry(job, task) not in facts.waiting:
                raise errors.Conflict(f"{task.stage} is not waiting in its queue any more.", job_id=job.id)
        case changes.WithinLimits(task, uses):
            full = None if facts.is_counted else next((use for use in uses if facts.is_full(use)), None)
            if full is not None:
                raise errors.Conflict(f"{task.stage} would exceed the limit {full.name}.", job_id=job.id)
        case changes.Foremost(task, kinds):
            queue, _, rank, id, *_ = entry(job, task)
            if facts.heads.get((queue, kinds), (rank, id)) < (rank, id):
                raise errors.Conflict(f"Something more urgent than {task.stage} is waiting.", job_id=job.id)
        case changes.KeyUnused(key):
            if key in facts.keys:
                raise errors.AlreadySubmitted(job_id=facts.keys[key][0], fingerprint=facts.keys[key][1])
        case changes.SlotFree(slot):
            if facts.slots.get(slot, job.id) != job.id:
                raise errors.SlotTaken(active_job_id=facts.slots[slot])
        case changes.RecordIs(ref, stamp):
            if facts.records.get(ref, 0) != stamp:
                raise errors.Conflict(
                    f"The {ref.kind} was changed in the meantime.", job_id=job.id, kind=ref.kind, id=ref.id
                )


def _check_room(guard: changes.HasRoom, facts: Facts, batch: Batch) -> None:
    """Where nobody has looked, the statement compares; what the group adds by itself must fit before that."""
    used = facts.usage.get(guard.tenant)
    refusal = refuse_usage(used or batch.usage.get(guard.tenant, Usage()), guard)
    if refusal is not None:
        raise Outdated if used is None else refusal
    if used is None:
        batch.quotas[guard.tenant] = (guard.most_jobs, guard.most_bytes)


def _encode(effect: changes.Effect) -> bytes:
    """What cannot be written down is found out here, before anything is gathered."""
    match effect:
        case changes.KeepSpec(spec):
            return json.encode(spec)
        case changes.KeepResult(result=result):
            return json.encode(result)
        case changes.PutRecord() | changes.NoteRecord() | changes.DropRecord():
            records.check_effect(effect)
    return b""


def _apply(effect: changes.Effect, body: bytes, change: Change, facts: Facts, batch: Batch, clock: Clock) -> None:
    job = change.after
    match effect:
        case changes.MakeDue(not_before=not_before):
            place = batch.make_due(job.id, effect, prepared_start(change, effect))
            if not_before <= clock.now():
                facts.waiting.add(place)
        case changes.TakeBack(task, limits=uses):
            batch.take_back(change, task, is_due=entry(job, task) in facts.waiting)
            facts.waiting.discard(entry(job, task))
            if job.plan.stage(task.stage).is_regulated and not facts.is_counted:
                batch.turns.pop((job.id, *task), None)
                batch.waiting_drops.add((job.id, *task))
                batch.room |= {use.key: None for use in uses}
        case changes.Grant(task, token, worker, seconds, limits=uses, share=share):
            batch.leases[(job.id, *task)] = (token, worker, seconds)
            facts.leases[(job.id, *task)] = (token, False)
            if (uses or share is not None) and not facts.is_counted:
                batch.count(job, effect)
                facts.count(uses)
        case changes.EndLease(task, limits=uses):
            if uses:
                batch.let_go(job.id, task, uses)
            if batch.leases.pop((job.id, *task), None) is None:
                batch.lease_drops[(job.id, *task)] = facts.trusted.get((job.id, *task))
            facts.leases.pop((job.id, *task), None)
        case changes.TakeSlot(slot):
            facts.slots[slot] = job.id
        case changes.ReleaseSlot(slot):
            if slot in facts.stored_slots:
                batch.release(slot, job.id, facts)
            else:
                batch.free_slots.add((slot, job.id))
        case changes.CountUsage(tenant, jobs, size):
            for kept in (batch.usage, facts.usage) if tenant in facts.usage else (batch.usage,):
                before = kept.get(tenant, Usage())
                kept[tenant] = Usage(before.jobs + jobs, before.bytes + size)
        case changes.KeepSpec(spec):
            key = next((e.key for e in change.effects if isinstance(e, changes.RememberKey)), None)
            batch.specs[job.id] = (key, body, spec.parameters)
        case changes.RememberKey(key, fingerprint):
            facts.keys[key] = (job.id, fingerprint)
        case changes.KeepResult(task, result):
            batch.results[(job.id, *task)] = (body, result.value)
        case changes.DropStages(stages):
            batch.drop_stages(job.id, stages)
        case changes.RecordFailure() | changes.SettleFailures():
            batch.failures.append((job.id, effect))
        case changes.PutRecord() | changes.NoteRecord() | changes.DropRecord():
            batch.records.append(effect)
            facts.records[records.ref_of(effect)] = WRITTEN
