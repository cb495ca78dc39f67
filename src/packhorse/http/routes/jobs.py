"""Jobs, one or many: listed, counted, cancelled, retried, deleted, promoted; their events, log and usage."""

from __future__ import annotations

from datetime import datetime
from hashlib import sha256
from typing import Annotated

from litestar import delete, get, post
from litestar.openapi.datastructures import ResponseSpec
from litestar.params import FromQuery, HeaderParameter, QueryParameter
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp
from msgspec import Struct

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
)
from packhorse.http.download import cache_headers, matches_etag
from packhorse.http.openapi import error_responses, json_body, response_spec
from packhorse.http.requests import JSON, HttpRequest, Id, Nothing, Number, PageSize, read_json
from packhorse.http.services import FromCaller, FromServices
from packhorse.jobs import actions, view
from packhorse.jobs.actions import BulkAction, Meant
from packhorse.schemas.job_details import (
    EstimateDocument,
    ExplainDocument,
    HistoryPage,
    LinesPage,
    SeriesPage,
    line_to_json,
    usage_to_json,
)
from packhorse.schemas.jobs import ChangedDocument, CountDocument, JobDocument, JobsPage
from packhorse.schemas.operations import DestinationsPage
from packhorse.store.base import Filter, Line

CURSOR = r"^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$"
Cursor = Annotated[str | None, QueryParameter(pattern=CURSOR, description="What an earlier page gave as `next`.")]
WORDS = f"{', '.join(Status)}, or an app's own name for one of them."
StatusWord = Annotated[str | None, QueryParameter(description=WORDS)]
SearchText = Annotated[str, QueryParameter(max_length=200, description="A text to find jobs by, such as `order=7`.")]
Lines = Annotated[int, QueryParameter(ge=1, le=5000)]
Events = Annotated[int, QueryParameter(ge=1, le=1000)]


class Again(Struct):
    """How to retry a job."""

    stage: str | None = None
    """The first stage to run again, ``*`` for all; default: the stages that have not finished."""
    failed_elements: bool = False
    """Instead of a stage: run the elements that failed and were left out again, and what follows them."""


@get("/jobs", scope="read", responses=error_responses())
async def list_jobs(
    services: FromServices,
    caller: FromCaller,
    user_id: FromQuery[str | None] = None,
    status: StatusWord = None,
    pipeline: FromQuery[str | None] = None,
    created_from: FromQuery[datetime | None] = None,
    created_until: FromQuery[datetime | None] = None,
    q: SearchText = "",
    cursor: Cursor = None,
    limit: PageSize = 50,
) -> JobsPage:
    """Jobs, newest first. `next` is the cursor of the next page; with `q`, a page that has one may be short.

    `q` finds jobs by id or its beginning (8 characters or more), by the beginning of a file name, by user, or by
    `name=value` of the metadata and of the parameters that the pipeline declares with `search=`.
    """
    meant = await services.catalog.read_status(status, pipeline, caller.app)
    wanted = Filter(None, user_id, meant, pipeline, view.seconds_of(created_from), view.seconds_of(created_until))
    return await view.list_jobs(services, caller, wanted, q, cursor=cursor, limit=limit)


@get("/jobs/count", scope="read", responses=error_responses())
async def count(
    services: FromServices,
    caller: FromCaller,
    user_id: FromQuery[str | None] = None,
    status: StatusWord = None,
    pipeline: FromQuery[str | None] = None,
    created_from: FromQuery[datetime | None] = None,
    created_until: FromQuery[datetime | None] = None,
) -> CountDocument:
    """The number of jobs that match, counted up to 1000; `is_at_least` if there may be more."""
    meant = await services.catalog.read_status(status, pipeline, caller.app)
    wanted = Filter(None, user_id, meant, pipeline, view.seconds_of(created_from), view.seconds_of(created_until))
    return await view.count_jobs(services, caller, wanted)


MANY = {"status_code": 202, **json_body(Meant, required=True)}


