"""The state machine: each function takes a job and returns the change to commit. Only this module sets a status.

A function returns None if there is nothing to do (cancel of a cancelled job). It raises `NotAllowed` if the job's
status does not allow the action, and `LeaseLost` if the calling attempt no longer holds the lease.
"""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, cast
from urllib.parse import quote

from msgspec.structs import replace

from packhorse.core import changes, error_codes, failures, json, models
from packhorse.core.changes import AT_ONCE, Change, Effect, Guard
from packhorse.core.failures import new_rate_alert, new_revival, put_action
from packhorse.core.limits import share_of, uses_of, values_from
from packhorse.core.models import Event, Failure, Firing, Job, Result, Spec, Stage, Stopping, Task, TaskId
from packhorse.core.plan import TERMINAL, Need, Plan, StagePlan, Status, TaskStatus, purge_at
from packhorse.core.records import Put, Ref
from packhorse.core.schedules import NotedRun, RunStatus, Summary, run_index, run_ref, summarize
from packhorse.core.search import put_terms
from packhorse.core.webhooks import job_delivery, put_delivery
from packhorse.errors import InvalidInput, JobNotFound, LeaseLost, NotAllowed

PENDING, RUNNING, COMPLETED, FAILED, CANCELLED = Status
T_PENDING, T_RUNNING, T_COMPLETED, T_FAILED, T_CANCELLED, T_SKIPPED = TaskStatus
ACTIVE = frozenset({PENDING, RUNNING})

ALLOWED_FROM: Mapping[str, frozenset[Status]] = {  # by action: only one of two may repeat
    **dict.fromkeys(("start", "cancel", "expire"), ACTIVE),
    **dict.fromkeys(("finish", "skip", "fail", "later", "hand back", "lose"), frozenset({RUNNING})),
    **dict.fromkeys(("retry", "purge", "delete", "tidy"), TERMINAL),
    "promote": frozenset({COMPLETED}),
}

STALLED = Failure(error_codes.STALLED, "The stage reported no progress for too long.")
TIMED_OUT = Failure(error_codes.TIMEOUT, "The stage took longer than its timeout.")
WORKER_LOST = Failure(error_codes.WORKER_LOST, "The worker died or went silent while running the stage.")
DEADLINE = Failure(error_codes.DEADLINE, "The job did not end before its deadline.", permanent=True)
ORPHANED = Failure(error_codes.ORPHANED, "No worker started the job in time.", permanent=True)
RUN_TIMED_OUT = Failure(
    error_codes.RUN_TIMEOUT, "The run timed out: it took longer than its run_timeout.", permanent=True
)

NO_VALUE = Result(b"null", is_skipped=True)

Redo = Mapping[int, Collection[int] | None]
"""What a new run does again, by the index of the stage: some of its elements, or None for the whole stage."""

DWARFED = 10
"""How many times as long as a delay the clock's error must be before the delay begins again."""


def slot_key(tenant: str, user: str, slot: str) -> str:
    """One key per (tenant, user, slot). Escaped, so that no user name can produce another tenant's key."""
    return "/".join(quote(part, safe="") for part in (tenant, user, slot))


def once_key(tenant: str, client: str | None, key: str) -> str:
    """An idempotency key as it is stored: per (tenant, client), so that no client receives another client's job."""
    return "/".join(quote(part, safe="") for part in (tenant, client or "", key))


