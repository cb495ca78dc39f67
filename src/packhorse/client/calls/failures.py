"""Calls about failures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

from packhorse.client.call import BASE, Call, Json, Pages
from packhorse.client.calls.jobs import document
from packhorse.errors import InvalidInput


def failures(
    *,
    fingerprint: str | None = None,
    job_id: str | None = None,
    user: str | None = None,
    pipeline: str | None = None,
    error_code: str | None = None,
    status: str | None = None,
    schedule: str | None = None,
    since: str | None = None,
    until: str | None = None,
    cursor: str | None = None,
    limit: int | None = None,
) -> Call[Json]:
    """One page of runs that failed for good, newest first: ``{"items": [...], "next": cursor or None}``."""
    query = {
        "fingerprint": fingerprint,
        "job_id": job_id,
        "user_id": user,
        "pipeline": pipeline,
        "error_code": error_code,
        "status": status,
        "schedule_id": schedule,
        "since": since,
        "until": until,
        "cursor": cursor,
        "limit": limit,
    }
    return Call("GET", f"{BASE}/failures", document, query=query)


def failure(failure_id: str) -> Call[Json]:
    """One failure."""
    return Call("GET", _url("", failure_id, "failure"), document)


def failure_groups(*, dismissed: bool | None = None, trend: bool = False, limit: int | None = None) -> Pages:
    """Every group of failures, the last seen first, fetched in pages as you iterate.

    ``dismissed`` selects dismissed groups, or the others; with ``trend`` each has its counts by hour.
    """
    query: Json = {"dismissed": dismissed, "trend": trend or None, "limit": limit}
    return lambda cursor: Call("GET", f"{BASE}/failures/groups", document, query={**query, "cursor": cursor})


def failure_group(fingerprint: str, *, trend: bool = False) -> Call[Json]:
    """One group of failures; with ``trend`` also its counts in each of the last 24 hours."""
    return Call("GET", _url("groups/", fingerprint, "group"), document, query={"trend": trend or None})


def retry_failures(
    ids: Sequence[str] = (),
    *,
    fingerprint: str | None = None,
    pipeline: str | None = None,
    error_code: str | None = None,
    user: str | None = None,
    schedule: str | None = None,
    since: str | None = None,
    until: str | None = None,
    pace: float | None = None,
    dry_run: bool = False,
) -> Call[Json]:
    """Retry open failures: by their ids, or all that match the filters, ``pace`` of them a second.

    ``{"count", "is_at_least", "first": [...], "order": {...}}``; with ``dry_run`` nothing is ordered.
    """
    chosen = _selection(ids, fingerprint, pipeline, error_code, user, schedule, since, until)
    return Call("POST", f"{BASE}/failures/retry", document, json={**chosen, "pace": pace, "dry_run": dry_run})


def dismiss_failures(
    ids: Sequence[str] = (),
    *,
    reason: str,
    fingerprint: str | None = None,
    pipeline: str | None = None,
    error_code: str | None = None,
    user: str | None = None,
    schedule: str | None = None,
    since: str | None = None,
    until: str | None = None,
    dry_run: bool = False,
) -> Call[Json]:
    """Dismiss open failures with a reason. A dismissed group is not retried automatically until it is seen again."""
    chosen = _selection(ids, fingerprint, pipeline, error_code, user, schedule, since, until)
    return Call("POST", f"{BASE}/failures/dismiss", document, json={**chosen, "reason": reason, "dry_run": dry_run})


def failure_orders(*, cursor: str | None = None, limit: int | None = None) -> Call[Json]:
    """One page of bulk retries and dismissals, newest first, with their progress."""
    return Call("GET", f"{BASE}/failures/orders", document, query={"cursor": cursor, "limit": limit})


def failure_order(order_id: str) -> Call[Json]:
    """One order: ``{"order_id", "kind", "done", "left", "named", "ended_at", ...}``."""
    return Call("GET", _url("orders/", order_id, "order"), document)


def _selection(ids: Sequence[str], *named: str | None) -> Json:
    names = ("fingerprint", "pipeline", "error_code", "user_id", "schedule_id", "since", "until")
    found: dict[str, Any] = {name: value for name, value in zip(names, named, strict=True) if value is not None}
    return {**found, "ids": [*ids]} if ids else found


def _url(where: str, name: str, what: str) -> str:
    if not name.strip():
        raise InvalidInput(f"The {what} id is empty.", field=what)
    return f"{BASE}/failures/{where}{quote(name, safe='')}"
