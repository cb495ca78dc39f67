"""Orders: retries and dismissals of many failures, as they are stored and as they are shown."""

from collections.abc import Mapping
from typing import Literal, TypedDict

from msgspec import Struct, field

from packhorse.core import failures, json
from packhorse.core.failures import FailureAction
from packhorse.schemas.failures import FailureDocument
from packhorse.schemas.timestamps import iso
from packhorse.store.base import FailureFilter

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
    pace: float | None = None
    """Failures per second; None: as fast as possible."""
    count: int = 0
    """How many failures matched when the order was placed, as far as they were counted."""
    cursor: str | None = None
    """The last failure that was handled."""
    done: int = 0
    left: Mapping[str, int] = field(default_factory=dict)
    """How many were not changed, by reason."""
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
    return FailureAction(f"{failures.first_id(order.at)}{luck}", "order", tenant, json.encode(order), order.at)


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
