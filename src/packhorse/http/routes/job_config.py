"""Schedules in the form of `job_config` documents, and their runs as `job_status` documents."""

from __future__ import annotations

from typing import Any

import msgspec
from litestar import Response, get, put

from packhorse.errors import EditedMeanwhile, ScheduleNotFound, TooManySchedules, UnknownPipeline, VersionNeeded
from packhorse.http.openapi import error_responses, json_body, response_spec
from packhorse.http.requests import JSON, HttpRequest, Id, PageSize
from packhorse.http.routes.schedules import Before, Cursor, Match, base_of, read_object
from packhorse.http.services import FromCaller, FromServices
from packhorse.jobs import job_config


class JobConfig(msgspec.Struct):
    """`cron`, and beside it the parameters of the pipeline. `updated_at` is that of the document you have read."""

    cron: str = ""
    active: bool = True
    job_id: str = ""
    updated_at: str = ""


NEW = response_spec(dict[str, Any], JSON, "It is new.")


@get("/job_config", scope="read", responses=error_responses())
async def list_job_configs(
    services: FromServices, caller: FromCaller, cursor: Cursor = None, limit: PageSize = 50
) -> job_config.ConfigPage:
    """Schedules as flat documents, by id. `next` is the cursor of the next page."""
    return await job_config.list_configs(services, caller, cursor=cursor, limit=limit)


@get("/job_config/{schedule_id:str}", scope="read", responses=error_responses(ScheduleNotFound))
async def get_job_config(services: FromServices, caller: FromCaller, schedule_id: Id) -> Response[dict[str, Any]]:
    """One schedule as a flat document; its `ETag` names the version."""
    document, version = await job_config.get(services, caller, schedule_id)
    return Response(document, headers={"ETag": f'"{version}"'})


@put(
    "/job_config/{schedule_id:str}",
    scope="operate",
    request_max_body_size=None,
    **json_body(
        JobConfig,
        EditedMeanwhile,
        VersionNeeded,
        UnknownPipeline,
        TooManySchedules,
        required=True,
        responses={201: NEW},
    ),
)
async def put_job_config(
    request: HttpRequest, services: FromServices, caller: FromCaller, schedule_id: Id, match: Match = None
) -> Response[dict[str, Any]]:
    """Create a schedule from a flat document, or a new version of it, from the next tick on.

    Without `pipeline`, it is the one that has these parameters. To replace a document, send it with the `updated_at`
    you have read, or with `If-Match`: 412 if somebody else has edited it since.
    """
    given = await read_object(request, services)
    document, version, is_new = await job_config.put(services, caller, schedule_id, given, match)
    return Response(document, status_code=201 if is_new else 200, headers={"ETag": f'"{version}"'})


@get("/job_config/{schedule_id:str}/status", scope="read", responses=error_responses(ScheduleNotFound))
async def list_job_status(
    request: HttpRequest,
    services: FromServices,
    caller: FromCaller,
    schedule_id: Id,
    before: Before = None,
    limit: PageSize = 50,
) -> job_config.StatusPage:
    """The outcome of each tick, newest first, with the app's own words for the status."""
    base = base_of(request, "/job_config")
    return await job_config.list_statuses(services, caller, schedule_id, before=before, limit=limit, base=base)
