"""Between a job and its row: the columns people query, and the compact state beside them."""

from __future__ import annotations

import re
import struct
from collections.abc import Iterable, Sequence
from math import isnan, nan
from typing import Any

from packhorse.core import json
from packhorse.core.models import Job
from packhorse.core.plan import Plan, Status
from packhorse.errors import CorruptRecord, PackhorseError
from packhorse.store import sql_files
from packhorse.store.postgres.connection import Row, Session

SQL = sql_files.load(__package__, "jobs")

COLUMNS = "id, tenant, user_id, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter, state"

ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")

TIMES = struct.Struct("<7d")
"""Created, not before, started, completed, updated, deadline, purge: exact, where a column rounds; nan for none."""


class Plans:
    """Plans by fingerprint. They never change, so one read per process is enough."""

    def __init__(self) -> None:
        self.stored: set[str] = set()
        """Those this process has seen in the store."""
        self._known: dict[str, Plan | CorruptRecord] = {}

    async def load(self, session: Session, found: Iterable[Row]) -> None:
        """Read the plans of these jobs that nobody here has read yet."""
        missing = {row["plan"] for row in found} - self._known.keys()
        if missing:
            for row in await session.look(SQL.plans, list(missing)):
                self._known[row["fingerprint"]] = _plan(row["body"])

    def get(self, fingerprint: str, job_id: str) -> Plan:
        plan = self._known.get(fingerprint)
        if plan is None:
            raise CorruptRecord(what="plan", job_id=job_id, reason=f"there is no plan {fingerprint}")
        if isinstance(plan, Exception):
            raise CorruptRecord(what="plan", job_id=job_id, reason=plan.facts["reason"]) from plan
        return plan


def _plan(body: bytes) -> Plan | CorruptRecord:
    try:
        return json.plan_from(body)
    except CorruptRecord as error:
        return error


def is_id(text: str) -> bool:
    """Whether it can be the id of a job: asking for anything else would be an error, and there is no such job."""
    return ID.fullmatch(text) is not None


def ids(given: Iterable[str]) -> list[str]:
    return [id for id in given if is_id(id)]


async def jobs_from(session: Session, found: Sequence[Row], plans: Plans) -> list[Job | PackhorseError]:
    """Each row's job, or why it cannot be read."""
    await plans.load(session, found)
    return [read_job(row, plans) for row in found]


def read_job(row: Row, plans: Plans) -> Job | PackhorseError:
    try:
        return job_from(row, plans)
    except PackhorseError as error:
        return error


def job_from(row: Row, plans: Plans) -> Job:
    (uuid, tenant, user, client, plan, priority, trace_id, slot, status, version, is_purging, has_litter,
     body) = tuple(row)[:13]  # fmt: skip
    id = str(uuid)
    if len(body) < TIMES.size:
        raise CorruptRecord(what="state", job_id=id, reason="it is too short")
    times = [None if isnan(time) else time for time in TIMES.unpack_from(body)]
    created_at, not_before, started_at, completed_at, updated_at, deadline_at, purge_at = times
    state = json.state_from(body[TIMES.size :], id)
    graph = plans.get(plan, id)
    if len(state.stages) != len(graph.stages) or created_at is None or not_before is None or updated_at is None:
        raise CorruptRecord(what="state", job_id=id, reason="it does not have the stages of its plan, or no time")
    return Job(
        id=id, plan=graph, user=user, tenant=tenant, client=client, priority=priority, created_at=created_at,
        not_before=not_before, trace_id=trace_id, slot=slot, status=Status(status), run=state.run, version=version,
        events=state.events, started_at=started_at, completed_at=completed_at, updated_at=updated_at,
        deadline_at=deadline_at, purge_at=purge_at, is_purging=is_purging, stopping=state.stopping,
        has_litter=has_litter, error=state.error, stages=state.stages, webhooks=state.webhooks,
        promoted=state.promoted,
        firing=state.firing,
        revived=state.revived,
    )  # fmt: skip


def fixed_columns(job: Job) -> tuple[Any, ...]:
    """What a job keeps from its first row on, in the order of the part `added`."""
    plan = job.plan
    return (
        job.tenant, job.user, job.client, plan.pipeline, plan.fingerprint, job.priority, job.trace_id, job.slot,
        job.created_at,
    )  # fmt: skip


def moving_columns(job: Job) -> tuple[Any, ...]:
    """What a change may move, in the order of the part `moved`."""
    error = None
    if job.status is Status.FAILED:
        error = clean(job.error.message) if job.error is not None else ""
    return (
        job.status.value, job.version, job.retry_count, job.not_before, job.started_at, job.completed_at,
        job.updated_at, job.deadline_at, job.purge_at, job.is_purging, job.stopping is not None, job.has_litter, error,
        _state(job),
    )  # fmt: skip


def clean(text: str) -> str:
    """Text as PostgreSQL can hold it: without NUL, and without halves of surrogate pairs."""
    text = text.replace("\x00", "\ufffd")
    return text if text.isascii() else text.encode("utf-8", "replace").decode()


def _state(job: Job) -> bytes:
    times = (
        job.created_at, job.not_before, job.started_at, job.completed_at, job.updated_at, job.deadline_at, job.purge_at
    )  # fmt: skip
    exact = TIMES.pack(*(nan if time is None else time for time in times))
    return exact + json.state_of(job)
