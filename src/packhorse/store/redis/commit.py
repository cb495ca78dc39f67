"""A change as the script makes it: guards to be checked, and effects by name that are made when all of them hold."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import Struct

from packhorse.core import changes, failures, json
from packhorse.core.changes import Change, Effect, Guard
from packhorse.core.limits import LimitUse, Share, share_of
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import StagePlan, TaskStatus
from packhorse.core.records import IndexEntry, Put
from packhorse.errors import AlreadySubmitted, Conflict, LeaseLost, PackhorseError, SlotTaken, StoreError
from packhorse.store.base import is_own_work
from packhorse.store.counters import Usage, refuse_usage
from packhorse.store.redis import keys, rows
from packhorse.store.redis.session import Member, Session, pack_member
from packhorse.store.redis.starts import Known, Template, pack_start
from packhorse.store.rows import split_due

NET = 7 * 86_400
"""Seconds after its purge time at which the server itself drops an ended job, should no worker ever come back."""
MANY = 500
"""Fields named in one operation at most."""
NEEDS_PLAN = b"plan"


Words = list[Any]


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
        self._plans.forget()
        jobs = {changes[n].after.id for n in lacking}
        again = [n for n, answer in answers.items() if changes[n].after.id in jobs and answer]
        members = [pack_change(changes[n], self._plans) for n in again]
        return dict(zip(again, await self._write(members), strict=True))


def _unwritable(error: Exception) -> StoreError:
    found = StoreError(f"{type(error).__name__}: {error}")
    found.__cause__ = error
    return found


def pack_change(change: Change, known: Known, reservation: str | None = None) -> Member:
    """The change, packed. Raises what is wrong with it: nothing of it has been sent then."""
    before, job = change.before, change.after
    if not job.id:
        raise StoreError("A job must have an id.")
    version, plan, body, turn = "", "", "", ""
    if before is None:
        assert job.plan.fingerprint, "a plan without a fingerprint would be taken for another one"
        plan = job.plan.fingerprint
        body = "" if plan in known.stored else json.encode(job.plan).decode()
    else:
        version = f"{before.version} {before.lineage}"
        turn = "1" if before.status.is_terminal or job.status.is_terminal else ""
    words: Words = [0, job.id, version, plan, body, turn]
    for guard in change.guards:
        if reservation is not None and isinstance(guard, changes.Waiting):  # it waits with us
            words += (3, "reserved", keys.entry(job.id, guard.task), reservation)
        elif reservation is not None and isinstance(guard, changes.WithinLimits):  # it was counted then
            words += (2, "not_lowered", _uses(guard.limits))
        else:
            words += _guard(guard, job)
    words.append(0)
    template = _pack_effects(change, words)
    if template is not None and not known.is_sent(template):
        words += (3, "template", template.name, template.body)
    if body:
        pairs = [text for stage in job.plan.stages for text in (stage.queue, stage.kind)]
        words += (1 + len(pairs), "kinds", *pairs)
    return pack_member(job.id, words, is_own=is_own_work(change))


def _pack_effects(change: Change, words: Words) -> Template | None:
    """The record first: where the server cannot take more, it is refused before anything else was written.

    Returns the template that a start of the job refers to.
    """
    before, job = change.before, change.after
    template = _record(change, words)
    _places(before, job, words)
    effects = change.effects
    if (slot := changes.slot_to_wait_for(change)) is not None:
        due, effects = split_due(change)
        kept: Words = []
        for each in due:
            _due(each, change, kept)
        words += (3, "join_line", keys.slot(slot), json.encode(kept).decode())
    for effect in effects:
        if (pack := PACKERS.get(type(effect))) is not None:
            pack(effect, change, words)
    _tell(change, words)
    if before is not None:
        _show_stages(before, job, words)
        _limit(before, job, words)
    return template


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
        case changes.WithinLimits(task):
            return Conflict(f"{task.stage} would exceed a limit.", job_id=job_id)
        case changes.KeyUnused():
            other, _, fingerprint = facts[0].partition(" ")
            return AlreadySubmitted(job_id=other, fingerprint=fingerprint)
        case changes.SlotFree():
            return SlotTaken(active_job_id=facts[0])
        case changes.HasRoom():
            return refuse_usage(Usage(*map(int, facts)), guard) or Conflict(job_id=job_id)
        case changes.RecordIs(ref):
            return Conflict(f"The record {ref.kind} {ref.id} has changed.", job_id=job_id)


def _guard(guard: Guard, job: Job) -> tuple[Any, ...]:
    match guard:
        case changes.Holds(task, token):
            return (3, "holds", keys.entry(job.id, task), token)
        case changes.Overdue(task, token):
            return (3, "overdue", keys.entry(job.id, task), token)
        case changes.Waiting(task):
            stage = job.plan.stage(task.stage)
            name = "waiting" if stage.fair is None else "may_start"
            return (3, name, keys.ready(stage.queue, stage.kind), keys.entry(job.id, task))
        case changes.Foremost(task, kinds):
            return (4 + len(kinds), "foremost", job.plan.stage(task.stage).queue, str(-job.priority), job.id, *kinds)
        case changes.WithinLimits(_, uses):
            return (2, "within", _uses(uses))
        case changes.KeyUnused(key):
            return (2, "unused", keys.idempotency(key))
        case changes.SlotFree(slot):
            return (3, "free", keys.slot(slot), job.id)
        case changes.HasRoom(tenant, most_jobs, most_bytes, size):
            return (5, "room", keys.usage(tenant), str(most_jobs), str(most_bytes), str(size))
        case changes.RecordIs(ref, stamp):
            return (4, "record_is", *ref, str(stamp))


def _record(change: Change, words: Words) -> Template | None:
    before, job = change.before, change.after
    template: Template | None = None
    beside: list[str] = []
    """Fields about what is kept beside the state. Those that begin with has_ name keys of their own."""
    for effect in change.effects:
        kind = type(effect)
        if kind is changes.KeepSpec:
            beside += ("spec", json.encode(effect.spec).decode())  # type: ignore[union-attr]
        elif kind is changes.RememberKey:
            beside += ("key", effect.key)  # type: ignore[union-attr]
        elif kind is changes.KeepResult and effect.result.artifacts:  # type: ignore[union-attr]
            beside += ("has_output", "1")
    if change.id and not change.events:
        beside += ("has_changes", "1")
    new, gone = (rows.fields(job), []) if before is None else rows.changed_fields(before, job)
    due = [effect.task for effect in change.effects if type(effect) is changes.MakeDue]
    if len(due) == 1:
        state = new[-1] if before is None else new[3]
        if (start := pack_start(job, due[0], state, _pack_effects)) is not None:
            text, template = start
            beside += ("start", text)
    if before is None:
        user, pair = keys.user(job.tenant, job.user), keys.pair(job.tenant, job.plan.pipeline)
        words += (3 + len(new) + len(beside), "create", user, pair, *new, *beside)
        return template
    words += (1 + len(new) + len(beside), "write", *new, *beside)
    if gone:
        words += (1 + len(gone), "clear", *gone)
    return template


def _places(before: Job | None, job: Job, words: Words) -> None:
    """Only what moves: a step that leaves the status alone touches no index."""
    if before is None or before.status is not job.status:
        pair = keys.pair(job.tenant, job.plan.pipeline)
        words += (4, "move", "" if before is None else before.status.value, job.status.value, pair)
    elif rows.is_indexed_alike(before, job):
        return
    was, now = rows.NOWHERE if before is None else rows.places(before), rows.places(job)
    if was != now:
        for index, old, score in zip(rows.INDEXES, was, now, strict=True):
            if old != score:
                words += (3, "place", index, "" if score is None else repr(score))


# Effects by type.


def _uses(limits: Sequence[LimitUse]) -> str:
    return json.encode(limits).decode()


def _place(priority: int, share: Share | None) -> str:
    """Where a task is in its queue, or in which share's turn: see lua/limits.lua."""
    return str(-priority) if share is None else f"{share.rank} {share.cost!r} {share.name}"


