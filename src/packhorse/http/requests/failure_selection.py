"""Which failures somebody means: by their ids, by their group, or by a filter."""

from __future__ import annotations

import math
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, Struct

from packhorse.define.validation import NOT_VALID, NUL, invalid
from packhorse.http.routes.jobs import seconds_of
from packhorse.store.base import FailureFilter

MOST_IDS = 1000
LONGEST_REASON = 500
FASTEST = 1000.0
"""Failures per second that a pace may ask for."""


class Chosen(Struct):
    """Which open failures are meant: ``ids``, or all that have what the rest names, and at least one of it."""

    ids: list[str] = []
    """Up to 1000."""
    fingerprint: str | None = None
    """Of a group."""
    pipeline: str | None = None
    error_code: str | None = None
    user_id: str | None = None
    schedule_id: str | None = None
    since: str | None = None
    """A time in ISO 8601, as `until`."""
    until: str | None = None
    dry_run: bool = False
    """Only tell how many they are, and which are the newest."""
    pace: float | None = None
    """How many a second at most."""

    def is_whole_group(self) -> bool:
        named = (self.pipeline, self.error_code, self.user_id, self.schedule_id, self.since, self.until)
        return self.fingerprint is not None and not any(named)


class ToDismiss(Chosen):
    """Which failures are dismissed, and why."""

    reason: Annotated[str, Meta(extra_json_schema={"maxLength": LONGEST_REASON})] = ""


def chosen(given: Chosen, tenant: str, now: float) -> tuple[list[str], FailureFilter | None]:
    """Ids, or a filter; never later failures than there are now. Raises InvalidInput."""
    mistakes = [*_wrong(given)]
    since, until = time_from(given.since, "since", mistakes), time_from(given.until, "until", mistakes)
    named = (given.fingerprint, given.pipeline, given.error_code, given.user_id, given.schedule_id, since, until)
    is_filter = any(each is not None for each in named)
    if not mistakes and bool(given.ids) == is_filter:
        what = "Give ids, or what they have in common, not both" if is_filter else "Say which: ids, or a filter"
        mistakes.append({"field": "ids", "message": what})
    if mistakes:
        raise invalid(NOT_VALID, mistakes)
    if given.ids:
        return list(dict.fromkeys(given.ids)), None
    return [], FailureFilter(
        tenant,
        given.fingerprint,
        None,
        given.user_id,
        given.pipeline,
        given.error_code,
        None,
        given.schedule_id,
        since,
        now if until is None else min(now, until),
    )


def check_reason(reason: str) -> None:
    if not reason.strip():
        raise invalid(NOT_VALID, [{"field": "reason", "message": "Say why they are dismissed"}])
    if len(reason) > LONGEST_REASON:
        raise invalid(NOT_VALID, [{"field": "reason", "message": f"It has more than {LONGEST_REASON} characters"}])
    if "\0" in reason:
        raise invalid(NOT_VALID, [{"field": "reason", "message": NUL}])


def _wrong(given: Chosen) -> list[dict[str, str]]:
    found = []
    if len(given.ids) > MOST_IDS:
        found.append({"field": "ids", "message": f"There are more than {MOST_IDS}"})
    texts = ("fingerprint", "pipeline", "error_code", "user_id", "schedule_id")
    found += [{"field": name, "message": NUL} for name in texts if "\0" in (getattr(given, name) or "")]
    if given.pace is not None and not (math.isfinite(given.pace) and 0.001 <= given.pace <= FASTEST):
        found.append({"field": "pace", "message": f"It must be from 0.001 to {FASTEST:.0f} a second"})
    return found


def time_from(text: str | None, field: str, mistakes: list[dict[str, str]]) -> float | None:
    if text is None:
        return None
    try:
        return seconds_of(msgspec.convert(text, datetime))
    except (msgspec.ValidationError, OverflowError, ValueError):
        mistakes.append({"field": field, "message": "It must be a time such as 2026-01-31T12:00:00Z"})
        return None
