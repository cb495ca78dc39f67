"""Who may ask, and what they did."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec.structs import replace

from packhorse.core import json
from packhorse.errors import Conflict, JobNotFound
from packhorse.store.base import Entry, Key, Session
from packhorse.store.keys import DROPPED, REMEMBERED, key_from
from packhorse.store.postgres.connection import Row
from packhorse.store.postgres.connection import Session as Link
from packhorse.store.postgres.rows import clean, is_id

# A job that is locked is not erased meanwhile: its token is there when it goes, and goes too.
IS_THERE = "SELECT 1 FROM @jobs WHERE id = $1 FOR KEY SHARE"


async def add_key(link: Link, key: Key) -> None:
    if key.job_id is not None and (not is_id(key.job_id) or await link.row(IS_THERE, key.job_id) is None):
        raise JobNotFound(job_id=key.job_id)
    put = "INSERT INTO @keys VALUES ($1, $2, $3, $4) ON CONFLICT DO NOTHING RETURNING 1"
    if await link.row(put, key.id, key.tenant, key.job_id, json.encode(key)) is None:
        raise Conflict(f"There is a key {key.id} already.", key_id=key.id)


async def keys(link: Link, ids: Sequence[str]) -> list[Key | None]:
    asked = [id for id in ids if clean(id) == id]  # anything else would be an error, and there is no such key
    found = {key.id: key for key in _keys(await link.fetch("SELECT body FROM @keys WHERE id = ANY($1::text[])", asked))}
    return [found.get(id) for id in ids]


async def list_keys(link: Link, tenant: str | None, before: str | None, limit: int) -> list[Key]:
    where, values = _where({"tenant = $": tenant, "id < $": before})
    query = f"SELECT body FROM @keys WHERE job_id IS NULL AND {where} ORDER BY id DESC LIMIT ${len(values) + 1}"
    return _keys(await link.fetch(query, *values, limit))


async def job_keys(link: Link, job_id: str) -> list[Key]:
    if not is_id(job_id):
        return []
    return _keys(await link.fetch("SELECT body FROM @keys WHERE job_id = $1 ORDER BY id DESC", job_id))


async def end_key(link: Link, id: str, at: float, by: str) -> Key | None:
    if clean(id) != id:
        return None
    row = await link.row("SELECT body FROM @keys WHERE id = $1 FOR UPDATE", id)
    key = None if row is None else key_from(row["body"])
    if key is None or (key.ends_at is not None and key.ends_at <= at):
        return key
    ended = replace(key, ends_at=at, ended_by=by)
    await link.fetch("UPDATE @keys SET body = $2 WHERE id = $1", id, json.encode(ended))
    return ended


async def add_session(link: Link, session: Session, now: float) -> None:
    ended = "SELECT id FROM @sessions WHERE ends_at <= $1 ORDER BY ends_at LIMIT $2 FOR UPDATE SKIP LOCKED"
    await link.fetch(f"DELETE FROM @sessions WHERE id IN ({ended})", now - REMEMBERED, DROPPED)
    put = "INSERT INTO @sessions VALUES ($1, $2, $3)"
    await link.fetch(put, session.id, session.ends_at, json.encode(session))


async def session(link: Link, id: str, *, locked: str = "") -> Session | None:
    if clean(id) != id:
        return None
    row = await link.row(f"SELECT body FROM @sessions WHERE id = $1 {locked}", id)
    return None if row is None else json.record(row["body"], Session)


async def end_session(link: Link, id: str, at: float) -> None:
    begun = await session(link, id, locked="FOR UPDATE")
    if begun is not None and at < begun.ends_at:
        ended = json.encode(replace(begun, ends_at=at, is_ended=True))
        await link.fetch("UPDATE @sessions SET ends_at = $2, body = $3 WHERE id = $1", id, at, ended)


async def audit(link: Link, entries: Sequence[Entry], keep: int) -> None:
    last = await link.value("UPDATE @audit_last SET n = n + $1 RETURNING n", len(entries))
    numbers = list(range(last - len(entries) + 1, last + 1))
    tenants, bodies = [clean(entry.tenant) for entry in entries], [json.encode(entry) for entry in entries]
    put = "INSERT INTO @audit SELECT * FROM unnest($1::int8[], $2::text[], $3::bytea[]) AS n"
    await link.fetch(put, numbers, tenants, bodies)
    await link.fetch("DELETE FROM @audit WHERE n <= $1::int8", last - keep)


async def audited(link: Link, tenant: str | None, before: int | None, limit: int) -> list[Entry]:
    where, values = _where({"tenant = $": tenant, "n < $": before})
    query = f"SELECT n, body FROM @audit WHERE {where} ORDER BY n DESC LIMIT ${len(values) + 1}"
    return [replace(json.record(body, Entry), n=n) for n, body in await link.fetch(query, *values, limit)]


def _where(wanted: dict[str, Any]) -> tuple[str, list[Any]]:
    """The conditions for which there is a value, with its number."""
    given = [(condition, value) for condition, value in wanted.items() if value is not None]
    conditions = [f"{condition}{n}" for n, (condition, _) in enumerate(given, 1)]
    return " AND ".join(["TRUE", *conditions]), [value for _, value in given]


def _keys(found: Sequence[Row]) -> list[Key]:
    return [key_from(row["body"]) for row in found]
