"""`packhorse limits`: how many tasks run at once or start in a time, who holds them, and what operators have set."""

from __future__ import annotations

from typing import Annotated

from cyclopts import App, Group, Parameter

from packhorse.cli import output
from packhorse.cli.options import Remote, Whole, not_empty
from packhorse.client import Json

app = App("limits", group_commands=Group("Commands"), result_action="return_value")

UNITS = {1.0: "second", 60.0: "minute", 3600.0: "hour"}
Name = Annotated[
    str,
    Parameter(
        validator=not_empty("the name is empty; list the limits with: packhorse limits"), help="Name of the limit."
    ),
]
Reason = Annotated[str, Parameter(help="Reason for the change, shown in the history.")]


@app.default
@app.command(name="list")
def list_limits(*, remote: Remote = Remote()) -> None:
    """List the limits of all pipelines."""
    with remote.client() as client:
        found = client.limits()
    empty = 'No limits. Pipelines and stages have them with limits=[Limit("user", at_once=2)].'
    remote.print_list(found, ("limit", "by", "in force", "used", "parked", "keys", "set by"), _row, empty)


@app.command
def show(name: Name, /, *, remote: Remote = Remote()) -> None:
    """Show a limit: its keys, the tasks of your tenant that hold them, and its history."""
    with remote.client() as client:
        found = client.limit(name)
    if remote.json:
        output.document(found)
        return
    output.facts(
        {
            "limit": found["name"],
            "by": found["by"],
            "in force": in_force(found),
            "declared": f"{', '.join(map(str, found['declared'])) or 'by no pipeline'} {_unit(found)}",
            "pipelines": ", ".join(found["pipelines"]),
        }
    )
    for each in found["keys"]:
        output.plain(_key_text(each))
    for each in found["versions"]:
        most = "reset" if each["most"] is None else each["most"]
        why = f": {each['reason']}" if each["reason"] else ""
        output.plain(f"version {each['version']}: {most}, by {each['by']} at {output.clock(each['at'])}{why}")


@app.command(name="set")
def set_limit(name: Name, most: Whole, /, *, reason: Reason = "", remote: Remote = Remote()) -> None:
    """Replace the number of a limit for all jobs, now. Running tasks continue.

    Args:
        most: The number. 0 starts nothing more.
    """
    with remote.client() as client:
        found = client.set_limit(name, most, reason)
    remote.print_one(found, f"Limit {found['name']} is {in_force(found)} (version {found['version']}).")


@app.command
def reset(name: Name, /, *, reason: Reason = "", remote: Remote = Remote()) -> None:
    """Apply the numbers of the pipelines again."""
    with remote.client() as client:
        found = client.reset_limit(name, reason)
    remote.print_one(found, f"Limit {found['name']} is {in_force(found)}.")


def in_force(limit: Json) -> str:
    """The number that applies, such as ``2 at once``."""
    numbers = [limit["set"]["most"]] if limit["set"] else limit["declared"]
    return f"{' or '.join(map(str, numbers)) or 'unlimited'} {_unit(limit)}"


def _unit(limit: Json) -> str:
    seconds = limit["window_seconds"]
    return "at once" if seconds is None else f"per {UNITS.get(seconds, f'{seconds:g} s')}"


def _row(limit: Json) -> tuple[object, ...]:
    by = "" if limit["set"] is None else limit["set"]["by"]
    return limit["name"], limit["by"], in_force(limit), limit["used"], limit["parked"], len(limit["keys"]), by


def _key_text(key: Json) -> str:
    name = "users of other tenants" if key["value"] is None else key["value"] or "all"
    holders = ", ".join(f"{each['job_id']} {each['stage']}" for each in key["holders"])
    free = f", room again at {output.clock(key['free_at'])}" if key["free_at"] else ""
    return f"{name}: {key['used']} used, {key['parked']} parked{free}{': ' if holders else ''}{holders}"
