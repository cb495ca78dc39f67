"""`packhorse schedules`: schedules, their versions, and the result of each tick."""

from __future__ import annotations

from datetime import UTC
from itertools import islice
from operator import itemgetter
from typing import Annotated, Any, Literal

from cyclopts import App, CycloptsError, Group, Parameter

from packhorse.cli import output
from packhorse.cli.commands.submit import group_words, parameters_from, prefer_scope_error, schema_of
from packhorse.cli.options import Remote, Whole, not_empty
from packhorse.client import Client, Json
from packhorse.core import text
from packhorse.define.options import seconds
from packhorse.errors import InvalidInput, ScheduleNotFound

app = App("schedules", group_commands=Group("Commands"), result_action="return_value")


ScheduleId = Annotated[
    str,
    Parameter(
        validator=not_empty("the schedule id is empty; list the schedules with: packhorse schedules"),
        help="Schedule id.",
    ),
]
Reason = Annotated[str, Parameter(help="Reason for the change, shown in the history.")]
HowMany = Annotated[Whole, Parameter(help="Maximum number to list.")]
Lifetime = Annotated[str | None, Parameter(help="Lifetime of the token, such as 90d.")]
Labels = Annotated[list[str] | None, Parameter(name="--label", negative=())]
Values = Annotated[str, Parameter(name="NAME=VALUE")]

CHANGED = ("field", "old", "new")


@app.default
@app.command(name="list")
def list_schedules(*, deleted: bool = False, remote: Remote = Remote()) -> None:
    """List schedules: pipeline, cron expression, next run.

    Args:
        deleted: Also list deleted schedules whose runs are still kept.
    """
    with remote.client() as client:
        found = list(client.schedules(deleted=deleted))
    remote.print_list(
        found,
        ("schedule", "pipeline", "cron", "when", "next", "state"),
        lambda s: (s["schedule_id"], s["pipeline"], s["cron"], s["when"], output.clock(s["next_at"]), _state(s)),
        empty="No schedules. Create one with: packhorse schedules put ID PIPELINE --cron '0 3 * * *'",
    )


@app.command
def show(schedule: ScheduleId, /, *, remote: Remote = Remote()) -> None:
    """Show a schedule."""
    with remote.client() as client:
        _print_schedule(client.schedule(schedule), remote)


@app.command
def put(
    schedule: ScheduleId,
    /,
    pipeline: str | None = None,
    *values: Values,
    cron: str | None = None,
    zone: str | None = None,
    user: str | None = None,
    overlap: Literal["skip", "queue", "cancel"] | None = None,
    misfire: Literal["skip", "catch_up"] | None = None,
    window: str | None = None,
    labels: Labels = None,
    reason: Reason = "",
    version: Whole | None = None,
    dry_run: bool = False,
    remote: Remote = Remote(),
) -> None:
    """Create or edit a schedule. When editing, options that you leave out keep their values.

    Args:
        pipeline: Pipeline to run. List them with: packhorse pipelines
        values: Parameters of the jobs. NAME=@PATH sends the text in that file.
        cron: Cron expression: minute, hour, day, month and weekday, or six fields with the second first.
        zone: Time zone, such as Europe/Berlin. Default: UTC.
        user: User that the jobs belong to.
        overlap: If the previous run is still running: skip this one, queue it, or cancel the previous one.
        misfire: If a run was missed because no worker was running: skip it, or catch_up to run it late.
        window: With catch_up, maximum age of a missed run, such as 1h.
        labels: Label as NAME=VALUE, for people. Can be repeated.
        version: Fail if the schedule is no longer at this version. Default: the current version.
        dry_run: Change nothing: print what would change.
    """
    if pipeline is not None and "=" in pipeline:  # a parameter of what is run already
        values, pipeline = (pipeline, *values), None
    given = {"cron": cron, "zone": zone, "user": user, "overlap": overlap, "misfire": misfire, "window": window}
    said: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
    with remote.client() as client:
        found = _schedule_or_none(client, schedule)
        said = {**_current(found), **said}
        said["pipeline"] = pipeline or said.get("pipeline")
        if "cron" not in said or said["pipeline"] is None:
            raise InvalidInput("A new schedule needs a pipeline and --cron.", field="cron")
        words = group_words(values, "schedules", "put")
        with prefer_scope_error(client, "operate"):
            added, files = parameters_from(words, schema_of(client, said["pipeline"]))
        if files:
            raise InvalidInput("A schedule cannot have file parameters.", field=next(iter(files)))
        said["parameters"] = {**said.get("parameters", {}), **added}
        if labels is not None:
            said["labels"] = {**said.get("labels", {}), **dict(_pair(each) for each in labels)}
        seen = version if version is not None or found is None else found["version"]
        made = client.put_schedule(schedule, **said, reason=reason, version=seen, dry_run=dry_run)
    (_print_trial if dry_run else _print_schedule)(made, remote)


@app.command
def pause(schedule: ScheduleId, /, *, reason: Reason = "", remote: Remote = Remote()) -> None:
    """Pause a schedule: it starts no jobs until you resume it."""
    with remote.client() as client:
        _print_change(client.pause_schedule(schedule, reason), remote)


@app.command
def resume(schedule: ScheduleId, /, *, reason: Reason = "", remote: Remote = Remote()) -> None:
    """Resume a schedule. It continues with its next run."""
    with remote.client() as client:
        _print_change(client.resume_schedule(schedule, reason), remote)


@app.command
def reset(schedule: ScheduleId, /, *, reason: Reason = "", remote: Remote = Remote()) -> None:
    """Reset a schedule to what the app's code declares."""
    with remote.client() as client:
        _print_change(client.reset_schedule(schedule, reason), remote)


