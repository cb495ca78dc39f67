"""What stores read from rows in the same way: plans, and in SQL also jobs, claims and what is kept beside a job."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from packhorse.core import json
from packhorse.core.changes import Change, Effect, MakeDue, TakeSlot
from packhorse.core.models import Event, Job, Result, Spec, TaskId
from packhorse.core.plan import Plan, Status
from packhorse.errors import CorruptRecord
from packhorse.log import log
from packhorse.store.base import Claim, Line, Progress

Entry = tuple[str, str, int, str, str, int]
"""Queue, kind, rank, job, stage, element: the key of a task in its queue."""


STATUS = {status.value: status for status in Status}
"""By text. The table holds no other, and asking the class takes as long as reading the row."""


def entry(job: Job, at: TaskId) -> Entry:
    """Rank is the negated priority, so that urgent comes first in key order."""
    stage = job.plan.stage(at.stage)
    return (stage.queue, stage.kind, -job.priority, job.id, at.stage, at.element)


def due_entry(job_id: str, effect: MakeDue) -> Entry:
    """The same of a task that is made due."""
    return (effect.queue, effect.kind, -effect.priority, job_id, *effect.task)


def split_due(change: Change) -> tuple[tuple[MakeDue, ...], tuple[Effect, ...]]:
    """What a job that joins the line of its slot makes due, which is kept there; and what else it does now."""
    due = tuple(each for each in change.effects if isinstance(each, MakeDue))
    return due, tuple(each for each in change.effects if not isinstance(each, MakeDue | TakeSlot))


def kept_due(body: bytes, job_id: str) -> tuple[MakeDue, ...]:
    """What was kept in the line. Nothing where that cannot be read: who ends the job before it must not fail at it, and
    the job itself fails when no worker starts it in time."""
    try:
        return json.record(body, tuple[MakeDue, ...])
    except CorruptRecord as error:
        log.record_unreadable("slot line", job_id, str(error))
        return ()


class Plans:
    """Plans by fingerprint. They never change, so one read per process is enough."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        """Those that this process knows to be in the store."""
        self.known: dict[str, Plan | CorruptRecord] = {}

    def add(self, fingerprint: str, body: bytes) -> None:
        try:
            self.known[fingerprint] = json.plan_from(body)
        except CorruptRecord as error:
            self.known[fingerprint] = error

    def get(self, fingerprint: str, job_id: str) -> Plan:
        plan = self.known.get(fingerprint)
        if plan is None:
            raise CorruptRecord(what="plan", job_id=job_id, reason=f"there is no plan {fingerprint}")
        if isinstance(plan, Exception):
            raise CorruptRecord(what="plan", job_id=job_id, reason=plan.facts["reason"]) from plan
        return plan


def plan_row(plan: Plan) -> tuple[str, bytes]:
    assert plan.fingerprint, "a plan without a fingerprint would be taken for another one"
    return plan.fingerprint, json.encode(plan)


def job_from(fields: Sequence[Any], times: Sequence[float | None], body: bytes, plans: Plans) -> Job:
    """``fields``: id, tenant, user, client, plan, priority, trace id, slot, status, version, is purging, has litter."""
    id, tenant, user, client, fingerprint, priority, trace_id, slot, status, version, is_purging, has_litter = fields
    created_at, not_before, started_at, completed_at, updated_at, deadline_at, purge_at = times
    state = json.state_from(body, id)  # before the plan: a job of a newer version is too new, not corrupt
    plan = plans.get(fingerprint, id)
    if len(state.stages) != len(plan.stages):
        raise CorruptRecord(what="state", job_id=id, reason="it does not have the stages of its plan")
    if created_at is None or not_before is None or updated_at is None:
        raise CorruptRecord(what="state", job_id=id, reason="a time is missing")
    return Job(
        id=id, plan=plan, user=user, tenant=tenant, client=client, priority=priority, created_at=created_at,
        not_before=not_before, trace_id=trace_id, slot=slot, status=STATUS[status], run=state.run, version=version,
        events=state.events, started_at=started_at, completed_at=completed_at, updated_at=updated_at,
        deadline_at=deadline_at, purge_at=purge_at, is_purging=bool(is_purging), stopping=state.stopping,
        has_litter=bool(has_litter), error=state.error, stages=state.stages, webhooks=state.webhooks,
        promoted=state.promoted, firing=state.firing, revived=state.revived, lineage=state.lineage,
        counted=state.counted, limit_values=state.limit_values,
    )  # fmt: skip


def claim_from(job: Job, task: TaskId, spec: bytes | None, upstream: Callable[[str], tuple[Result, ...]]) -> Claim:
    """The started task with all it needs. ``upstream`` has the results of a stage."""
    try:
        if spec is None:
            raise CorruptRecord(what="spec", job_id=job.id, reason="it is missing")
        results = {need.stage: upstream(need.stage) for need in job.plan.stage(task.stage).needs}
        return Claim(job, task, json.spec_from(spec, job.id), results)
    except CorruptRecord as error:
        return Claim(job, task, Spec(b"null"), {}, trouble=error)


def results_from(rows: Iterable[Any]) -> dict[str, dict[TaskId, Result]]:
    found: dict[str, dict[TaskId, Result]] = {}
    for id, stage, element, body in rows:
        found.setdefault(str(id), {})[TaskId(stage, element)] = json.result_from(body, str(id))
    return found


def progress_from(rows: Iterable[Any]) -> dict[str, dict[TaskId, Progress]]:
    found: dict[str, dict[TaskId, Progress]] = {}
    for id, stage, element, *values in rows:
        task = TaskId(stage, element)
        found.setdefault(str(id), {})[task] = Progress(task, *values)
    return found


def events_from(rows: Iterable[Any], job_id: str, after: int, limit: int) -> list[Event]:
    """A row has the events of one change, so the first and the last may have more than requested."""
    found = [event for (body,) in rows for event in json.events_from(body, job_id) if event.n > after]
    return found[:limit]


def lines_from(rows: Iterable[Any], job_id: str, *, newest: bool) -> list[Line]:
    found = [
        Line(job_id, TaskId(stage, element), attempt, at, text, n) for n, stage, element, attempt, at, text in rows
    ]
    return found[::-1] if newest else found