def submit(
    plan: Plan,
    spec: Spec,
    *,
    job_id: str,
    user: str,
    now: float,
    tenant: str = "default",
    client: str | None = None,
    priority: int = 0,
    delay: float = 0.0,
    at: float | None = None,
    debounce: Put | None = None,
    replaces: Put | None = None,
    trace_id: str = "",
    key: str | None = None,
    fingerprint: str = "",
    webhooks: tuple[str, ...] = (),
    firing: Firing | None = None,
    stamp: int = 0,
    quotas: tuple[int, int] | None = None,
    is_searchable: bool = True,
) -> Change:
    """Create a job. Its first stages are due now, after ``delay`` seconds, or ``at`` a time.

    ``debounce`` is the record that names the waiting job of a key. The commit is refused unless it has not changed.
    ``replaces`` is the record of the jobs that are to be ended for this one.

    ``quotas`` are the unfinished jobs and the bytes of files that its tenant may have, 0 for any number. With them, the
    job counts until it has ended, and its files until it is purged.

    ``firing`` is the schedule tick it is created for. The commit is refused unless the tick's run still has this stamp,
    so a tick never has two jobs.
    """
    not_before = now + delay if at is None else max(now, at)
    slot = slot_key(tenant, user, plan.slot) if plan.slot is not None else None
    job = Job(
        id=job_id,
        plan=plan,
        user=user,
        tenant=tenant,
        client=client,
        priority=priority,
        created_at=now,
        not_before=not_before,
        trace_id=trace_id,
        slot=slot,
        webhooks=webhooks,
        firing=firing,
        counted=None if quotas is None else sum(each.file.size for each in spec.inputs),
        deadline_at=not_before + min(plan.pending, plan.deadline),
        stages=tuple(_blank(stage) for stage in plan.stages),
    )
    if plan.is_regulated:
        job = replace(job, limit_values=values_from(plan, json.decode(spec.parameters)))
    draft = _Draft(job, now)
    if plan.has_conditions:
        draft.check_conditions(json.decode(spec.parameters))
    if key is not None:
        draft.require(changes.KeyUnused(key)).do(changes.RememberKey(key, fingerprint))
    if debounce is not None:
        draft.require(changes.RecordIs(Ref(debounce.kind, debounce.id), debounce.stamp or 0))
        draft.do(changes.PutRecord(debounce))
    if replaces is not None:
        draft.do(changes.PutRecord(replaces))
    if slot is not None:
        if plan.on_conflict == "refuse":
            draft.require(changes.SlotFree(slot))
        draft.do(changes.TakeSlot(slot, waits=plan.on_conflict != "refuse"))
    if firing is not None:
        draft.require(changes.RecordIs(run_ref(tenant, firing.schedule, firing.tick), stamp)).note_run("fired")
    if quotas is not None and job.counted is not None:
        draft.require(changes.HasRoom(tenant, *quotas, job.counted))
        draft.do(changes.CountUsage(tenant, 1, job.counted))
    draft.do(changes.KeepSpec(spec)).say("submitted", pipeline=plan.pipeline, user_id=user)
    draft.advance(not_before)
    if plan.has_conditions and not any(isinstance(effect, changes.MakeDue) for effect in draft.effects):
        raise InvalidInput("With these parameters no stage of the pipeline would run.", field="parameters")
    terms = put_terms(plan, spec, job_id, tenant, user) if is_searchable else None
    if terms is not None:
        draft.do(changes.PutRecord(terms))
    return replace(draft.change(), before=None)


def start(job: Job, at: TaskId, *, token: str, worker: str, lease: float, now: float) -> Change:
    """Start an attempt and give the worker the lease. A job that is being stopped starts nothing."""
    task = job.task(at)
    if job.stopping or task is None or task.status is not T_PENDING or task.ready_at is None:
        raise _refusal(job, "start")
    draft = _draft(job, "start", now)
    draft.require(changes.Waiting(at)).do(changes.TakeBack(at))
    if job.plan.stage(at.stage).is_regulated:
        limits = uses_of(job, at)
        draft.require(changes.WithinLimits(at, limits))
        draft.do(changes.Grant(at, token, worker, lease, limits, share_of(job, at, task.ready_at)))
    else:
        draft.do(changes.Grant(at, token, worker, lease))
    if job.status is PENDING:
        draft.set(status=RUNNING, started_at=now, deadline_at=_run_until(job, now)[0])
        draft.say("started", run=job.run)
    attempt = task.attempt + 1
    # The error of the previous attempt stays visible: it explains why there is another attempt.
    begun = replace(task, status=T_RUNNING, attempt=attempt, token=token, started_at=now, ended_at=None, delay=0.0)
    draft.put(at, begun)
    draft.say("stage_started", **_where(job, at), attempt=attempt, worker=worker)
    return draft.change()


TOKEN, WORKER = "\0token", "\0worker"
NOW, RUN_UNTIL, SECONDS, LINEAGE = 8_888_888_888_888.125, 7_777_777_777_777.125, 6_666_666_666_666.125, 2**64 - 1
"""What stands in a prepared start for what is known only when the task starts: no real value is that large."""


class Prepared(NamedTuple):
    """A start that was decided when the task became due."""

    change: Change
    """With `TOKEN`, `WORKER`, `NOW`, `LINEAGE`, a lease of `SECONDS`, and `RUN_UNTIL` in the first start of the run."""
    deadline: float
    """When the run fails, unless its limit ends before."""
    limit: float | None
    """Seconds from the first start of the run to its end."""


def prepare(job: Job, at: TaskId) -> Prepared | None:
    """Decide the start of a task that has just become due, for a store that lets one step claim and start it.

    It holds for the job as it is now and no other: the store checks that before it puts in what was not known. It takes
    the task from its queue by itself. None for a task with limits or fairness: it may have to wait longer.
    """
    task = job.task(at)
    if (
        job.stopping
        or job.status not in ACTIVE
        or task is None
        or task.status is not T_PENDING
        or task.ready_at is None
        or job.plan.stage(at.stage).is_regulated
    ):
        return None
    begun = start(job, at, token=TOKEN, worker=WORKER, lease=SECONDS, now=NOW)
    after = replace(begun.after, lineage=LINEAGE)
    if job.status is PENDING:
        after = replace(after, deadline_at=RUN_UNTIL)
    effects = tuple(effect for effect in begun.effects if not isinstance(effect, changes.TakeBack))
    change = replace(begun, after=after, guards=(), effects=effects)
    return Prepared(change, job.not_before + job.plan.deadline, job.plan.run_timeout)


