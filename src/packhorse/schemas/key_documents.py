"""Answers about keys, the audit and webhooks."""

from typing import Any, Literal, TypedDict


class KeyDocument(TypedDict):
    """A key, or a token of one job, without what is secret of it."""

    key_id: str
    tenant_id: str
    scopes: list[str]
    name: str
    user_id: str | None
    job_id: str | None
    created_at: str | None
    created_by: str
    ends_at: str | None
    ended_by: str


class MeDocument(TypedDict):
    """Who asks. With a token, ``job_id`` is the one job it is good for; ``key_id`` is null where nobody needs a key."""

    key_id: str | None
    tenant_id: str
    allowed: list[str]
    user_id: str | None
    job_id: str | None


class MadeKeyDocument(KeyDocument):
    """A key as it was just made: ``key`` is shown this once."""

    key: str


class KeysPage(TypedDict):
    items: list[KeyDocument]
    next: str | None


class AuditDocument(TypedDict):
    """One line of the audit; ``count`` says how many equal ones it stands for."""

    n: int
    at: str | None
    event: str
    tenant_id: str
    key_id: str
    address: str
    job_id: str
    trace_id: str
    count: int
    details: dict[str, Any]


class AuditPage(TypedDict):
    items: list[AuditDocument]
    next: int | None


class WebhookDocument(TypedDict):
    """Where a tenant is told of ended jobs; ``reason`` is why it is told no more."""

    webhook_id: str
    url: str
    created_at: str | None
    created_by: str
    ended_at: str | None
    reason: str


class NewWebhookDocument(WebhookDocument):
    """The secret is shown this once; with it a receiver can tell that a message is ours."""

    secret: str


class WebhooksPage(TypedDict):
    items: list[WebhookDocument]
    next: None


class DeliveryDocument(TypedDict):
    """A message that waits to be sent, or to be sent again; ``id`` is its ``webhook-id``."""

    id: str
    job_id: str
    run: int
    created_at: str | None
    attempts: int
    next_at: str | None
    error: str


class DeliveriesPage(TypedDict):
    items: list[DeliveryDocument]
    next: None


class TrialDocument(TypedDict):
    """What became of a message that was sent to try a webhook."""

    delivered: bool
    status: int | None
    error: str


class LimitDocument(TypedDict):
    """A limit, and how much a key may still spend of it. Of permits to do something at once, there is no window."""

    name: str
    unit: Literal["requests", "content-bytes", "concurrent-requests"]
    limit: int
    window_seconds: float | None
    left: int


class LimitsPage(TypedDict):
    items: list[LimitDocument]
    next: None


class SessionDocument(TypedDict):
    """A browser that has logged in. ``session`` is what its cookie says."""

    session_id: str
    session: str
    ends_at: str | None
