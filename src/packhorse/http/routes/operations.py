"""What operators see and do over HTTP: statistics, queues and workers. All tenants share these."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Meta, Struct

from packhorse.auth.access import Caller
from packhorse.errors import QueueNotFound, TooLarge, TooSlow, UnsupportedMedia
from packhorse.http.openapi import refusing, taking
from packhorse.http.requests.json_body import asked
from packhorse.http.services import Tools
from packhorse.jobs import operations
from packhorse.jobs.services import LONGEST_REASON
from packhorse.schemas.operations import QueueDocument, QueuesPage, StatsDocument, WorkersPage

Window = Annotated[
    str, QueryParameter(description="How far back the series goes, as 10m or 72h, which is the longest.")
]


class Why(Struct):
    """Why a queue is to be paused; whoever waits is told."""

    reason: Annotated[str, Meta(extra_json_schema={"maxLength": LONGEST_REASON})] = ""


class Nothing(Struct):
    """There is nothing to say besides the queue."""


CHANGING = (QueueNotFound, TooLarge, UnsupportedMedia, TooSlow)


@get("/stats", scope="operate", shared=True, responses=refusing(QueueNotFound))
async def stats(
    tools: NamedDependency[Tools],
    window: Window = "1h",
    queue: FromQuery[str | None] = None,
    pipeline: FromQuery[str | None] = None,
) -> StatsDocument:
    """What there is now, and a series of at most 300 points: of jobs, or, if a queue is named, of attempts in it."""
    return await operations.stats(tools, window, queue=queue, pipeline=pipeline)


@get("/workers", scope="operate", shared=True, responses=refusing())
async def list_workers(tools: NamedDependency[Tools]) -> WorkersPage:
    """The workers that are there, and for a day those that were lost, with what became of what they had in hand."""
    return {"items": await operations.list_workers(tools), "next": None}


@get("/queues", scope="operate", shared=True, responses=refusing())
async def list_queues(tools: NamedDependency[Tools]) -> QueuesPage:
    """The queues that pipelines and workers use: what is ready in each, who serves it, whether it is paused."""
    return {"items": await operations.list_queues(tools), "next": None}


@post(
    "/queues/{queue:str}/pause",
    scope="operate",
    shared=True,
    status_code=200,
    operation_class=taking(Why),
    responses=refusing(*CHANGING),
)
async def pause(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    queue: FromPath[str],
) -> QueueDocument:
    """Start nothing more from this queue; what runs, runs on. Workers heed it within about a second."""
    given = await asked(request, tools.settings, Why)
    return await operations.pause_queue(tools, caller, queue, given.reason)


@post(
    "/queues/{queue:str}/resume",
    scope="operate",
    shared=True,
    status_code=200,
    operation_class=taking(Nothing),
    responses=refusing(*CHANGING),
)
async def resume(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    queue: FromPath[str],
) -> QueueDocument:
    """Go on with this queue; if it was not paused, nothing happens."""
    await asked(request, tools.settings, Nothing)
    return await operations.resume_queue(tools, caller, queue)


ROUTES = [stats, list_workers, list_queues, pause, resume]
