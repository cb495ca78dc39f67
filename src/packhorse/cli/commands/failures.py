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
from packhorse.plurals import counted

app = App("failures", group_commands=Group("Commands"), result_action="return_value")

HEIGHTS = "·▁▂▃▄▅▆▇█"
GERUND = {"retry": "Retrying", "dismiss": "Dismissing"}
DASHES = 6  # in the id of a failure, which contains the id of its job
COLUMNS = ("failure", "at", "status", "pipeline", "stage", "code", "user", "message")


Name = Annotated[str, Parameter(validator=not_empty("the id is empty; list the failures with: packhorse failures"))]
Ids = Annotated[Name, Parameter(help="Failure ids. Leave out to use the filters.")]
HowMany = Annotated[Whole, Parameter(help="Maximum number to list.")]
Trial = Annotated[bool, Parameter(help="Change nothing: print how many failures match, and the newest of them.")]


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class Chosen:
    group: Annotated[str | None, Parameter(name="--group")] = None
    "Only failures of this group (its fingerprint)."
    pipeline: str | None = None
    "Only failures of this pipeline."
    code: str | None = None
    "Only failures with this code, such as HTTP_500."
    user: str | None = None
    "Only failures of this user's jobs."
    schedule: str | None = None
    "Only failures of jobs of this schedule."
    since: str | None = None
    "Only failures at this time or later, such as 2026-01-31T12:00:00Z."
    until: str | None = None
    "Only failures before this time."

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
        status: Only failures with this status: open, retried, resolved or dismissed.
        job: Only failures of this job: its id, or the first or last digits of it.
    """
    with Client(remote.url) as client:
        job = None if job is None else resolve_job(client, job)
        found = client.failures(**chosen.filters(), status=status, job_id=job, limit=limit)
    remote.print_list(found, COLUMNS, _failure, "No failures found.")


@app.command
def groups(*, dismissed: bool = False, limit: HowMany = 50, remote: Remote = Remote()) -> None:
    """List failures grouped by cause, last seen first. The trend shows the last 24 hours, hour by hour.

    Args:
        dismissed: Only dismissed groups.
    """
    with Client(remote.url) as client:
        found = list(islice(client.failure_groups(dismissed=dismissed or None, trend=True), limit))
    counted = ("group", "count", "open", "users", "trend, 24 h", "last seen", "state")
    columns = (*counted, "pipeline", "stage", "code", "message")
    remote.print_list(found, columns, _group, "No failures.")


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
    """Retry open failures: those with the given ids, or all that match the filters.

    Args:
        pace: Maximum retries per second.
    """
    with Client(remote.url) as client:
        found = client.retry_failures(failures, **chosen.filters(), pace=pace, dry_run=dry_run)
    _print_order(found, remote, "retry")


@app.command
def dismiss(
    *failures: Ids, reason: str, chosen: Chosen = Chosen(), dry_run: Trial = False, remote: Remote = Remote()
) -> None:
    """Dismiss open failures: those with the given ids, or all that match the filters.

    Args:
        reason: Why they are dismissed.
    """
    with Client(remote.url) as client:
        found = client.dismiss_failures(failures, reason=reason, **chosen.filters(), dry_run=dry_run)
    _print_order(found, remote, "dismiss")


@app.command
def orders(order: str | None = None, /, *, limit: HowMany = 20, remote: Remote = Remote()) -> None:
    """List bulk retries and dismissals with their progress.

    Args:
        order: Id of one bulk action. Default: list all.
    """
    with Client(remote.url) as client:
        found = client.failure_orders(limit=limit) if order is None else client.failure_order(order)
    columns = ("order", "kind", "at", "by", "done", "left", "state")
    if order is not None and remote.json:
        output.document(found)
        return
    remote.print_list(found if order is None else [found], columns, _order, "No bulk retries or dismissals.")


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
    failures = counted(f"{found['count']}{' or more' if found['is_at_least'] else ''}", "failure")
    if found["order"] is None:
        output.plain(f"Would {what} {failures}.")
        if found["first"]:
            output.table(COLUMNS, map(_failure, found["first"]))
        return
    output.plain(f"{GERUND[what]} {failures}: order {found['order']['order_id']}.")
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
