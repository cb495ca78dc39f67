"""What is run when, and what became of each tick. What a commit tells a run is written with it, in `writing`."""

from __future__ import annotations

from typing import Any

from msgspec.structs import astuple

from packhorse.core import json
from packhorse.core.schedules import MAX_VERSIONS, Move, Revision, Run, Schedule
from packhorse.errors import Conflict
from packhorse.store.postgres.connection import NOW, Clock, Row, Session
from packhorse.store.postgres.rows import clean
from packhorse.store.schedules import PAGE, RUN_FIELDS, revision_from, schedule_from
from packhorse.store.tolerant_reads import filled

COLUMNS = ", ".join(RUN_FIELDS)
OPEN = "status IN ('due', 'fired')"
OF = "tenant = $1 AND schedule = $2"
VALUES = ", ".join(f"${n}" for n, _ in enumerate(RUN_FIELDS, 1))
ADD_RUN = f"INSERT INTO @runs ({COLUMNS}) VALUES ({VALUES}) ON CONFLICT DO NOTHING RETURNING 1"
SET_RUN = (
    f"UPDATE @runs SET ({COLUMNS}) = ROW({VALUES})"
    f" WHERE {OF} AND tick = $3 AND stamp = ${len(RUN_FIELDS) + 1} RETURNING 1"
)
DUE = f"due_at <= (SELECT coalesce($1, {NOW}))"

# Locked rows belong to another taker. MATERIALIZED, because a LIMIT that is run again takes too many.
TAKE = f"""
WITH due AS MATERIALIZED (
    SELECT tenant, schedule, tick, due_at FROM @runs WHERE {DUE} ORDER BY due_at, tick LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE @runs AS r SET due_at = coalesce($1, {NOW}) + $3, stamp = stamp + 1 FROM due
WHERE (r.tenant, r.schedule, r.tick) = (due.tenant, due.schedule, due.tick)
RETURNING {", ".join(f"r.{name}" for name in RUN_FIELDS)}, due.due_at AS was_due
"""


async def move(session: Session, move: Move) -> None:
    after = move.after
    values: tuple[Any, ...] = (after.tenant, after.id, after.stamp, after.next_at, json.encode(after))
    if move.before is None:
        put = "INSERT INTO @schedules VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING RETURNING 1"
    else:
        put = (
            "UPDATE @schedules SET stamp = $3, next_at = $4, body = $5"
            " WHERE tenant = $1 AND id = $2 AND stamp = $6 RETURNING 1"
        )
        values = (*values, move.before.stamp)
    _check(await session.row(put, *values), after)
    if (revision := move.revision) is not None:
        of = (revision.tenant, revision.schedule)
        await session.fetch(
            "INSERT INTO @revisions VALUES ($1, $2, $3, $4)", *of, revision.version, json.encode(revision)
        )
        await session.fetch(
            f"DELETE FROM @revisions WHERE {OF} AND version <= $3", *of, revision.version - MAX_VERSIONS
        )
    for run in move.runs:
        _check(await session.row(ADD_RUN, *astuple(run)), after)


async def schedule(session: Session, tenant: str, id: str) -> Schedule | None:
    body = await session.value("SELECT body FROM @schedules WHERE tenant = $1 AND id = $2", clean(tenant), clean(id))
    return None if body is None else schedule_from(body)


async def schedules(session: Session, tenant: str | None, after: tuple[str, str] | None, limit: int) -> list[Schedule]:
    query = (
        "SELECT tenant || '/' || id, body FROM @schedules"
        " WHERE ($1::text IS NULL OR tenant = $1) AND (tenant, id) > ($2, $3) ORDER BY tenant, id LIMIT $4 OFFSET $5"
    )
    start = [clean(part) for part in after or ("", "")]
    return await filled(lambda seen: session.fetch(query, tenant, *start, limit, seen), Schedule, limit)


async def upcoming(session: Session, until: float, limit: int) -> list[Schedule]:
    query = "SELECT tenant || '/' || id, body FROM @schedules WHERE next_at <= $1 ORDER BY next_at LIMIT $2 OFFSET $3"
    return await filled(lambda seen: session.fetch(query, until, limit, seen), Schedule, limit)


async def revisions(session: Session, tenant: str, id: str, before: int | None, limit: int) -> list[Revision]:
    query = (
        f"SELECT body FROM @revisions WHERE {OF} AND ($3::int8 IS NULL OR version < $3) ORDER BY version DESC LIMIT $4"
    )
    return [revision_from(body) for (body,) in await session.fetch(query, tenant, id, before, limit)]


async def runs(session: Session, tenant: str, id: str, before: float | None, limit: int, open_only: bool) -> list[Run]:
    query = (
        f"SELECT {COLUMNS} FROM @runs WHERE {OF} AND tick < $3 AND {OPEN if open_only else 'TRUE'}"
        " ORDER BY tick DESC LIMIT $4"
    )
    most = float("inf") if before is None else before
    return [_run(row) for row in await session.fetch(query, tenant, id, most, limit)]


async def run(session: Session, tenant: str, id: str, tick: float) -> Run | None:
    row = await session.row(f"SELECT {COLUMNS} FROM @runs WHERE {OF} AND tick = $3", tenant, id, tick)
    return None if row is None else _run(row)


async def put_run(session: Session, before: Run, after: Run) -> None:
    if await session.row(SET_RUN, *_values(after), before.stamp) is None:
        raise Conflict("Somebody else has decided on this run.")


async def has_due(session: Session, clock: Clock) -> bool:
    return await session.row(f"SELECT 1 FROM @runs WHERE {DUE} LIMIT 1", clock.parameter()) is not None


async def take(session: Session, clock: Clock, limit: int, seconds: float) -> list[Run]:
    found = await session.fetch(TAKE, clock.parameter(), limit, seconds)
    return [_run(row) for row in sorted(found, key=lambda row: (row["was_due"], row["tick"]))]


async def trim_runs(session: Session, tenant: str, id: str, older_than: float, keep: int) -> None:
    crowded = await session.value(
        f"SELECT tick FROM @runs WHERE {OF} ORDER BY tick DESC LIMIT 1 OFFSET $3", tenant, id, keep
    )
    until = older_than if crowded is None else max(older_than, crowded + 1e-6)
    await session.fetch(
        f"DELETE FROM @runs WHERE {OF} AND tick = ANY(ARRAY("
        f"SELECT tick FROM @runs WHERE {OF} AND tick < $3 AND NOT {OPEN} ORDER BY tick LIMIT $4))",
        tenant,
        id,
        until,
        PAGE,
    )


async def drop(session: Session, schedule: Schedule) -> None:
    of = (schedule.tenant, schedule.id)
    gone = (
        "DELETE FROM @schedules WHERE tenant = $1 AND id = $2 AND stamp = $3"
        f" AND NOT EXISTS (SELECT FROM @runs WHERE {OF}) RETURNING 1"
    )
    if await session.row(gone, *of, schedule.stamp) is not None:
        await session.fetch(f"DELETE FROM @revisions WHERE {OF}", *of)


def _check(made: Row | None, schedule: Schedule) -> None:
    if made is None:
        raise Conflict(f"The schedule {schedule.id} has moved on.", schedule_id=schedule.id)


def _values(run: Run) -> tuple[Any, ...]:
    return tuple(clean(value) if isinstance(value, str) else value for value in astuple(run))


def _run(row: Row) -> Run:
    found = {name: row[name] for name in RUN_FIELDS}
    return Run(**{**found, "job_id": None if found["job_id"] is None else str(found["job_id"])})