def finish(job: Job, at: TaskId, *, token: str, result: Result, width: int | None = None, now: float) -> Change:
    """Store the result and make the stages due that waited for it.

    ``width`` is the length of the returned list, None for anything else. A result is stored even while the job is being
    stopped, so that a retry can use it.
    """
    task = _check_lease(job, "finish", at, token)
    too_many = _refuse_width(job, at, width)
    if too_many:
        return fail(job, at, token=token, error=too_many, luck=0.0, now=now)
    draft = (
        _draft(job, "finish", now)
        .require(changes.Holds(at, token))
        .do(changes.EndLease(at, uses_of(job, at)))
        .do(changes.KeepResult(at, result))
    )
    draft.count_bytes(sum(each.file.size for each in result.artifacts))
    draft.put(at, replace(task, status=T_COMPLETED, token=None, ended_at=now, is_alone=False))
    draft.say("stage_completed", **_where(job, at), attempt=task.attempt)
    draft.widen(at.stage, width)
    if job.firing is not None and at.stage in [stage.name for stage in job.plan.sinks]:
        draft.summary = summarize(result.value)
    return _go_on(draft, now)


def skip(job: Job, at: TaskId, *, token: str, reason: str, now: float) -> Change:
    """The stage returned `Skip`: it has no result, and what needs one is skipped too."""
    task = _check_lease(job, "skip", at, token)
    draft = _draft(job, "skip", now).require(changes.Holds(at, token)).set(has_litter=True)
    draft.do(changes.EndLease(at, uses_of(job, at)))
    draft.put(at, replace(task, status=T_SKIPPED, token=None, ended_at=now, is_alone=False, error=None))
    reason = reason[: models.REASON_LENGTH]
    if job.plan.stage(at.stage).over is None:
        draft.skip(job.plan.index[at.stage], reason, attempt=task.attempt)
    else:
        draft.do(changes.KeepResult(at, NO_VALUE))
        draft.say("stage_skipped", **_where(job, at), attempt=task.attempt, reason=reason)
        draft.widen(at.stage, None)
    return _go_on(draft, now)


def follow(
    finished: Change, at: TaskId, *, kinds: Collection[str], token: str, worker: str, lease: float, now: float
) -> Change:
    """Start the task that a finish has made due in the same commit: the worker that has the result runs it.

    The store refuses the change if a more urgent task is ready; the finish is then committed alone.
    """
    begun = start(finished.after, at, token=token, worker=worker, lease=lease, now=now)
    kept = tuple(
        effect for effect in finished.effects if not (isinstance(effect, changes.MakeDue) and effect.task == at)
    )
    granted = tuple(effect for effect in begun.effects if not isinstance(effect, changes.TakeBack))
    return Change(
        finished.before,
        replace(begun.after, version=finished.after.version),
        (*finished.guards, changes.Foremost(at, tuple(kinds))),
        kept + granted,
        finished.events + begun.events,
    )


def fail(job: Job, at: TaskId, *, token: str, error: Failure, luck: float, now: float, alone: bool = False) -> Change:
    """Record a failed attempt and queue another if one is left. A job that is being stopped is not retried."""
    task = _check_lease(job, "fail", at, token)
    wait = job.plan.stage(at.stage).backoff.delay(task.attempt, luck)
    draft = _draft(job, "fail", now).require(changes.Holds(at, token))
    return _end_attempt(draft, at, task, error, not_before=now + wait, alone=alone)


def lose(job: Job, at: TaskId, *, token: str, now: float, witnessed: bool = False) -> Change:
    """Take the lease from a lost worker. The attempt counts, so that a stage that kills its worker fails in the end.

    ``witnessed``: the worker's process is known to be dead. Otherwise the commit requires that the lease is still
    overdue, because the worker may have renewed it meanwhile.
    """
    task = _check_lease(job, "lose", at, token)
    draft = _draft(job, "lose", now).require(changes.Holds(at, token) if witnessed else changes.Overdue(at, token))
    return _end_attempt(draft, at, task, WORKER_LOST, not_before=now)


def later(job: Job, at: TaskId, *, token: str, seconds: float = 0.0, until: float | None = None, now: float) -> Change:
    """The stage returned `Later`. The attempt does not count."""
    not_before = now + seconds if until is None else max(now, until)
    return _return_task(job, "later", at, token, not_before=not_before, why="later", now=now)


def hand_back(job: Job, at: TaskId, *, token: str, now: float) -> Change:
    """The worker is stopping, or had to kill a process that other calls shared. The attempt does not count."""
    return _return_task(job, "hand back", at, token, not_before=now, why="handed_back", now=now)


def repair(job: Job, at: TaskId, *, token: str, now: float) -> Change:
    """The task runs under a token whose lease does not exist, so that nobody can end it. The attempt does not count."""
    return _return_task(job, "hand back", at, token, not_before=now, why="handed_back", now=now, is_leased=False)


