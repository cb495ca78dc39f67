"""Who is told of ended jobs, and what waits to be sent."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.changes import Notify
from packhorse.core.models import Job
from packhorse.errors import Conflict
from packhorse.store.base import Delivery, Endpoint
from packhorse.store.sqlite.connection import Session
from packhorse.store.webhooks import delivery_id

COLUMNS = "id, endpoint, job_id, run, at, attempts, next_at, error, body"
DUE = "SELECT id FROM deliveries WHERE next_at <= ? ORDER BY next_at, id LIMIT ?"
TAKE = f"UPDATE deliveries SET attempts = attempts + 1, next_at = ? WHERE id = ? RETURNING {COLUMNS}"


def notify(db: Session, job: Job, effect: Notify) -> None:
    """Put a message for each endpoint that is still open into the outbox."""
    for endpoint in effect.endpoints:
        db.execute(
            f"INSERT OR IGNORE INTO deliveries ({COLUMNS})"
            " SELECT ?, id, ?, ?, ?, 0, ?, '', '' FROM endpoints WHERE id = ? AND is_open",
            (delivery_id(job.id, effect.run, endpoint), job.id, effect.run, effect.at, effect.at, endpoint),
        )


def post(db: apsw.Connection, deliveries: Sequence[Delivery]) -> None:
    put = (
        f"INSERT OR IGNORE INTO deliveries ({COLUMNS})"
        " SELECT ?, id, ?, ?, ?, ?, ?, ?, ? FROM endpoints WHERE id = ? AND is_open"
    )
    for each in deliveries:
        rest = (each.job_id, each.run, each.at, each.attempts, each.next_at, each.error, each.body)
        db.execute(put, (each.id, *rest, each.endpoint))


def add_endpoint(db: apsw.Connection, endpoint: Endpoint) -> None:
    row = (endpoint.id, endpoint.tenant, endpoint.created_at, endpoint.ended_at is None, json.encode(endpoint))
    db.execute("INSERT INTO endpoints VALUES (?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
    if db.changes() == 0:
        raise Conflict(f"There is an endpoint {endpoint.id} already.", endpoint_id=endpoint.id)


def endpoints(db: apsw.Connection, tenant: str | None, only_open: bool) -> list[Endpoint]:
    query = """SELECT body FROM endpoints
        WHERE (?1 IS NULL OR tenant = ?1) AND (is_open OR NOT ?2) ORDER BY created_at, id"""
    return [json.record(body, Endpoint) for (body,) in db.execute(query, (tenant, only_open))]


def end_endpoint(db: apsw.Connection, id: str, at: float, reason: str) -> Endpoint | None:
    row = db.execute("SELECT body FROM endpoints WHERE id = ?", (id,)).fetchone()
    if row is None:
        return None
    endpoint = json.record(row[0], Endpoint)
    if endpoint.ended_at is not None:
        return endpoint
    ended = replace(endpoint, ended_at=at, reason=reason)
    db.execute("UPDATE endpoints SET is_open = FALSE, body = ? WHERE id = ?", (json.encode(ended), id))
    db.execute("DELETE FROM deliveries WHERE endpoint = ?", (id,))
    return ended


def forget_endpoints(db: apsw.Connection, before: float) -> None:
    ended = [json.record(body, Endpoint) for (body,) in db.execute("SELECT body FROM endpoints WHERE NOT is_open")]
    gone = [(each.id,) for each in ended if each.ended_at is not None and each.ended_at <= before]
    db.executemany("DELETE FROM endpoints WHERE id = ?", gone)


def has_due(db: apsw.Connection, now: float) -> bool:
    return db.execute(DUE, (now, 1)).fetchone() is not None


def take(db: apsw.Connection, now: float, limit: int, seconds: float) -> list[Delivery]:
    due = db.execute(DUE, (now, limit)).fetchall()
    return [_delivery(db.execute(TAKE, (now + seconds, id)).fetchall()[0]) for (id,) in due]


def settle(db: apsw.Connection, delivery: Delivery, next_at: float | None, error: str) -> None:
    held = (delivery.id, delivery.attempts)
    if next_at is None:
        db.execute("DELETE FROM deliveries WHERE id = ? AND attempts = ?", held)
    else:
        db.execute(
            "UPDATE deliveries SET next_at = ?, error = ? WHERE id = ? AND attempts = ?", (next_at, error, *held)
        )


def deliveries(db: apsw.Connection, endpoint_id: str, limit: int) -> list[Delivery]:
    query = f"SELECT {COLUMNS} FROM deliveries WHERE endpoint = ? ORDER BY at DESC, id DESC LIMIT ?"
    return [_delivery(row) for row in db.execute(query, (endpoint_id, limit))]


def _delivery(row: tuple[object, ...]) -> Delivery:
    return Delivery(*row)  # type: ignore[arg-type]
