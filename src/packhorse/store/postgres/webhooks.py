"""Who is told of ended jobs, and what waits to be sent. What a commit puts in is written with it, in `writing`."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import astuple, replace

from packhorse.core import json
from packhorse.errors import Conflict
from packhorse.store.base import Delivery, Endpoint
from packhorse.store.postgres.connection import NOW, Clock, Row, Session
from packhorse.store.postgres.rows import clean

COLUMNS = ("id", "endpoint", "job_id", "run", "at", "attempts", "next_at", "error", "body")

# The time asked for once: a condition that may change from row to row is looked at row by row.
DUE = f"next_at <= (SELECT coalesce($1, {NOW}))"

# Locked rows belong to another taker. MATERIALIZED, because a LIMIT that is run again takes too many.
TAKE = f"""
WITH due AS MATERIALIZED (
    SELECT id, next_at FROM @deliveries WHERE {DUE} ORDER BY next_at, id LIMIT $2 FOR UPDATE SKIP LOCKED
)
UPDATE @deliveries AS d SET attempts = attempts + 1, next_at = coalesce($1, {NOW}) + $3 FROM due WHERE d.id = due.id
RETURNING {", ".join(f"d.{name}" for name in COLUMNS)}, due.next_at AS was_due
"""


# An endpoint that is locked does not end meanwhile: who ends it sees what is put in here, and drops it.
POST = """
INSERT INTO @deliveries SELECT n.* FROM unnest($1::text[], $2::text[], $3::uuid[], $4::int4[], $5::float8[], $6::int4[],
    $7::float8[], $8::text[], $9::text[]) AS n (id, endpoint, job_id, run, at, attempts, next_at, error, body)
JOIN (SELECT id FROM @endpoints WHERE id = ANY($2::text[]) AND is_open ORDER BY id FOR SHARE) AS told
    ON told.id = n.endpoint
ON CONFLICT DO NOTHING
"""


async def post(session: Session, deliveries: Sequence[Delivery]) -> None:
    if deliveries:
        rows = [astuple(replace(each, body=clean(each.body), error=clean(each.error))) for each in deliveries]
        await session.fetch(POST, *zip(*rows, strict=True))


async def add_endpoint(session: Session, endpoint: Endpoint) -> None:
    put = "INSERT INTO @endpoints VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING RETURNING 1"
    values = (endpoint.id, endpoint.tenant, endpoint.created_at, endpoint.ended_at is None, json.encode(endpoint))
    if await session.row(put, *values) is None:
        raise Conflict(f"There is an endpoint {endpoint.id} already.", endpoint_id=endpoint.id)


async def endpoints(session: Session, tenant: str | None, only_open: bool) -> list[Endpoint]:
    query = """SELECT body FROM @endpoints
        WHERE ($1::text IS NULL OR tenant = $1) AND (is_open OR NOT $2) ORDER BY created_at, id"""
    return [json.record(body, Endpoint) for (body,) in await session.fetch(query, tenant, only_open)]


async def end_endpoint(session: Session, id: str, at: float, reason: str) -> Endpoint | None:
    """Locked first: a commit that has just found it open is waited for, and its messages are seen, and go too."""
    row = await session.row("SELECT body FROM @endpoints WHERE id = $1 FOR UPDATE", id)
    endpoint = None if row is None else json.record(row["body"], Endpoint)
    if endpoint is None or endpoint.ended_at is not None:
        return endpoint
    ended = replace(endpoint, ended_at=at, reason=reason)
    await session.fetch("UPDATE @endpoints SET is_open = FALSE, body = $2 WHERE id = $1", id, json.encode(ended))
    await session.fetch("DELETE FROM @deliveries WHERE endpoint = $1", id)
    return ended


async def forget_endpoints(session: Session, before: float) -> None:
    rows = await session.fetch("SELECT body FROM @endpoints WHERE NOT is_open")
    ended = [json.record(body, Endpoint) for (body,) in rows]
    gone = [each.id for each in ended if each.ended_at is not None and each.ended_at <= before]
    if gone:
        await session.fetch("DELETE FROM @endpoints WHERE id = ANY($1::text[])", gone)


async def has_due(session: Session, clock: Clock) -> bool:
    return await session.row(f"SELECT 1 FROM @deliveries WHERE {DUE} LIMIT 1", clock.parameter()) is not None


async def take(session: Session, clock: Clock, limit: int, seconds: float) -> list[Delivery]:
    found = await session.fetch(TAKE, clock.parameter(), limit, seconds)
    return [_delivery(row) for row in sorted(found, key=lambda row: (row["was_due"], row["id"]))]


async def settle(session: Session, delivery: Delivery, next_at: float | None, error: str) -> None:
    held = "id = $1 AND attempts = $2"
    if next_at is None:
        await session.fetch(f"DELETE FROM @deliveries WHERE {held}", delivery.id, delivery.attempts)
    else:
        put = f"UPDATE @deliveries SET next_at = $3, error = $4 WHERE {held}"
        await session.fetch(put, delivery.id, delivery.attempts, next_at, clean(error))


async def deliveries(session: Session, endpoint_id: str, limit: int) -> list[Delivery]:
    query = f"SELECT {', '.join(COLUMNS)} FROM @deliveries WHERE endpoint = $1 ORDER BY at DESC, id DESC LIMIT $2"
    return [_delivery(row) for row in await session.fetch(query, endpoint_id, limit)]


def _delivery(row: Row) -> Delivery:
    id, endpoint, job_id, *rest = tuple(row)[: len(COLUMNS)]
    return Delivery(id, endpoint, str(job_id), *rest)