def drop_lease(job: Job, at: TaskId, *, now: float) -> Change | None:
    """End a lease that is left of a task which does not run: nobody holds it, and nobody would end it."""
    task = job.task(at)
    if task is not None and task.token is not None:
        return None
    return _Draft(job, now).do(changes.EndLease(at, uses_of(job, at))).change()


def restart_delay(job: Job, at: TaskId, *, now: float) -> Change | None:
    """Let the delay of a task begin now that was queued by a clock which was ahead. No change if it was queued earlier.

    A backoff of seconds that begins while the store's clock is days ahead would last for days. But maybe the clock was
    right then and is behind now, and once it is corrected the task would start too early. So the delay begins again
    only if the clock was wrong by more than `DWARFED` times as much: then little of it can be lost.
    """
    task = job.task(at)
    if task is None or task.status is not T_PENDING or task.ready_at is None:
        return None
    if task.ready_at - task.delay - now <= DWARFED * task.delay:
        return None
    draft = _draft(job, "start", now).do(changes.TakeBack(at))
    not_before = now + task.delay
    if job.status is PENDING:  # submitted with a delay
        deadline = not_before + min(job.plan.pending, job.plan.deadline)
        draft.set(not_before=not_before, deadline_at=deadline)
    draft.make_due(at, task, not_before)
    return draft.change()


def cancel(job: Job, *, now: float, replaced_by: str | None = None) -> Change | None:
    """Cancel at once if nothing runs, else stop the running tasks first. No change if it is already being stopped.

    ``replaced_by`` is the job that takes its place, which its events name.
    """
    if job.status is CANCELLED or (job.status in ACTIVE and job.stopping):
        return None
    draft = _draft(job, "cancel", now)
    if replaced_by is not None:
        draft.say("replaced", by=replaced_by)
    return _stop(draft, "cancel")


def expire(job: Job, *, now: float) -> Change | None:
    """Fail a run past its deadline, or one that no worker started; at once, or when its running tasks have stopped."""
    if job.status not in ACTIVE or job.stopping or job.deadline_at is None or job.deadline_at > now:
        return None
    if job.started_at is not None:
        error = _run_until(job, job.started_at)[1]
    else:
        error = ORPHANED if job.plan.pending <= job.plan.deadline else DEADLINE
    return _stop(_draft(job, "expire", now).set(error=error), "expire")


def retry(
    job: Job, *, stage: str | None = None, failed_elements: bool = False, now: float, by: str = "", order: str = "",
    is_revival: bool = False,
) -> Change | None:  # fmt: skip
    """Start a new run: of unfinished stages (default), of a stage and all that follow it, or of everything (``*``).

    ``failed_elements``: of the elements that failed and were left out, and of what follows them. An active job is not
    changed. The slot is taken again, attempts start from zero, event numbers continue. The failure of the last run is
    settled as retried by ``by``.
    """
    if job.status in ACTIVE:
        return None
    if job.is_purging:
        raise JobNotFound(job_id=job.id)
    dirty = _elements_to_redo(job) if failed_elements else dict.fromkeys(_stages_to_redo(job, stage))
    if failed_elements and not dirty:
        raise _refusal(job, "retry", "No elements of this job have failed and been left out.")
    redo = {i for i, elements in dirty.items() if elements is None}
    if not dirty and job.status is COMPLETED:
        raise _refusal(job, "retry", "The job is completed. Name the stage to run again, or * for everything.")
    draft = _draft(job, "retry", now)
    if job.slot is not None:
        waits = job.plan.on_conflict == "queue"  # a retry replaces nobody: what is active was submitted later
        if not waits:
            draft.require(changes.SlotFree(job.slot))
        draft.do(changes.TakeSlot(job.slot, waits=waits))
    if job.counted is not None:
        draft.do(changes.CountUsage(job.tenant, jobs=1))
    if redo:
        draft.do(changes.DropStages(tuple(job.plan.stages[i].name for i in sorted(redo))))
    draft.set(
        status=PENDING,
        run=job.run + 1,
        error=None,
        started_at=None,
        completed_at=None,
        purge_at=None,
        deadline_at=now + min(job.plan.pending, job.plan.deadline),
        revived=job.revived + 1 if is_revival else 0,
        has_litter=job.has_litter or bool(dirty),
        promoted=(),
        not_before=now,
    )
    draft.note_run("fired")
    for i in range(len(job.stages)):
        draft.stages[i] = _again(job, i, dirty)
    if job.status is FAILED:
        draft.do(
            changes.SettleFailures(
                models.FailureStatus.OPEN,
                models.FailureStatus.RETRIED,
                models.Settled(now, by, run=job.run + 1, order=order),
            )
        )
    why = "revive" if is_revival else "retry"
    facts = {"elements": sum(each.tolerated for each in job.stages)} if failed_elements else {}
    draft.say("retrying", run=job.run + 1, why=why, **({"stage": stage} if stage is not None else {}), **facts)
    if draft.advance(now):  # every stage had finished, only the end of the run was missing
        draft.end(COMPLETED)
    return draft.change()


