"""Failures and their groups."""

from collections.abc import Sequence
from typing import NotRequired, TypedDict

from packhorse.core.failures import HOUR, TREND_HOURS, FailureGroup, by_hour
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.schemas.timestamps import iso


class SettledDocument(TypedDict):
    """Who retried or dismissed a failure: ``run`` is the new run, ``order_id`` the bulk action, if any."""

    at: str | None
    by: str
    reason: str
    run: int | None
    order_id: str | None


class FailureDocument(TypedDict):
    """A run that failed for good; ``revived`` counts the automatic retries of its job before it."""

    failure_id: str
    fingerprint: str
    job_id: str
    run: int
    tenant_id: str
    user_id: str
    pipeline: str
    stage: str | None
    error_code: str
    message: str
    attempts: int
    timestamp: str | None
    trace_id: str
    schedule_id: str | None
    status: FailureStatus
    settled: SettledDocument | None
    revived: int
    revived_at_most: int
    revives_at: str | None


class TrendDocument(TypedDict):
    """Failures in each of the last 24 hours, the oldest first.

    Only the newest 200 are counted; hours before them are null, and ``is_cut`` is true.
    """

    since: str | None
    seconds: float
    counts: list[int | None]
    is_cut: bool


class FailureGroupDocument(TypedDict):
    """Failures with one fingerprint. With ``has_more_users``, ``users`` is a lower bound. ``trend`` only on request."""

    fingerprint: str
    tenant_id: str
    pipeline: str
    stage: str | None
    error_code: str
    message: str
    count: int
    open: int
    retried: int
    resolved: int
    dismissed: int
    users: int
    has_more_users: bool
    first_seen: str | None
    last_seen: str | None
    is_dismissed: bool
    dismissal: SettledDocument | None
    seen_again: str | None
    trend: NotRequired[TrendDocument]


class FailuresPage(TypedDict):
    """Newest first; ``next`` is the cursor of the next page, null on the last."""

    items: list[FailureDocument]
    next: str | None


class FailureGroupsPage(TypedDict):
    """The most recently seen first."""

    items: list[FailureGroupDocument]
    next: str | None


def failure_to_json(failure: FailedRun) -> FailureDocument:
    return {
        "failure_id": failure.id,
        "fingerprint": failure.fingerprint,
        "job_id": failure.job_id,
        "run": failure.run,
        "tenant_id": failure.tenant,
        "user_id": failure.user,
        "pipeline": failure.pipeline,
        "stage": failure.stage,
        "error_code": failure.code,
        "message": failure.message,
        "attempts": failure.attempts,
        "timestamp": iso(failure.at),
        "trace_id": failure.trace_id,
        "schedule_id": failure.schedule,
        "status": failure.status,
        "settled": _settlement_to_json(failure.settled),
        "revived": failure.revived,
        "revived_at_most": failure.times,
        "revives_at": iso(failure.revive_at) if failure.status is FailureStatus.OPEN else None,
    }


def group_to_json(group: FailureGroup) -> FailureGroupDocument:
    return {
        "fingerprint": group.fingerprint,
        "tenant_id": group.tenant,
        "pipeline": group.pipeline,
        "stage": group.stage,
        "error_code": group.code,
        "message": group.message,
        "count": group.count,
        "open": group.open,
        "retried": group.retried,
        "resolved": group.resolved,
        "dismissed": group.dismissed,
        "users": group.users,
        "has_more_users": group.unlisted > 0,
        "first_seen": iso(group.first_seen),
        "last_seen": iso(group.last_seen),
        "is_dismissed": group.dismissal is not None,
        "dismissal": _settlement_to_json(group.dismissal),
        "seen_again": iso(group.seen_again),
    }


def trend_to_json(times: Sequence[float], now: float) -> TrendDocument:
    counts = by_hour(times, now)
    return {
        "since": iso(now - TREND_HOURS * HOUR),
        "seconds": HOUR,
        "counts": counts,
        "is_cut": None in counts,
    }


def _settlement_to_json(settled: Settled | None) -> SettledDocument | None:
    if settled is None:
        return None
    return {
        "at": iso(settled.at),
        "by": settled.by,
        "reason": settled.reason,
        "run": settled.run,
        "order_id": settled.order or None,
    }
