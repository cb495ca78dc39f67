"""``/schedules``: schedules, their runs and versions; pause, run, roll back, reset, delete."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from packhorse.errors import EditedMeanwhile, InvalidInput, PackhorseError
from packhorse.http.app import BASE
from packhorse.http.routes.schedules import Before
from packhorse.http.services import HttpServices
from packhorse.jobs import schedules
from packhorse.schemas.schedules import MomentDocument, ScheduleDocument
from packhorse.web.forms import form
from packhorse.web.render import Page, redirect, render_page, sentence, services_and_caller
from packhorse.web.widgets import plots
from packhorse.web.widgets.formatting import differences, pretty

LISTED = 25  # schedules on a page: each is drawn with thirty runs
RUNS = 30
VERSIONS = 5  # that the page of a schedule shows; the others have a page of their own

ASKED = {
    "rollback": ("Roll back", "Make version {to} the newest again: a new version, with exactly what that one said."),
    "reset": ("Reset to the code", "Make it what the app's code declares, again."),
    "delete": ("Delete", "No further runs. Its versions and runs can be looked at until they are purged."),
}
"""What needs a second look: the word on the button, and what it means."""
DONE = {"rollback": "Rolled back", "reset": "Reset to the code", "delete": "Deleted"}
SWITCHED = {"pause": "Paused", "resume": "Resumed"}

ONE = "/schedules/{schedule_id:str}"

Deleted = Annotated[bool, QueryParameter(description="Also those that were deleted.")]
Cursor = FromQuery[str | None]
To = Annotated[int, QueryParameter(ge=1, description="The version to go back to.")]
VersionBefore = Annotated[int | None, QueryParameter(ge=0, le=schedules.LARGEST)]


@get("/schedules", scope="read", include_in_schema=False)
async def listed(request: Page, deleted: Deleted = False, cursor: Cursor = None) -> Response[bytes]:
    found = await schedules.list_schedules(
        *services_and_caller(request),
        deleted=deleted,
        runs=plots.LAST,
        cursor=cursor,
        limit=LISTED,
        base=_api_path(request),
    )
    rows = [{**each, "state": _state(each), "spark": plots.runs_spark(each["runs"])} for each in found["items"]]
    return render_page(request, "schedules.html", rows=rows, next=found["next"], deleted=deleted, cursor=cursor)


@get(ONE, scope="read", include_in_schema=False)
async def schedule(request: Page, schedule_id: FromPath[str], cursor: Before = None) -> Response[bytes]:
    services, caller = services_and_caller(request)
    found, runs, versions = await asyncio.gather(
        schedules.schedule(services, caller, schedule_id),
        schedules.list_runs(services, caller, schedule_id, limit=RUNS, before=cursor, base=_api_path(request)),
        schedules.list_versions(services, caller, schedule_id, limit=VERSIONS),
    )
    return render_page(
        request,
        "schedule.html",
        schedule=found,
        state=_state(found),
        parameters=pretty(found["parameters"]),
        drift=differences(found["drift"] or ()),
        preview=preview(services, found["cron"], found["zone"]) if found["deleted_at"] is None else [],
        runs=runs["items"],
        next=runs["next"],
        cursor=cursor,
        drawn=plots.runs_spark(runs["items"]),
        versions=[_version(each) for each in versions["items"]],
        has_more=versions["next"] is not None,
    )


@get(f"{ONE}/history", scope="read", include_in_schema=False)
async def history(request: Page, schedule_id: FromPath[str], cursor: VersionBefore = None) -> Response[bytes]:
    services, caller = services_and_caller(request)
    found = await schedules.schedule(services, caller, schedule_id)
    before = schedules.LARGEST if cursor is None else cursor
    versions = await schedules.list_versions(services, caller, schedule_id, before=before)
    return render_page(
        request,
        "schedule_history.html",
        schedule=found,
        versions=[_version(each) for each in versions["items"]],
        next=versions["next"],
        cursor=cursor,
    )


@get(f"{ONE}/diff", scope="read", include_in_schema=False)
async def diff(request: Page, schedule_id: FromPath[str], old: FromQuery[int], new: FromQuery[int]) -> Response[bytes]:
    services, caller = services_and_caller(request)
    found = await schedules.schedule(services, caller, schedule_id)
    changed = await schedules.diff(services, caller, schedule_id, old, new)
    both = [await schedules.version(services, caller, schedule_id, each) for each in (old, new)]
    return render_page(
        request, "schedule_diff.html", schedule=found, changes=differences(changed), old=both[0], new=both[1]
    )


def _state(found: Any) -> str:
    if found["deleted_at"] is not None:
        return "deleted"
    return "active" if found["active"] else "paused"


def preview(services: HttpServices, cron: str, zone: str) -> Sequence[MomentDocument]:
    """The next times; none of a line that fires no more."""
    try:
        return schedules.preview(services, cron, zone)["items"]
    except PackhorseError:
        return []


def _api_path(request: Page) -> str:
    """Where the API is, for addresses in documents."""
    return f"{request.scope.get('root_path', '')}{BASE}"


def _version(found: Any) -> dict[str, Any]:
    return {**found, "changes": differences(found["changes"])}


@post([f"{ONE}/pause", f"{ONE}/resume"], scope="operate", status_code=200, include_in_schema=False)
async def switch(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    given, verb = await form(request), _verb(request)
    services, caller = services_and_caller(request)
    reason = str(given.get("reason", ""))
    await schedules.switch(services, caller, schedule_id, None, active=verb == "resume", reason=reason)
    return redirect(request, _back(schedule_id, given), said=f"{SWITCHED[verb]}: {schedule_id}.")


@post(f"{ONE}/run", scope="operate", status_code=200, include_in_schema=False)
async def run(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    await schedules.run(*services_and_caller(request), schedule_id, _api_path(request))
    return redirect(request, _back(schedule_id, given), said=f"Run of {schedule_id} started.")


@get(f"{ONE}/rollback", scope="operate", include_in_schema=False)
async def ask_rollback(request: Page, schedule_id: FromPath[str], to: To) -> Response[bytes]:
    return await _asked(request, schedule_id, to)


@get([f"{ONE}/reset", f"{ONE}/delete"], scope="operate", include_in_schema=False)
async def ask(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    return await _asked(request, schedule_id)


@post([f"{ONE}/rollback", f"{ONE}/reset", f"{ONE}/delete"], scope="operate", status_code=200, include_in_schema=False)
async def change(request: Page, schedule_id: FromPath[str]) -> Response[bytes]:
    """Changes the version that was shown: it does not overwrite a newer one."""
    given, verb = await form(request), _verb(request)
    reason, to = str(given.get("reason", "")), str(given.get("to", ""))
    number = int(to) if to.isascii() and to.isdecimal() else None
    version = str(given.get("version", ""))
    seen = f'"{version if version.isascii() and version.isdecimal() else 0}"'
    services, caller = services_and_caller(request)
    try:
        if verb == "delete":
            await schedules.delete(services, caller, schedule_id, seen, reason)
        elif verb == "reset":
            await schedules.reset(services, caller, schedule_id, seen, reason)
        else:
            await schedules.roll_back(services, caller, schedule_id, seen, number or 0, reason)
    except (EditedMeanwhile, InvalidInput) as error:
        return await _asked(request, schedule_id, number, reason, sentence(error))
    return redirect(request, f"/schedules/{schedule_id}", said=f"{DONE[verb]}.")


def _verb(request: Page) -> str:
    return str(request.scope["path"]).rpartition("/")[2]


async def _asked(
    request: Page, schedule_id: str, to: int | None = None, reason: str = "", mistake: str = ""
) -> Response[bytes]:
    """What it would change, before it is done."""
    found = await schedules.schedule(*services_and_caller(request), schedule_id)
    verb = _verb(request)
    word, meaning = ASKED[verb]
    return render_page(
        request,
        "schedule_confirm.html",
        status=422 if mistake else 200,
        schedule=found,
        verb=verb,
        word=word,
        meaning=meaning.format(to=to),
        changes=differences(await _changes(request, found, verb, to)),
        to=to,
        reason=reason,
        mistake=mistake,
    )


async def _changes(request: Page, found: ScheduleDocument, verb: str, to: int | None) -> list[Any]:
    if verb == "rollback":
        versions = found["version"], to or 0
        return [*await schedules.diff(*services_and_caller(request), found["schedule_id"], *versions)]
    drift = found["drift"] or () if verb == "reset" else ()
    return [{"field": each["field"], "old": each["new"], "new": each["old"]} for each in drift]  # towards the code


def _back(schedule_id: str, given: Any) -> str:
    return "/schedules" if given.get("from") == "list" else f"/schedules/{schedule_id}"


ROUTES = [listed, schedule, history, diff, switch, run, ask_rollback, ask, change]
