"""The audit log: who did what, in numbered entries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


async def append(store: Records, entries: Sequence[Entry], *, keep: int) -> None:
    """Append, and drop about as many of the oldest as there are beyond ``keep``, of whatever tenant."""
    await store.append(LOG, [LogEntry(json.encode(entry), _topic(entry.tenant)) for entry in entries], keep=keep)


async def tail(store: Records, tenant: str | None = None, *, before: int | None = None, limit: int = 50) -> list[Entry]:
    """Entries of the tenant, or of all, newest first, numbered below ``before``; without unreadable ones."""
    topic = "" if tenant is None else _topic(tenant)
    return await readable_page(
        lambda most: store.tail(LOG, topic=topic, before=before, limit=most),
        limit,
        lambda each: replace(json.record(each.body, Entry), n=each.n),
    )


def _topic(tenant: str) -> str:
    """Never empty, which would mean the whole log."""
    return tenant or NOBODY