@post("/jobs/cancel", scope="cancel", operation_id="ApiV1JobsCancelCancel", **MANY)
async def cancel_many(request: HttpRequest, services: FromServices, caller: FromCaller) -> ChangedDocument:
    """Cancel jobs by id, or all active jobs that match a filter, up to 200 per request.

    `next` is the cursor to continue with. With `dry_run` nothing is changed: the answer says how many jobs match.
    """
    return await BulkAction(services, caller, "cancel").run(await read_json(request, Meant))


@post("/jobs/retry", scope="submit", operation_id="ApiV1JobsRetryRetry", **MANY)
async def retry_many(request: HttpRequest, services: FromServices, caller: FromCaller) -> ChangedDocument:
    """Retry jobs by id, or all failed and cancelled jobs that match a filter, from what has not finished.

    Otherwise as for `POST /jobs/cancel`.
    """
    return await BulkAction(services, caller, "retry").run(await read_json(request, Meant))


@post("/jobs/delete", scope="submit", operation_id="ApiV1JobsDeleteDelete", **MANY)
async def delete_many(request: HttpRequest, services: FromServices, caller: FromCaller) -> ChangedDocument:
    """Delete jobs with their files: by id, or all ended jobs that match a filter.

    Otherwise as for `POST /jobs/cancel`.
    """
    return await BulkAction(services, caller, "delete").run(await read_json(request, Meant))


Known = Annotated[
    str | None,
    HeaderParameter(name="If-None-Match", description="The `ETag` of an earlier answer: 304 if nothing has changed."),
]


JOB = response_spec(JobDocument, JSON, "The job; its `ETag` changes with anything in it.")
SAME = ResponseSpec(None, description="The job has not changed.", generate_examples=False)


@get("/jobs/{job_id:str}", scope="read", tokens=True, responses={**error_responses(JobNotFound), 200: JOB, 304: SAME})
async def get_job(services: FromServices, caller: FromCaller, job_id: Id, known: Known = None) -> ASGIApp:
    """One job."""
    body = json.encode(await view.job(services, caller, job_id))
    etag = f'"{sha256(body).hexdigest()[:32]}"'
    headers = {**cache_headers(etag), "X-Content-Type-Options": "nosniff"}
    if matches_etag(known, etag):
        return ASGIResponse(status_code=304, headers=headers)
    return ASGIResponse(body=body, media_type=JSON, headers=headers)


@get("/jobs/{job_id:str}/explain", scope="read", responses=error_responses(JobNotFound))
async def explain(services: FromServices, caller: FromCaller, job_id: Id) -> ExplainDocument:
    """Why the job is not running now: a code and a sentence each. Most urgent first; empty if the job is running."""
    return {"reasons": await view.explain(services, await services.job(caller, job_id))}


@get("/jobs/{job_id:str}/estimate", scope="read", tokens=True, responses=error_responses(JobNotFound))
async def estimate(services: FromServices, caller: FromCaller, job_id: Id) -> EstimateDocument:
    """How much longer the job will run, estimated from runs of its stages in the last days and from its progress."""
    return await view.estimate(services, await services.job(caller, job_id))


@get("/jobs/{job_id:str}/history", scope="read", responses=error_responses(JobNotFound))
async def history(
    services: FromServices, caller: FromCaller, job_id: Id, after: Number = 0, limit: Events = 500
) -> HistoryPage:
    """The events of the job, from number `after` + 1."""
    return await view.history(services, await services.job(caller, job_id), after=after, limit=limit)


@post(
    "/jobs/{job_id:str}/cancel",
    scope="cancel",
    tokens=True,
    status_code=202,
    **json_body(Nothing, JobNotFound, NotAllowed),
)
async def cancel(request: HttpRequest, services: FromServices, caller: FromCaller, job_id: Id) -> JobDocument:
    """Cancel the job now, or ask its worker to stop it."""
    await read_json(request, Nothing)
    return await actions.cancel(services, caller, job_id)