@app.command
def delete(schedule: ScheduleId, /, *, reason: Reason = "", remote: Remote = Remote()) -> None:
    """Delete a schedule. Its runs remain visible until they expire."""
    with remote.client() as client:
        _print_change(client.delete_schedule(schedule, reason), remote)


@app.command
def run(schedule: ScheduleId, /, *, remote: Remote = Remote()) -> None:
    """Start a job of a schedule now, in addition to its regular runs."""
    with remote.client() as client:
        made = client.run_schedule(schedule)
    text = f"Started. See the result with: packhorse schedules runs {schedule}"
    remote.print_one(made, text, to=output.message)


@app.command
def token(schedule: ScheduleId, /, *, expires: Lifetime = None, remote: Remote = Remote()) -> None:
    """Create a token with which another system runs a schedule without a key. It is printed only once."""
    try:
        lifetime = None if expires is None else int(seconds(expires))
    except ValueError as error:
        raise CycloptsError(msg=f"--expires: {error}", command_chain=["schedules", "token"]) from error
    with remote.client() as client:
        made = client.create_trigger_token(schedule, lifetime)
    remote.print_one(made, f"POST {made['path']}")


@app.command
def runs(schedule: ScheduleId, /, *, limit: HowMany = 20, remote: Remote = Remote()) -> None:
    """List the runs of a schedule, newest first."""
    with remote.client() as client:
        found = client.schedule_runs(schedule, limit=limit)
    columns = ("tick", "version", "status", "ms", "job", "message")
    remote.print_list(found, columns, _run_row, empty="It has not run yet.")


@app.command
def history(schedule: ScheduleId, /, *, limit: HowMany = 20, remote: Remote = Remote()) -> None:
    """List the versions of a schedule, newest first: author, reason and changes."""
    with remote.client() as client:
        found = client.schedule_versions(schedule, limit=limit)
    remote.print_list(found, ("version", "at", "by", "action", "reason", "changes"), _version_row)


@app.command
def diff(schedule: ScheduleId, old: Whole, new: Whole, /, *, remote: Remote = Remote()) -> None:
    """Compare two versions of a schedule.

    Args:
        old: Number of the older version.
        new: Number of the newer version.
    """
    with remote.client() as client:
        found = client.diff_schedule(schedule, old, new)
    remote.print_list(found, CHANGED, itemgetter(*CHANGED), empty="No differences.")


@app.command
def rollback(schedule: ScheduleId, to: Whole, /, *, reason: Reason = "", remote: Remote = Remote()) -> None:
    """Restore an earlier version of a schedule, as a new version.

    Args:
        to: Number of the version to restore.
    """
    with remote.client() as client:
        _print_change(client.rollback_schedule(schedule, to, reason), remote)


@app.command
def preview(cron: str, /, *, zone: str = "UTC", remote: Remote = Remote()) -> None:
    """Show the next ten runs of a cron expression, and where daylight saving time changes them.

    Args:
        cron: Cron expression, in quotes.
        zone: Time zone, such as Europe/Berlin.
    """
    with remote.client() as client:
        found = client.preview_schedule(cron, zone)
    if not remote.json:
        output.message(f"{text.describe_schedule(cron, zone)}:")
    columns = ("local time", "UTC", "", "")
    remote.print_list(found, columns, lambda m: (m["local"], output.clock(m["at"], UTC), m["mark"], m["note"]))


def _schedule_or_none(client: Client, schedule: str) -> Json | None:
    try:
        found = client.schedule(schedule)
    except ScheduleNotFound:
        return None
    return None if found["deleted_at"] is not None else found


def _current(found: Json | None) -> Json:
    if found is None:
        return {}
    names = ("pipeline", "parameters", "cron", "zone", "active", "overlap", "misfire", "window", "labels")
    return {**{name: found[name] for name in names}, "user": found["user_id"]}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise InvalidInput(f"--label {text} is not NAME=VALUE.", field="labels")
    return name, value


def _print_schedule(schedule: Json, remote: Remote) -> None:
    facts = {
        "schedule": schedule["schedule_id"],
        "version": f"{schedule['version']}, by {schedule['updated_by']} at {output.clock(schedule['updated_at'])}",
        "state": _state(schedule),
        "next": output.clock(schedule["next_at"]),
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
    remote.print_facts(schedule, {**facts, **{f"drift {each['field']}": _difference(each) for each in drift}})


def _print_change(schedule: Json, remote: Remote) -> None:
    text = f"Schedule {schedule['schedule_id']} is {_state(schedule)}, at version {schedule['version']}."
    remote.print_one(schedule, text)


def _print_trial(schedule: Json, remote: Remote) -> None:
    text = f"Schedule {schedule['schedule_id']} would be at version {schedule['version']}: {schedule['when']}."
    remote.print_one(schedule, text)
    if schedule["changes"] and not remote.json:
        output.table(CHANGED, map(itemgetter(*CHANGED), schedule["changes"]))


def _run_row(run: Json) -> tuple[object, ...]:
    return output.clock(run["tick"]), *itemgetter("version", "status", "duration_ms", "job_id", "message")(run)


def _version_row(version: Json) -> tuple[object, ...]:
    changes = ", ".join(map(_difference, version["changes"]))
    return version["version"], output.clock(version["at"]), *itemgetter("author", "action", "reason")(version), changes


def _state(schedule: Json) -> str:
    if schedule["deleted_at"] is not None:
        return "deleted"
    drift = ", differs from the code" if schedule["drift"] else ""
    return ("active" if schedule["active"] else "paused") + drift


def _difference(change: Json) -> str:
    return f"{change['field']}: {change['old']} -> {change['new']}"
