"""`packhorse webhooks`: servers that packhorse calls when a job has ended."""

from __future__ import annotations

from operator import itemgetter
from typing import Annotated

from cyclopts import App, Group, Parameter

from packhorse.cli import output
from packhorse.cli.options import Remote, not_empty
from packhorse.client import Json

app = App("webhooks", group_commands=Group("Commands"), result_action="return_value")

NOT_TAKEN = 1


WebhookId = Annotated[
    str,
    Parameter(
        validator=not_empty("the webhook id is empty; list the webhooks with: packhorse webhooks"),
        help="Webhook id.",
    ),
]


@app.default
@app.command(name="list")
def list_webhooks(*, remote: Remote = Remote()) -> None:
    """List webhooks and their state."""
    with remote.client() as client:
        found = client.webhooks()
    empty = "No webhooks. Add one with: packhorse webhooks add URL"
    remote.print_list(found, ("webhook", "created", "state", "url"), _row, empty)


@app.command
def add(url: str, /, *, remote: Remote = Remote()) -> None:
    """Add a webhook: packhorse calls the URL when a job ends. Prints the secret that verifies its messages.

    Args:
        url: Public https URL. For others, see PACKHORSE_OUTBOUND_ALLOW.
    """
    with remote.client() as client:
        made = client.add_webhook(url)
    if remote.json:
        output.document(made)
        return
    output.facts({"webhook": made["webhook_id"], "secret": made["secret"]})
    output.message("The secret is shown only once. Store it where your receiver can read it.")


@app.command
def remove(webhook: WebhookId, /, *, remote: Remote = Remote()) -> None:
    """Remove a webhook. Messages that were not delivered yet are dropped."""
    with remote.client() as client:
        ended = client.remove_webhook(webhook)
    remote.print_one(ended, f"Webhook {ended['webhook_id']} is removed.")


@app.command(name="test")
def send_test(webhook: WebhookId, /, *, remote: Remote = Remote()) -> int:
    """Send a test message now. Exit code: 1 if the receiver does not accept it."""
    with remote.client() as client:
        found = client.test_webhook(webhook)
    remote.print_one(found, "The receiver accepted it." if found["delivered"] else f"Not delivered: {found['error']}.")
    return 0 if found["delivered"] else NOT_TAKEN


@app.command
def deliveries(webhook: WebhookId, /, *, remote: Remote = Remote()) -> None:
    """List undelivered messages, newest first, with the error of the last attempt."""
    with remote.client() as client:
        found = client.deliveries(webhook)
    empty = "All messages are delivered."
    remote.print_list(found, ("message", "attempts", "next", "error"), _delivery_row, empty)


_delivery_row = itemgetter("id", "attempts", "next_at", "error")


def _row(webhook: Json) -> tuple[object, ...]:
    return webhook["webhook_id"], output.clock(webhook["created_at"]), webhook["reason"] or "active", webhook["url"]
