"""How schedules are printed."""

from __future__ import annotations

from itertools import islice

from packhorse.cli import output
from packhorse.cli.options import Remote
from packhorse.client import Json


def shown(schedule: Json, remote: Remote) -> None:
    if remote.json:
        output.document(schedule)
        return
    facts = {
        "schedule": schedule["schedule_id"],
        "version": f"{schedule['version']}, by {schedule['updated_by']} at {clock(schedule['updated_at'])}",
        "state": state(schedule),
        "next": next_of(schedule),
        "when": schedule["when"],
        "cron": f"{schedule['cron']} ({schedule['zone']})",
        "pipeline": schedule["pipeline"],
        "user": schedule["user_id"],
        "overlap": schedule["overlap"],
        "misfire": schedule["misfire"],
        **{f"  {name}": value for name, value in schedule["parameters"].items()},
        **{f"label {name}": value for name, value in schedule["labels"].items()},
    }
    drift = islice(schedule["drift"] or (), 20)
    output.facts({**facts, **{f"drift {each['field']}": difference(each) for each in drift}})


def changed(schedule: Json, remote: Remote) -> None:
    if remote.json:
        output.document(schedule)
    else:
        output.plain(f"Schedule {schedule['schedule_id']} is {state(schedule)}, at version {schedule['version']}.")


def tried(schedule: Json, remote: Remote) -> None:
    """What an edit would do."""
    if remote.json:
        output.document(schedule)
        return
    output.plain(f"Schedule {schedule['schedule_id']} would be at version {schedule['version']}: {schedule['when']}.")
    if schedule["changes"]:
        output.table(("field", "old", "new"), [(d["field"], d["old"], d["new"]) for d in schedule["changes"]])


def state(schedule: Json) -> str:
    if schedule["deleted_at"] is not None:
        return "deleted"
    drift = ", differs from the code" if schedule["drift"] else ""
    return ("active" if schedule["active"] else "paused") + drift


def next_of(schedule: Json) -> str:
    return clock(schedule["next_at"])


def difference(change: Json) -> str:
    return f"{change['field']}: {change['old']} -> {change['new']}"


def clock(at: str | None) -> str:
    return "" if at is None else at[:19].replace("T", " ")