def promote(job: Job, *, to: str, run: int, now: float) -> Change | None:
    """Record that the result files of this run were copied to the folder ``to``, where they outlive the job."""
    draft = _draft(job, "promote", now)
    if job.run != run:
        raise _refusal(job, "promote", "The job was run again while its files were copied.")
    if to in job.promoted:
        return None
    return draft.set(promoted=(*job.promoted, to)).change()


def purge(job: Job, *, now: float) -> Change | None:
    """Mark an expired job, so that it cannot be retried while its objects are deleted."""
    if job.is_purging or job.purge_at is None or job.purge_at > now:
        return None
    return _draft(job, "purge", now).set(is_purging=True).count_bytes(-(job.counted or 0)).change()


def delete(job: Job, *, now: float) -> Change:
    """Mark an ended job as expired. From then on only the janitor sees it."""
    if job.is_purging:
        raise JobNotFound(job_id=job.id)
    if job.status in ACTIVE:
        raise _refusal(job, "delete", f"The job is {job.status}. Cancel it first, and delete it when it has ended.")
    return _draft(job, "delete", now).set(is_purging=True, purge_at=now).count_bytes(-(job.counted or 0)).change()


def tidy(job: Job, *, now: float, stored: int | None = None) -> Change | None:
    """Record that the files are published and unreferenced objects deleted; ``stored``: bytes that are left."""
    if not job.has_litter:
        return None
    gone = 0 if stored is None or job.counted is None else job.counted - stored
    return _draft(job, "tidy", now).set(has_litter=False).count_bytes(-gone).change()


# Shared by several actions.


