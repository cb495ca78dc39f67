"""Schedules: what runs when, the result of each tick, and edits.

Each edit is a version that holds from the next tick on. No edit overwrites a version that its author has not seen.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from litestar import Response, delete, get, post, put
from litestar.params import FromPath, HeaderParameter, QueryParameter
from msgspec import Meta, Struct

from packhorse.core.schedules import schedule_key
from packhorse.errors import (
    EditedMeanwhile,
    Malformed,
    NoSecretKey,
    NotAllowed,
    ScheduleNotFound,
    TokenRefused,
    TooLarge,
    TooManySchedules,
    TooSlow,
    UnknownPipeline,
    UnsupportedMedia,
    VersionNeeded,
    VersionNotFound,
)
from packhorse.http.openapi import error_responses, json_body, response_spec
from packhorse.http.requests import (
    JSON,
    LARGEST,
    SMALL,
    Body,
    HttpRequest,
    Id,
    Number,
    PageSize,
    convert,
    decode_object,
    media_type,
    read_json,
)
from packhorse.http.services import FromCaller, FromServices, HttpServices
from packhorse.jobs import schedules, triggers
from packhorse.jobs.schedules import ScheduleRequest
from packhorse.jobs.services import check_reason
from packhorse.schemas import schedules as schemas

CHANGING = (ScheduleNotFound, EditedMeanwhile, NotAllowed)
MOST_RUNS = 30
"""Runs that a list shows per schedule."""

Before = Annotated[float | None, QueryParameter(ge=1, le=LARGEST, description="Only ticks before this moment.")]
Cursor = Annotated[str | None, QueryParameter(description="What an earlier page gave as `next`.")]
Deleted = Annotated[bool, QueryParameter(description="Include deleted schedules, as long as their runs are kept.")]
Last = Annotated[int, QueryParameter(ge=0, le=MOST_RUNS, description="How many last runs of each schedule to include.")]
Token = Annotated[str, QueryParameter(description="The signed token of the schedule.")]
MESSAGE = 15 * 1024 * 1024  # bytes; Pub/Sub pushes at most 10 MB, in Base64
Match = Annotated[
    str | None,
    HeaderParameter(
        name="If-Match", description="The `ETag` of the version you have seen; 412 if it is not the newest."
    ),
]


class Line(Struct):
    """A cron expression to preview."""

    cron: str = ""
    zone: str = "UTC"


@get("/schedules", scope="read", responses=error_responses())
async def list_schedules(
    request: HttpRequest,
    services: FromServices,
    caller: FromCaller,
    deleted: Deleted = False,
    runs: Last = 0,
    cursor: Cursor = None,
    limit: PageSize = 50,
) -> schemas.SchedulesPage:
    """Schedules by id. `next` is the cursor of the next page."""
    return await schedules.list_schedules(
        services, caller, deleted=deleted, runs=runs, cursor=cursor, limit=limit, base=base_of(request)
    )


@post("/schedules/preview", scope="read", status_code=200, **json_body(Line, required=True))
async def preview_schedule(request: HttpRequest, services: FromServices) -> schemas.PreviewPage:
    """The next ten times of a cron expression, and local times that clock changes skip or repeat."""
    line = await read_json(request, Line)
    return schedules.preview(services, line.cron, line.zone)


@get("/schedules/{schedule_id:str}", scope="read", responses=error_responses(ScheduleNotFound))
async def get_schedule(
    services: FromServices, caller: FromCaller, schedule_id: Id
) -> Response[schemas.ScheduleDocument]:
    """One schedule; its `ETag` names the version. A deleted one is shown until its runs are purged."""
    return with_etag(await schedules.schedule(services, caller, schedule_id))


@get("/schedules/{schedule_id:str}/versions", scope="read", responses=error_responses(ScheduleNotFound))
async def list_versions(
    services: FromServices, caller: FromCaller, schedule_id: Id, before: Number = LARGEST, limit: PageSize = 50
) -> schemas.VersionsPage:
    """Every version, newest first: author, time, reason and changes. A key of one user sees that user's versions."""
    return await schedules.list_versions(services, caller, schedule_id, before=before, limit=limit)


