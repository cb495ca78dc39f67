"""What workers have still to do about failures: taken by one of them at a time."""

from __future__ import annotations

from packhorse.errors import Conflict
from packhorse.store.base import Errand
from packhorse.store.failures import Sort
from packhorse.store.postgres.connection import NOW, Clock, Row, Session

COLUMNS = ("id", "sort", "tenant", "body", "due_at", "attempts")
LISTED = ", ".join(COLUMNS)

# The time asked for once: a condition that may change from row to row is looked at row by row.
DUE = f"sort = $2 AND due_at <= (SELECT coalesce($1, {NOW}))"

# Locked rows belong to another taker. MATERIALIZED, because a LIMIT that is run again takes too many.
TAKE = f"""
WITH due AS MATERIALIZED (
    SELECT id, due_at FROM @errands WHERE {DUE} ORDER BY due_at, id LIMIT $3 FOR UPDATE SKIP LOCKED
)
UPDATE @errands AS e SET attempts = attempts + 1, due_at = coalesce($1, {NOW}) + $4 FROM due WHERE e.id = due.id
RETURNING {", ".join(f"e.{name}" for name in COLUMNS)}, due.due_at AS was_due
"""
HELD = "id = $1 AND attempts = $2"


async def add(session: Session, errand: Errand) -> None:
    put = f"INSERT INTO @errands ({LISTED}) VALUES ($1, $2, $3, $4, $5, $6) ON CONFLICT DO NOTHING RETURNING 1"
    row = (errand.id, errand.sort, errand.tenant, errand.body, errand.due_at, errand.attempts)
    if await session.row(put, *row) is None:
        raise Conflict(f"There is an errand {errand.id} already.")


async def has_due(session: Session, sort: Sort, clock: Clock) -> bool:
    return await session.row(f"SELECT 1 FROM @errands WHERE {DUE} LIMIT 1", clock.parameter(), sort) is not None


async def take(session: Session, sort: Sort, clock: Clock, limit: int, seconds: float) -> list[Errand]:
    found = await session.fetch(TAKE, clock.parameter(), sort, limit, seconds)
    return [_errand(row) for row in sorted(found, key=lambda row: (row["was_due"], row["id"]))]


async def settle(session: Session, errand: Errand, due_at: float | None, body: bytes | None, *, is_kept: bool) -> bool:
    held = (errand.id, errand.attempts)
    if due_at is None and not is_kept:
        return await session.row(f"DELETE FROM @errands WHERE {HELD} RETURNING 1", *held) is not None
    put = f"UPDATE @errands SET due_at = $3, body = coalesce($4, body) WHERE {HELD} RETURNING 1"
    return await session.row(put, *held, due_at, body) is not None


async def orders(session: Session, tenant: str, before: str | None, limit: int) -> list[Errand]:
    query = f"SELECT {LISTED} FROM @errands WHERE sort = 'order' AND tenant = $1 AND id < $2 ORDER BY id DESC LIMIT $3"
    return [_errand(row) for row in await session.fetch(query, tenant, "~" if before is None else before, limit)]


async def order(session: Session, id: str) -> Errand | None:
    row = await session.row(f"SELECT {LISTED} FROM @errands WHERE id = $1 AND sort = 'order'", id)
    return None if row is None else _errand(row)


async def drop(session: Session, until: str, limit: int) -> int:
    over = "SELECT id FROM @errands WHERE sort = 'order' AND due_at IS NULL AND id < $1 ORDER BY id LIMIT $2"
    return len(await session.fetch(f"DELETE FROM @errands WHERE id IN ({over}) RETURNING 1", until, limit))


def _errand(row: Row) -> Errand:
    return Errand(*tuple(row)[: len(COLUMNS)])
