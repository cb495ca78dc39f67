"""Between a job and its row: the columns people query, and the compact state beside them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import apsw

from packhorse.core import json
from packhorse.core.models import Job
from packhorse.core.plan import Plan, Status
from packhorse.errors import CorruptRecord
from packhorse.store.sqlite.connection import Session

COLUMNS = (
    "id, tenant, user, client, plan, priority, created_at, trace_id, slot, status, version, not_before,"
    " started_at, completed_at, updated_at, deadline_at, purge_at, is_purging, has_litter, state"
)

WITH_SPEC = f"SELECT {COLUMNS}, body FROM jobs LEFT JOIN specs ON job_id = id WHERE id = ?"

MOVING = (
    "status", "not_before", "started_at", "completed_at", "deadline_at", "purge_at", "is_purging", "is_stopping",
    "has_litter",
)  # fmt: skip
"""What a change may move beside version, time and state."""

STATUS = {status.value: status for status in Status}
"""By text. The table holds no other, and asking the class takes as long as reading the row."""

ADD = f"""
INSERT INTO jobs (id, tenant, user, client, pipeline, plan, priority, created_at, trace_id, slot, version, updated_at,
    {", ".join(MOVING)}, state)
"""
INSERT = (
    f"{ADD} VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, {', '.join('?' for _ in MOVING)}, ?) ON CONFLICT DO NOTHING"
)

KEEP_PLAN = "INSERT OR IGNORE INTO plans"


class Plans:
    """Plans by fingerprint. They never change, so one read per process is enough."""

    def __init__(self) -> None:
        self._known: dict[str, Plan] = {}

    def keep(self, db: apsw.Connection, plan: Plan) -> None:
        assert plan.fingerprint, "a plan without a fingerprint would be taken for another one"
        db.execute(f"{KEEP_PLAN} VALUES (?, ?)", (plan.fingerprint, json.encode(plan)))

    def keep_later(self, db: Session, plan: Plan) -> None:
        """Once for all jobs of it that are added together."""
        assert plan.fingerprint, "a plan without a fingerprint would be taken for another one"
        if all(row[0] != plan.fingerprint for row in db.waiting.get(KEEP_PLAN, ())):
            db.later(KEEP_PLAN, (plan.fingerprint, json.encode(plan)))

    def get(self, db: apsw.Connection, fingerprint: str, job_id: str) -> Plan:
        if fingerprint not in self._known:
            row = db.execute("SELECT body FROM plans WHERE fingerprint = ?", (fingerprint,)).fetchone()
            if row is None:
                raise CorruptRecord(what="plan", job_id=job_id, reason=f"there is no plan {fingerprint}")
            try:
                self._known[fingerprint] = json.plan_from(row[0])
            except CorruptRecord as error:
                raise CorruptRecord(what="plan", job_id=job_id, reason=error.facts["reason"]) from error
        return self._known[fingerprint]


def insert(db: apsw.Connection, job: Job) -> bool:
    db.execute(INSERT, row_of(job))
    return db.changes() == 1


def row_of(job: Job) -> tuple[Any, ...]:
    return (
        job.id, job.tenant, job.user, job.client, job.plan.pipeline, job.plan.fingerprint, job.priority, job.created_at,
        job.trace_id, job.slot, job.version, job.updated_at, *_moving(job), _state(job),
    )  # fmt: skip


def update(db: apsw.Connection, before: Job, after: Job) -> bool:
    """Write only what moved: SQLite rewrites every index whose column is named, whether or not its value is new."""
    was, now = _moving(before), _moving(after)
    moved = tuple([i for i in range(len(MOVING)) if was[i] != now[i]])
    values = (*[now[i] for i in moved], after.version, after.updated_at, _state(after), after.id, before.version)
    db.execute(_update(moved), values)
    return db.changes() == 1


@cache
def _update(moved: tuple[int, ...]) -> str:
    """The version in the WHERE is the one door of the house: who decided on an older job writes nothing."""
    columns = ", ".join(f"{name} = ?" for name in [*(MOVING[i] for i in moved), "version", "updated_at", "state"])
    return f"UPDATE jobs SET {columns} WHERE id = ? AND version = ?"


def read(db: apsw.Connection, job_id: str, plans: Plans) -> Job | None:
    row = db.execute(f"SELECT {COLUMNS} FROM jobs WHERE id = ?", (job_id,)).fetchone()
    return None if row is None else job_from(db, row, plans)


def read_with_spec(db: apsw.Connection, job_id: str, plans: Plans) -> tuple[Job, bytes | None] | None:
    """A job and its encoded spec, None for a spec that is missing."""
    row = db.execute(WITH_SPEC, (job_id,)).fetchone()
    return None if row is None else (job_from(db, row[:-1], plans), row[-1])


def job_from(db: apsw.Connection, row: Sequence[Any], plans: Plans) -> Job:
    (id, tenant, user, client, plan, priority, created_at, trace_id, slot, status, version, not_before,
     started_at, completed_at, updated_at, deadline_at, purge_at, is_purging, has_litter, body) = row  # fmt: skip
    state = json.state_from(body, id)
    graph = plans.get(db, plan, id)
    if len(state.stages) != len(graph.stages):
        raise CorruptRecord(what="state", job_id=id, reason="it does not have the stages of its plan")
    return Job(
        id=id, plan=graph, user=user, tenant=tenant, client=client, priority=priority, created_at=created_at,
        not_before=not_before, trace_id=trace_id, slot=slot, status=STATUS[status], run=state.run, version=version,
        events=state.events, started_at=started_at, completed_at=completed_at, updated_at=updated_at,
        deadline_at=deadline_at, purge_at=purge_at, is_purging=bool(is_purging), stopping=state.stopping,
        has_litter=bool(has_litter), error=state.error, stages=state.stages, webhooks=state.webhooks,
        promoted=state.promoted,
        firing=state.firing,
        revived=state.revived,
    )  # fmt: skip


def _moving(job: Job) -> tuple[Any, ...]:
    return (
        job.status.value, job.not_before, job.started_at, job.completed_at, job.deadline_at, job.purge_at,
        job.is_purging, job.stopping is not None, job.has_litter,
    )  # fmt: skip


def _state(job: Job) -> bytes:
    return json.state_of(job)
