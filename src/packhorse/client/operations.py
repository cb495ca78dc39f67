"""Calls for operators: queues, workers, statistics, keys, audit, webhooks, failures and schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from packhorse.client.call import Call, Json, Pages, filter_query, item_path, items


class FailureFilter(TypedDict, total=False):
    fingerprint: str | None
    pipeline: str | None
    error_code: str | None
    user: str | None
    schedule: str | None
    since: str | None
    until: str | None


class FailureSearch(FailureFilter, total=False):
    job_id: str | None
    status: str | None


def queues() -> Call[Sequence[Json]]:
    """Each queue: what is ready and running, its workers, and ``"paused": None or {"at", "by", "reason"}``."""
    return Call("GET", "/queues", items)


def workers() -> Call[Sequence[Json]]:
    """The workers, what each is running, and how its host is; lost workers stay listed for a day."""
    return Call("GET", "/workers", items)


def stats(window: str = "1h", queue: str | None = None, pipeline: str | None = None) -> Call[Json]:
    """What there is now, and a ``series`` over the ``window``: of jobs, or of the attempts in a queue."""
    return Call("GET", "/stats", query={"window": window, "queue": queue, "pipeline": pipeline})


def health() -> Call[Json]:
    """``{"status": "ok" or "bad", "findings": [{"name", "part", "state", "value", "meaning", "measured_at"}]}``."""
    return Call("GET", "/health")


def pause(queue: str, reason: str = "") -> Call[Json]:
    """Start no more tasks from this queue; running ones continue."""
    return Call("POST", item_path("/queues", queue, "queue name") + "/pause", json={"reason": reason})


def resume(queue: str) -> Call[Json]:
    """Resume a queue."""
    return Call("POST", item_path("/queues", queue, "queue name") + "/resume")


def limits() -> Call[Sequence[Json]]:
    """The limits of all pipelines: numbers, holders of your tenant, and how many tasks wait."""
    return Call("GET", "/limits", items)


def limit(name: str) -> Call[Json]:
    """One limit, with its ``versions``."""
    return Call("GET", item_path("/limits", name, "limit name"))


def set_limit(name: str, most: int, reason: str = "", version: int | None = None) -> Call[Json]:
    """Replace the number of a limit for all jobs, now. ``Conflict`` if ``version`` is given and is not the newest."""
    return Call(
        "PUT", item_path("/limits", name, "limit name"), json={"most": most, "reason": reason, "version": version}
    )


def reset_limit(name: str, reason: str = "") -> Call[Json]:
    """Apply the numbers of the pipelines again."""
    return Call("DELETE", item_path("/limits", name, "limit name"), json={"reason": reason})


def keys() -> Call[Sequence[Json]]:
    """The newest keys of your tenant, without their secrets."""
    return Call("GET", "/keys", items, query={"limit": 200})


def key(key_id: str) -> Call[Json]:
    """One key of your tenant, also if it has ended, without its secret."""
    return Call("GET", item_path("/keys", key_id, "key id"))


def create_key(
    scopes: Sequence[str],
    name: str = "",
    user_id: str | None = None,
    expires_in: float | str | None = None,
    client_name: str = "",
) -> Call[Json]:
    """A key of your tenant. The ``key`` in the answer is shown only once. Its jobs show the client's name."""
    named = {"client_name": client_name} if client_name else {}
    body = {"scopes": [*scopes], "name": name, "user_id": user_id, "expires_in": expires_in, **named}
    return Call("POST", "/keys", json=body)


def rotate_key(key_id: str, overlap: float | str = 0.0) -> Call[Json]:
    """A key with the same rights; the old one ends after the overlap."""
    return Call("POST", item_path("/keys", key_id, "key id") + "/rotate", json={"overlap": overlap})


def revoke_key(key_id: str) -> Call[Json]:
    """End a key now."""
    return Call("DELETE", item_path("/keys", key_id, "key id"))


def key_limits(key_id: str) -> Call[list[Json]]:
    """What a key may still request and download."""
    return Call("GET", item_path("/keys", key_id, "key id") + "/limits", items)


def sessions() -> Call[Sequence[Json]]:
    """The newest browser sessions of your key; with the scope admin, those of your tenant."""
    return Call("GET", "/sessions", items, query={"limit": 200})


def end_session(session_id: str) -> Call[None]:
    """Log a browser out."""
    return Call("DELETE", item_path("/sessions", session_id, "session id"))


def audit(before: int | None = None, limit: int | None = None) -> Call[Json]:
    """One page, newest first: ``{"items": [...], "next": number or None}``."""
    return Call("GET", "/audit", query={"before": before, "limit": limit})


def webhooks() -> Call[Sequence[Json]]:
    """``{"webhook_id", "url", "created_at", "created_by", "ended_at", "reason"}`` each."""
    return Call("GET", "/webhooks", items)


def add_webhook(url: str) -> Call[Json]:
    """Send a message to ``url`` whenever a job ends. The ``secret`` in the answer is shown only once."""
    return Call("POST", "/webhooks", json={"url": url})


