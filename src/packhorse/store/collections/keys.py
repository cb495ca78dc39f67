"""API keys, tokens of jobs, and browser sessions: who may call, on whose behalf and for what."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.records import Drop, IndexEntry, Put, Record, time_place
from packhorse.store.base import Records
from packhorse.store.collections.base import readable, readable_page, scan_all, update

KEY, SESSION = "key", "session"

DROPPED = 100
"""Sessions that ended long ago which are dropped for each new one: soon there is none left."""
REMEMBERED = 86_400.0
"""Seconds for which a session is known after its end: whoever presents it was let in once, and is not guessing."""


class Key(Struct, frozen=True, omit_defaults=True):
    """Who may call, on whose behalf and for what. Only the digest of the secret is stored."""

    id: str
    """Sorts by time: 20 hex digits, 48 bits of milliseconds and 32 random bits."""
    digest: str
    """SHA-256 of the secret, in hex."""
    tenant: str
    scopes: tuple[str, ...]
    """Of submit, read, operate and admin."""
    name: str = ""
    client: str = ""
    """Whom its requests are counted for: the key that replaces another, or a token, stands for the same client."""
    user: str | None = None
    """The bound user: it acts for nobody else."""
    job_id: str | None = None
    """A token for the person who waits: valid for this job only, and erased with the job."""
    created_at: float = 0.0
    created_by: str = ""
    """The id of the key that made it, or ``cli``."""
    ends_at: float | None = None
    """From then on it is refused. Expiry, revocation and the overlap of a rotation all set this."""
    ended_by: str = ""


async def add(store: Records, key: Key) -> None:
    """Raises `Conflict` if the id is taken, `JobNotFound` for the token of a job that does not exist."""
    await store.put([_put(key, stamp=0)], quiet=True)


async def get(store: Records, ids: Sequence[str]) -> list[Key | None]:
    """The keys in the order of ``ids``, None where there is none. One read for all. Raises `CorruptRecord`."""
    return [None if found is None else _key(found) for found in await store.fetch(KEY, ids)]


async def list_newest(store: Records, tenant: str | None, *, before: str | None = None, limit: int = 50) -> list[Key]:
    """Keys of the tenant, or of all, newest first, older than the id ``before``. Tokens of jobs are not listed."""
    index = "all" if tenant is None else f"tenant/{tenant}"
    return await readable_page(lambda most: store.scan(KEY, index, before=before, limit=most, newest=True), limit, _key)


async def list_of_job(store: Records, job_id: str) -> list[Key]:
    """All tokens of a job, newest first."""
    return readable(reversed(await scan_all(store, KEY, f"job/{job_id}")), _key)


async def end(store: Records, key_id: str, at: float, by: str) -> Key | None:
    """Let the key end then; an end is never moved later. Returns the key as it is stored, None if it is unknown."""

    def decide(found: Record | None) -> tuple[Put | None, Key | None]:
        key = None if found is None else _key(found)
        if found is None or key is None or (key.ends_at is not None and key.ends_at <= at):
            return None, key
        ended = replace(key, ends_at=at, ended_by=by)
        return _put(ended, stamp=found.stamp), ended

    return await update(store, KEY, key_id, decide)


def _put(key: Key, stamp: int) -> Put:
    names = ("all", f"tenant/{key.tenant}") if key.job_id is None else (f"job/{key.job_id}",)
    index = tuple(IndexEntry(name, key.id) for name in names)
    return Put(KEY, key.id, json.encode(key), stamp=stamp, index=index, job_id=key.job_id)


def _key(found: Record) -> Key:
    return json.record(found.body, Key)


# Sessions


class Session(Struct, frozen=True):
    """A login to the pages with a key: valid until its end, or until the key ends."""

    id: str
    digest: str
    """SHA-256 of the secret, in hex."""
    key_id: str
    created_at: float
    ends_at: float
    is_ended: bool = False
    """The user has logged out. Stored beside the time, so that no server whose clock is behind lets it in."""


async def add_session(store: Records, session: Session) -> None:
    """Keep it until `REMEMBERED` after its end, at least. Drops some that are older."""
    past = time_place(store.now() - REMEMBERED)
    old = await store.scan(SESSION, "end", before=past, limit=DROPPED)
    await store.put([*(Drop(SESSION, each.id) for each in old), _put_session(session, stamp=0)], quiet=True)


async def get_session(store: Records, session_id: str) -> Session | None:
    """The session, ended or not; None if there is none. Raises `CorruptRecord`."""
    [found] = await store.fetch(SESSION, [session_id])
    return None if found is None else json.record(found.body, Session)


async def end_session(store: Records, session_id: str) -> None:
    """End it, to be `REMEMBERED` from now on. Does nothing if it is unknown or has ended before."""
    now = store.now()

    def decide(found: Record | None) -> tuple[Put | None, None]:
        session = None if found is None else json.record(found.body, Session)
        if found is None or session is None or session.ends_at <= now:
            return None, None
        return _put_session(replace(session, ends_at=now, is_ended=True), stamp=found.stamp), None

    await update(store, SESSION, session_id, decide)


def _put_session(session: Session, stamp: int) -> Put:
    index = (IndexEntry("end", time_place(session.ends_at, session.id)),)
    return Put(SESSION, session.id, json.encode(session), stamp=stamp, index=index)
