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
        validator=not_empty("a webhook is named by its id, and this is empty; see them with: packhorse webhooks"),
        help="Its id.",
    ),
]


@app.default
@app.command(name="list")
def list_webhooks(*, remote: Remote = Remote()) -> None:
    """List webhooks and their state."""
    with remote.client() as client:
        found = client.webhooks()
    empty = "There are no webhooks. Make one with: packhorse webhooks add URL"
    remote.print_list(found, ("webhook", "created", "state", "url"), _row, empty)


@app.command
def add(url: str, /, *, remote: Remote = Remote()) -> None:
    """Tell an address of ended jobs, and print the secret that it checks them with.

    Args:
        url: A public https address.
    """
    with remote.client() as client:
        made = client.add_webhook(url)
    if remote.json:
        output.document(made)
        return
    output.facts({"webhook": made["webhook_id"], "secret": made["secret"]})
    output.message("The secret is shown this once: keep it where the receiver can read it.")


@app.command
def remove(webhook: WebhookId, /, *, remote: Remote = Remote()) -> None:
    """Tell an address nothing more; what waits to be sent is dropped."""
    with remote.client() as client:
        ended = client.remove_webhook(webhook)
    remote.print_one(ended, f"Webhook {ended['webhook_id']} has ended.")


@app.command(name="test")
def send_test(webhook: WebhookId, /, *, remote: Remote = Remote()) -> int:
    """Send a message now; the exit code is 1 if it is not taken."""
    with remote.client() as client:
        found = client.test_webhook(webhook)
    remote.print_one(found, "It was taken." if found["delivered"] else f"It was not taken: {found['error']}.")
    return 0 if found["delivered"] else NOT_TAKEN


@app.command
def deliveries(webhook: WebhookId, /, *, remote: Remote = Remote()) -> None:
    """List the messages that wait to be sent, newest first, and why the last try failed."""
    with remote.client() as client:
        found = client.deliveries(webhook)
    empty = "Nothing waits to be sent: what was taken is gone."
    remote.print_list(found, ("message", "tries", "next", "error"), _delivery_row, empty)


_delivery_row = itemgetter("id", "attempts", "next_at", "error")


def _row(webhook: Json) -> tuple[object, ...]:
    return webhook["webhook_id"], output.clock(webhook["created_at"]), webhook["reason"] or "active", webhook["url"]
