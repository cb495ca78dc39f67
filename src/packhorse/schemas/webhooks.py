"""Webhooks, and messages that wait to be delivered."""

from typing import TypedDict

from packhorse.core.webhooks import Delivery
from packhorse.schemas.progress import iso
from packhorse.store.collections.webhooks import Endpoint


class WebhookDocument(TypedDict):
    """An address that gets a message when a job of the tenant ends; ``reason`` is why it was ended."""

    webhook_id: str
    url: str
    created_at: str | None
    created_by: str
    ended_at: str | None
    reason: str


class NewWebhookDocument(WebhookDocument):
    """The secret is shown only once; a receiver verifies signatures with it."""

    secret: str


class WebhooksPage(TypedDict):
    items: list[WebhookDocument]
    next: None


class DeliveryDocument(TypedDict):
    """A message that waits to be sent or repeated; ``id`` is its ``webhook-id`` header."""

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
    """The outcome of a test message."""

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