class _Draft:
    def __init__(self, job: Job, now: float) -> None:
        self.before = job
        self.now = now
        self.stages = list(job.stages)
        self.fields: dict[str, Any] = {}
        self.guards: list[Guard] = []
        self.effects: list[Effect] = []
        self.events: list[Event] = []
        self.summary = Summary()

    def set(self, **fields: Any) -> _Draft:
        self.fields.update(fields)
        return self

    def require(self, guard: Guard) -> _Draft:
        self.guards.append(guard)
        return self

    def do(self, effect: Effect) -> _Draft:
        self.effects.append(effect)
        return self

    def count_bytes(self, added: int) -> _Draft:
        """Towards the quota of the tenant, if the job counts."""
        if self.before.counted is None or not added:
            return self
        return self.set(counted=self.before.counted + added).do(changes.CountUsage(self.before.tenant, bytes=added))

    def say(self, type: str, **facts: Any) -> None:
        self.events.append(Event(self.before.events + len(self.events) + 1, type, self.now, facts))

    def put(self, at: TaskId, task: Task) -> None:
        i = self.before.plan.index[at.stage]
        tasks = self.stages[i].tasks or ()
        is_only = len(tasks) == 1
        kept = (task,) if is_only else (*tasks[: at.element], task, *tasks[at.element + 1 :])
        self.stages[i] = Stage(kept, self.stages[i].tolerates)

    def skip(self, i: int, reason: str, **facts: Any) -> None:
        """Skip the whole stage. Without a task, nothing can start in it."""
        name = self.before.plan.stages[i].name
        self.stages[i] = Stage(self.stages[i].tasks, reason=reason)
        self.say("stage_skipped", stage=name, **facts, reason=reason)

    def check_conditions(self, parameters: Mapping[str, Any]) -> None:
        """Leave out the stages whose condition is not met."""
        for i, stage in enumerate(self.before.plan.stages):
            if stage.when is not None and not stage.when.holds(parameters):
                self.stages[i] = Stage(())
                self.skip(i, f"it runs only if {stage.when}"[: models.REASON_LENGTH])

    def widen(self, stage: str, width: int | None) -> None:
        """Create the elements of the stages that run over ``stage``, once their number is known."""
        for i in self.before.plan.followers[stage]:
            is_open = self.stages[i].tasks is None and self.stages[i].reason is None
            if self.before.plan.stages[i].over == stage and is_open:
                known = self._elements(stage, width)
                if known is not None:
                    tolerance = self.before.plan.stages[i].tolerate
                    self.stages[i] = Stage((Task(),) * known, 0 if tolerance is None else tolerance.bound(known))

    def _elements(self, stage: str, width: int | None) -> int | None:
        i = self.before.plan.index[stage]
        if self.before.plan.stages[i].over is None:
            return width
        tasks = self.stages[i].tasks
        return len(tasks) if tasks is not None and self.stages[i].is_done else None

    def advance(self, not_before: float) -> bool:
        """Make every task due whose inputs are complete; return whether all stages are done.

        In graph order, so that stages without elements complete on the way.
        """
        are_done = True
        for i, stage in enumerate(self.before.plan.stages):
            if self.stages[i].is_done and (self.stages[i].tasks or self.stages[i].reason is not None):
                continue
            if self._has_all(stage.needs):
                if (missing := self._missing(stage)) is not None:
                    skipped = (Task(T_SKIPPED, ended_at=self.now),) if stage.over is None else None
                    self.stages[i] = Stage(skipped)
                    self.skip(i, f"stage {missing} was skipped")
                    continue
                if self.stages[i].tasks is None and stage.over is not None:
                    self.widen(stage.over, None)
                gaps = self._gaps(stage)
                for n, task in enumerate(self.stages[i].tasks or ()):
                    if task.status is T_PENDING and task.ready_at is None and n in gaps:
                        self.put(TaskId(stage.name, n), replace(task, status=T_SKIPPED, ended_at=self.now))
                        self.do(changes.KeepResult(TaskId(stage.name, n), NO_VALUE))
                    elif task.status is T_PENDING and task.ready_at is None:
                        self.make_due(TaskId(stage.name, n), task, not_before)
            are_done = are_done and self.stages[i].is_done
        return are_done

    def _missing(self, stage: StagePlan) -> str | None:
        """A stage that was skipped, and whose result this one cannot do without."""
        for need in stage.needs:
            if (
                need.parameter not in stage.optional
                and self.stages[self.before.plan.index[need.stage]].reason is not None
            ):
                return need.stage
        return None

    def _gaps(self, stage: StagePlan) -> frozenset[int]:
        """Elements of a stage that cannot run, because the stage that it runs over has no value for them."""
        if stage.over is None or self.before.plan.stage(stage.over).over is None:
            return frozenset()
        return self.stages[self.before.plan.index[stage.over]].gaps

    def _has_all(self, needs: Iterable[Need]) -> bool:
        for need in needs:
            i = self.before.plan.index[need.stage]
            if not self.stages[i].is_done:
                return False
            # A stage whose condition is not met is over when it could have started: what follows keeps its place.
            if self.stages[i].reason is not None and not self._has_all(self.before.plan.stages[i].needs):
                return False
        return True

    def make_due(self, at: TaskId, task: Task, not_before: float) -> None:
        plan = self.before.plan.stage(at.stage)
        delay = max(0.0, not_before - self.now)
        self.put(at, replace(task, ready_at=not_before, delay=delay))
        due = not_before if delay else AT_ONCE
        if not plan.is_regulated:
            self.do(changes.MakeDue(at, plan.queue, plan.kind, self.before.priority, due, delay))
            return
        uses, share = uses_of(self.before, at), share_of(self.before, at, not_before)
        self.do(changes.MakeDue(at, plan.queue, plan.kind, self.before.priority, due, delay, uses, share))

    def take_back(self) -> None:
        """End every task that waits: skipped if it never started, cancelled if it waited for another attempt."""
        for i, stage in enumerate(self.stages):
            for n, task in enumerate(stage.tasks or ()):
                if task.status is T_PENDING:
                    at = TaskId(self.before.plan.stages[i].name, n)
                    if task.ready_at is not None:
                        self.do(changes.TakeBack(at, uses_of(self.before, at)))
                    status = T_SKIPPED if task.started_at is None else T_CANCELLED
                    self.put(at, replace(task, status=status, ready_at=None))

    def end(self, status: Status) -> None:
        """End the run: status, slot, event, purge time, failure record and notifications in one change."""
        run = self.fields.get("run", self.before.run)
        self.take_back()
        self.set(
            status=status,
            completed_at=self.now,
            deadline_at=None,
            stopping=None,
            purge_at=purge_at(self.before.plan, status, self.now),
        )
        if status is COMPLETED and self.before.plan.publish:
            self.set(has_litter=True)
        if self.before.slot is not None:
            self.do(changes.ReleaseSlot(self.before.slot))
        if self.before.counted is not None:
            self.do(changes.CountUsage(self.before.tenant, jobs=-1))
        for endpoint in self.before.webhooks:
            self.do(changes.PutRecord(put_delivery(job_delivery(self.before.id, run, endpoint, self.now))))
        error: Failure | None = self.fields.get("error", self.before.error)
        facts: dict[str, Any] = {}
        if status is FAILED and error is not None:
            facts = {"code": error.code, "message": error.message}
            if error.stage is not None:
                facts["stage"] = error.stage
            failure = failures.failed_run(replace(self.before, stages=tuple(self.stages)), error, run, self.now)
            self.do(changes.RecordFailure(failure))
            for action in (new_revival(failure), new_rate_alert(failure)):
                if action is not None:
                    self.do(changes.PutRecord(put_action(action)))
        if status is COMPLETED and run > 1:
            self.do(changes.SettleFailures(models.FailureStatus.RETRIED, models.FailureStatus.RESOLVED))
        self.say(status.value, run=run, **facts)
        message = f"{facts['code']}: {facts['message']}" if facts else self.summary.message
        self.note_run(cast(RunStatus, status.value), message)

    def note_run(self, status: RunStatus, message: str = "") -> None:
        """Tell the run of the tick that this job was made for how the job stands, in the same step."""
        job = self.before
        if (firing := job.firing) is not None:
            is_over = status != "fired"
            started_at = self.fields.get("started_at", job.started_at) if is_over else None
            ended_at = self.now if is_over else None
            output = self.summary.address if status == "completed" else ""
            noted = NotedRun(status, job.id, job.trace_id, message, started_at, ended_at, output)
            at = job.tenant, firing.schedule, firing.tick
            self.do(changes.NoteRecord(run_ref(*at), json.encode(noted), run_index(*at, is_open=not is_over)))

    def is_running(self) -> bool:
        return any(task.status is T_RUNNING for stage in self.stages for task in stage.tasks or ())

    def change(self) -> Change:
        after = replace(
            self.before,
            **self.fields,
            stages=tuple(self.stages),
            version=self.before.version + 1,
            lineage=self._lineage(),
            events=self.before.events + len(self.events),
            updated_at=self.now,
        )
        return Change(self.before, after, tuple(self.guards), tuple(self.effects), tuple(self.events))

    def _lineage(self) -> int:
        """Tokens are random, so two attempts that begin alike in two histories differ, too.

        A start has a rule of its own, which a script of the store can follow.
        """
        for effect in self.effects:
            if isinstance(effect, changes.Grant):
                text = f"{self.before.lineage} {effect.token}".encode("utf-8", "surrogatepass")
                return int(hashlib.sha1(text, usedforsecurity=False).hexdigest()[:8], 16)
        facts = (self.now, self.events, sorted(self.fields))
        try:
            text = json.encode(facts)
        except UnicodeEncodeError:  # half of a surrogate pair in a name: the store refuses it
            text = ascii(facts).encode()
        return zlib.crc32(text, self.before.lineage)


