"""How failures and their groups look in JSON, wherever they are shown."""

from __future__ import annotations

from collections.abc import Sequence

from packhorse.core.failures import HOUR, HOURS, FailureGroup, by_hour
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.schemas.job import iso
from packhorse.schemas.job_documents import FailureDocument, FailureGroupDocument, SettledDocument, TrendDocument


def shown_failure(failure: FailedRun) -> FailureDocument:
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
        "settled": _settled(failure.settled),
        "revived": failure.revived,
        "revived_at_most": failure.times,
        "revives_at": iso(failure.revive_at) if failure.status is FailureStatus.OPEN else None,
    }


def shown_group(group: FailureGroup) -> FailureGroupDocument:
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
        "dismissal": _settled(group.dismissal),
        "seen_again": iso(group.seen_again),
    }


def shown_trend(times: Sequence[float], now: float) -> TrendDocument:
    counts = by_hour(times, now)
    return {
        "since": iso(now - HOURS * HOUR),
        "seconds": HOUR,
        "counts": counts,
        "is_cut": None in counts,
    }


def _settled(settled: Settled | None) -> SettledDocument | None:
    if settled is None:
        return None
    return {
        "at": iso(settled.at),
        "by": settled.by,
        "reason": settled.reason,
        "run": settled.run,
        "order_id": settled.order or None,
    }
