"""API keys, tokens of jobs, and browser sessions: who may call, on whose behalf and for what."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
"""Seconds for which an ended session is known: a caller that presents it was signed in once, and does not guess."""


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
    client_name: str = ""
    """The program that calls with it, as its jobs show it. Keys of one program share it."""
    user: str | None = None
    """The bound user: it acts for nobody else."""
    job_id: str | None = None
    """A token for an end user: valid for this job only, and erased with the job."""
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


async def drop(store: Records, ids: Sequence[str]) -> None:
    """Forget these keys or tokens."""
    await store.put([Drop(KEY, id) for id in ids], quiet=True)


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
    tenant: str = ""
    address: str = ""
    """From where it was started."""
    seen_at: float = 0.0
    """When it was used last, to about a minute."""

    def is_over(self, now: float, idle: float) -> bool:
        """Whether it lets nobody in: it has ended, or was not used for ``idle`` seconds (0: as long as it lasts)."""
        return self.is_ended or now >= self.ends_at or bool(idle and now >= self.seen_at + idle)


async def add_session(store: Records, session: Session, *, most: int = 0) -> None:
    """Keep it until `REMEMBERED` after its end, at least. Drops some that are older.

    Of a key with ``most`` sessions, those that have ended go first, then the oldest. 0: there may be any number.
    """
    past = time_place(store.now() - REMEMBERED)
    gone = {each.id for each in await store.scan(SESSION, "end", before=past, limit=DROPPED)}
    if most:
        found = await store.scan(SESSION, f"key/{session.key_id}", limit=most + DROPPED)
        kept = readable([each for each in found if each.id not in gone], _session)
        gone |= {each.id for each in found} - {each.id for each in kept}
        kept.sort(key=lambda each: (not each.is_ended, each.id))
        gone |= {each.id for each in kept[: max(0, len(kept) + 1 - most)]}
    await store.put([*(Drop(SESSION, id) for id in sorted(gone)), _put_session(session, stamp=0)], quiet=True)


async def get_sessions(store: Records, ids: Sequence[str]) -> list[Session | None]:
    """In the order of ``ids``, ended or not; None where there is none, or it cannot be read. One read for all."""
    found = [[] if each is None else [each] for each in await store.fetch(SESSION, ids)]
    return [next(iter(readable(each, _session)), None) for each in found]


async def list_sessions(
    store: Records, *, tenant: str, key_id: str | None = None, before: str | None = None, limit: int = 50
) -> list[Session]:
    """Sessions of the tenant, or of one key, ended ones too, newest first, older than the id ``before``."""
    index = f"tenant/{tenant}" if key_id is None else f"key/{key_id}"
    found = await readable_page(
        lambda most: store.scan(SESSION, index, before=before, limit=most, newest=True), limit, _session
    )
    return [each for each in found if each.tenant == tenant]


async def end_session(store: Records, session_id: str) -> None:
    """End it, to be `REMEMBERED` from now on. Does nothing if it is unknown or has ended before."""
    now = store.now()
    await _change_session(store, session_id, lambda session: replace(session, ends_at=now, is_ended=True))


async def touch_session(store: Records, session_id: str) -> None:
    """It is used now. Does nothing if it is unknown or has ended before."""
    now = store.now()
    await _change_session(store, session_id, lambda session: replace(session, seen_at=max(now, session.seen_at)))


async def _change_session(store: Records, session_id: str, change: Callable[[Session], Session]) -> None:
    now = store.now()

    def decide(found: Record | None) -> tuple[Put | None, None]:
        session = None if found is None else _session(found)
        if found is None or session is None or session.is_ended or session.ends_at <= now:
            return None, None
        return _put_session(change(session), stamp=found.stamp), None

    await update(store, SESSION, session_id, decide)


def _session(found: Record) -> Session:
    return json.record(found.body, Session)


def _put_session(session: Session, stamp: int) -> Put:
    index = [IndexEntry("end", time_place(session.ends_at, session.id))]
    index += [IndexEntry(name, session.id) for name in (f"key/{session.key_id}", f"tenant/{session.tenant}")]
    return Put(SESSION, session.id, json.encode(session), stamp=stamp, index=tuple(index))
