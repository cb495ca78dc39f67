"""Sessions of browsers that logged in: a secret of their own, so that the browser does not keep the key.

A session's secret looks like a key but is none: keys are never looked up among sessions, nor the other way round.
"""

from __future__ import annotations

from packhorse.auth import keys
from packhorse.store.base import Key, Session, Store


async def begin(store: Store, key: Key, lasting: float) -> tuple[Session, str]:
    """The session and its secret, which is not stored. The session ends no later than the key."""
    now = store.now()
    minted, text = keys.mint(key.tenant, key.scopes, now=now, by=key.id)
    ends_at = min(now + lasting, key.ends_at or now + lasting)
    session = Session(id=minted.id, digest=minted.digest, key_id=key.id, created_at=now, ends_at=ends_at)
    await store.add_session(session)
    return session, text


async def find(store: Store, text: str) -> Session | None:
    """The session, which may have ended; None if there is none."""
    presented = keys.read(text)
    session = None if presented is None else await store.session(presented.id)
    if presented is None or session is None or not keys.is_digest(session.digest, presented):
        return None
    return session
