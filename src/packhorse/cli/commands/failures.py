"""`packhorse failures`: what went wrong, and what is done about it."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from itertools import islice
from typing import Annotated, Any

from cyclopts import App, Group, Parameter

from packhorse.cli import output
from packhorse.cli.options import Remote, Whole, not_empty, resolve_job
from packhorse.client import Client, Json
from packhorse.errors import FailureNotFound, JobNotFound

app = App("failures", group_commands=Group("Commands"), result_action="return_value")

HEIGHTS = "·▁▂▃▄▅▆▇█"
DASHES = 6  # in the id of a failure, which contains the id of its job
COLUMNS = ("failure", "at", "status", "pipeline", "stage", "code", "user", "message")


Name = Annotated[str, Parameter(validator=not_empty("this is empty; see them with: packhorse failures"))]
Ids = Annotated[Name, Parameter(help="Their ids.")]
HowMany = Annotated[Whole, Parameter(help="How many at most.")]
Trial = Annotated[bool, Parameter(help="Only tell how many they are, and which are the newest.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Chosen:
    group: Annotated[str | None, Parameter(name="--group")] = None
    "Those of one group: its fingerprint."
    pipeline: str | None = None
    "Those of one pipeline."
    code: str | None = None
    "Those with this code, as HTTP_500."
    user: str | None = None
    "Those of one user's jobs."
    schedule: str | None = None
    "Those of the jobs of one schedule."
    since: str | None = None
    "Not before this time, as 2026-01-31T12:00:00Z."
    until: str | None = None
    "Before this time."

    def filters(self) -> dict[str, Any]:
        found = asdict(self)
        return {"fingerprint": found.pop("group"), "error_code": found.pop("code"), **found}


@app.default
def list_failures(
    *,
    chosen: Chosen = Chosen(),
    status: str | None = None,
    job: str | None = None,
    limit: HowMany = 50,
    remote: Remote = Remote(),
) -> None:
    """List failed runs, newest first.

    Args:
        status: Only open, retried, resolved or dismissed ones.
        job: Only those of one job: its id, or the beginning or end of it.
    """
    with Client(remote.url) as client:
        job = None if job is None else resolve_job(client, job)
        found = client.failures(**chosen.filters(), status=status, job_id=job, limit=limit)
    remote.print_list(found, COLUMNS, _failure, "There are no such failures.")


@app.command
def groups(*, dismissed: bool = False, limit: HowMany = 50, remote: Remote = Remote()) -> None:
    """List failures by what went wrong, the last seen first; the trend is by the hour, up to now.

    Args:
        dismissed: Only those that were dismissed.
    """
    with Client(remote.url) as client:
        found = list(islice(client.failure_groups(dismissed=dismissed or None, trend=True), limit))
    counted = ("group", "count", "open", "users", "trend, 24 h", "last seen", "state")
    columns = (*counted, "pipeline", "stage", "code", "message")
    remote.print_list(found, columns, _group, "There are no failures.")


@app.command
def show(name: Name, /, *, remote: Remote = Remote()) -> None:
    """Show a failure, the last failure of a job, or a group by its fingerprint.

    Args:
        name: The id of a failure or of a job, or the fingerprint of a group.
    """
    with Client(remote.url) as client:
        found = _find(client, name)
    facts = {key.replace("_", " "): _cell(value) for key, value in found.items() if value is not None}
    remote.print_facts(found, facts)


@app.command
def retry(
    *failures: Ids,
    chosen: Chosen = Chosen(),
    pace: float | None = None,
    dry_run: Trial = False,
    remote: Remote = Remote(),
) -> None:
    """Have open failures retried: some by their ids, or all that have what is named.

    Args:
        pace: How many a second at most.
    """
    with Client(remote.url) as client:
        found = client.retry_failures(failures, **chosen.filters(), pace=pace, dry_run=dry_run)
    _print_order(found, remote, "retried")


@app.command
def dismiss(
    *failures: Ids, reason: str, chosen: Chosen = Chosen(), dry_run: Trial = False, remote: Remote = Remote()
) -> None:
    """Dismiss open failures: some by their ids, or all that have what is named.

    Args:
        reason: Why.
    """
    with Client(remote.url) as client:
        found = client.dismiss_failures(failures, reason=reason, **chosen.filters(), dry_run=dry_run)
    _print_order(found, remote, "dismissed")


@app.command
def orders(order: str | None = None, /, *, limit: HowMany = 20, remote: Remote = Remote()) -> None:
    """List bulk retries and dismissals with their progress.

    Args:
        order: The id of one of them.
    """
    with Client(remote.url) as client:
        found = client.failure_orders(limit=limit) if order is None else client.failure_order(order)
    columns = ("order", "kind", "at", "by", "done", "left", "state")
    if order is not None and remote.json:
        output.document(found)
        return
    remote.print_list(found if order is None else [found], columns, _order, "Nothing was ordered.")


def _find(client: Client, name: str) -> Json:
    """Raises FailureNotFound or FailureGroupNotFound."""
    if name.count("-") == DASHES:
        return client.failure(name)
    job_id = resolve_job(client, name)
    if "-" not in job_id:
        return client.failure_group(name)
    if not (found := client.failures(job_id=job_id, limit=1)["items"]):
        try:
            status = client.get(job_id)["status"]
        except JobNotFound:
            raise FailureNotFound(failure_id=name) from None
        raise FailureNotFound(f"Job {job_id} has no failure: it is {status}.", failure_id=job_id)
    return client.failure(found[0]["failure_id"])


def _print_order(found: Json, remote: Remote, what: str) -> None:
    if remote.json:
        output.document(found)
        return
    count = f"{found['count']}{' or more' if found['is_at_least'] else ''}"
    if found["order"] is None:
        output.plain(f"{count} would be {what}.")
        if found["first"]:
            output.table(COLUMNS, map(_failure, found["first"]))
        return
    output.plain(f"{count} will be {what}: order {found['order']['order_id']}.")
    output.message(f"See its progress with: packhorse failures orders {found['order']['order_id']}")


def _failure(found: Json) -> tuple[object, ...]:
    names = ("status", "pipeline", "stage", "error_code", "user_id", "message")
    return found["failure_id"], output.clock(found["timestamp"]), *(found[name] for name in names)


def _group(found: Json) -> tuple[object, ...]:
    users = f"{found['users']}{'+' if found['has_more_users'] else ''}"
    state = "dismissed" if found["is_dismissed"] else "seen again" if found["seen_again"] else "open"
    names = ("pipeline", "stage", "error_code", "message")
    counts = (found["fingerprint"], found["count"], found["open"], users, _trend(found["trend"]["counts"]))
    return *counts, output.clock(found["last_seen"]), state, *(found[name] for name in names)


def _trend(counts: list[int | None]) -> str:
    """A sign for each hour, the last one now; a question mark where it is not known."""
    most = max(each or 0 for each in counts)
    return "".join("?" if each is None else HEIGHTS[-(-each * (len(HEIGHTS) - 1) // (most or 1))] for each in counts)


def _order(found: Json) -> tuple[object, ...]:
    left = ", ".join(f"{why} {count}" for why, count in found["left"].items())
    state = "running" if found["ended_at"] is None else f"done at {output.clock(found['ended_at'])}"
    return found["order_id"], found["kind"], output.clock(found["created_at"]), found["by"], found["done"], left, state


def _cell(value: object) -> object:
    return ", ".join(f"{k} {v}" for k, v in value.items() if v) if isinstance(value, dict) else value
