"""``/schedules``: what is run when, what became of it, and every version of it."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Response, get
from litestar.params import FromPath, FromQuery, QueryParameter

from packhorse.web.api_calls import Api, Page, Problem
from packhorse.web.render import rendered
from packhorse.web.widgets import sparklines
from packhorse.web.widgets.diff import differences, pretty

LISTED = 25
"""Schedules on a page: each is drawn with thirty runs."""
RUNS = 30
VERSIONS = 5
"""That the page of a schedule shows; the others have a page of their own."""

Deleted = Annotated[bool, QueryParameter(description="Also those that were deleted.")]
Cursor = FromQuery[str | None]


@get("/schedules", scope="read", include_in_schema=False)
async def listed(request: Page, deleted: Deleted = False, cursor: Cursor = None) -> Response[bytes]:
    asked = {"runs": sparklines.LAST, "deleted": deleted or None, "cursor": cursor, "limit": LISTED}
    found = await Api(request).get("/schedules", **asked)
    rows = [{**each, "state": state(each), "spark": sparklines.runs(each["runs"])} for each in found["items"]]
    return rendered(request, "schedules.html", rows=rows, next=found["next"], deleted=deleted, cursor=cursor)


@get("/schedules/{schedule_id:str}", scope="read", include_in_schema=False)
async def schedule(
    request: Page, schedule_id: FromPath[str], cursor: FromQuery[float | None] = None
) -> Response[bytes]:
    api = Api(request)
    path = f"/schedules/{schedule_id}"
    found, runs, versions = await asyncio.gather(
        api.get(path), api.get(f"{path}/runs", limit=RUNS, before=cursor), api.get(f"{path}/versions", limit=VERSIONS)
    )
    return rendered(
        request,
        "schedule.html",
        schedule=found,
        state=state(found),
        parameters=pretty(found["parameters"]),
        drift=differences(found["drift"] or ()),
        preview=await preview(api, found["cron"], found["zone"]) if found["deleted_at"] is None else [],
        runs=runs["items"],
        next=runs["next"],
        cursor=cursor,
        drawn=sparklines.runs(runs["items"]),
        versions=[_version(each) for each in versions["items"]],
        has_more=versions["next"] is not None,
    )


@get("/schedules/{schedule_id:str}/history", scope="read", include_in_schema=False)
async def history(request: Page, schedule_id: FromPath[str], cursor: FromQuery[int | None] = None) -> Response[bytes]:
    api = Api(request)
    path = f"/schedules/{schedule_id}"
    found, versions = await asyncio.gather(api.get(path), api.get(f"{path}/versions", before=cursor))
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
    api = Api(request)
    path = f"/schedules/{schedule_id}"
    found, changed, *both = await asyncio.gather(
        api.get(path),
        api.get(f"{path}/diff", old=old, new=new),
        *(api.get(f"{path}/versions/{each}") for each in (old, new)),
    )
    return rendered(
        request, "schedule_diff.html", schedule=found, changes=differences(changed["items"]), old=both[0], new=both[1]
    )


ROUTES = [listed, schedule, history, diff]


# What the pages that edit use, too.


def state(found: Any) -> str:
    if found["deleted_at"] is not None:
        return "deleted"
    return "active" if found["active"] else "paused"


async def preview(api: Api, cron: str, zone: str) -> list[Any]:
    """The next times; none of a line that fires no more."""
    try:
        found: list[Any] = (await api.post("/schedules/preview", {"cron": cron, "zone": zone}))["items"]
    except Problem:
        return []
    return found


def _version(found: Any) -> dict[str, Any]:
    return {**found, "changes": differences(found["changes"])}
