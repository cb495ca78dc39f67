"""Webhooks and the messages that wait for them."""

from typing import TypedDict

from packhorse.core.webhooks import Delivery
from packhorse.schemas.timestamps import iso
from packhorse.store.collections.webhooks import Endpoint


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


def webhook_to_json(endpoint: Endpoint) -> WebhookDocument:
    return {
        "webhook_id": endpoint.id,
        "url": endpoint.url,
        "created_at": iso(endpoint.created_at),
        "created_by": endpoint.created_by,
        "ended_at": iso(endpoint.ended_at),
        "reason": endpoint.reason,
    }


def delivery_to_json(waiting: Delivery) -> DeliveryDocument:
    return {
        "id": waiting.id,
        "job_id": waiting.job_id,
        "run": waiting.run,
        "created_at": iso(waiting.at),
        "attempts": waiting.attempts,
        "next_at": iso(waiting.next_at),
        "error": waiting.error,
    }
