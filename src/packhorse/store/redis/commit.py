"""A change as the server makes it: guards to be checked, and operations to be carried out when all of them hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from packhorse.core import changes, failures, json
from packhorse.core.changes import Change, Effect, Guard
from packhorse.core.models import FailedRun, Job, TaskId
from packhorse.core.plan import TaskStatus
from packhorse.core.records import IndexEntry, Put
from packhorse.errors import AlreadySubmitted, Conflict, LeaseLost, PackhorseError, SlotTaken, StoreError
from packhorse.store.base import is_own_work
from packhorse.store.counters import Usage, refuse_usage
from packhorse.store.redis import keys, rows
from packhorse.store.redis.session import Member, Op, Session, pack_member
from packhorse.store.rows import Plans

NET = 7 * 86_400
"""Seconds after its purge time at which the server itself drops an ended job, should no worker ever come back."""
MANY = 500
"""Fields named in one operation at most."""
NEEDS_PLAN = b"plan"


class Kept(Struct, frozen=True, array_like=True):
    """An event as it is kept, without its number, which is its place: the first of a change carries the change's id."""

    type: str
    at: float
    data: Mapping[str, Any]
    change: str = ""


class CommitStore(Session):
    async def commit(self, changes: Sequence[Change]) -> list[PackhorseError | None]:
        try:
            return await self._commit(changes)
        except StoreError as error:
            return [error] * len(changes)

    async def _commit(self, changes: Sequence[Change]) -> list[PackhorseError | None]:
        outcomes: dict[int, PackhorseError | None] = {}
        members: dict[int, Member] = {}
        spoiled: set[str] = set()
        for n, change in enumerate(changes):
            job_id = change.after.id
            if job_id in spoiled:
                outcomes[n] = Conflict("An earlier change of the job was refused.", job_id=job_id)
                continue
            try:
                members[n] = pack_change(change, self._plans)
            except Exception as error:  # broad: the caller of this change gets its error, the others are sent
                spoiled.add(job_id)
                outcomes[n] = error if isinstance(error, PackhorseError) else _unwritable(error)
        answers = dict(zip(members, await self._write(list(members.values())), strict=True))
        lacking = [
            n for n, answer in answers.items() if not isinstance(answer, Exception) and answer[:1] == [NEEDS_PLAN]
        ]
        if lacking:
            answers |= await self._with_plans(changes, answers, lacking)
        for n, answer in answers.items():
            change = changes[n]
            outcomes[n] = answer if isinstance(answer, PackhorseError) else _refusal(answer, change)
            if change.before is None and outcomes[n] is None:
                self._plans.stored.add(change.after.plan.fingerprint)
        return [outcomes[n] for n in range(len(changes))]

    async def _with_plans(
        self, changes: Sequence[Change], answers: Mapping[int, object], lacking: Sequence[int]
    ) -> dict[int, object]:
        """The server has lost plans that we had put there: bring them along, and what was refused behind them."""
        self._plans.stored.clear()
        jobs = {changes[n].after.id for n in lacking}
        again = [n for n, answer in answers.items() if changes[n].after.id in jobs and answer]
        members = [pack_change(changes[n], self._plans) for n in again]
        return dict(zip(again, await self._write(members), strict=True))


