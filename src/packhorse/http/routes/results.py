"""Downloads of a job's artifacts and its result."""

from __future__ import annotations

from pathlib import PurePosixPath

from litestar import get, route
from litestar.enums import HttpMethod
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from packhorse.auth.access import Caller
from packhorse.core import json
from packhorse.core.models import Job, primary_input
from packhorse.core.plan import RESULT_NAME, Status
from packhorse.errors import (
    ArtifactNotFound,
    BlobUnavailable,
    JobNotFound,
    NotFinished,
    QuotaExceeded,
    RangeNotSatisfiable,
    RateExceeded,
    TooManyDownloads,
)
from packhorse.http import download
from packhorse.http.openapi import error_responses, response_spec
from packhorse.http.requests import HttpRequest, Id
from packhorse.http.services import FromCaller, FromServices, HttpServices
from packhorse.jobs import view
from packhorse.jobs.artifacts import find_artifact
from packhorse.schemas.jobs import ArtifactsPage, result_files, result_to_json

SENT = {
    200: response_spec(bytes, "application/octet-stream", "The file, with its own media type if that is known."),
    206: response_spec(bytes, "application/octet-stream", "The part that was requested with Range."),
    304: response_spec(None, "application/octet-stream", "The file of the request's If-None-Match has not changed."),
}
REFUSING = (JobNotFound, BlobUnavailable, RangeNotSatisfiable, TooManyDownloads, RateExceeded, QuotaExceeded)
METHODS = (HttpMethod.GET, HttpMethod.HEAD)


@get("/jobs/{job_id:str}/artifacts", scope="read", tokens=True, responses=error_responses(JobNotFound))
async def artifacts(services: FromServices, caller: FromCaller, job_id: Id) -> ArtifactsPage:
    """The files that the job's stages have produced so far; for a token, those of the result."""
    return {"items": await view.artifacts(services, caller, await services.job(caller, job_id)), "next": None}


@route(
    "/jobs/{job_id:str}/artifacts/{name:path}",
    http_method=METHODS,
    scope="read",
    tokens=True,
    responses={**error_responses(*REFUSING, ArtifactNotFound), **SENT},
)
async def artifact(request: HttpRequest, services: FromServices, caller: FromCaller, job_id: Id, name: Id) -> ASGIApp:
    """One artifact by name, or a part of it, with Range."""
    return await send_artifact(request, services, caller, job_id, name.removeprefix("/"))


@route(
    "/jobs/{job_id:str}/result",
    http_method=METHODS,
    scope="read",
    tokens=True,
    responses={**error_responses(*REFUSING, NotFinished), **SENT},
)
async def result(request: HttpRequest, services: FromServices, caller: FromCaller, job_id: Id) -> ASGIApp:
    """The file that the job returned, or a part of it; several files as a zip; without files, the value as JSON."""
    return await send_result(request, services, caller, job_id)


async def send_artifact(
    request: HttpRequest, services: HttpServices, caller: Caller, job_id: str, name: str
) -> ASGIApp:
    """Raises JobNotFound, ArtifactNotFound and what a download may be refused with."""
    with services.downloads.audit_missing(caller, job_id, name):
        job = await services.job(caller, job_id)
        only = None if caller.job_id is None else job
        file = await find_artifact(services.store, job.id, name, result_of=only)
    content = download.file_content(services.blobs, file, label=name, filename=file.name)
    return _answer(request, services, caller, job, content)


async def send_result(request: HttpRequest, services: HttpServices, caller: Caller, job_id: str) -> ASGIApp:
    """Raises JobNotFound, NotFinished and what a download may be refused with."""
    with services.downloads.audit_missing(caller, job_id, "result"):
        job = await services.job(caller, job_id)
        content = await _result(services, job)
    return _answer(request, services, caller, job, content)


def _answer(
    request: HttpRequest, services: HttpServices, caller: Caller, job: Job, content: download.Content
) -> ASGIApp:
    """Only a response with a body counts as a download."""
    asked = request.headers
    if download.matches_etag(asked.get("if-none-match"), content.etag):
        return ASGIResponse(status_code=304, headers=download.cache_headers(content.etag))
    if request.method == "HEAD":
        return ASGIResponse(headers=download.download_headers(content), is_head_response=True)
    part = None
    if content.is_file:
        part = download.requested_part(asked.get("range"), asked.get("if-range"), content.etag, content.size)
    return download.Download(services.downloads, caller, job, content, part, ended=services.key_end(caller))


async def _result(services: HttpServices, job: Job) -> download.Content:
    """Named as the pipeline says; by default, `cat.onnx` and `out.nef` give `cat-out.nef`."""
    if job.status is not Status.COMPLETED:
        raise NotFinished(job_id=job.id, status=job.status.value)
    results = (await services.store.results([job.id])).get(job.id, {})
    files = result_files(job, results)
    if not files:
        return download.json_content(json.encode(result_to_json(job, results)))
    spec = (await services.store.specs([job.id])).get(job.id)
    primary = primary_input(job.plan, spec)
    source = None if primary is None else PurePosixPath(primary.file.name).stem
    if len(files) > 1:
        name = _file_name(job, source, f"{PurePosixPath(job.plan.pipeline).stem}.zip")
        return download.zip_content(services.blobs, files, name, job.completed_at or job.created_at)
    [file] = [each.file for each in files]
    return download.file_content(services.blobs, file, label="result", filename=_file_name(job, source, file.name))


def _file_name(job: Job, source: str | None, name: str) -> str:
    pattern = job.plan.result_name
    if source is None and pattern == RESULT_NAME:  # nothing was uploaded
        return name
    return pattern.format(source=source or job.plan.pipeline, name=name, suffix=PurePosixPath(name).suffix)