def _due(effect: changes.MakeDue, change: Change, words: Words) -> None:
    job, at = change.after, effect.not_before
    entry = keys.entry(job.id, effect.task)
    if effect.limits or effect.share is not None:
        place = _place(effect.priority, effect.share)
        due = str(at), str(at - effect.delay), _uses(effect.limits)
        words += (8, "due_limited", effect.queue, effect.kind, place, entry, *due)
        return
    words += (7, "due", effect.queue, effect.kind, str(-effect.priority), entry, str(at), str(at - effect.delay))


def _back(effect: changes.TakeBack, change: Change, words: Words) -> None:
    job = change.after
    stage = job.plan.stage(effect.task.stage)
    if stage.is_regulated:
        _leave_queue(effect, stage, change, words)
        return
    words += (5, "back", stage.queue, stage.kind, str(-job.priority), keys.entry(job.id, effect.task))


def _leave_queue(effect: changes.TakeBack, stage: StagePlan, change: Change, words: Words) -> None:
    """The same of a task with limits or turns. One that will not start makes way for others."""
    job = change.before or change.after
    task = job.task(effect.task)
    due_at = job.not_before if task is None or task.ready_at is None else task.ready_at
    place = _place(job.priority, share_of(job, effect.task, due_at))
    where = (stage.queue, stage.kind, place, keys.entry(job.id, effect.task))
    if effect.limits:
        words += (6, "back_limited", *where, _uses(effect.limits))
    else:
        words += (5, "take_limited", *where)