@get(
    "/schedules/{schedule_id:str}/versions/{version:int}",
    scope="read",
    responses=error_responses(ScheduleNotFound, VersionNotFound),
)
async def get_version(
    services: FromServices, caller: FromCaller, schedule_id: Id, version: FromPath[int]
) -> schemas.VersionDocument:
    """One version."""
    return await schedules.version(services, caller, schedule_id, version)


Version = Annotated[int, QueryParameter(ge=1, le=LARGEST)]


@get("/schedules/{schedule_id:str}/diff", scope="read", responses=error_responses(ScheduleNotFound, VersionNotFound))
async def diff_versions(
    services: FromServices, caller: FromCaller, schedule_id: Id, old: Version, new: Version
) -> schemas.DifferencePage:
    """The differences between two versions."""
    return {"items": await schedules.diff(services, caller, schedule_id, old, new), "next": None}


@get("/schedules/{schedule_id:str}/runs", scope="read", responses=error_responses(ScheduleNotFound))
async def list_runs(
    request: HttpRequest,
    services: FromServices,
    caller: FromCaller,
    schedule_id: Id,
    before: Before = None,
    limit: PageSize = 50,
) -> schemas.RunsPage:
    """The outcome of each tick, newest first. A key of one user sees the runs of that user's versions."""
    base = base_of(request)
    return await schedules.list_runs(services, caller, schedule_id, before=before, limit=limit, base=base)


class Why(Struct):
    """The reason, which the version records."""

    reason: str = ""


class Back(Struct):
    """The version to restore."""

    version: int = 0
    reason: str = ""


NEW = response_spec(schemas.ScheduleDocument, JSON, "It is new.")


@put(
    "/schedules/{schedule_id:str}",
    scope="operate",
    request_max_body_size=None,
    **json_body(
        ScheduleRequest,
        EditedMeanwhile,
        VersionNeeded,
        UnknownPipeline,
        TooManySchedules,
        required=True,
        responses={201: NEW},
    ),
)
async def put_schedule(
    request: HttpRequest, services: FromServices, caller: FromCaller, schedule_id: Id, match: Match = None
) -> Response[schemas.ScheduleDocument]:
    """Create a schedule, or a new version of it, from the next tick on. Omitted fields get their defaults.

    With `dry_run` nothing is stored: the answer shows the schedule as it would be, and `changes` the differences.
    """
    wanted, written = await _wanted(request, services)
    document, is_new = await schedules.put(services, caller, schedule_id, wanted, written, match)
    return with_etag(document, 201 if is_new else 200, has_tag=not wanted.dry_run)


@delete("/schedules/{schedule_id:str}", scope="operate", status_code=200, **json_body(Why, *CHANGING))
async def delete_schedule(
    request: HttpRequest, services: FromServices, caller: FromCaller, schedule_id: Id, match: Match = None
) -> Response[schemas.ScheduleDocument]:
    """Delete the schedule. Its versions and runs can be read until they are purged."""
    why = await read_json(request, Why)
    return with_etag(await schedules.delete(services, caller, schedule_id, match, why.reason))


@post("/schedules/{schedule_id:str}/pause", scope="operate", status_code=200, **json_body(Why, *CHANGING))
async def pause_schedule(
    request: HttpRequest, services: FromServices, caller: FromCaller, schedule_id: Id, match: Match = None
) -> Response[schemas.ScheduleDocument]:
    """Skip all ticks until the schedule is resumed. Creates a version."""
    why = await read_json(request, Why)
    return with_etag(await schedules.switch(services, caller, schedule_id, match, active=False, reason=why.reason))


@post("/schedules/{schedule_id:str}/resume", scope="operate", status_code=200, **json_body(Why, *CHANGING))
async def resume_schedule(
    request: HttpRequest, services: FromServices, caller: FromCaller, schedule_id: Id, match: Match = None
) -> Response[schemas.ScheduleDocument]:
    """Continue with the next tick. Ticks that were skipped while it was paused do not run."""
    why = await read_json(request, Why)
    return with_etag(await schedules.switch(services, caller, schedule_id, match, active=True, reason=why.reason))


@post("/schedules/{schedule_id:str}/reset", scope="operate", status_code=200, **json_body(Why, *CHANGING))
async def reset_schedule(
    request: HttpRequest, services: FromServices, caller: FromCaller, schedule_id: Id, match: Match = None
) -> Response[schemas.ScheduleDocument]:
    """Restore what the app's code declares."""
    why = await read_json(request, Why)
    return with_etag(await schedules.reset(services, caller, schedule_id, match, why.reason))


