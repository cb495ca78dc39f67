"""``/schedules``: what is run when, what became of it, and every version of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Annotated, Any

from litestar import Response, get
from litestar.params import FromPath, FromQuery, QueryParameter

from packhorse.errors import PackhorseError
from packhorse.http.app import BASE
from packhorse.http.routes.schedules import Before
from packhorse.http.services import HttpServices, tools_and_caller
from packhorse.jobs import schedules
from packhorse.schemas.schedules import MomentDocument
from packhorse.web.render import Page, rendered
from packhorse.web.widgets import sparklines
from packhorse.web.widgets.diff import differences, pretty

LISTED = 25
"""Schedules on a page: each is drawn with thirty runs."""
RUNS = 30
VERSIONS = 5
"""That the page of a schedule shows; the others have a page of their own."""

Deleted = Annotated[bool, QueryParameter(description="Also those that were deleted.")]
Cursor = FromQuery[str | None]
VersionBefore = Annotated[int | None, QueryParameter(ge=0, le=schedules.LARGEST)]


@get("/schedules", scope="read", include_in_schema=False)
async def listed(request: Page, deleted: Deleted = False, cursor: Cursor = None) -> Response[bytes]:
    found = await schedules.list_schedules(
        *tools_and_caller(request.scope),
        deleted=deleted,
        runs=sparklines.LAST,
        cursor=cursor,
        limit=LISTED,
        base=api_path(request),
    )
    rows = [{**each, "state": state(each), "spark": sparklines.runs(each["runs"])} for each in found["items"]]
    return rendered(request, "schedules.html", rows=rows, next=found["next"], deleted=deleted, cursor=cursor)


@get("/schedules/{schedule_id:str}", scope="read", include_in_schema=False)
async def schedule(request: Page, schedule_id: FromPath[str], cursor: Before = None) -> Response[bytes]:
    tools, caller = tools_and_caller(request.scope)
    found, runs, versions = await asyncio.gather(
        schedules.schedule(tools, caller, schedule_id),
        schedules.list_runs(tools, caller, schedule_id, limit=RUNS, before=cursor, base=api_path(request)),
        schedules.list_versions(tools, caller, schedule_id, limit=VERSIONS),
    )
    return rendered(
        request,
        "schedule.html",
        schedule=found,
        state=state(found),
        parameters=pretty(found["parameters"]),
        drift=differences(found["drift"] or ()),
        preview=preview(tools, found["cron"], found["zone"]) if found["deleted_at"] is None else [],
        runs=runs["items"],
        next=runs["next"],
        cursor=cursor,
        drawn=sparklines.runs(runs["items"]),
        versions=[_version(each) for each in versions["items"]],
        has_more=versions["next"] is not None,
    )


@get("/schedules/{schedule_id:str}/history", scope="read", include_in_schema=False)
async def history(request: Page, schedule_id: FromPath[str], cursor: VersionBefore = None) -> Response[bytes]:
    tools, caller = tools_and_caller(request.scope)
    found = await schedules.schedule(tools, caller, schedule_id)
    before = schedules.LARGEST if cursor is None else cursor
    versions = await schedules.list_versions(tools, caller, schedule_id, before=before)
    return rendered(
        request,
        "schedule_history.html",
        schedule=found,
        versions=[_version(each) for each in versions["items"]],
        next=versions["next"],
        cursor=cursor,
    )


@get("/schedules/{schedule_id:str}/diff", scope="read", include_in_schema=False)
async def diff(request: Page, schedule_id: FromPath[str], old: FromQuery[int], new: FromQuery[int]) -> Response[bytes]:
    tools, caller = tools_and_caller(request.scope)
    found = await schedules.schedule(tools, caller, schedule_id)
    changed = await schedules.diff(tools, caller, schedule_id, old, new)
    both = [await schedules.version(tools, caller, schedule_id, each) for each in (old, new)]
    return rendered(
        request, "schedule_diff.html", schedule=found, changes=differences(changed), old=both[0], new=both[1]
    )


ROUTES = [listed, schedule, history, diff]


# What the pages that edit use, too.


def state(found: Any) -> str:
    if found["deleted_at"] is not None:
        return "deleted"
    return "active" if found["active"] else "paused"


def preview(tools: HttpServices, cron: str, zone: str) -> Sequence[MomentDocument]:
    """The next times; none of a line that fires no more."""
    try:
        return schedules.preview(tools, cron, zone)["items"]
    except PackhorseError:
        return []


def api_path(request: Page) -> str:
    """Where the API is, for addresses in documents."""
    return f"{request.scope.get('root_path', '')}{BASE}"


def _version(found: Any) -> dict[str, Any]:
    return {**found, "changes": differences(found["changes"])}
