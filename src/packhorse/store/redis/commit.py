"""A change as the server makes it: guards to be checked, and operations to be carried out when all of them hold."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import msgspec

from packhorse.core import wire
from packhorse.core.model import (
    Change,
    DropStages,
    Effect,
    EndLease,
    Event,
    Foremost,
    Grant,
    Guard,
    Holds,
    Job,
    KeepResult,
    KeepSpec,
    KeyUnused,
    MakeDue,
    Overdue,
    ReleaseSlot,
    RememberKey,
    SlotFree,
    Stage,
    Status,
    TakeBack,
    TakeSlot,
    TaskId,
    Waiting,
)
from packhorse.errors import AlreadySubmitted, Conflict, LeaseLost, PackhorseError, SlotTaken, StoreError
from packhorse.store.redis import keys, records
from packhorse.store.redis.records import Plans

STREAM = "1000"
"""Entries kept of each stream for outside readers. Nothing is ever decided by them."""
NET = 7 * 86_400
"""Seconds after its purge time at which the server itself drops an ended job, should no worker ever come back."""
MANY = 500
"""Fields named in one operation at most."""

Op = list[str]

_pack = msgspec.msgpack.Encoder().encode


class Kept(Event, frozen=True, omit_defaults=True):
    """An event as it is kept: the first of a change carries the change's id."""

    change: str = ""


class Member(NamedTuple):
    job_id: str
    """Empty for what is about no job's record, and so is never refused for a neighbour's sake."""
    body: bytes
    """What the script is told, packed."""


def plain(*ops: Op, guards: Sequence[Op] = ()) -> Member:
    """Operations about no job's record."""
    return Member("", _pack(["", "*", "", "", guards, ops]))


def member(change: Change, plans: Plans, reservation: str | None = None) -> Member:
    """The change, packed. Raises what is wrong with it: nothing of it has been sent then."""
    job = change.after
    if not job.id:
        raise StoreError("A job must have an id.")
    version = "" if change.before is None else str(change.before.version)
    plan, body = "", ""
    if change.before is None:
        assert job.plan.fingerprint, "a plan without a fingerprint would be taken for another one"
        plan = job.plan.fingerprint
        body = "" if plan in plans.kept else wire.encode(job.plan).decode()
    guards = [_guard(guard, job, reservation) for guard in change.guards]
    return Member(job.id, _pack([job.id, version, plan, body, guards, list(_ops(change))]))


def erasure(job_id: str, version: str, gone: Sequence[str], indexes: Sequence[str]) -> Member:
    """Everything under the job's id, if it is still as it was read."""
    ops = [*(["DEL", key] for key in gone), ["out", job_id, *indexes]]
    return Member(job_id, _pack([job_id, version, "", "", [], ops]))


def refusal(outcome: Any, change: Change) -> PackhorseError | None:
    """Why the change was not made, in the words of the contract."""
    if not outcome:
        return None
    why, *facts = outcome
    job_id = change.after.id
    match why.decode():
        case "version":
            return Conflict(job_id=job_id)
        case "exists already":
            return Conflict(f"There is a job {job_id} already.", job_id=job_id)
        case "behind":
            return Conflict("An earlier change of the job was refused.", job_id=job_id)
        case "unsound" | "half" as how:
            # Half is what only a damaged key can bring about; it must not look as if nothing had been written.
            what = "was not made" if how == "unsound" else "was made only in part"
            return StoreError(f"Redis: a change of job {job_id} {what}: {facts[0].decode()}")
    return _guarded(change.guards[facts[0] - 1], job_id, [fact.decode() for fact in facts[1:]])


def _guarded(guard: Guard, job_id: str, facts: list[str]) -> PackhorseError:
    match guard:
        case Holds(task):
            return LeaseLost(job_id=job_id, stage=task.stage)
        case Overdue(task):
            return Conflict(f"The lease of {task.stage} was renewed in the meantime.", job_id=job_id)
        case Waiting(task):
            return Conflict(f"{task.stage} is not waiting in its queue any more.", job_id=job_id)
        case Foremost(task):
            return Conflict(f"Something more urgent than {task.stage} is waiting.", job_id=job_id)
        case KeyUnused():
            other, _, fingerprint = facts[0].partition(" ")
            return AlreadySubmitted(job_id=other, fingerprint=fingerprint)
        case SlotFree():
            return SlotTaken(active_job_id=facts[0])