def remove_webhook(webhook_id: str) -> Call[Json]:
    """Remove this webhook. Messages that were not delivered yet are dropped."""
    return Call("DELETE", item_path("/webhooks", webhook_id, "webhook id"))


def test_webhook(webhook_id: str) -> Call[Json]:
    """Send a message now: ``{"delivered", "status", "error"}``."""
    return Call("POST", item_path("/webhooks", webhook_id, "webhook id") + "/test")


def deliveries(webhook_id: str) -> Call[Sequence[Json]]:
    """The messages that wait to be sent, newest first."""
    return Call("GET", item_path("/webhooks", webhook_id, "webhook id") + "/deliveries", items)


def failures(*, cursor: str | None = None, limit: int | None = None, **filter: Unpack[FailureSearch]) -> Call[Json]:
    """One page of failed runs, newest first: ``{"items": [...], "next": cursor or None}``."""
    return Call("GET", "/failures", query={**filter_query(filter, FailureSearch), "cursor": cursor, "limit": limit})


def failure(failure_id: str) -> Call[Json]:
    """One failure."""
    return Call("GET", item_path("/failures", failure_id, "failure id"))


def failure_groups(*, dismissed: bool | None = None, trend: bool = False, limit: int | None = None) -> Pages:
    """Every group of failures, the last seen first, fetched in pages as you iterate.

    ``dismissed`` selects dismissed groups, or the others; with ``trend`` each has its counts by hour.
    """
    query: Json = {"dismissed": dismissed, "trend": trend or None, "limit": limit}
    return lambda cursor: Call("GET", "/failures/groups", query={**query, "cursor": cursor})


def failure_group(fingerprint: str, *, trend: bool = False) -> Call[Json]:
    """One group of failures; with ``trend`` also its counts in each of the last 24 hours."""
    return Call("GET", item_path("/failures/groups", fingerprint, "group id"), query={"trend": trend or None})


def retry_failures(
    ids: Sequence[str] = (), *, pace: float | None = None, dry_run: bool = False, **filter: Unpack[FailureFilter]
) -> Call[Json]:
    """Retry open failures: by their ids, or all that match the filters, ``pace`` of them a second.

    ``{"count", "is_at_least", "first": [...], "order": {...}}``; with ``dry_run`` nothing is ordered.
    """
    return Call("POST", "/failures/retry", json={**_selection(ids, filter), "pace": pace, "dry_run": dry_run})


def dismiss_failures(
    ids: Sequence[str] = (), *, reason: str, dry_run: bool = False, **filter: Unpack[FailureFilter]
) -> Call[Json]:
    """Dismiss open failures with a reason. A dismissed group is not retried automatically until it is seen again."""
    return Call("POST", "/failures/dismiss", json={**_selection(ids, filter), "reason": reason, "dry_run": dry_run})


def failure_orders(*, cursor: str | None = None, limit: int | None = None) -> Call[Json]:
    """One page of bulk retries and dismissals, newest first, with their progress."""
    return Call("GET", "/failures/orders", query={"cursor": cursor, "limit": limit})


def failure_order(order_id: str) -> Call[Json]:
    """One order: ``{"order_id", "kind", "done", "left", "named", "ended_at", ...}``."""
    return Call("GET", item_path("/failures/orders", order_id, "order id"))


def _selection(ids: Sequence[str], filter: FailureFilter) -> Json:
    found = filter_query(filter, FailureFilter)
    return {**found, "ids": [*ids]} if ids else found


def schedules(*, deleted: bool = False, runs: int | None = None) -> Pages:
    """Every schedule, by id; with its last ``runs`` if given, and deleted ones too with ``deleted``."""
    query: Json = {"deleted": deleted or None, "runs": runs}
    return lambda cursor: Call("GET", "/schedules", query={**query, "cursor": cursor})


def schedule(schedule_id: str) -> Call[Json]:
    """One schedule."""
    return Call("GET", _schedule(schedule_id))


def put_schedule(
    schedule_id: str,
    *,
    cron: str,
    pipeline: str | None = None,
    parameters: Mapping[str, Any] | None = None,
    user: str | None = None,
    zone: str = "UTC",
    active: bool = True,
    overlap: str = "skip",
    misfire: str = "skip",
    window: float | str = 3600,
    labels: Mapping[str, str] | None = None,
    reason: str = "",
    version: int | None = None,
    dry_run: bool = False,
) -> Call[Json]:
    """Create a schedule, or, if it exists, a new version that replaces ``version``, the one you have seen.

    What you leave out is set to its default. Raises `VersionNeeded`, or `EditedMeanwhile` if somebody else edited it.
    With ``dry_run`` nothing is stored: the answer is what the schedule would be, with its ``changes``.
    """
    body: Json = {
        "cron": cron,
        "pipeline": pipeline,
        "parameters": dict(parameters or {}),
        "user_id": user,
        "zone": zone,
        "active": active,
        "overlap": overlap,
        "misfire": misfire,
        "window": window,
        "labels": dict(labels or {}),
        "reason": reason,
        "dry_run": dry_run,
    }
    return Call("PUT", _schedule(schedule_id), headers=_if_match(version), json=body)