ENDS_AS: Mapping[Stopping, Status] = {"cancel": CANCELLED, "fail": FAILED, "expire": FAILED}


def _draft(job: Job, verb: str, now: float) -> _Draft:
    if job.status not in ALLOWED_FROM[verb] or (job.is_purging and verb != "purge"):
        raise _refusal(job, verb)
    return _Draft(job, now)


def _run_until(job: Job, started_at: float) -> tuple[float, Failure]:
    """When a run that started then fails, and why: its deadline counts from the submit, its timeout from the start."""
    deadline, limit = job.not_before + job.plan.deadline, job.plan.run_timeout
    if limit is not None and started_at + limit <= deadline:
        return started_at + limit, RUN_TIMED_OUT
    return deadline, DEADLINE


def _refusal(job: Job, verb: str, *message: str) -> NotAllowed:
    return NotAllowed(*message, verb=verb, status=job.status.value)


def _check_lease(job: Job, verb: str, at: TaskId, token: str) -> Task:
    """Check the token before the status: a late worker gets LeaseLost whatever happened to the job."""
    task = job.task(at)
    if task is None or task.token != token:
        raise LeaseLost(job_id=job.id, stage=at.stage, element=at.element)
    if task.status is not T_RUNNING:
        raise NotAllowed(verb=verb, status=task.status.value)
    return task


def _stop(draft: _Draft, why: Stopping) -> Change:
    draft.take_back()
    if draft.is_running():
        draft.set(stopping=why)
        if why == "cancel":
            draft.say("cancelling")
    else:
        draft.end(ENDS_AS[why])
    return draft.change()


def _go_on(draft: _Draft, not_before: float) -> Change:
    """After a task completed: end the run, or make the next tasks due."""
    why = draft.fields.get("stopping", draft.before.stopping)
    if why is not None:
        draft.take_back()  # the elements of a list that came in while stopping
        if not draft.is_running():
            draft.end(ENDS_AS[why])
    elif draft.advance(not_before):
        draft.end(COMPLETED)
    return draft.change()


def _end_attempt(
    draft: _Draft, at: TaskId, task: Task, error: Failure, *, not_before: float, alone: bool = False
) -> Change:
    """After a failed attempt: queue another, or fail the run."""
    job, where = draft.before, _where(draft.before, at)
    error = replace(error, stage=at.stage, element=where.get("element"))
    is_last = error.permanent or task.attempt > job.plan.stage(at.stage).retries
    draft.do(changes.EndLease(at, uses_of(job, at))).set(has_litter=True)
    ended = replace(task, token=None, ended_at=draft.now, ready_at=None, error=error, is_alone=task.is_alone or alone)
    facts = {**where, "attempt": task.attempt, "code": error.code, "message": error.message}
    if job.stopping:
        draft.put(at, replace(ended, status=T_CANCELLED))
        draft.say("stage_failed", **facts)
        return _go_on(draft, not_before)
    if not is_last:
        draft.make_due(at, replace(ended, status=T_PENDING), not_before)
        draft.say("retrying", **facts, at=not_before)
        return draft.change()
    stage = draft.stages[job.plan.index[at.stage]]
    if (failed := stage.failed) < stage.tolerates:
        message = error.message[: models.ERROR_LENGTH] if failed < models.ERRORS_KEPT else ""
        draft.put(at, replace(ended, status=T_FAILED, error=replace(error, message=message, detail=None)))
        draft.do(changes.KeepResult(at, Result(b"null", error=replace(error, detail=None))))
        draft.say("stage_failed", **facts, tolerated=True)
        draft.widen(at.stage, None)
        return _go_on(draft, draft.now)
    draft.put(at, replace(ended, status=T_FAILED))
    draft.say("stage_failed", **facts)
    draft.set(error=error)
    return _stop(draft, "fail")