def _grant(effect: changes.Grant, change: Change, words: Words) -> None:
    if effect.limits or effect.share is not None:
        job, place = change.after, _place(change.after.priority, effect.share)
        start = (keys.entry(job.id, effect.task), effect.token, effect.worker, str(effect.seconds))
        queue = job.plan.stage(effect.task.stage).queue
        words += (8, "grant_limited", *start, _uses(effect.limits), queue, place)
        return
    words += (5, "grant", keys.entry(change.after.id, effect.task), effect.token, effect.worker, str(effect.seconds))


def _finish(effect: changes.EndLease, change: Change, words: Words) -> None:
    if effect.limits:
        words += (3, "finish_limited", keys.entry(change.after.id, effect.task), _uses(effect.limits))
        return
    words += (2, "finish", keys.entry(change.after.id, effect.task))


def _take_slot(effect: changes.TakeSlot, _change: Change, words: Words) -> None:
    words += (2, "take_slot", keys.slot(effect.slot))


def _release_slot(effect: changes.ReleaseSlot, _change: Change, words: Words) -> None:
    words += (2, "release", keys.slot(effect.slot))


def _use(effect: changes.CountUsage, _change: Change, words: Words) -> None:
    words += (4, "use", keys.usage(effect.tenant), str(effect.jobs), str(effect.bytes))


def _remember(effect: changes.RememberKey, _change: Change, words: Words) -> None:
    words += (3, "remember", keys.idempotency(effect.key), effect.fingerprint)


def _result(effect: changes.KeepResult, _change: Change, words: Words) -> None:
    task, body = keys.task(effect.task), json.encode(effect.result).decode()
    if places := [artifact.file.key for artifact in effect.result.artifacts]:
        words += (4, "result", task, body, json.encode(places).decode())
    else:
        words += (3, "result", task, body)


def _drop_stages(effect: changes.DropStages, change: Change, words: Words) -> None:
    job = change.before or change.after
    for name in effect.stages:
        tasks = [keys.task(TaskId(name, n)) for n in range(len(job.stage(name).tasks or ()))]
        for first in range(0, len(tasks), MANY):
            page = tasks[first : first + MANY]
            words += (1 + len(page), "drop_tasks", *page)
        words += (2, "hide_stage", name)


def _fail(effect: changes.RecordFailure, _change: Change, words: Words) -> None:
    """Keeps a failure and counts it. The script finds out whether its group is new."""
    failure = effect.failure
    group = failures.new_group(failure)
    facts = {
        "pipeline": group.pipeline, "stage": group.stage or "", "code": group.code, "message": group.message,
        "first_seen": repr(group.first_seen),
    }  # fmt: skip
    alerts = [failures.put_action(failures.new_alert(failure, kind)) for kind in ("new", "again")]
    found = [
        "fail", failure.id, keys.group(failure.tenant, failure.fingerprint), failure.user,
        str(failures.MAX_USERS), repr(failure.at), group.seen, json.encode(failure).decode(),
        *(each.body.decode() for each in alerts), alerts[0].id, *(text for pair in facts.items() for text in pair),
    ]  # fmt: skip
    words += (len(found), *found)


