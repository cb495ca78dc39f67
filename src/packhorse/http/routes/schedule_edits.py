"""Editing schedules: each edit is a version, from the next tick on, and none is made over one that was not seen."""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter
from msgspec import Struct

from packhorse.auth.access import Caller
from packhorse.errors import (
    EditedMeanwhile,
    NotAllowed,
    ScheduleNotFound,
    UnknownPipeline,
    UnsupportedMedia,
    VersionNeeded,
    VersionNotFound,
)
from packhorse.http.openapi import answering, refusing, taking
from packhorse.http.requests.body import Body
from packhorse.http.requests.json_body import JSON, SMALL, asked, converted, kind_of, members
from packhorse.http.routes.schedules import BODY, base_of, shown
from packhorse.http.services import Tools
from packhorse.jobs import schedules
from packhorse.jobs.schedules import ScheduleRequest
from packhorse.jobs.services import check_reason
from packhorse.schemas.schedules import (
    RunDocument,
    ScheduleDocument,
)

CHANGING = (*BODY, ScheduleNotFound, EditedMeanwhile, NotAllowed)

Match = Annotated[
    str | None,
    HeaderParameter(name="If-Match", description="The `ETag` of the version you have seen; if it is another, 412."),
]
Asking = Request[Any, Any, State]


class Why(Struct):
    """Why it is done; the version says so."""

    reason: str = ""


class Back(Struct):
    """Which version is to be the newest again."""

    version: int = 0
    reason: str = ""


@put(
    "/schedules/{schedule_id:str}",
    scope="operate",
    request_max_body_size=None,
    operation_class=taking(ScheduleRequest, required=True),
    responses={
        **refusing(*BODY, EditedMeanwhile, VersionNeeded, UnknownPipeline),
        201: answering(ScheduleDocument, "application/json", "It is new."),
    },
)
async def put_schedule(
    request: Asking,
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    match: Match = None,
) -> Response[ScheduleDocument]:
    """Make a schedule, or a new version of it, from the next tick on. What is left out is set to its default.

    With `dry_run` it stays as it is: the answer says what would become of it, and `changes` what would be different.
    """
    wanted, written = await _wanted(request, tools)
    made = await schedules.put(tools, caller, schedule_id, wanted, written, match)
    return shown(made.schedule, 201 if made.is_new else 200, has_tag=not wanted.dry_run)


@delete(
    "/schedules/{schedule_id:str}",
    scope="operate",
    status_code=200,
    operation_class=taking(Why),
    responses=refusing(*CHANGING),
)
async def delete_schedule(
    request: Asking,
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    match: Match = None,
) -> Response[ScheduleDocument]:
    """Fire it no more. Its versions and runs can be looked at until they are purged."""
    why = await asked(request, tools.settings, Why)
    return shown(await schedules.delete(tools, caller, schedule_id, match, why.reason))


@post(
    "/schedules/{schedule_id:str}/pause",
    scope="operate",
    status_code=200,
    operation_class=taking(Why),
    responses=refusing(*CHANGING),
)
async def pause_schedule(
    request: Asking,
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    match: Match = None,
) -> Response[ScheduleDocument]:
    """Let no tick fire until it is resumed. It is a version like any other."""
    why = await asked(request, tools.settings, Why)
    return shown(await schedules.switch(tools, caller, schedule_id, match, active=False, reason=why.reason))


@post(
    "/schedules/{schedule_id:str}/resume",
    scope="operate",
    status_code=200,
    operation_class=taking(Why),
    responses=refusing(*CHANGING),
)
async def resume_schedule(
    request: Asking,
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    match: Match = None,
) -> Response[ScheduleDocument]:
    """Go on, with the next tick; those in between are not made up for."""
    why = await asked(request, tools.settings, Why)
    return shown(await schedules.switch(tools, caller, schedule_id, match, active=True, reason=why.reason))


@post(
    "/schedules/{schedule_id:str}/reset",
    scope="operate",
    status_code=200,
    operation_class=taking(Why),
    responses=refusing(*CHANGING),
)
async def reset_schedule(
    request: Asking,
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    match: Match = None,
) -> Response[ScheduleDocument]:
    """Make it what the app's code declares, again."""
    why = await asked(request, tools.settings, Why)
    return shown(await schedules.reset(tools, caller, schedule_id, match, why.reason))


@post(
    "/schedules/{schedule_id:str}/rollback",
    scope="operate",
    status_code=200,
    operation_class=taking(Back, required=True),
    responses=refusing(*CHANGING, VersionNotFound),
)
async def rollback_schedule(
    request: Asking,
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    match: Match = None,
) -> Response[ScheduleDocument]:
    """Make an earlier version the newest again: a new version, with exactly what that one said."""
    back = await asked(request, tools.settings, Back)
    return shown(await schedules.roll_back(tools, caller, schedule_id, match, back.version, back.reason))


@post(
    "/schedules/{schedule_id:str}/run",
    scope="operate",
    status_code=202,
    operation_class=taking(Why),
    responses=refusing(*CHANGING),
)
async def run_schedule(
    request: Asking, tools: NamedDependency[Tools], caller: NamedDependency[Caller], schedule_id: FromPath[str]
) -> RunDocument:
    """Run it now, beside its ticks, and also while it is paused. What it says about overlaps holds here too."""
    check_reason((await asked(request, tools.settings, Why)).reason)
    return await schedules.run(tools, caller, schedule_id, base_of(request))


ROUTES = [
    put_schedule,
    delete_schedule,
    pause_schedule,
    resume_schedule,
    reset_schedule,
    rollback_schedule,
    run_schedule,
]


async def _wanted(request: Asking, tools: Tools) -> tuple[ScheduleRequest, bytes]:
    """The body, and its parameters as they were written."""
    kind = kind_of(request.headers.get("content-type", ""))
    if kind != JSON:
        raise UnsupportedMedia("The body must be JSON.", content_type=kind[:100])
    data = await Body(request.receive, tools.settings).whole(tools.settings.parameters_limit + SMALL)
    wanted = converted(members(data), ScheduleRequest)
    written = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("parameters", msgspec.Raw(b"{}"))
    return wanted, bytes(written)
