"""The audit log: who did what, in numbered entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf
from typing import Any

from msgspec import Struct, field
from msgspec.structs import replace

from packhorse.core import json
from packhorse.core.records import LogEntry
from packhorse.store.base import Records
from packhorse.store.collections.base import readable_page

LOG = "audit"
NOBODY = "\n"
"""The topic of entries without a tenant. No tenant has such a name: names are printable."""


class Entry(Struct, frozen=True, omit_defaults=True):
    """One entry. The store gives ``n``, which rises."""

    at: float
    event: str
    """``key.accepted``, ``download.completed``, ..."""
    tenant: str = ""
    """Empty where the caller was not known."""
    actor: str = ""
    """The id of a key."""
    address: str = ""
    job_id: str = ""
    trace_id: str = ""
    count: int = 1
    """Equal entries within a short time are folded into one."""
    details: Mapping[str, Any] = field(default_factory=dict)
    n: int = 0


async def append(store: Records, entries: Sequence[Entry], *, keep: int, age: float = inf) -> None:
    """Append, and drop the oldest: beyond about ``keep`` per tenant, and those older than ``age`` seconds.

    What one tenant does drops no entry of another.
    """
    written = [LogEntry(json.encode(entry), _topic(entry.tenant), at=entry.at) for entry in entries]
    await store.append(LOG, written, keep=keep, since=max(0.0, store.now() - age))


async def tail(store: Records, *tenants: str, before: int | None = None, limit: int = 50) -> list[Entry]:
    """Entries of these tenants, or of all, newest first, numbered below ``before``; without unreadable ones.

    ``""``: of callers nobody knows.
    """
    topics = [_topic(tenant) for tenant in tenants] or [""]

    async def read(most: int) -> list[LogEntry]:
        pages = [await store.tail(LOG, topic=topic, before=before, limit=most) for topic in topics]
        return sorted((each for page in pages for each in page), key=lambda each: -each.n)[:most]

    return await readable_page(read, limit, lambda each: replace(json.record(each.body, Entry), n=each.n))


def _topic(tenant: str) -> str:
    """Never empty, which would mean the whole log."""
    return tenant or NOBODY
