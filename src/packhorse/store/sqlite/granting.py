"""Who may ask, what they did, and how much of it."""

from __future__ import annotations

from collections.abc import Sequence

import apsw
from msgspec.structs import replace

from packhorse.core import wire
from packhorse.errors import Conflict, JobNotFound
from packhorse.store import counting
from packhorse.store.base import Charge, Entry, Key, Spent
from packhorse.store.counting import Buckets, Counter

KEEP_COUNTER = """
INSERT INTO counters VALUES (?, ?, ?, ?)
ON CONFLICT DO UPDATE SET until = excluded.until, buckets = excluded.buckets
"""

Kept = dict[Counter, Buckets]


def add_key(db: apsw.Connection, key: Key) -> None:
    if key.job_id is not None and not db.execute("SELECT 1 FROM jobs WHERE id = ?", (key.job_id,)).fetchone():
        raise JobNotFound(job_id=key.job_id)
    row = (key.id, key.tenant, key.job_id, wire.encode(key))
    db.execute("INSERT INTO keys VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", row)
    if db.changes() == 0:
        raise Conflict(f"There is a key {key.id} already.", key_id=key.id)


def keys(db: apsw.Connection, ids: Sequence[str]) -> list[Key | None]:
    return [_key(db, id) for id in ids]


def _key(db: apsw.Connection, id: str) -> Key | None:
    row = db.execute("SELECT body FROM keys WHERE id = ?", (id,)).fetchone()
    return None if row is None else wire.decode(row[0], Key)


def list_keys(db: apsw.Connection, tenant: str | None, before: str | None, limit: int) -> list[Key]:
    wanted = {"tenant = ?": tenant, "id < ?": before}
    given = {condition: value for condition, value in wanted.items() if value is not None}
    query = f"SELECT body FROM keys WHERE {' AND '.join(['job_id IS NULL', *given])} ORDER BY id DESC LIMIT ?"
    return [wire.decode(body, Key) for (body,) in db.execute(query, (*given.values(), limit))]


def job_keys(db: apsw.Connection, job_id: str) -> list[Key]:
    found = db.execute("SELECT body FROM keys WHERE job_id = ? ORDER BY id DESC", (job_id,))
    return [wire.decode(body, Key) for (body,) in found]


def end_key(db: apsw.Connection, id: str, at: float, by: str) -> Key | None:
    key = _key(db, id)
    if key is None or (key.ends_at is not None and key.ends_at <= at):
        return key
    ended = replace(key, ends_at=at, ended_by=by)
    db.execute("UPDATE keys SET body = ? WHERE id = ?", (wire.encode(ended), id))
    return ended


def audit(db: apsw.Connection, entries: Sequence[Entry], keep: int) -> None:
    for entry in entries:
        db.execute("INSERT INTO audit (tenant, body) VALUES (?, ?)", (entry.tenant, wire.encode(entry)))
    # Numbers have no gaps: what is too old is found by its number, as much as was just added.
    db.execute("DELETE FROM audit WHERE n <= (SELECT max(n) FROM audit) - ?", (keep,))


def audited(db: apsw.Connection, tenant: str | None, before: int | None, limit: int) -> list[Entry]:
    wanted = {"tenant = ?": tenant, "n < ?": before}
    given = {condition: value for condition, value in wanted.items() if value is not None}
    query = f"SELECT n, body FROM audit WHERE {' AND '.join(['TRUE', *given])} ORDER BY n DESC LIMIT ?"
    found = db.execute(query, (*given.values(), limit))
    return [replace(wire.decode(body, Entry), n=n) for n, body in found]


def spend(db: apsw.Connection, charges: Sequence[Charge], now: float) -> Spent:
    kept = _counted(db, charges)
    spent = counting.spend(kept, charges, now)
    if spent.refused is None and any(charge.amount for charge in charges):
        _keep(db, kept)
    return spent


def refund(db: apsw.Connection, charges: Sequence[Charge], at: float) -> None:
    kept = _counted(db, charges)
    counting.refund(kept, charges, at)
    _keep(db, kept)


def _counted(db: apsw.Connection, charges: Sequence[Charge]) -> Kept:
    query = "SELECT buckets FROM counters WHERE name = ? AND window = ?"
    found = {each: db.execute(query, each).fetchone() for each in counting.counters(charges)}
    return {each: wire.decode(row[0], Buckets) for each, row in found.items() if row is not None}


def _keep(db: apsw.Connection, kept: Kept) -> None:
    for each, buckets in kept.items():
        db.execute(KEEP_COUNTER, (*each, counting.until(each[1], buckets), wire.encode(buckets)))
