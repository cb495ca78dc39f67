"""Sessions of browsers that logged in: a secret of their own, so that the browser does not keep the key.

A session's secret looks like a key but is none: keys are never looked up among sessions, nor the other way round.
"""

from __future__ import annotations

from packhorse.auth import keys
from packhorse.store.base import Store
from packhorse.store.collections import sessions
from packhorse.store.collections.keys import Key
from packhorse.store.collections.sessions import Session


async def begin(store: Store, key: Key, lasting: float) -> tuple[Session, str]:
    """The session and its secret, which is not stored. The session ends no later than the key."""
    now = store.now()
    minted, text = keys.mint(key.tenant, key.scopes, now=now, by=key.id)
    ends_at = min(now + lasting, key.ends_at or now + lasting)
    session = Session(id=minted.id, digest=minted.digest, key_id=key.id, created_at=now, ends_at=ends_at)
    await sessions.add(store, session)
    return session, text


async def find(store: Store, text: str) -> Session | None:
    """The session, which may have ended; None if there is none."""
    presented = keys.read(text)
    session = None if presented is None else await sessions.get(store, presented.id)
    if presented is None or session is None or not keys.is_digest(session.digest, presented):
        return None
    return session
