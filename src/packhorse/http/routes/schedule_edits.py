"""Editing schedules: each edit is a version, from the next tick on, and none is made over one that was not seen."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from litestar import Request, Response, delete, post, put
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, HeaderParameter
from msgspec import Struct
from msgspec.structs import replace

from packhorse.auth.caller import Caller
from packhorse.core import schedules as rules
from packhorse.core.schedules import Move, Schedule, Terms, check_terms
from packhorse.define.introspection import check_name
from packhorse.define.validation import NOT_VALID, ErrorCollector, invalid
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
from packhorse.http.routes.schedule_commit import moved, required
from packhorse.http.routes.schedules import BODY, base_of, revision_of, schedule_of, shown
from packhorse.http.services import Tools
from packhorse.jobs.schedules import ScheduleRequest, accept_parameters, check_reason, window_seconds
from packhorse.schemas.schedules import (
    RunDocument,
    ScheduleDocument,
    differences_to_json,
    run_to_json,
    schedule_to_json,
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
    early, pipeline = ErrorCollector(), None
    with early:
        _check_id(schedule_id)
    with early:
        check_reason(wanted.reason)
    with early:
        pipeline = await tools.catalog.get(wanted.pipeline)

    def decide(found: Schedule | None, now: float, author: str) -> Move:
        kept = None if found is None else found.terms
        gathered, parameters = early.copy(), b"{}"
        if pipeline is not None:
            with gathered:
                parameters = accept_parameters(pipeline, wanted, written, tools.settings, caller.tenant, kept)
        terms = _terms(gathered, wanted, "" if pipeline is None else pipeline.plan.pipeline, parameters, caller)
        with gathered:
            check_terms(terms, now)
        gathered.check(NOT_VALID)
        if found is None or found.ended_at is not None:
            if match is not None:
                raise EditedMeanwhile("There is no such schedule any more.", schedule_id=schedule_id, version=0)
            if found is None:
                return rules.create(caller.tenant, schedule_id, terms, author=author, reason=wanted.reason, now=now)
            return rules.revive(found, terms, author=author, reason=wanted.reason, now=now)
        if match is None:
            raise VersionNeeded(schedule_id=schedule_id)
        return rules.edit(found, terms, author=author, reason=wanted.reason, now=now)

    move = await moved(tools, caller, schedule_id, match, decide, is_trial=wanted.dry_run)
    if wanted.dry_run:
        return _trial(move)
    is_made = move.before is None or move.before.ended_at is not None
    return shown(move.after, status_code=201 if is_made else 200)


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
    why = await _why(request, tools)
    return await _edited(
        tools, caller, schedule_id, match, lambda s, now, by: rules.end(s, author=by, reason=why.reason, now=now)
    )


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
    why = await _why(request, tools)
    return await _edited(tools, caller, schedule_id, match, _switching(False, why.reason))


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
    why = await _why(request, tools)
    return await _edited(tools, caller, schedule_id, match, _switching(True, why.reason))


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
    why = await _why(request, tools)

    def decide(found: Schedule, now: float, author: str) -> Move | None:
        if found.declared is None:
            raise NotAllowed("No code declares this schedule.", verb="reset", status="undeclared")
        if not found.is_adrift:
            return None
        return rules.edit(found, found.declared, author=author, reason=why.reason, now=now, action="reset")

    return await _edited(tools, caller, schedule_id, match, decide)


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
    check_reason(back.reason)
    await schedule_of(tools, caller, schedule_id)
    old = await revision_of(tools, caller, schedule_id, back.version)
    action = f"rolled back to {old.version}"
    return await _edited(
        tools,
        caller,
        schedule_id,
        match,
        lambda s, now, by: rules.edit(s, old.terms, author=by, reason=back.reason, now=now, action=action),
    )


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
    await _why(request, tools)
    move = await moved(tools, caller, schedule_id, None, required(schedule_id, lambda s, now, _: rules.run_now(s, now)))
    return run_to_json(move.runs[0], None, base_of(request))


ROUTES = [
    put_schedule,
    delete_schedule,
    pause_schedule,
    resume_schedule,
    reset_schedule,
    rollback_schedule,
    run_schedule,
]


def _trial(move: Move) -> Response[ScheduleDocument]:
    told = schedule_to_json(move.after)
    before = move.before
    is_new = before is None or before.ended_at is not None
    told["changes"] = [] if before is None or is_new else differences_to_json(before.terms, move.after.terms)
    return Response(told, status_code=200)


# What several of them share.


async def _edited(
    tools: Tools,
    caller: Caller,
    schedule_id: str,
    match: str | None,
    decide: Callable[[Schedule, float, str], Move | None],
) -> Response[ScheduleDocument]:
    move = await moved(tools, caller, schedule_id, match, required(schedule_id, decide))
    return shown(move.after)


def _switching(active: bool, reason: str) -> Callable[[Schedule, float, str], Move | None]:
    action = "resumed" if active else "paused"

    def decide(found: Schedule, now: float, author: str) -> Move | None:
        if found.terms.active == active and found.ended_at is None:
            return None
        terms = replace(found.terms, active=active)
        return rules.edit(found, terms, author=author, reason=reason, now=now, action=action)

    return decide


async def _wanted(request: Asking, tools: Tools) -> tuple[ScheduleRequest, bytes]:
    """The body, and its parameters as they were written."""
    kind = kind_of(request.headers.get("content-type", ""))
    if kind != JSON:
        raise UnsupportedMedia("The body must be JSON.", content_type=kind[:100])
    data = await Body(request.receive, tools.settings).whole(tools.settings.parameters_limit + SMALL)
    wanted = converted(members(data), ScheduleRequest)
    written = msgspec.json.decode(data, type=dict[str, msgspec.Raw]).get("parameters", msgspec.Raw(b"{}"))
    return wanted, bytes(written)


def _terms(
    gathered: ErrorCollector, wanted: ScheduleRequest, pipeline: str, parameters: bytes, caller: Caller
) -> Terms:
    """Where something is wrong with a field, with anything in its place."""
    user, window = "-", 0.0
    with gathered:
        user = caller.acting_for(wanted.user_id)
    with gathered:
        window = window_seconds(wanted)
    return Terms(
        pipeline=pipeline,
        parameters=parameters,
        cron=" ".join(wanted.cron.split()),
        zone=wanted.zone,
        user=user,
        active=wanted.active,
        overlap=wanted.overlap,
        misfire=wanted.misfire,
        window=window,
        labels=wanted.labels,
    )


async def _why(request: Asking, tools: Tools) -> Why:
    given = await asked(request, tools.settings, Why)
    check_reason(given.reason)
    return given


def _check_id(schedule_id: str) -> None:
    try:
        check_name(schedule_id)
    except ValueError as error:
        raise invalid(NOT_VALID, [{"field": "schedule_id", "message": str(error)}]) from error