@post(
    "/jobs/{job_id:str}/retry", scope="submit", status_code=202, **json_body(Again, JobNotFound, NotAllowed, SlotTaken)
)
async def retry(
    request: HttpRequest, services: FromServices, caller: FromCaller, job_id: Id, stage: FromQuery[str | None] = None
) -> JobDocument:
    """Start a new run: of what has not finished, of a stage and those that follow it, or of everything (`*`).

    Name the stage in the query or in the body. With `failed_elements` in the body, only the elements that failed and
    were left out (`partial`) run again, and what follows them.
    """
    given = await read_json(request, Again)
    if None not in (stage, given.stage) and stage != given.stage:
        raise InvalidInput("The query names one stage, and the body another.", field="stage")
    wanted = stage if given.stage is None else given.stage
    return await actions.retry(services, caller, job_id, wanted, failed_elements=given.failed_elements)


@delete("/jobs/{job_id:str}", scope="submit", **json_body(Nothing, JobNotFound, NotAllowed))
async def delete_job(request: HttpRequest, services: FromServices, caller: FromCaller, job_id: Id) -> None:
    """Delete an ended job and its files before they expire. Cancel an active job first, otherwise 409.

    It is gone at once: whatever is asked of it afterwards, this too, is 404. Its files follow within a sweep.
    """
    await read_json(request, Nothing)
    await actions.delete(services, caller, job_id)


class Promote(Struct):
    """Where to promote a result to."""

    destination: str | None = None
    """The name of one of the server's destinations; default: the first."""


@get("/destinations", scope="operate", responses=error_responses())
async def destinations(services: FromServices) -> DestinationsPage:
    """The destinations for promoted results, the default first."""
    return {"items": [{"name": name} for name in services.destinations], "next": None}


@post(
    "/jobs/{job_id:str}/promote",
    scope="operate",
    status_code=200,
    **json_body(Promote, JobNotFound, NotAllowed, NotFinished, BlobUnavailable, PromoteFailed),
)
async def promote(request: HttpRequest, services: FromServices, caller: FromCaller, job_id: Id) -> JobDocument:
    """Copy the result files to a permanent place. A repeated request copies only what is missing there."""
    given = await read_json(request, Promote)
    return await actions.promote(services, caller, job_id, given.destination)


LINES = response_spec(LinesPage, JSON, "A page of lines; as text/plain, if that is accepted, the texts alone.")


@get("/jobs/{job_id:str}/log", scope="read", responses={**error_responses(JobNotFound), 200: LINES})
async def log(
    request: HttpRequest,
    services: FromServices,
    caller: FromCaller,
    job_id: Id,
    after: Number = 0,
    stage: FromQuery[str | None] = None,
    limit: Lines = 1000,
    newest: FromQuery[bool] = False,
) -> ASGIApp:
    """The output of the stages, from line `after` + 1; as plain text if the request accepts only that.

    With `newest`, the last lines that are there, in order.
    """
    job = await services.job(caller, job_id)
    lines, following = await view.log_lines(services, job, after=after, stage=stage, limit=limit, newest=newest)
    if request.accept.best_match([JSON, "text/plain"]) == "text/plain":
        return ASGIResponse(body=_text(lines), media_type="text/plain", headers=HEADERS)
    page: LinesPage = {"items": [line_to_json(line) for line in lines], "next": following}
    return ASGIResponse(body=json.encode(page), media_type=JSON, headers=HEADERS)


@get("/jobs/{job_id:str}/metrics", scope="read", responses=error_responses(JobNotFound))
async def metrics(services: FromServices, caller: FromCaller, job_id: Id) -> SeriesPage:
    """CPU (in cores) and memory of each task, as sampled, with the peaks."""
    await services.job(caller, job_id)
    return {"items": usage_to_json(await services.store.samples(job_id)), "next": None}


HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}


def _text(lines: list[Line]) -> str:
    return "".join(line.text.rstrip("\n") + "\n" for line in lines)
