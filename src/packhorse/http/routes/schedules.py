"""Schedules: what is run when; every edit is a version, and what became of each tick stays to be seen."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from packhorse.auth.access import Caller
from packhorse.errors import (
    ScheduleNotFound,
    TooLarge,
    TooSlow,
    UnsupportedMedia,
    VersionNotFound,
)
from packhorse.http.openapi import refusing, taking
from packhorse.http.requests.json_body import asked
from packhorse.http.requests.query import LARGEST, Number
from packhorse.http.services import Tools
from packhorse.jobs import schedules
from packhorse.schemas.schedules import (
    DifferencePage,
    PreviewPage,
    RunsPage,
    ScheduleDocument,
    SchedulesPage,
    VersionDocument,
    VersionsPage,
)

MOST_RUNS = 30
"""Runs that a list shows of each schedule."""
BODY = (TooLarge, UnsupportedMedia, TooSlow)

Limit = Annotated[int, QueryParameter(ge=1, le=200)]
Before = Annotated[float | None, QueryParameter(ge=1, le=LARGEST, description="Only ticks before this moment.")]
Cursor = Annotated[str | None, QueryParameter(description="`next` of the page before.")]
Deleted = Annotated[bool, QueryParameter(description="Also those that were deleted, as long as their runs are kept.")]
Last = Annotated[int, QueryParameter(ge=0, le=MOST_RUNS, description="So many of each one's last runs are told, too.")]
Asking = Request[Any, Any, State]


class Line(Struct):
    """A cron line to look at."""

    cron: str = ""
    zone: str = "UTC"


@get("/schedules", scope="read", responses=refusing())
async def list_schedules(
    request: Asking,
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    deleted: Deleted = False,
    runs: Last = 0,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> SchedulesPage:
    """Schedules by id. `next` is the cursor of the next page."""
    return await schedules.list_schedules(
        tools, caller, deleted=deleted, runs=runs, cursor=cursor, limit=limit, base=base_of(request)
    )


@post(
    "/schedules/preview",
    scope="read",
    status_code=200,
    operation_class=taking(Line, required=True),
    responses=refusing(*BODY),
)
async def preview_schedule(request: Asking, tools: NamedDependency[Tools]) -> PreviewPage:
    """The next ten times a cron line fires, and the local times that are skipped or come twice where clocks change."""
    line = await asked(request, tools.settings, Line)
    return schedules.preview(tools, line.cron, line.zone)


@get("/schedules/{schedule_id:str}", scope="read", responses=refusing(ScheduleNotFound))
async def get_schedule(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], schedule_id: FromPath[str]
) -> Response[ScheduleDocument]:
    """One schedule; its `ETag` names the version. One that was deleted is there until its runs are."""
    return shown(await schedules.schedule(tools, caller, schedule_id))


@get("/schedules/{schedule_id:str}/versions", scope="read", responses=refusing(ScheduleNotFound))
async def list_versions(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    before: Number = LARGEST,
    limit: Limit = 50,
) -> VersionsPage:
    """Every version, newest first: who made it, when, why, and what it changed. A key of one user sees those for it."""
    return await schedules.list_versions(tools, caller, schedule_id, before=before, limit=limit)


@get(
    "/schedules/{schedule_id:str}/versions/{version:int}",
    scope="read",
    responses=refusing(ScheduleNotFound, VersionNotFound),
)
async def get_version(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], schedule_id: FromPath[str], version: FromPath[int]
) -> VersionDocument:
    """One version."""
    return await schedules.version(tools, caller, schedule_id, version)


Version = Annotated[int, QueryParameter(ge=1, le=LARGEST)]


@get("/schedules/{schedule_id:str}/diff", scope="read", responses=refusing(ScheduleNotFound, VersionNotFound))
async def diff_versions(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    old: Version,
    new: Version,
) -> DifferencePage:
    """What is different between two versions."""
    return {"items": await schedules.diff(tools, caller, schedule_id, old, new), "next": None}


@get("/schedules/{schedule_id:str}/runs", scope="read", responses=refusing(ScheduleNotFound))
async def list_runs(
    request: Asking,
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    before: Before = None,
    limit: Limit = 50,
) -> RunsPage:
    """What became of each tick, the newest first. A key of one user sees the runs of versions for it."""
    base = base_of(request)
    return await schedules.list_runs(tools, caller, schedule_id, before=before, limit=limit, base=base)


ROUTES = [
    list_schedules,
    preview_schedule,
    get_schedule,
    list_versions,
    get_version,
    diff_versions,
    list_runs,
]


def shown(schedule: ScheduleDocument, status_code: int = 200, *, has_tag: bool = True) -> Response[ScheduleDocument]:
    headers = {"ETag": f'"{schedule["version"]}"'} if has_tag else {}
    return Response(schedule, status_code=status_code, headers=headers)


def base_of(request: Asking) -> str:
    return request.url.path.partition("/schedules")[0]
