"""Leases over time, sweeps, purge, and who is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from packhorse.core.models import Job, TaskId
from packhorse.store import sql_files
from packhorse.store.base import Lease, Renewal
from packhorse.store.postgres import records, rows
from packhorse.store.postgres.connection import Clock, Row, Session
from packhorse.store.postgres.rows import Plans

SQL = sql_files.load(__package__, "maintenance")


async def renew(session: Session, leases: Sequence[Lease], seconds: float, clock: Clock) -> Renewal:
    found = await session.fetch(SQL.renew, *_lease_columns(leases), clock.parameter(), seconds)
    if found:
        clock.adjust(found[0]["now"])
    return _renewal(leases, found)


async def standing(session: Session, leases: Sequence[Lease]) -> Renewal:
    return _renewal(leases, await session.fetch(SQL.standing, *_lease_columns(leases)))


def _lease_columns(leases: Sequence[Lease]) -> list[Sequence[Any]]:
    asked = [(lease.job_id, *lease.task, lease.token) for lease in set(leases) if rows.is_id(lease.job_id)]
    return list(zip(*asked, strict=True)) or [[], [], [], []]


def _renewal(leases: Sequence[Lease], found: Sequence[Row]) -> Renewal:
    stopping = {Lease(str(id), TaskId(stage, element), token): is_stopping
                for id, stage, element, token, is_stopping, *_ in found}  # fmt: skip
    return Renewal(
        frozenset(lease for lease in leases if lease not in stopping),
        frozenset(lease for lease in leases if stopping.get(lease)),
    )


async def overdue(session: Session, clock: Clock, limit: int, plans: Plans) -> list[tuple[Job, TaskId]]:
    return await _leased_tasks(session, SQL.overdue, clock.parameter(), limit, plans)


async def held_by(session: Session, worker: str, limit: int, plans: Plans) -> list[tuple[Job, TaskId]]:
    return await _leased_tasks(session, SQL.held_by, worker, limit, plans)


async def _leased_tasks(session: Session, query: str, value: Any, limit: int, plans: Plans) -> list[tuple[Job, TaskId]]:
    found = await _readable(session, query, value, limit, plans)
    return [(job, TaskId(row["stage"], row["element"])) for job, row in found]


async def _readable(session: Session, query: str, value: Any, limit: int, plans: Plans) -> list[tuple[Job, Row]]:
    """A sweep goes round what we cannot read, looking further instead; who asks for such a job is told."""
    page = limit
    while True:
        found = await session.fetch(query, value, page)
        jobs = await rows.jobs_from(session, found, plans)
        readable = [(job, row) for job, row in zip(jobs, found, strict=True) if isinstance(job, Job)]
        if len(readable) >= limit or len(found) < page:
            return readable[:limit]
        page *= 2


async def expired(session: Session, clock: Clock, limit: int, plans: Plans) -> list[Job]:
    return await _jobs(session, SQL.expired, clock.parameter(), limit, plans)


async def purgeable(session: Session, clock: Clock, limit: int, plans: Plans) -> list[Job]:
    """Begun purges first, whatever the time: the clock that decided them may have been ahead of this one."""
    begun = await _jobs(session, SQL.purging, None, limit, plans)
    return begun + await _jobs(session, SQL.purgeable, clock.parameter(), limit - len(begun), plans)


async def ready(session: Session, kinds: Mapping[str, Collection[str]], limit: int) -> dict[str, int]:
    pairs = [(queue, kind) for queue, names in kinds.items() for kind in names]
    rows_of = await session.fetch(SQL.ready, [queue for queue, _ in pairs], [kind for _, kind in pairs], limit)
    found = Counter({row["queue"]: row["count"] for row in rows_of})
    return {queue: min(found[queue], limit) for queue in kinds}


async def littered(session: Session, limit: int, plans: Plans) -> list[Job]:
    return await _jobs(session, SQL.littered, None, limit, plans)


async def _jobs(session: Session, query: str, value: Any, limit: int, plans: Plans) -> list[Job]:
    if limit <= 0:
        return []
    return [job for job, _ in await _readable(session, query, value, limit, plans)]


async def erase(session: Session, job_id: str) -> None:
    if not rows.is_id(job_id) or await session.row(SQL.erase_job, job_id) is None:
        return
    await session.fetch(SQL.erase_key, job_id)
    await session.fetch(SQL.erase_rest, job_id)
    await records.drop_of_job(session, job_id)