def _guard(guard: Guard, job: Job, reservation: str | None) -> Op:
    match guard:
        case Holds(task, token):
            return ["holds", keys.entry(job.id, task), token]
        case Overdue(task, token):
            return ["overdue", keys.entry(job.id, task), token]
        case Waiting(task):
            entry = keys.entry(job.id, task)
            if reservation is not None:  # it waits with us
                return ["reserved", entry, reservation]
            stage = job.plan.stage(task.stage)
            return ["waiting", keys.ready(stage.queue, stage.kind), entry]
        case Foremost(task, kinds):
            return ["foremost", job.plan.stage(task.stage).queue, str(-job.priority), job.id, *kinds]
        case KeyUnused(key):
            return ["unused", keys.idempotency(key)]
        case SlotFree(slot):
            return ["free", keys.slot(slot), job.id]


def back(job: Job, at: TaskId) -> Op:
    stage = job.plan.stage(at.stage)
    return ["back", stage.queue, stage.kind, str(-job.priority), keys.entry(job.id, at)]


def _ops(change: Change) -> Iterator[Op]:
    """The record first: where the server cannot take more, it is refused before anything else was written."""
    yield from _record(change)
    yield from _indexed(change)
    for effect in change.effects:
        yield from _effect(effect, change)
    yield from _history(change)
    yield from _stages(change)
    yield from _lifetime(change)


def _record(change: Change) -> Iterator[Op]:
    before, job = change.before, change.after
    if before is None:
        yield ["HSET", keys.job(job.id), *records.fields(job), *_beside(change)]
        yield ["into", keys.pair(job.tenant, job.plan.pipeline), keys.PAIRS, "0"]
        yield ["count", "submitted"]
        return
    yield ["HSET", keys.job(job.id), *records.moved(before, job), *_beside(change)]


def _beside(change: Change) -> Iterator[str]:
    """Fields of the record about what is kept beside its state. Those that begin with has_ name keys of their own."""
    for effect in change.effects:
        match effect:
            case KeepSpec(spec):
                yield from ("spec", wire.encode(spec).decode())
            case RememberKey(key):
                yield from ("key", key)
            case KeepResult(_, result) if result.artifacts:
                yield from ("has_output", "1")
    if change.id and not change.events:
        yield from ("has_changes", "1")


def _indexed(change: Change) -> Iterator[Op]:
    """Only what moves: a step that leaves the status alone touches no index."""
    before, job = change.before, change.after
    if before is not None and records.is_indexed_alike(before, job):
        return
    was = {} if before is None else records.memberships(before)
    now = records.memberships(job)
    into = [text for index, score in now.items() if was.get(index) != score for text in (index, str(score))]
    out = [index for index in was if index not in now]
    if into:
        yield ["into", job.id, *into]
    if out:
        yield ["out", job.id, *out]


def _effect(effect: Effect, change: Change) -> Iterator[Op]:
    job = change.after
    match effect:
        case MakeDue(task, queue, kind, priority, not_before):
            yield ["due", queue, kind, str(-priority), keys.entry(job.id, task), str(not_before)]
        case TakeBack(task):
            yield back(job, task)
        case Grant(task, token, worker, seconds):
            yield ["grant", keys.entry(job.id, task), token, worker, str(seconds)]
        case EndLease(task):
            yield ["finish", keys.entry(job.id, task)]
        case TakeSlot(slot):
            yield ["SET", keys.slot(slot), job.id]
        case ReleaseSlot(slot):
            yield ["release", keys.slot(slot), job.id]
        case RememberKey(key, fingerprint):
            yield ["SET", keys.idempotency(key), f"{job.id} {fingerprint}"]
        case KeepResult(task, result):
            yield ["HSET", keys.result(job.id), keys.task(task), wire.encode(result).decode()]
            places = [artifact.file.key for artifact in result.artifacts]
            if places:
                yield ["HSET", keys.output(job.id), keys.task(task), wire.encode(places).decode()]
        case DropStages(stages):
            for stage in stages:
                yield from _dropped(change.before or job, stage)


