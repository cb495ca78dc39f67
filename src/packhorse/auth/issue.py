"""Creates, rotates and revokes keys, for HTTP and for the command line."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.auth import keys
from packhorse.core.models import Job
from packhorse.errors import KeyNotFound
from packhorse.store.base import Store
from packhorse.store.collections import keys as key_records
from packhorse.store.collections.keys import Key


async def create(
    store: Store,
    tenant: str,
    scopes: Sequence[str],
    *,
    by: str,
    name: str = "",
    user: str | None = None,
    lasting: float | None = None,
) -> tuple[Key, str]:
    """The key and its text, which is not stored. Raises `InvalidInput`."""
    keys.check(tenant, scopes, name, user)
    now = store.now()
    ends_at = None if lasting is None else now + lasting
    key, text = keys.mint(tenant, scopes, now=now, by=by, name=name, user=user, ends_at=ends_at)
    await key_records.add(store, key)
    return key, text


async def token(store: Store, job: Job, *, by: str, client: str, lasting: float) -> tuple[Key, str]:
    """A token for one job; it is deleted with the job. Its use is charged to the key that created it."""
    now = store.now()
    key, text = keys.mint(
        job.tenant,
        keys.TOKEN_SCOPES,
        now=now,
        by=by,
        user=job.user,
        job_id=job.id,
        ends_at=now + lasting,
        client=client,
    )
    await key_records.add(store, key)
    return key, text


async def rotate(store: Store, old: Key, *, by: str, overlap: float) -> tuple[Key, str]:
    """A key with the same rights; the old one ends after the overlap. The new key is stored first."""
    now = store.now()
    if old.ends_at is not None and old.ends_at <= now:
        raise KeyNotFound(f"The key {old.id} has ended; make a new one.", key_id=old.id)
    key, text = keys.mint(
        old.tenant,
        old.scopes,
        now=now,
        by=by,
        name=old.name,
        user=old.user,
        ends_at=old.ends_at,
        client=old.client,
    )
    await key_records.add(store, key)
    await key_records.end(store, old.id, now + overlap, by)
    return key, text


async def revoke(store: Store, key_id: str, *, by: str) -> Key:
    ended = await key_records.end(store, key_id, store.now(), by)
    if ended is None:
        raise KeyNotFound(key_id=key_id)
    return ended


async def find(store: Store, key_id: str, tenant: str | None = None) -> Key:
    """A key, not a token; of this tenant, if given. Another tenant's key and a missing one look the same."""
    [key] = [None] if "\0" in key_id else await key_records.get(store, [key_id])
    if key is None or key.job_id is not None or tenant not in (None, key.tenant):
        raise KeyNotFound(key_id=key_id)
    return key
