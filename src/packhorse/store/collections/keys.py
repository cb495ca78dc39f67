"""API keys and job tokens: who may call, on whose behalf and for what."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec import Struct
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.records import IndexEntry, Put, Record
from packhorse.store.base import Records
from packhorse.store.collections.base import update

KIND = "key"


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
    return [None if found is None else _key(found) for found in await store.fetch(KIND, ids)]


async def list_newest(store: Records, tenant: str | None, *, before: str | None = None, limit: int = 50) -> list[Key]:
    """Keys of the tenant, or of all, newest first, older than the id ``before``. Tokens of jobs are not listed."""
    index = "all" if tenant is None else f"tenant/{tenant}"
    return [_key(found) for found in await store.scan(KIND, index, before=before, limit=limit, newest=True)]


async def list_of_job(store: Records, job_id: str, *, limit: int = 1000) -> list[Key]:
    """The tokens of a job, newest first."""
    return [_key(found) for found in await store.scan(KIND, f"job/{job_id}", limit=limit, newest=True)]


async def end(store: Records, key_id: str, at: float, by: str) -> Key | None:
    """Let the key end then; an end is never moved later. Returns the key as it is stored, None if it is unknown."""

    def decide(found: Record | None) -> tuple[Put | None, Key | None]:
        key = None if found is None else _key(found)
        if found is None or key is None or (key.ends_at is not None and key.ends_at <= at):
            return None, key
        ended = replace(key, ends_at=at, ended_by=by)
        return _put(ended, stamp=found.stamp), ended

    return await update(store, KIND, key_id, decide)


def _put(key: Key, stamp: int) -> Put:
    names = ("all", f"tenant/{key.tenant}") if key.job_id is None else (f"job/{key.job_id}",)
    index = tuple(IndexEntry(name, key.id) for name in names)
    return Put(KIND, key.id, json.encode(key), stamp=stamp, index=index, job_id=key.job_id)


def _key(found: Record) -> Key:
    return json.record(found.body, Key)
