"""Failures, their groups, and orders: retries and dismissals of many failures, as they are stored and shown."""

from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

from msgspec import Struct, field

from packhorse.core import json
from packhorse.core.failures import HOUR, TREND_HOURS, FailureAction, FailureGroup, by_hour, first_id
from packhorse.core.models import FailedRun, FailureStatus, Settled
from packhorse.schemas.progress import iso
from packhorse.store.base import FailureFilter


class SettledDocument(TypedDict):
    """Who retried or dismissed a failure: ``run`` is the new run, ``order_id`` the bulk action, if any."""

    at: str | None
    by: str
    reason: str
    run: int | None
    order_id: str | None


class FailureDocument(TypedDict):
    """A failed run; ``revived`` counts the automatic retries of its job before it."""

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
    return {"since": iso(now - TREND_HOURS * HOUR), "seconds": HOUR, "counts": counts, "is_cut": None in counts}


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


Kind = Literal["retry", "dismiss"]

Why = Literal["gone", "settled", "slot_taken", "running", "unreadable"]


class LeftFailure(Struct, frozen=True):
    """A failure that the order did not change, and why."""

    failure_id: str
    why: Why


class Order(Struct, frozen=True, omit_defaults=True):
    """What to do with which failures, and how far that has got."""

    kind: Kind
    at: float
    by: str
    reason: str = ""
    ids: tuple[str, ...] = ()
    wanted: FailureFilter | None = None
    pace: float | None = None  # failures per second; None: as fast as possible
    count: int = 0
    """How many failures matched when the order was placed, as far as they were counted."""
    cursor: str | None = None  # the last failure that was handled
    done: int = 0
    left: Mapping[str, int] = field(default_factory=dict)  # how many were not changed, by reason
    named: tuple[LeftFailure, ...] = ()
    ended_at: float | None = None


class LeftDocument(TypedDict):
    """A failure that the order did not change: its job is gone, or runs, or its user's slot is taken, ..."""

    failure_id: str
    why: str


class AboutDocument(TypedDict):
    """The filter of an order."""

    fingerprint: str | None
    pipeline: str | None
    error_code: str | None
    user_id: str | None
    schedule_id: str | None
    since: str | None
    until: str | None


class OrderDocument(TypedDict):
    """A bulk retry or dismissal of failures, and its progress.

    ``left`` counts failures that were not changed, by reason; ``named`` lists some of them. ``about`` is null if the
    failures were given by id; ``count`` is how many there were when the order was placed.
    """

    order_id: str
    kind: Kind
    created_at: str | None
    by: str
    reason: str
    pace: float | None
    about: AboutDocument | None
    count: int
    done: int
    left: dict[str, int]
    named: list[LeftDocument]
    ended_at: str | None


class OrdersPage(TypedDict):
    items: list[OrderDocument]
    next: str | None


class OrderedDocument(TypedDict):
    """How many open failures match (a lower bound if ``is_at_least``), the newest, and the order; null in a dry run."""

    count: int
    is_at_least: bool
    first: list[FailureDocument]
    order: OrderDocument | None


def order_to_action(order: Order, tenant: str, luck: str) -> FailureAction:
    """The action that carries out the order, due at once. Its id sorts by time."""
    return FailureAction(f"{first_id(order.at)}{luck}", "order", tenant, json.encode(order), order.at)


def order_from_action(action: FailureAction) -> Order:
    """Raises `CorruptRecord`."""
    return json.record(action.body, Order)


def order_to_json(order_id: str, order: Order) -> OrderDocument:
    return {
        "order_id": order_id,
        "kind": order.kind,
        "created_at": iso(order.at),
        "by": order.by,
        "reason": order.reason,
        "pace": order.pace,
        "about": _about(order.wanted),
        "count": order.count,
        "done": order.done,
        "left": dict(order.left),
        "named": [{"failure_id": each.failure_id, "why": each.why} for each in order.named],
        "ended_at": iso(order.ended_at),
    }


def _about(wanted: FailureFilter | None) -> AboutDocument | None:
    if wanted is None:
        return None
    return {
        "fingerprint": wanted.fingerprint,
        "pipeline": wanted.pipeline,
        "error_code": wanted.code,
        "user_id": wanted.user,
        "schedule_id": wanted.schedule,
        "since": iso(wanted.since),
        "until": iso(wanted.until),
    }
