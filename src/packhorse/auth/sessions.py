"""Logging in to the pages: a secret of its own for a browser, so that the key itself is not kept there.

It looks like a key and is none: what is sent as a key is not looked up among sessions, nor the other way round.
"""

from __future__ import annotations

from packhorse.auth import keys
from packhorse.store.base import Key, Session, Store


async def begin(store: Store, key: Key, lasting: float) -> tuple[Session, str]:
    """The session and, this once, its text. It ends with the key, if that ends before."""
    now = store.now()
    minted, text = keys.mint(key.tenant, key.scopes, now=now, by=key.id)
    ends_at = min(now + lasting, key.ends_at or now + lasting)
    session = Session(id=minted.id, digest=minted.digest, key_id=key.id, created_at=now, ends_at=ends_at)
    await store.add_session(session)
    return session, text


async def find(store: Store, text: str) -> Session | None:
    """The session, though it may have ended; None for what is none, or is not known any more."""
    presented = keys.read(text)
    session = None if presented is None else await store.session(presented.id)
    if presented is None or session is None or not keys.is_digest(session.digest, presented):
        return None
    return session
