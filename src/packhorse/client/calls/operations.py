"""Calls for operators: queues, workers, statistics, keys, audit and webhooks."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from packhorse.client.call import BASE, Call, Json
from packhorse.client.calls.jobs import document, items
from packhorse.errors import InvalidInput


def queues() -> Call[Sequence[Json]]:
    """Each queue: what is ready and running, its workers, and ``"paused": None or {"at", "by", "reason"}``."""
    return Call("GET", f"{BASE}/queues", items)


def workers() -> Call[Sequence[Json]]:
    """The workers, what each is running, and how its host is; lost workers stay listed for a day."""
    return Call("GET", f"{BASE}/workers", items)


def stats(window: str = "1h", queue: str | None = None, pipeline: str | None = None) -> Call[Json]:
    """What there is now, and a ``series`` over the ``window``: of jobs, or of the attempts in a queue."""
    return Call("GET", f"{BASE}/stats", document, query={"window": window, "queue": queue, "pipeline": pipeline})


def health() -> Call[Json]:
    """``{"status": "ok" or "bad", "findings": [{"name", "part", "state", "value", "meaning", "measured_at"}]}``."""
    return Call("GET", f"{BASE}/health", document)


def pause(queue: str, reason: str = "") -> Call[Json]:
    """Start no more tasks from this queue; running ones continue."""
    return Call("POST", _url("queues", queue) + "/pause", document, json={"reason": reason})


def resume(queue: str) -> Call[Json]:
    """Resume a queue."""
    return Call("POST", _url("queues", queue) + "/resume", document)


def keys() -> Call[Sequence[Json]]:
    """The newest keys of your tenant, without their secrets."""
    return Call("GET", f"{BASE}/keys", items, query={"limit": 200})


def key(key_id: str) -> Call[Json]:
    """One key of your tenant, also if it has ended, without its secret."""
    return Call("GET", _url("keys", key_id), document)


def create_key(
    scopes: Sequence[str], name: str = "", user_id: str | None = None, expires_in: float | str | None = None
) -> Call[Json]:
    """A key of your tenant. The ``key`` in the answer is shown only once."""
    body = {"scopes": [*scopes], "name": name, "user_id": user_id, "expires_in": expires_in}
    return Call("POST", f"{BASE}/keys", document, json=body)


def rotate_key(key_id: str, overlap: float | str = 0.0) -> Call[Json]:
    """A key with the same rights; the old one ends after the overlap."""
    return Call("POST", _url("keys", key_id) + "/rotate", document, json={"overlap": overlap})


def revoke_key(key_id: str) -> Call[Json]:
    """End a key now."""
    return Call("DELETE", _url("keys", key_id), document)


def key_limits(key_id: str) -> Call[list[Json]]:
    """What a key may still request and download."""
    return Call("GET", _url("keys", key_id) + "/limits", items)


def audit(before: int | None = None, limit: int | None = None) -> Call[Json]:
    """One page, newest first: ``{"items": [...], "next": number or None}``."""
    return Call("GET", f"{BASE}/audit", document, query={"before": before, "limit": limit})


def webhooks() -> Call[Sequence[Json]]:
    """``{"webhook_id", "url", "created_at", "created_by", "ended_at", "reason"}`` each."""
    return Call("GET", f"{BASE}/webhooks", items)


def add_webhook(url: str) -> Call[Json]:
    """Send a message to ``url`` whenever a job ends. The ``secret`` in the answer is shown only once."""
    return Call("POST", f"{BASE}/webhooks", document, json={"url": url})


def remove_webhook(webhook_id: str) -> Call[Json]:
    """Send nothing more to this webhook."""
    return Call("DELETE", _url("webhooks", webhook_id), document)


def test_webhook(webhook_id: str) -> Call[Json]:
    """Send a message now: ``{"delivered", "status", "error"}``."""
    return Call("POST", _url("webhooks", webhook_id) + "/test", document)


def deliveries(webhook_id: str) -> Call[Sequence[Json]]:
    """The messages that wait to be sent, newest first."""
    return Call("GET", _url("webhooks", webhook_id) + "/deliveries", items)


def _url(what: str, name: str) -> str:
    if not name.strip():
        raise InvalidInput(f"The name in {what} is empty.", field=what)
    return f"{BASE}/{what}/{quote(name, safe='')}"
