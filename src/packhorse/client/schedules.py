"""Calls about schedules."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from packhorse.client.call import Call, Json, Pages, item_path, items


def every(*, deleted: bool = False, runs: int | None = None) -> Pages:
    """Every schedule, by id; with its last ``runs`` if given, and deleted ones too with ``deleted``."""
    query: Json = {"deleted": deleted or None, "runs": runs}
    return lambda cursor: Call("GET", "/schedules", query={**query, "cursor": cursor})


def get(schedule_id: str) -> Call[Json]:
    """One schedule."""
    return Call("GET", _schedule(schedule_id))


def put(
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


def delete(schedule_id: str, reason: str = "", version: int | None = None) -> Call[Json]:
    """Delete it. Its versions and runs can be read until they are purged."""
    return Call("DELETE", _schedule(schedule_id), headers=_if_match(version), json={"reason": reason})


def pause(schedule_id: str, reason: str = "", version: int | None = None) -> Call[Json]:
    """Run no tick until it is resumed."""
    return _edit(schedule_id, "pause", reason, version)


def resume(schedule_id: str, reason: str = "", version: int | None = None) -> Call[Json]:
    """Resume with the next tick."""
    return _edit(schedule_id, "resume", reason, version)


def reset(schedule_id: str, reason: str = "", version: int | None = None) -> Call[Json]:
    """Reset it to what the app's code declares."""
    return _edit(schedule_id, "reset", reason, version)


def rollback(schedule_id: str, to: int, reason: str = "", version: int | None = None) -> Call[Json]:
    """Create a new version with exactly the content of version ``to``."""
    body = {"version": to, "reason": reason}
    return Call("POST", _schedule(schedule_id) + "/rollback", headers=_if_match(version), json=body)


def run(schedule_id: str) -> Call[Json]:
    """Run it now, in addition to its ticks."""
    return Call("POST", _schedule(schedule_id) + "/run")


def runs(schedule_id: str, before: float | None = None, limit: int | None = None) -> Call[Json]:
    """One page, the newest tick first: ``{"items": [...], "next": moment or None}``."""
    return Call("GET", _schedule(schedule_id) + "/runs", query={"before": before, "limit": limit})


def versions(schedule_id: str, before: int | None = None, limit: int | None = None) -> Call[Json]:
    """One page, newest first: ``{"items": [...], "next": number or None}``; each with what it changed."""
    return Call("GET", _schedule(schedule_id) + "/versions", query={"before": before, "limit": limit})


def version(schedule_id: str, number: int) -> Call[Json]:
    """One version."""
    return Call("GET", f"{_schedule(schedule_id)}/versions/{number}")


def diff(schedule_id: str, old: int, new: int) -> Call[Sequence[Json]]:
    """``{"field", "old", "new"}`` for each difference between two versions."""
    return Call("GET", _schedule(schedule_id) + "/diff", items, query={"old": old, "new": new})


def preview(cron: str, zone: str = "UTC") -> Call[Sequence[Json]]:
    """The next ten times a cron line fires: ``{"at", "local", "mark", "note"}`` each."""
    return Call("POST", "/schedules/preview", items, json={"cron": cron, "zone": zone})


def _edit(schedule_id: str, verb: str, reason: str, version: int | None) -> Call[Json]:
    return Call("POST", f"{_schedule(schedule_id)}/{verb}", headers=_if_match(version), json={"reason": reason})


def _if_match(version: int | None) -> dict[str, str]:
    return {} if version is None else {"If-Match": f'"{version}"'}


def _schedule(schedule_id: str) -> str:
    return item_path("/schedules", schedule_id, "schedule id")