def _unwritable(error: Exception) -> StoreError:
    found = StoreError(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def pack_change(change: Change, plans: Plans, reservation: str | None = None) -> Member:
    """The change, packed. Raises what is wrong with it: nothing of it has been sent then."""
    job = change.after
    if not job.id:
        raise StoreError("A job must have an id.")
    version = "" if change.before is None else f"{change.before.version} {change.before.lineage}"
    plan, body = "", ""
    if change.before is None:
        assert job.plan.fingerprint, "a plan without a fingerprint would be taken for another one"
        plan = job.plan.fingerprint
        body = "" if plan in plans.stored else json.encode(job.plan).decode()
    guards = [_guard(guard, job, reservation) for guard in change.guards]
    ops = _ops(change)
    if body:
        ops += [["SADD", keys.kinds(stage.queue), stage.kind] for stage in job.plan.stages]
    return pack_member(job.id, (version, plan, body), guards, ops, is_own=is_own_work(change))


def _refusal(outcome: Any, change: Change) -> PackhorseError | None:
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
        case changes.Holds(task):
            return LeaseLost(job_id=job_id, stage=task.stage)
        case changes.Overdue(task):
            return Conflict(f"The lease of {task.stage} was renewed in the meantime.", job_id=job_id)
        case changes.Waiting(task):
            return Conflict(f"{task.stage} is not waiting in its queue any more.", job_id=job_id)
        case changes.Foremost(task):
            return Conflict(f"Something more urgent than {task.stage} is waiting.", job_id=job_id)
        case changes.KeyUnused():
            other, _, fingerprint = facts[0].partition(" ")
            return AlreadySubmitted(job_id=other, fingerprint=fingerprint)
        case changes.SlotFree():
            return SlotTaken(active_job_id=facts[0])
        case changes.HasRoom():
            return refuse_usage(Usage(*map(int, facts)), guard) or Conflict(job_id=job_id)
        case changes.RecordIs(ref):
            return Conflict(f"The record {ref.kind} {ref.id} has changed.", job_id=job_id)


def _guard(guard: Guard, job: Job, reservation: str | None) -> Op:
    match guard:
        case changes.Holds(task, token):
            return ["holds", keys.entry(job.id, task), token]
        case changes.Overdue(task, token):
            return ["overdue", keys.entry(job.id, task), token]
        case changes.Waiting(task):
            entry = keys.entry(job.id, task)
            if reservation is not None:  # it waits with us
                return ["reserved", entry, reservation]
            stage = job.plan.stage(task.stage)
            return ["waiting", keys.ready(stage.queue, stage.kind), entry]
        case changes.Foremost(task, kinds):
            return ["foremost", job.plan.stage(task.stage).queue, str(-job.priority), job.id, *kinds]
        case changes.KeyUnused(key):
            return ["unused", keys.idempotency(key)]
        case changes.SlotFree(slot):
            return ["free", keys.slot(slot), job.id]
        case changes.HasRoom(tenant, most_jobs, most_bytes, size):
            return ["room", keys.usage(tenant), str(most_jobs), str(most_bytes), str(size)]
        case changes.RecordIs(ref, stamp):
            return ["record_is", *ref, str(stamp)]


def _ops(change: Change) -> list[Op]:
    """The record first: where the server cannot take more, it is refused before anything else was written."""
    ops: list[Op] = []
    _record(change, ops)
    _index(change, ops)
    for effect in change.effects:
        _apply(effect, change, ops)
    _tell(change, ops)
    _show_stages(change, ops)
    _limit(change, ops)
    return ops


def _record(change: Change, ops: list[Op]) -> None:
    before, job = change.before, change.after
    if before is None:
        ops.append(["HSET", keys.job(job.id), *rows.fields(job), *_beside(change)])
        ops.append(["into", keys.pair(job.tenant, job.plan.pipeline), keys.PAIRS, "0"])
        ops.append(["count", "submitted"])
        return
    new = rows.changed_fields(before, job)
    kept = [text for name, value in new if value for text in (name, value)]
    ops.append(["HSET", keys.job(job.id), *kept, *_beside(change)])
    if len(kept) < 2 * len(new):
        ops.append(["HDEL", keys.job(job.id), *(name for name, value in new if not value)])


def _beside(change: Change) -> list[str]:
    """Fields of the record about what is kept beside its state. Those that begin with has_ name keys of their own."""
    found: list[str] = []
    for effect in change.effects:
        match effect:
            case changes.KeepSpec(spec):
                found += ("spec", json.encode(spec).decode())
            case changes.RememberKey(key):
                found += ("key", key)
            case changes.KeepResult(_, result) if result.artifacts:
                found += ("has_output", "1")
    if change.id and not change.events:
        found += ("has_changes", "1")
    return found


def _index(change: Change, ops: list[Op]) -> None:
    """Only what moves: a step that leaves the status alone touches no index."""
    before, job = change.before, change.after
    if before is not None and rows.is_indexed_alike(before, job):
        return
    was = {} if before is None else rows.memberships(before)
    now = rows.memberships(job)
    into = [text for index, score in now.items() if was.get(index) != score for text in (index, str(score))]
    out = [index for index in was if index not in now]
    if into:
        ops.append(["into", job.id, *into])
    if out:
        ops.append(["out", job.id, *out])


def _apply(effect: Effect, change: Change, ops: list[Op]) -> None:
    job = change.after
    match effect:
        case changes.MakeDue(task, queue, kind, priority, at, delay):
            ops.append(["due", queue, kind, str(-priority), keys.entry(job.id, task), str(at), str(at - delay)])
        case changes.TakeBack(task):
            stage = job.plan.stage(task.stage)
            ops.append(["back", stage.queue, stage.kind, str(-job.priority), keys.entry(job.id, task)])
        case changes.Grant(task, token, worker, seconds):
            ops.append(["grant", keys.entry(job.id, task), token, worker, str(seconds)])
        case changes.EndLease(task):
            ops.append(["finish", keys.entry(job.id, task)])
        case changes.TakeSlot(slot):
            ops.append(["SET", keys.slot(slot), job.id])
        case changes.ReleaseSlot(slot):
            ops.append(["release", keys.slot(slot), job.id])
        case changes.CountUsage(tenant, jobs, size):
            added = {"jobs": jobs, "bytes": size}
            ops += [["HINCRBY", keys.usage(tenant), name, str(n)] for name, n in added.items() if n]
        case changes.RememberKey(key, fingerprint):
            ops.append(["SET", keys.idempotency(key), f"{job.id} {fingerprint}"])
        case changes.KeepResult(task, result):
            ops.append(["HSET", keys.result(job.id), keys.task(task), json.encode(result).decode()])
            places = [artifact.file.key for artifact in result.artifacts]
            if places:
                ops.append(["HSET", keys.output(job.id), keys.task(task), json.encode(places).decode()])
        case changes.DropStages(stages):
            for name in stages:
                _drop(change.before or job, name, ops)
        case changes.RecordFailure():
            ops.append(_record_failure(effect.failure))
        case changes.SettleFailures(was, now, settled):
            body = "" if settled is None else json.encode(settled).decode()
            ops.append(["settle_failures", job.id, was.value, now.value, body])
        case changes.PutRecord(put):
            stamp = "" if put.stamp is None else str(put.stamp)
            ops.append(["put_record", put.kind, put.id, stamp, *put_facts(put)])
        case changes.NoteRecord(ref, note, index):
            ops.append(["note_record", *ref, as_text(note), join_index(index)])
        case changes.DropRecord(ref):
            ops.append(["drop_record", *ref])


def _record_failure(failure: FailedRun) -> Op:
    """The operation that keeps a failure and counts it. The script finds out whether its group is new."""
    group = failures.new_group(failure)
    facts = {
        "pipeline": group.pipeline, "stage": group.stage or "", "code": group.code, "message": group.message,
        "first_seen": repr(group.first_seen),
    }  # fmt: skip
    alerts = [failures.put_action(failures.new_alert(failure, kind)) for kind in ("new", "again")]
    return [
        "fail", failure.id, failure.job_id, keys.group(failure.tenant, failure.fingerprint), failure.user,
        str(failures.MAX_USERS), repr(failure.at), group.seen, json.encode(failure).decode(),
        *(each.body.decode() for each in alerts), alerts[0].id, *(text for pair in facts.items() for text in pair),
    ]  # fmt: skip


def join_index(index: Sequence[IndexEntry]) -> str:
    return "".join([f"{name}\0{place}\0" for name, place in index])


def as_text(body: bytes) -> Any:
    """Bytes as msgpack's text: the server's scripts cannot read its bytes."""
    return msgspec.Raw(b"\xdb" + len(body).to_bytes(4) + body)


def put_facts(put: Put) -> list[str]:
    """The arguments of a script for a put, behind its kind, id and stamp: see `put_record` in lua/record_lib.lua."""
    due = "" if put.due_at is None else repr(put.due_at)
    attempts = "" if put.attempts is None else str(put.attempts)
    needs = ("", "") if put.needs is None else put.needs
    return [as_text(put.body), join_index(put.index), put.lane, due, attempts, put.job_id or "", *needs]


def _drop(job: Job, stage: str, ops: list[Op]) -> None:
    tasks = [keys.task(TaskId(stage, n)) for n in range(len(job.stage(stage).tasks or ()))]
    for key in (keys.result(job.id), keys.output(job.id), keys.progress(job.id)):
        ops += [["HDEL", key, *tasks[first : first + MANY]] for first in range(0, len(tasks), MANY)]
    ops.append(["DEL", keys.stage(job.id, stage)])


def _tell(change: Change, ops: list[Op]) -> None:
    job_id = change.after.id
    if change.events:
        first, *rest = change.events
        named: tuple[Any, ...] = (first.type, first.at, first.data, change.id)
        kept = [named if change.id else named[:3], *((each.type, each.at, each.data) for each in rest)]
        ops.append(["RPUSH", keys.events(job_id), *[json.encode(event).decode() for event in kept]])
    elif change.id:  # nothing to tell, but whether it was made may be asked
        ops.append(["RPUSH", keys.changes(job_id), change.id])
    for event in change.events:
        if (sort := rows.ANNOUNCED.get(event.type)) is not None:
            # What is about the whole job has a stream of its own.
            verb = "announce" if "stage" in event.data else "publish"
            ops.append([verb, job_id, rows.event_message(sort, event, change.after)])


def _show_stages(change: Change, ops: list[Op]) -> None:
    """What people read about a stage, when it has moved. One that still waits for its first start has none."""
    before, job = change.before, change.after
    if before is None:
        return
    is_turn = before.is_stopped is not job.is_stopped  # only then can a stage be skipped, or wait again
    for plan, was, now in zip(job.plan.stages, before.stages, job.stages, strict=True):
        if before.is_stopped and (
            before.stage_status(plan.name) is TaskStatus.SKIPPED is not job.stage_status(plan.name)
        ):
            ops.append(["DEL", keys.stage(job.id, plan.name)])
        elif (was is not now and now.tasks and was != now) or (is_turn and now.tasks is None):
            fields = rows.stage_fields(job, plan)
            ops.append(["HSET", keys.stage(job.id, plan.name), *fields])


def _limit(change: Change, ops: list[Op]) -> None:
    """A job that is not over never expires. One that is has the server's own purge as a net behind ours."""
    before, job = change.before, change.after
    was_over, is_over = before is not None and before.status.is_terminal, job.status.is_terminal
    if is_over and job.purge_at is not None:
        lasts = max(0.0, job.purge_at - job.updated_at) + NET
        ops.append(["expire", f"{lasts:.0f}", job.id, *keys.readable(job)])
    elif was_over:
        ops.append(["persist", job.id, keys.result(job.id), *keys.readable(job)])
    if is_over and not was_over:
        ops.append(["count", job.status.value])
        if job.started_at is not None:
            ops.append(["SET", keys.metrics(job.id, "duration"), str(rows.duration(job)), "EX", keys.DURATION_LAST])
        ops.append(["outside", "queue:done", rows.done_item(job)])
