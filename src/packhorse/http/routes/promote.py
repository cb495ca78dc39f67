"""``POST /jobs/{id}/promote``: what a job has made, copied to a place where it stays."""

from __future__ import annotations

from typing import Any

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath
from msgspec import Struct

from packhorse.auth.caller import Caller
from packhorse.core import lifecycle
from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.define.validation import list_some, quote_short
from packhorse.errors import BlobUnavailable, InvalidInput, NotAllowed, NotFinished, PromoteFailed
from packhorse.http.openapi import refusing, taking
from packhorse.http.requests.json_body import asked
from packhorse.http.routes.jobs import CHANGING
from packhorse.http.services import Tools
from packhorse.jobs import promote as promoting
from packhorse.jobs.promote import Destination
from packhorse.schemas.jobs import JobDocument, result_files
from packhorse.schemas.operations import DestinationsPage


class Promote(Struct):
    """Where a result is to be promoted to."""

    destination: str | None = None
    """The name of one of the places that the server has; default: the first."""


@get("/destinations", scope="operate", responses=refusing())
async def destinations(tools: NamedDependency[Tools]) -> DestinationsPage:
    """Where a result can be promoted to, the usual place first."""
    return {"items": [{"name": name} for name in tools.destinations], "next": None}


@post(
    "/jobs/{job_id:str}/promote",
    scope="operate",
    status_code=200,
    operation_class=taking(Promote),
    responses=refusing(*CHANGING, NotFinished, BlobUnavailable, PromoteFailed),
)
async def promote(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    job_id: FromPath[str],
) -> JobDocument:
    """Copy the result files to a permanent place. Asked again, it copies only what is missing there."""
    given = await asked(request, tools.settings, Promote)
    destination = _destination(tools, given.destination)
    job = await tools.job(caller, job_id)
    to = promoting.folder_of(destination, job.id)
    await _copy(tools, job, destination, is_known=to in job.promoted)
    job = await tools.transact(job_id, lambda now: lifecycle.promote(now, to=to, run=job.run, now=tools.store.now()))
    tools.audit.tell("job.promoted", caller, job_id=job.id, to=to)
    [shape] = await tools.shown([job])
    return shape


def _destination(tools: Tools, name: str | None) -> Destination:
    if not tools.destinations:
        raise InvalidInput("There is no place to promote to: PACKHORSE_PROMOTE_TO names none.", field="destination")
    if name is None:
        return next(iter(tools.destinations.values()))
    if name not in tools.destinations:
        message = f"There is no destination {quote_short(name)}; there is {list_some(tools.destinations)}."
        raise InvalidInput(message, field="destination")
    return tools.destinations[name]


async def _copy(tools: Tools, job: Job, destination: Destination, *, is_known: bool) -> None:
    if job.status is not Status.COMPLETED:
        raise NotFinished(job_id=job.id, status=job.status.value)
    files = result_files(job, (await tools.store.results([job.id])).get(job.id, {}))
    if not files:
        raise NotAllowed("The result has no files that could be promoted.", verb="promote", status=job.status.value)
    await promoting.promote(tools.blobs, destination, job.id, files, is_known=is_known)
