"""Who may ask, and what they did."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
from msgspec.structs import replace

from packhorse.core import json
from packhorse.errors import Conflict, JobNotFound
from packhorse.store.base import Entry, Key, Session
from packhorse.store.keys import DROPPED, REMEMBERED, key_from


def add_key(db: apsw.Connection, key: Key) -> None:
    if key.job_id is not None and not db.execute("SELECT 1 FROM jobs WHERE id = ?", (key.job_id,)).fetchone():
        raise JobNotFound(job_id=key.job_id)
    row = (key.id, key.tenant, key.job_id, json.encode(key))
    db.execute("INSERT INTO keys VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
    if db.changes() == 0:
        raise Conflict(f"There is a key {key.id} already.", key_id=key.id)


def keys(db: apsw.Connection, ids: Sequence[str]) -> list[Key | None]:
    return [_key(db, id) for id in ids]


def _key(db: apsw.Connection, id: str) -> Key | None:
    row = db.execute("SELECT body FROM keys WHERE id = ?", (id,)).fetchone()
    return None if row is None else key_from(row[0])


def list_keys(db: apsw.Connection, tenant: str | None, before: str | None, limit: int) -> list[Key]:
    wanted = {"tenant = ?": tenant, "id < ?": before}
    given = {condition: value for condition, value in wanted.items() if value is not None}
    query = f"SELECT body FROM keys WHERE {' AND '.join(['job_id IS NULL', *given])} ORDER BY id DESC LIMIT ?"
    return [key_from(body) for (body,) in db.execute(query, (*given.values(), limit))]


def job_keys(db: apsw.Connection, job_id: str) -> list[Key]:
    found = db.execute("SELECT body FROM keys WHERE job_id = ? ORDER BY id DESC", (job_id,))
    return [key_from(body) for (body,) in found]


def end_key(db: apsw.Connection, id: str, at: float, by: str) -> Key | None:
    key = _key(db, id)
    if key is None or (key.ends_at is not None and key.ends_at <= at):
        return key
    ended = replace(key, ends_at=at, ended_by=by)
    db.execute("UPDATE keys SET body = ? WHERE id = ?", (json.encode(ended), id))
    return ended


def add_session(db: apsw.Connection, session: Session, now: float) -> None:
    ended = "SELECT id FROM sessions WHERE ends_at <= ? ORDER BY ends_at LIMIT ?"
    db.execute(f"DELETE FROM sessions WHERE id IN ({ended})", (now - REMEMBERED, DROPPED))
    db.execute("INSERT INTO sessions VALUES (?, ?, ?)", (session.id, session.ends_at, json.encode(session)))


def session(db: apsw.Connection, id: str) -> Session | None:
    row = db.execute("SELECT body FROM sessions WHERE id = ?", (id,)).fetchone()
    return None if row is None else json.record(row[0], Session)


def end_session(db: apsw.Connection, id: str, at: float) -> None:
    begun = session(db, id)
    if begun is not None and at < begun.ends_at:
        ended = json.encode(replace(begun, ends_at=at, is_ended=True))
        db.execute("UPDATE sessions SET ends_at = ?, body = ? WHERE id = ?", (at, ended, id))


def audit(db: apsw.Connection, entries: Sequence[Entry], keep: int) -> None:
    for entry in entries:
        db.execute("INSERT INTO audit (tenant, body) VALUES (?, ?)", (entry.tenant, json.encode(entry)))
    # Numbers have no gaps: what is too old is found by its number, as much as was just added.
    db.execute("DELETE FROM audit WHERE n <= (SELECT max(n) FROM audit) - ?", (keep,))


def audited(db: apsw.Connection, tenant: str | None, before: int | None, limit: int) -> list[Entry]:
    wanted = {"tenant = ?": tenant, "n < ?": before}
    given = {condition: value for condition, value in wanted.items() if value is not None}
    query = f"SELECT n, body FROM audit WHERE {' AND '.join(['TRUE', *given])} ORDER BY n DESC LIMIT ?"
    found = db.execute(query, (*given.values(), limit))
    return [replace(json.record(body, Entry), n=n) for n, body in found]
