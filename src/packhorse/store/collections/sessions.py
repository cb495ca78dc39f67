"""Browser sessions: who has logged in to the pages."""

from __future__ import annotations

from msgspec import Struct
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.records import Drop, IndexEntry, Put, Record, time_place
from packhorse.store.base import Records
from packhorse.store.collections.base import update

KIND = "session"

DROPPED = 100
"""Sessions that ended long ago which are dropped for each new one: soon there is none left."""
REMEMBERED = 86_400.0
"""Seconds for which a session is known after its end: whoever presents it was let in once, and is not guessing."""


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


async def add(store: Records, session: Session) -> None:
    """Keep it until `REMEMBERED` after its end, at least. Drops some that are older."""
    past = time_place(store.now() - REMEMBERED)
    old = await store.scan(KIND, "end", before=past, limit=DROPPED)
    await store.put([*(Drop(KIND, each.id) for each in old), _put(session, stamp=0)], quiet=True)


async def get(store: Records, session_id: str) -> Session | None:
    """The session, ended or not; None if there is none. Raises `CorruptRecord`."""
    [found] = await store.fetch(KIND, [session_id])
    return None if found is None else json.record(found.body, Session)


async def end(store: Records, session_id: str) -> None:
    """End it, to be `REMEMBERED` from now on. Does nothing if it is unknown or has ended before."""
    now = store.now()

    def decide(found: Record | None) -> tuple[Put | None, None]:
        session = None if found is None else json.record(found.body, Session)
        if found is None or session is None or session.ends_at <= now:
            return None, None
        return _put(replace(session, ends_at=now, is_ended=True), stamp=found.stamp), None

    await update(store, KIND, session_id, decide)


def _put(session: Session, stamp: int) -> Put:
    index = (IndexEntry("end", time_place(session.ends_at, session.id)),)
    return Put(KIND, session.id, json.encode(session), stamp=stamp, index=index)
