"""Jobs: listed, looked at, cancelled, retried, deleted, and what they had to say."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from litestar import Request, delete, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromPath, FromQuery, HeaderParameter, QueryParameter
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp
from msgspec import Struct

from packhorse.auth.access import Caller
from packhorse.core import json
from packhorse.core.plan import Status
from packhorse.errors import (
    BlobUnavailable,
    InvalidInput,
    JobNotFound,
    NotAllowed,
    NotFinished,
    PromoteFailed,
    SlotTaken,
    TooLarge,
    TooSlow,
    UnsupportedMedia,
)
from packhorse.http.openapi import answering, refusing, taking
from packhorse.http.requests.json_body import asked
from packhorse.http.requests.query import Number
from packhorse.http.responses import etag
from packhorse.http.services import Tools
from packhorse.jobs import actions, view
from packhorse.schemas.events import HistoryPage, LinesPage, SeriesPage, line_to_json, usage_to_json
from packhorse.schemas.explain import EstimateDocument, ExplainDocument
from packhorse.schemas.jobs import JobDocument, JobsPage
from packhorse.schemas.operations import DestinationsPage
from packhorse.store.base import Filter, Line

CURSOR = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
Cursor = Annotated[str | None, QueryParameter(pattern=CURSOR, description="What an earlier page gave as `next`.")]
Limit = Annotated[int, QueryParameter(ge=1, le=200)]
Lines = Annotated[int, QueryParameter(ge=1, le=5000)]
Events = Annotated[int, QueryParameter(ge=1, le=1000)]


class Again(Struct):
    """How a job is to be retried."""

    stage: str | None = None
    """From which stage on, ``*`` for everything; default: what has not finished."""


class Nothing(Struct):
    """There is nothing to say besides the job."""


CHANGING = (JobNotFound, NotAllowed, TooLarge, UnsupportedMedia, TooSlow)


@get("/jobs", scope="read", responses=refusing())
async def list_jobs(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    user_id: FromQuery[str | None] = None,
    status: FromQuery[Status | None] = None,
    pipeline: FromQuery[str | None] = None,
    created_from: FromQuery[datetime | None] = None,
    created_until: FromQuery[datetime | None] = None,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> JobsPage:
    """Jobs, newest first. `next` is the cursor of the next page."""
    wanted = Filter(None, user_id, status, pipeline, view.seconds_of(created_from), view.seconds_of(created_until))
    return await view.list_jobs(tools, caller, wanted, cursor=cursor, limit=limit)


Known = Annotated[
    str | None,
    HeaderParameter(name="If-None-Match", description="The `ETag` of an answer: if it would be the same, 304."),
]


@get(
    "/jobs/{job_id:str}",
    scope="read",
    responses={
        **refusing(JobNotFound),
        200: answering(JobDocument, "application/json", "The job; its `ETag` is another when anything shown is."),
        304: ResponseSpec(None, description="The job is shown as it was before.", generate_examples=False),
    },
)
async def get_job(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    job_id: FromPath[str],
    known: Known = None,
) -> ASGIApp:
    """One job."""
    return etag.answered(json.encode(await view.job(tools, caller, job_id)), known)


@get("/jobs/{job_id:str}/explain", scope="read", responses=refusing(JobNotFound))
async def explain(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], job_id: FromPath[str]
) -> ExplainDocument:
    """Why the job is not running now: a code and a sentence each, the first to be seen to first; none if it is."""
    return {"reasons": await view.explain(tools, await tools.job(caller, job_id))}


@get("/jobs/{job_id:str}/estimate", scope="read", responses=refusing(JobNotFound))
async def estimate(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], job_id: FromPath[str]
) -> EstimateDocument:
    """How much longer the job will run, told from its stages' runs of the last days and from its own progress."""
    return await view.estimate(tools, await tools.job(caller, job_id))


@get("/jobs/{job_id:str}/history", scope="read", responses=refusing(JobNotFound))
async def history(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    job_id: FromPath[str],
    after: Number = 0,
    limit: Events = 500,
) -> HistoryPage:
    """What has happened to the job: its events numbered `after` + 1 and on, as far as they have come."""
    return await view.history(tools, await tools.job(caller, job_id), after=after, limit=limit)


@post(
    "/jobs/{job_id:str}/cancel",
    scope="cancel",
    status_code=202,
    operation_class=taking(Nothing),
    responses=refusing(*CHANGING),
)
async def cancel(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    job_id: FromPath[str],
) -> JobDocument:
    """Cancel now, or ask the worker to."""
    await asked(request, tools.settings, Nothing)
    return await actions.cancel(tools, caller, job_id)


@post(
    "/jobs/{job_id:str}/retry",
    scope="submit",
    status_code=202,
    operation_class=taking(Again),
    responses=refusing(*CHANGING, SlotTaken),
)
async def retry(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    job_id: FromPath[str],
    stage: FromQuery[str | None] = None,
) -> JobDocument:
    """Start a new run: of what has not finished, of a stage and what follows it, or of everything (`*`).

    The stage is named in the query or in the body.
    """
    given = await asked(request, tools.settings, Again)
    if None not in (stage, given.stage) and stage != given.stage:
        raise InvalidInput("The query names one stage, and the body another.", field="stage")
    wanted = stage if given.stage is None else given.stage
    return await actions.retry(tools, caller, job_id, wanted)


@delete(
    "/jobs/{job_id:str}",
    scope="submit",
    operation_class=taking(Nothing),
    responses=refusing(*CHANGING),
)
async def delete_job(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    job_id: FromPath[str],
) -> None:
    """Delete an ended job with its files, before its time. An active one is cancelled first, else 409.

    It is gone at once: whatever is asked of it afterwards, this too, is 404. Its files follow within a sweep.
    """
    await asked(request, tools.settings, Nothing)
    await actions.delete(tools, caller, job_id)


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
    return await actions.promote(tools, caller, job_id, given.destination)


LINES = answering(
    LinesPage, "application/json", "A page of lines; as text/plain, if that is accepted, the texts alone."
)


@get("/jobs/{job_id:str}/log", scope="read", responses={**refusing(JobNotFound), 200: LINES})
async def log(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    job_id: FromPath[str],
    after: Number = 0,
    stage: FromQuery[str | None] = None,
    limit: Lines = 1000,
    newest: FromQuery[bool] = False,
) -> ASGIApp:
    """What the stages have printed, in lines numbered `after` + 1 and on; as plain text if that is asked for.

    With `newest`, the last lines that are there, in order.
    """
    job = await tools.job(caller, job_id)
    lines, following = await view.log_lines(tools, job, after=after, stage=stage, limit=limit, newest=newest)
    if request.accept.best_match(["application/json", "text/plain"]) == "text/plain":
        return ASGIResponse(body=_text(lines), media_type="text/plain", headers=HEADERS)
    page: LinesPage = {"items": [line_to_json(line) for line in lines], "next": following}
    return ASGIResponse(body=json.encode(page), media_type="application/json", headers=HEADERS)


@get("/jobs/{job_id:str}/metrics", scope="read", responses=refusing(JobNotFound))
async def metrics(tools: NamedDependency[Tools], caller: NamedDependency[Caller], job_id: FromPath[str]) -> SeriesPage:
    """CPU, in cores, and memory that each task has used, as they were sampled, with the most of each."""
    await tools.job(caller, job_id)
    return {"items": usage_to_json(await tools.store.samples(job_id)), "next": None}


HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def _text(lines: list[Line]) -> str:
    return "".join(line.text.rstrip("\n") + "\n" for line in lines)
