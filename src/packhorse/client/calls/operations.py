"""What operators ask for: queues, workers, statistics, keys, audit and webhooks, described once for both clients."""

from __future__ import annotations

from collections.abc import Sequence
from urllib.parse import quote

from packhorse.client.call import BASE, Call, Json
from packhorse.client.calls.jobs import items, whole
from packhorse.errors import InvalidInput


def queues() -> Call[Sequence[Json]]:
    """What is ready, runs and waits in each, who serves it, and ``"paused": None or {"at", "by", "reason"}``."""
    return Call("GET", f"{BASE}/queues", items)


def workers() -> Call[Sequence[Json]]:
    """Who works, what each has in hand, how its host is; and for a day those that were lost."""
    return Call("GET", f"{BASE}/workers", items)


def stats(window: str = "1h", queue: str | None = None, pipeline: str | None = None) -> Call[Json]:
    """What there is now, and a ``series`` over the ``window``: of jobs, or of the attempts in a queue."""
    return Call("GET", f"{BASE}/stats", whole, query={"window": window, "queue": queue, "pipeline": pipeline})


def health() -> Call[Json]:
    """``{"status": "ok" or "bad", "findings": [{"name", "part", "state", "value", "meaning", "measured_at"}]}``."""
    return Call("GET", f"{BASE}/health", whole)


def pause(queue: str, reason: str = "") -> Call[Json]:
    """Start nothing more from this queue; what runs, runs on."""
    return Call("POST", _named("queues", queue) + "/pause", whole, json={"reason": reason})


def resume(queue: str) -> Call[Json]:
    """Go on with a queue."""
    return Call("POST", _named("queues", queue) + "/resume", whole)


def keys() -> Call[Sequence[Json]]:
    """The newest keys of your tenant, without what is secret of them."""
    return Call("GET", f"{BASE}/keys", items, query={"limit": 200})


def key(key_id: str) -> Call[Json]:
    """One key of your tenant, also if it has ended, without what is secret of it."""
    return Call("GET", _named("keys", key_id), whole)


def create_key(
    scopes: Sequence[str], name: str = "", user_id: str | None = None, expires_in: float | str | None = None
) -> Call[Json]:
    """A key of your tenant. The ``key`` in the answer is shown this once."""
    asked = {"scopes": [*scopes], "name": name, "user_id": user_id, "expires_in": expires_in}
    return Call("POST", f"{BASE}/keys", whole, json=asked)


def rotate_key(key_id: str, overlap: float | str = 0.0) -> Call[Json]:
    """A key with the same rights; the old one ends after the overlap."""
    return Call("POST", _named("keys", key_id) + "/rotate", whole, json={"overlap": overlap})


def revoke_key(key_id: str) -> Call[Json]:
    """End a key now."""
    return Call("DELETE", _named("keys", key_id), whole)


def key_limits(key_id: str) -> Call[list[Json]]:
    """What a key may still ask for and download."""
    return Call("GET", _named("keys", key_id) + "/limits", items)


def audit(before: int | None = None, limit: int | None = None) -> Call[Json]:
    """One page, newest first: ``{"items": [...], "next": number or None}``."""
    return Call("GET", f"{BASE}/audit", whole, query={"before": before, "limit": limit})


def webhooks() -> Call[Sequence[Json]]:
    """``{"webhook_id", "url", "created_at", "created_by", "ended_at", "reason"}`` each."""
    return Call("GET", f"{BASE}/webhooks", items)


def add_webhook(url: str) -> Call[Json]:
    """Have ended jobs told to ``url``. The ``secret`` in the answer is shown this once."""
    return Call("POST", f"{BASE}/webhooks", whole, json={"url": url})


def remove_webhook(webhook_id: str) -> Call[Json]:
    """Tell it nothing more."""
    return Call("DELETE", _named("webhooks", webhook_id), whole)


def test_webhook(webhook_id: str) -> Call[Json]:
    """Send a message now: ``{"delivered", "status", "error"}``."""
    return Call("POST", _named("webhooks", webhook_id) + "/test", whole)


def deliveries(webhook_id: str) -> Call[Sequence[Json]]:
    """The messages that wait to be sent, newest first."""
    return Call("GET", _named("webhooks", webhook_id) + "/deliveries", items)


def _named(what: str, name: str) -> str:
    if not name.strip():
        raise InvalidInput(f"One of the {what} is asked for by its name, and this is empty.", field=what)
    return f"{BASE}/{what}/{quote(name, safe='')}"
