"""Answers about failures and what is ordered about them."""

from typing import Literal, TypedDict

from packhorse.schemas.job_documents import FailureDocument, FailureGroupDocument


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


class AboutDocument(TypedDict):
    """What the failures of an order have in common."""

    fingerprint: str | None
    pipeline: str | None
    error_code: str | None
    user_id: str | None
    schedule_id: str | None
    since: str | None
    until: str | None


class OrderDocument(TypedDict):
    """What was ordered about failures, and how far it is; ``left`` counts by reason, ``named`` shows some of them.

    ``about`` is null if they were named one by one; ``count`` is how many there were when it was given.
    """

    order_id: str
    kind: Literal["retry", "dismiss"]
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
    """How many open failures it is about (at least, if so), the newest of them, and the order unless it is a trial."""

    count: int
    is_at_least: bool
    first: list[FailureDocument]
    order: OrderDocument | None