@post(
    "/schedules/{schedule_id:str}/rollback",
    scope="operate",
    status_code=200,
    **json_body(Back, *CHANGING, VersionNotFound, required=True),
)
async def rollback_schedule(
    request: HttpRequest, services: FromServices, caller: FromCaller, schedule_id: Id, match: Match = None
) -> Response[schemas.ScheduleDocument]:
    """Restore an earlier version: a new version with the same content."""
    back = await read_json(request, Back)
    return with_etag(await schedules.roll_back(services, caller, schedule_id, match, back.version, back.reason))


@post("/schedules/{schedule_id:str}/run", scope="operate", status_code=202, **json_body(Why, *CHANGING))
async def run_schedule(
    request: HttpRequest, services: FromServices, caller: FromCaller, schedule_id: Id
) -> schemas.RunDocument:
    """Run the schedule now, besides its ticks, also while it is paused. Its overlap policy applies."""
    check_reason((await read_json(request, Why)).reason)
    return await schedules.run(services, caller, schedule_id, base_of(request))


class TokenRequest(Struct):
    """How long the token is valid; without it, one year."""

    seconds: Annotated[int, Meta(ge=1, le=10**9)] | None = None


@post(
    "/schedules/{schedule_id:str}/token",
    scope="operate",
    status_code=201,
    **json_body(TokenRequest, ScheduleNotFound, NotAllowed, NoSecretKey),
)
async def create_trigger_token(
    request: HttpRequest, services: FromServices, caller: FromCaller, schedule_id: Id
) -> triggers.TokenDocument:
    """A signed token with which another system can run the schedule: `POST` to the `path` of the answer."""
    asked = await read_json(request, TokenRequest)
    return await triggers.create_token(services, caller, schedule_id, asked.seconds, base_of(request))


@post(
    "/schedules/{schedule_id:str}/trigger",
    scope=None,
    signed=True,
    security=[{}],
    status_code=202,
    responses=error_responses(TokenRefused, NotAllowed, Malformed, TooLarge, TooSlow),
)
async def trigger_schedule(
    request: HttpRequest, services: FromServices, schedule_id: Id, token: Token = ""
) -> Response[triggers.TriggerDocument]:
    """Run the schedule now, with a signed token instead of a key, as a push subscription of Pub/Sub does.

    If the body is a JSON object with a message, a message that comes again runs nothing.
    """
    found = await triggers.check_token(services, schedule_id, token)
    if found is None:
        raise await services.authenticator.token_refused(request.scope, token)
    client = f"trigger/{schedule_key(found.tenant, found.id)}"
    holder = services.authenticator.token_holder(request.scope, found.tenant, client)
    limits = await services.authenticator.admit(holder)
    data = await Body(request.receive, services.settings).whole(MESSAGE)
    message: Any = decode_object(data) if data.startswith(b"{") else None
    return Response(await triggers.fire(services, holder, found, token, message), status_code=202, headers=limits)


def with_etag(
    schedule: schemas.ScheduleDocument, status_code: int = 200, *, has_tag: bool = True
) -> Response[schemas.ScheduleDocument]:
    headers = {"ETag": f'"{schedule["version"]}"'} if has_tag else {}
    return Response(schedule, status_code=status_code, headers=headers)


def base_of(request: HttpRequest, folder: str = "/schedules") -> str:
    return request.url.path.partition(folder)[0]


async def read_object(request: HttpRequest, services: HttpServices) -> dict[str, msgspec.Raw]:
    """The members of a JSON body, as they were written."""
    kind = media_type(request.headers.get("content-type", ""))
    if kind != JSON:
        raise UnsupportedMedia("The body must be JSON.", content_type=kind[:100])
    data = await Body(request.receive, services.settings).whole(services.settings.parameters_limit + SMALL)
    decode_object(data)
    return msgspec.json.decode(data, type=dict[str, msgspec.Raw])


async def _wanted(request: HttpRequest, services: HttpServices) -> tuple[ScheduleRequest, bytes]:
    """The body, and its parameters as they were written."""
    given = await read_object(request, services)
    wanted = convert(msgspec.json.decode(msgspec.json.encode(given)), ScheduleRequest)
    return wanted, bytes(given.get("parameters", msgspec.Raw(b"{}")))