def _dropped(job: Job, stage: str) -> Iterator[Op]:
    tasks = [keys.task(TaskId(stage, n)) for n in range(len(job.stage(stage).tasks or ()))]
    for key in (keys.result(job.id), keys.output(job.id), keys.progress(job.id)):
        for first in range(0, len(tasks), MANY):
            yield ["HDEL", key, *tasks[first : first + MANY]]
    yield ["DEL", keys.stage(job.id, stage)]


def _history(change: Change) -> Iterator[Op]:
    job_id = change.after.id
    if change.events:
        first, *rest = change.events
        kept = [Kept(first.n, first.type, first.at, first.data, change.id), *rest]
        yield ["RPUSH", keys.events(job_id), *(wire.encode(event).decode() for event in kept)]
    elif change.id:  # nothing to tell, but whether it was made may be asked
        yield ["RPUSH", keys.changes(job_id), change.id]
    for event in change.events:
        if (sort := ANNOUNCED.get(event.type)) is not None:
            # What is about the whole job has a stream of its own.
            verb = "announce" if "stage" in event.data else "publish"
            yield [verb, job_id, _message(sort, event, change.after)]


ANNOUNCED = {
    "stage_started": "info", "retrying": "info", "cancelling": "info", "cancelled": "info",
    "stage_completed": "complete", "completed": "complete", "stage_failed": "error", "failed": "error",
}  # fmt: skip
"""Events that live watchers of Pub/Sub hear of, and as what."""


def _message(sort: str, event: Event, job: Job) -> str:
    said = event.data.get("message") or event.type.replace("_", " ")
    stage = str(event.data.get("stage", ""))
    return announcement(sort, stage, event.at, str(said), *_done(job, stage))


def announcement(sort: str, processor: str, at: float, message: str, current: float | None, total: float | None) -> str:
    """What is published on ``progress:{id}``."""
    data = {"message": message, "current": current, "total": total}
    return wire.encode({"type": sort, "processor": processor, "timestamp": at, "data": data}).decode()


def _done(job: Job, stage: str) -> tuple[int, int]:
    """Tasks of the stage that are finished, and all; of the whole job where it is about no stage in particular."""
    of = (job.stage(stage),) if stage in job.plan.index else job.stages
    tasks = [task for each in of for task in each.tasks or ()]
    return sum(task.status is Status.COMPLETED for task in tasks), len(tasks)


def _stages(change: Change) -> Iterator[Op]:
    """What people read about a stage, when it has moved. One that was never begun has none."""
    before, job = change.before, change.after
    if before is None:
        return
    for plan, was, now in zip(job.plan.stages, before.stages, job.stages, strict=True):
        if was is not now and was != now and now.tasks:
            yield ["HSET", keys.stage(job.id, plan.name), *_readable(now, plan.over is not None, job.updated_at)]


def _readable(stage: Stage, has_elements: bool, at: float) -> Iterator[str]:
    tasks = stage.tasks or ()
    yield from ("status", stage.status.value, "updated_at", str(at))
    started = [task.started_at for task in tasks if task.started_at is not None]
    if started:
        yield from ("started_at", str(min(started)))
    done = sum(task.status is Status.COMPLETED for task in tasks)
    if has_elements:
        yield from ("elements", str(len(tasks)), "current", str(done), "total", str(len(tasks)))
        yield from ("progress", f"{100 * done / len(tasks):.0f}")
    elif done:
        yield from ("progress", "100")


def _lifetime(change: Change) -> Iterator[Op]:
    """A job that is not over never expires. One that is has the server's own purge as a net behind ours."""
    before, job = change.before, change.after
    was_over, is_over = before is not None and before.status.is_terminal, job.status.is_terminal
    if is_over and job.purge_at is not None:
        lasts = max(0.0, job.purge_at - job.updated_at) + NET
        yield ["expire", f"{lasts:.0f}", job.id, *keys.readable(job)]
    elif was_over:
        yield ["persist", job.id, keys.result(job.id), *keys.readable(job)]
    if is_over and not was_over:
        yield ["count", job.status.value]
        done = ["job_id", job.id, "status", job.status.value, "pipeline", job.plan.pipeline]
        yield ["XADD", "queue:done", "MAXLEN", "~", STREAM, "*", *done]