def _settle(effect: changes.SettleFailures, _change: Change, words: Words) -> None:
    settled = "" if effect.settled is None else json.encode(effect.settled).decode()
    words += (4, "settle_failures", effect.was.value, effect.now.value, settled)


def _put(effect: changes.PutRecord, _change: Change, words: Words) -> None:
    put = effect.put
    facts = put_facts(put)
    words += (4 + len(facts), "put_record", put.kind, put.id, "" if put.stamp is None else str(put.stamp), *facts)


def _note(effect: changes.NoteRecord, _change: Change, words: Words) -> None:
    words += (5, "note_record", *effect.ref, as_text(effect.note), join_index(effect.index))


def _drop_record(effect: changes.DropRecord, _change: Change, words: Words) -> None:
    words += (3, "drop_record", *effect.ref)


PACKERS: Mapping[type[Effect], Callable[[Any, Change, Words], None]] = {
    changes.MakeDue: _due,
    changes.TakeBack: _back,
    changes.Grant: _grant,
    changes.EndLease: _finish,
    changes.TakeSlot: _take_slot,
    changes.ReleaseSlot: _release_slot,
    changes.CountUsage: _use,
    changes.RememberKey: _remember,
    changes.KeepResult: _result,
    changes.DropStages: _drop_stages,
    changes.RecordFailure: _fail,
    changes.SettleFailures: _settle,
    changes.PutRecord: _put,
    changes.NoteRecord: _note,
    changes.DropRecord: _drop_record,
}
"""How each effect is packed for the script. The spec is a field of the record."""


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


def _tell(change: Change, words: Words) -> None:
    job = change.after
    if not change.events:
        if change.id:  # nothing to tell, but whether it was made may be asked
            words += (2, "changed", change.id)
        return
    told: list[str] = []
    named: tuple[str, ...] = (change.id,) if change.id else ()
    for event in change.events:
        told.append(json.encode((event.type, event.at, event.data, *named)).decode())
        named = ()
    words += (1 + len(told), "events", *told)
    for event in change.events:
        if (sort := rows.ANNOUNCED.get(event.type)) is not None:
            # What is about the whole job has a stream of its own.
            words += (2, "announce" if "stage" in event.data else "publish", rows.event_message(sort, event, job))


def _show_stages(before: Job, job: Job, words: Words) -> None:
    """What people read about a stage, when it has moved. One that still waits for its first start has none."""
    was_stopped, is_stopped = before.is_stopped, job.is_stopped
    for plan, was, now in zip(job.plan.stages, before.stages, job.stages, strict=True):
        if was is now and was_stopped is is_stopped and not was_stopped:
            continue
        if was_stopped and before.stage_status(plan.name) is TaskStatus.SKIPPED is not job.stage_status(plan.name):
            words += (2, "hide_stage", plan.name)
        elif (was is not now and now.tasks and was != now) or (was_stopped is not is_stopped and now.tasks is None):
            fields = rows.stage_fields(job, plan)
            words += (2 + len(fields), "stage", plan.name, *fields)


def _limit(before: Job, job: Job, words: Words) -> None:
    """A job that is not over never expires. One that is has the server's own purge as a net behind ours."""
    was_over, is_over = before.status.is_terminal, job.status.is_terminal
    if not was_over and not is_over:
        return
    stages = tuple(job.plan.index)
    if is_over and job.purge_at is not None:
        lasts = max(0.0, job.purge_at - job.updated_at) + NET
        words += (3 + len(stages), "expire", f"{lasts:.0f}", "1" if rows.has_result(job) else "", *stages)
    elif was_over:
        words += (2 + len(stages), "persist", "1", *stages)
    if is_over and not was_over:
        pipeline = json.encode(job.plan.pipeline).decode()
        took = rows.duration(job)
        words += (5, "ended", job.status.value, pipeline, "" if took is None else str(took), keys.DURATION_LAST)
