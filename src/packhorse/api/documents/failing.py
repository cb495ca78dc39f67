"""Answers about failures and what is ordered about them."""

from typing import Literal, TypedDict

from packhorse.shape.documents import FailureDocument, FailureGroupDocument


class FailuresPage(TypedDict):
    """Newest first; ``next`` is the cursor of the next page, null on the last."""

    items: list[FailureDocument]
    next: str | None


class FailureGroupsPage(TypedDict):
    """The last seen first."""

    items: list[FailureGroupDocument]
    next: str | None


class LeftDocument(TypedDict):
    """A failure that an order has left as it is: its job is gone, or runs, or its user's slot is taken, ..."""

    failure_id: str
    why: str


class OrderDocument(TypedDict):
    """What was ordered about failures, and how far it is; ``left`` counts by reason, ``named`` shows some of them."""

    order_id: str
    kind: Literal["retry", "dismiss"]
    created_at: str | None
    by: str
    reason: str
    pace: float | None
    done: int
    left: dict[str, int]
    named: list[LeftDocument]
    ended_at: str | None


class OrdersPage(TypedDict):
    items: list[OrderDocument]
    next: str | None


class OrderedDocument(TypedDict):
    """How many open failures it is about (at least, if so), the newest of them, and the order unless it is a trial."""

    count: int
    is_at_least: bool
    first: list[FailureDocument]
    order: OrderDocument | None
