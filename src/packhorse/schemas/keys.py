"""Keys and tokens, their limits, browser sessions, and the audit log."""

from typing import Any, Literal, TypedDict

from packhorse.schemas.progress import iso
from packhorse.store.collections.audit import Entry
from packhorse.store.collections.keys import Key, Session

Unit = Literal["requests", "content-bytes", "concurrent-requests", "unfinished-jobs", "stored-bytes"]


class KeyDocument(TypedDict):
    """A key, or a token of one job, without its secret. Its jobs show ``client_name`` as ``created_by_client_id``."""

    key_id: str
    tenant_id: str
    scopes: list[str]
    name: str
    client_name: str
    user_id: str | None
    job_id: str | None
    created_at: str | None
    created_by: str
    ends_at: str | None
    ended_by: str


class MeDocument(TypedDict):
    """The caller. With a token, ``job_id`` is the only job it can access; ``key_id`` is null without a key."""

    key_id: str | None
    tenant_id: str
    allowed: list[str]
    user_id: str | None
    job_id: str | None


class MadeKeyDocument(KeyDocument):
    """A new key: ``key`` is shown only once."""

    key: str


class KeysPage(TypedDict):
    items: list[KeyDocument]
    next: str | None


class LimitDocument(TypedDict):
    """A limit, and what a key has left of it; of unfinished jobs and stored bytes, what its tenant has left.

    A limit on concurrent requests, and a quota of a tenant, have no window. ``left`` is null if it is counted per user
    and the key is for any user.
    """

    name: str
    unit: Unit
    limit: int
    window_seconds: float | None
    left: int | None


class LimitsPage(TypedDict):
    items: list[LimitDocument]
    next: None


class SessionDocument(TypedDict):
    """A browser session. ``session`` is the value of its cookie."""

    session_id: str
    session: str
    ends_at: str | None


class ListedSessionDocument(TypedDict):
    """A browser session that lets somebody in; ``seen_at`` is when it was last used, to about a minute."""

    session_id: str
    key_id: str
    address: str
    created_at: str | None
    seen_at: str | None
    ends_at: str | None
    is_current: bool


class SessionsPage(TypedDict):
    items: list[ListedSessionDocument]
    next: str | None


class AuditDocument(TypedDict):
    """An entry of the audit log; ``count`` is how many equal entries it stands for."""

    n: int
    at: str | None
    event: str
    tenant_id: str
    key_id: str
    address: str
    job_id: str
    trace_id: str
    count: int
    details: dict[str, Any]


class AuditPage(TypedDict):
    items: list[AuditDocument]
    next: int | None


def key_to_json(key: Key) -> KeyDocument:
    return {
        "key_id": key.id,
        "tenant_id": key.tenant,
        "scopes": list(key.scopes),
        "name": key.name,
        "client_name": key.client_name,
        "user_id": key.user,
        "job_id": key.job_id,
        "created_at": iso(key.created_at),
        "created_by": key.created_by,
        "ends_at": iso(key.ends_at),
        "ended_by": key.ended_by,
    }


def session_to_json(session: Session, current: str = "") -> ListedSessionDocument:
    """``current``: the id of the session that asks."""
    return {
        "session_id": session.id,
        "key_id": session.key_id,
        "address": session.address,
        "created_at": iso(session.created_at),
        "seen_at": iso(session.seen_at),
        "ends_at": iso(session.ends_at),
        "is_current": session.id == current,
    }


def limit_to_json(name: str, unit: Unit, most: int, window: float, left: int | None) -> LimitDocument:
    window_seconds = window if unit in ("requests", "content-bytes") else None
    return {"name": name, "unit": unit, "limit": most, "window_seconds": window_seconds, "left": left}


def audit_entry_to_json(entry: Entry) -> AuditDocument:
    return {
        "n": entry.n,
        "at": iso(entry.at),
        "event": entry.event,
        "tenant_id": entry.tenant,
        "key_id": entry.actor,
        "address": entry.address,
        "job_id": entry.job_id,
        "trace_id": entry.trace_id,
        "count": entry.count,
        "details": dict(entry.details),
    }
