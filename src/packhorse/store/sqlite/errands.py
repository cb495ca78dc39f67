"""What workers have still to do about failures: taken by one of them at a time."""

from __future__ import annotations

from typing import Any

import apsw

from packhorse.errors import Conflict
from packhorse.store.base import Errand
from packhorse.store.failures import Sort

COLUMNS = "id, sort, tenant, body, due_at, attempts"
DUE = "SELECT id FROM errands WHERE sort = ? AND due_at <= ? ORDER BY due_at, id LIMIT ?"
TAKE = f"UPDATE errands SET attempts = attempts + 1, due_at = ? WHERE id = ? RETURNING {COLUMNS}"
HELD = "id = ? AND attempts = ?"


def add(db: apsw.Connection, errand: Errand) -> None:
    row = (errand.id, errand.sort, errand.tenant, errand.body, errand.due_at, errand.attempts)
    db.execute(f"INSERT INTO errands ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
    if db.changes() == 0:
        raise Conflict(f"There is an errand {errand.id} already.")


def has_due(db: apsw.Connection, sort: Sort, now: float) -> bool:
    return db.execute(DUE, (sort, now, 1)).fetchone() is not None


def take(db: apsw.Connection, sort: Sort, now: float, limit: int, seconds: float) -> list[Errand]:
    due = db.execute(DUE, (sort, now, limit)).fetchall()
    return [_errand(db.execute(TAKE, (now + seconds, id)).fetchall()[0]) for (id,) in due]


def settle(db: apsw.Connection, errand: Errand, due_at: float | None, body: bytes | None, *, is_kept: bool) -> bool:
    held = (errand.id, errand.attempts)
    if due_at is None and not is_kept:
        db.execute(f"DELETE FROM errands WHERE {HELD}", held)
    else:
        put = f"UPDATE errands SET due_at = ?, body = coalesce(?, body) WHERE {HELD}"
        db.execute(put, (due_at, body, *held))
    return db.changes() == 1


def orders(db: apsw.Connection, tenant: str, before: str | None, limit: int) -> list[Errand]:
    query = f"SELECT {COLUMNS} FROM errands WHERE sort = 'order' AND tenant = ? AND id < ? ORDER BY id DESC LIMIT ?"
    return [_errand(row) for row in db.execute(query, (tenant, "~" if before is None else before, limit))]


def order(db: apsw.Connection, id: str) -> Errand | None:
    row = db.execute(f"SELECT {COLUMNS} FROM errands WHERE id = ? AND sort = 'order'", (id,)).fetchone()
    return None if row is None else _errand(row)


DONE = "SELECT id FROM errands WHERE sort = 'order' AND due_at IS NULL AND id < ? ORDER BY id LIMIT ?"


def has_done(db: apsw.Connection, until: str) -> bool:
    return db.execute(DONE, (until, 1)).fetchone() is not None


def drop(db: apsw.Connection, until: str, limit: int) -> int:
    db.execute(f"DELETE FROM errands WHERE id IN ({DONE})", (until, limit))
    return db.changes()


def _errand(row: Any) -> Errand:
    return Errand(*row)
