"""Leases over time, sweeps, purge, and who is there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from typing import Any

from packhorse.core.models import Job, TaskId
from packhorse.store.base import Lease, Renewal
from packhorse.store.postgres import records, rows
from packhorse.store.postgres.connection import NOW, Clock, Row, Session
from packhorse.store.postgres.rows import Plans

PER_JOB = ("specs", "results", "events", "leases", "progress", "log", "log_size", "samples")

HELD = "unnest($1::uuid[], $2::text[], $3::int4[], $4::text[]) AS n (job_id, stage, element, token)"
SAID = "l.job_id, l.stage, l.element, l.token"

# Locked in the order of their keys, like everybody's: a commit that ends some of them does not wait for us in turn.
RENEW = f"""
WITH held AS MATERIALIZED (
    SELECT {SAID} FROM {HELD} JOIN @leases AS l USING (job_id, stage, element, token)
    ORDER BY l.job_id, l.stage, l.element FOR NO KEY UPDATE OF l
), moved AS (
    UPDATE @leases AS l SET until = coalesce($5, {NOW}) + $6 FROM held
    WHERE (l.job_id, l.stage, l.element) = (held.job_id, held.stage, held.element)
)
SELECT {SAID}, job.is_stopping, {NOW} AS now FROM held AS l JOIN @jobs AS job ON job.id = l.job_id
"""

STANDING = f"""
SELECT {SAID}, job.is_stopping FROM {HELD} JOIN @leases AS l USING (job_id, stage, element, token)
JOIN @jobs AS job ON job.id = l.job_id
"""

READY = """
SELECT k.queue, sum(n.count)::int8 AS count FROM unnest($1::text[], $2::text[]) AS k (queue, kind)
CROSS JOIN LATERAL (
    SELECT count(*) FROM (SELECT FROM @due AS d WHERE d.queue = k.queue AND d.kind = k.kind LIMIT $3) AS few
) AS n
GROUP BY k.queue
"""

DUE = f"(SELECT {rows.moment(f'coalesce($1, {NOW})')})"
"""The time asked for once: a condition that may change from row to row is looked at row by row, in the whole index."""


async def renew(session: Session, leases: Sequence[Lease], seconds: float, clock: Clock) -> Renewal:
    found = await session.fetch(RENEW, *_asked(leases), clock.parameter(), seconds)
    if found:
        clock.heard(found[0]["now"])
    return _renewal(leases, found)


async def standing(session: Session, leases: Sequence[Lease]) -> Renewal:
    return _renewal(leases, await session.fetch(STANDING, *_asked(leases)))


def _asked(leases: Sequence[Lease]) -> list[Sequence[Any]]:
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
    return await _leased(session, f"until <= coalesce($1, {NOW})", clock.parameter(), limit, plans)


async def held_by(session: Session, worker: str, limit: int, plans: Plans) -> list[tuple[Job, TaskId]]:
    return await _leased(session, "worker = $1::text", worker, limit, plans)


async def _leased(session: Session, where: str, value: Any, limit: int, plans: Plans) -> list[tuple[Job, TaskId]]:
    columns = ", ".join(f"job.{name}" for name in rows.COLUMNS.split(", "))
    query = f"SELECT {columns}, l.stage, l.element FROM @leases AS l JOIN @jobs AS job ON job.id = l.job_id"
    found = await _readable(session, f"{query} WHERE {where} ORDER BY l.until", value, limit, plans)
    return [(job, TaskId(row["stage"], row["element"])) for job, row in found]


async def _readable(session: Session, query: str, value: Any, limit: int, plans: Plans) -> list[tuple[Job, Row]]:
    """A sweep goes round what we cannot read, looking further instead; who asks for such a job is told."""
    page = limit
    while True:
        found = await session.fetch(f"{query} LIMIT $2", value, page)
        jobs = await rows.jobs_from(session, found, plans)
        readable = [(job, row) for job, row in zip(jobs, found, strict=True) if isinstance(job, Job)]
        if len(readable) >= limit or len(found) < page:
            return readable[:limit]
        page *= 2


async def expired(session: Session, clock: Clock, limit: int, plans: Plans) -> list[Job]:
    """Two walks, each of its own index: jobs that wait, and jobs that run and are not being stopped yet."""
    walks = (
        f"(SELECT {rows.COLUMNS}, deadline_at FROM @jobs WHERE {where} AND deadline_at <= {DUE}"
        " ORDER BY deadline_at LIMIT $2)"
        for where in ("status = 'pending'", "status = 'running' AND NOT is_stopping")
    )
    query = f"SELECT * FROM ({' UNION ALL '.join(walks)}) AS job ORDER BY deadline_at"
    return [job for job, _ in await _readable(session, query, clock.parameter(), limit, plans)]


async def purgeable(session: Session, clock: Clock, limit: int, plans: Plans) -> list[Job]:
    """Begun purges first, whatever the time: the clock that decided them may have been ahead of this one."""
    begun = await _jobs(session, "is_purging AND $1::float8 IS NULL ORDER BY id", None, limit, plans)
    where = f"purge_at <= {DUE} AND NOT is_purging ORDER BY purge_at"
    return begun + await _jobs(session, where, clock.parameter(), limit - len(begun), plans)


async def ready(session: Session, kinds: Mapping[str, Collection[str]], limit: int) -> dict[str, int]:
    pairs = [(queue, kind) for queue, names in kinds.items() for kind in names]
    rows_of = await session.fetch(READY, [queue for queue, _ in pairs], [kind for _, kind in pairs], limit)
    found = Counter({row["queue"]: row["count"] for row in rows_of})
    return {queue: min(found[queue], limit) for queue in kinds}


async def littered(session: Session, limit: int, plans: Plans) -> list[Job]:
    where = "has_litter AND completed_at IS NOT NULL AND NOT is_purging AND $1::float8 IS NULL ORDER BY id"
    return await _jobs(session, where, None, limit, plans)


async def _jobs(session: Session, where: str, value: Any, limit: int, plans: Plans) -> list[Job]:
    if limit <= 0:
        return []
    query = f"SELECT {rows.COLUMNS} FROM @jobs WHERE {where}"
    return [job for job, _ in await _readable(session, query, value, limit, plans)]


async def erase(session: Session, job_id: str) -> None:
    if not rows.is_id(job_id):
        return
    if await session.row("DELETE FROM @jobs WHERE id = $1 AND is_purging RETURNING id", job_id) is None:
        return
    # Statements of their own: what was written while we waited for the job is seen, and goes too.
    await session.fetch(
        "DELETE FROM @idempotency WHERE key = (SELECT idempotency_key FROM @specs WHERE job_id = $1)", job_id
    )
    drops = ", ".join(f"{table} AS (DELETE FROM @{table} WHERE job_id = $1)" for table in PER_JOB)
    await session.fetch(f"WITH {drops} SELECT 1", job_id)
    await records.drop_of_job(session, job_id)


async def known(session: Session, job_ids: Sequence[str]) -> set[str]:
    found = await session.fetch("SELECT id FROM @jobs WHERE id = ANY($1::uuid[])", rows.ids(job_ids))
    return {str(id) for (id,) in found}