def _return_task(
    job: Job, verb: str, at: TaskId, token: str, *, not_before: float, why: str, now: float, is_leased: bool = True
) -> Change:
    task = _check_lease(job, verb, at, token)
    draft = _draft(job, verb, now).set(has_litter=True)
    if is_leased:
        draft.require(changes.Holds(at, token)).do(changes.EndLease(at, uses_of(job, at)))
    ended = replace(task, token=None, ended_at=now, ready_at=None)
    if job.stopping:  # no other attempt of this run gets its number
        draft.put(at, replace(ended, status=T_CANCELLED))
        return _go_on(draft, not_before)
    draft.make_due(at, replace(ended, status=T_PENDING, attempt=task.attempt - 1), not_before)
    draft.say("retrying", **_where(job, at), attempt=task.attempt, why=why, at=not_before)
    return draft.change()


def _refuse_width(job: Job, at: TaskId, width: int | None) -> Failure | None:
    """Check the returned list against the stages that run over it."""
    if not job.plan.followers[at.stage] or job.plan.stage(at.stage).over is not None:
        return None
    as_wide = {at.stage}
    for stage in job.plan.stages:  # graph order: what runs over an element stage has as many elements as that one
        if stage.over not in as_wide:
            continue
        as_wide.add(stage.name)
        if width is None:
            why = f"{stage.name} runs once per element, but {at.stage} did not return a list."
            return Failure(error_codes.NOT_A_LIST, why, permanent=True)
        if width > stage.elements:
            why = f"{at.stage} returned {width} elements; {stage.name} takes at most {stage.elements}."
            return Failure(error_codes.TOO_MANY_ELEMENTS, why, permanent=True)
    return None


def _stages_to_redo(job: Job, stage: str | None) -> set[int]:
    """Indexes of the stages to run again from the start, completed or not."""
    if stage is None:
        return set()
    if stage == "*":
        return set(range(len(job.plan.stages)))
    if stage not in job.plan.index:
        raise _refusal(job, "retry", f"The pipeline has no stage {stage!r}; it has {', '.join(job.plan.index)}.")
    redo = {job.plan.index[stage]}
    for i, each in enumerate(job.plan.stages):  # graph order: one pass finds everything that follows
        if any(job.plan.index[need.stage] in redo for need in each.needs):
            redo.add(i)
    return redo


def _elements_to_redo(job: Job) -> Redo:
    """The elements that failed and were left out, and what follows them: elements of them, or whole stages."""
    dirty: dict[int, set[int] | None] = {}
    for i, (plan, stage) in enumerate(zip(job.plan.stages, job.stages, strict=True)):  # graph order, as above
        tasks = stage.tasks or ()
        found = {n for n, task in enumerate(tasks) if task.status is T_FAILED} if stage.tolerated else set()
        needed = [(need.how, dirty[at]) for need in plan.needs if (at := job.plan.index[need.stage]) in dirty]
        if any(how != "each" or elements is None for how, elements in needed):
            dirty[i] = None
        elif found := found.union(*(elements or () for _, elements in needed)):
            dirty[i] = found
    return dirty


def _again(job: Job, i: int, dirty: Redo) -> Stage:
    """The stage at the start of the next run."""
    stage, plan = job.stages[i], job.plan.stages[i]
    again = dirty.get(i, frozenset())
    if stage.reason is not None and (again is not None or stage.tasks == ()):  # its condition was decided at submit
        tasks = None if stage.tasks is None else tuple(replace(task, attempt=0) for task in stage.tasks)
        return replace(stage, tasks=tasks)
    over = None if plan.over is None else job.plan.index[plan.over]
    if again is not None:
        if stage.tasks is None:
            return stage
        is_done = stage.is_done
        kept = (
            replace(task, attempt=0) if n not in again and (is_done or task.is_settled) else Task()
            for n, task in enumerate(stage.tasks)
        )
        return Stage(tuple(kept), stage.tolerates)
    if over is not None and stage.tasks is not None and over not in dirty:
        return Stage((Task(),) * len(stage.tasks), stage.tolerates)
    return _blank(plan)


def _blank(plan: StagePlan) -> Stage:
    return Stage((Task(),) if plan.over is None else None)


def _where(job: Job, at: TaskId) -> dict[str, Any]:
    """How events name a task. The element is included only for ``each`` stages."""
    if job.plan.stage(at.stage).over is None:
        return {"stage": at.stage}
    return {"stage": at.stage, "element": at.element}
