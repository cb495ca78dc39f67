"""The commands about queues: what waits in them, and holding one up."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from packhorse.cli import output
from packhorse.cli.commands.stats import percentiles, seconds
from packhorse.cli.options import Remote
from packhorse.client import Json


def _name(_type: object, text: str) -> None:
    if not text.strip():
        raise ValueError("a queue is named, and this is empty; see them with: packhorse queues")


Queue = Annotated[str, Parameter(validator=_name)]


def queues(*, remote: Remote = Remote()) -> None:
    """List the queues: what waits, who serves them, what is paused."""
    with remote.client() as client:
        found = client.queues()
    if remote.json:
        output.document({"items": found, "next": None})
    elif found:
        columns = ("queue", "ready", "oldest", "running", "workers", "slots", "per minute", "waited", "paused")
        output.table(columns, map(_row, found))
    else:
        output.message("There are no queues. A worker publishes its pipelines when it starts: packhorse worker FILE")


def pause(queue: Queue, /, *, reason: str = "", remote: Remote = Remote()) -> None:
    """Start nothing more from a queue; what runs, runs on.

    Parameters
    ----------
    queue
        Its name.
    reason
        Why; whoever waits is told.
    """
    with remote.client() as client:
        _print_queue(client.pause(queue, reason), remote)


def resume(queue: Queue, /, *, remote: Remote = Remote()) -> None:
    """Go on with a queue.

    Parameters
    ----------
    queue
        Its name.
    """
    with remote.client() as client:
        _print_queue(client.resume(queue), remote)


def _row(each: Json) -> tuple[object, ...]:
    oldest = seconds(each["oldest_seconds"]) if each["ready"] else ""
    waited = percentiles(each["wait_seconds"]) if each["wait_seconds"]["p50"] is not None else ""
    served = (each["running"], each["workers"], each["slots"], f"{each['per_minute']:g}")
    return each["name"], each["ready"], oldest, *served, waited, _pause_text(each)


def _print_queue(queue: Json, remote: Remote) -> None:
    if remote.json:
        output.document(queue)
    else:
        output.plain(f"Queue {queue['name']} is {'paused' if queue['paused'] else 'served'}.")


def _pause_text(queue: Json) -> str:
    pause = queue["paused"]
    if pause is None:
        return ""
    why = f": {pause['reason']}" if pause["reason"] else ""
    return f"by {pause['by']} at {pause['at'][:19].replace('T', ' ')}{why}"