def delete_schedule(schedule_id: str, reason: str = "", version: int | None = None) -> Call[Json]:
    """Delete it. Its versions and runs can be read until they are purged."""
    return Call("DELETE", _schedule(schedule_id), headers=_if_match(version), json={"reason": reason})


def pause_schedule(schedule_id: str, reason: str = "", version: int | None = None) -> Call[Json]:
    """Run no tick until it is resumed."""
    return _edit_schedule(schedule_id, "pause", reason, version)


def resume_schedule(schedule_id: str, reason: str = "", version: int | None = None) -> Call[Json]:
    """Resume with the next tick."""
    return _edit_schedule(schedule_id, "resume", reason, version)


def reset_schedule(schedule_id: str, reason: str = "", version: int | None = None) -> Call[Json]:
    """Reset it to the version in the app's code."""
    return _edit_schedule(schedule_id, "reset", reason, version)


def rollback_schedule(schedule_id: str, to: int, reason: str = "", version: int | None = None) -> Call[Json]:
    """Create a new version with exactly the content of version ``to``."""
    body = {"version": to, "reason": reason}
    return Call("POST", _schedule(schedule_id) + "/rollback", headers=_if_match(version), json=body)


def run_schedule(schedule_id: str) -> Call[Json]:
    """Run it now, in addition to its ticks."""
    return Call("POST", _schedule(schedule_id) + "/run")


def create_trigger_token(schedule_id: str, seconds: int | None = None) -> Call[Json]:
    """A signed token with which another system can run it: ``{"token", "path", "expires_at"}``."""
    return Call("POST", _schedule(schedule_id) + "/token", json={"seconds": seconds})


def trigger_schedule(schedule_id: str, token: str) -> Call[Json]:
    """Run it now, with a token of `create_trigger_token` instead of a key."""
    return Call("POST", _schedule(schedule_id) + "/trigger", query={"token": token})


def schedule_runs(schedule_id: str, before: float | None = None, limit: int | None = None) -> Call[Json]:
    """One page, the newest tick first: ``{"items": [...], "next": moment or None}``."""
    return Call("GET", _schedule(schedule_id) + "/runs", query={"before": before, "limit": limit})


def schedule_versions(schedule_id: str, before: int | None = None, limit: int | None = None) -> Call[Json]:
    """One page, newest first: ``{"items": [...], "next": number or None}``; each with what it changed."""
    return Call("GET", _schedule(schedule_id) + "/versions", query={"before": before, "limit": limit})


def schedule_version(schedule_id: str, number: int) -> Call[Json]:
    """One version."""
    return Call("GET", f"{_schedule(schedule_id)}/versions/{number}")


def diff_schedule(schedule_id: str, old: int, new: int) -> Call[Sequence[Json]]:
    """``{"field", "old", "new"}`` for each difference between two versions."""
    return Call("GET", _schedule(schedule_id) + "/diff", items, query={"old": old, "new": new})


def preview_schedule(cron: str, zone: str = "UTC") -> Call[Sequence[Json]]:
    """The next ten times of a cron expression: ``{"at", "local", "mark", "note"}`` each."""
    return Call("POST", "/schedules/preview", items, json={"cron": cron, "zone": zone})


def job_config(job_id: str) -> Call[Json]:
    """A schedule as a flat document: ``job_id``, ``active``, ``cron``, the parameters, ``updated_at``."""
    return Call("GET", item_path("/job_config", job_id, "job id"))


def put_job_config(document: Mapping[str, Any]) -> Call[Json]:
    """Create a schedule from a flat document, or replace the one that you have read, which ``updated_at`` tells.

    Raises `EditedMeanwhile` if somebody else has edited it since.
    """
    return Call("PUT", item_path("/job_config", str(document.get("job_id", "")), "job id"), json=dict(document))


def job_configs(cursor: str | None = None, limit: int | None = None) -> Call[Json]:
    """One page by id: ``{"items": [...], "next": cursor or None}``."""
    return Call("GET", "/job_config", query={"cursor": cursor, "limit": limit})


def job_status(job_id: str, before: float | None = None, limit: int | None = None) -> Call[Json]:
    """One page, the newest tick first: ``{"items": [...], "next": moment or None}``, in the words of the app."""
    return Call("GET", item_path("/job_config", job_id, "job id") + "/status", query={"before": before, "limit": limit})


def _edit_schedule(schedule_id: str, verb: str, reason: str, version: int | None) -> Call[Json]:
    return Call("POST", f"{_schedule(schedule_id)}/{verb}", headers=_if_match(version), json={"reason": reason})


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}


def _schedule(schedule_id: str) -> str:
    return item_path("/schedules", schedule_id, "schedule id")
