"""What a job has made: its artifacts and its result."""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import Any

from litestar import Request, get, route
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.enums import HttpMethod
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from packhorse.auth.access import Caller
from packhorse.core import json
from packhorse.core.models import Job
from packhorse.core.plan import Status
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
from packhorse.http.openapi import answering, refusing
from packhorse.http.responses import download
from packhorse.http.responses import zip as zipped
from packhorse.http.responses.download import Content
from packhorse.http.responses.download_limits import Download
from packhorse.http.responses.ranges import is_known, part
from packhorse.http.services import Tools
from packhorse.jobs import view
from packhorse.schemas.jobs import ArtifactsPage, result_files, result_to_json

SENT = {
    200: answering(bytes, "application/octet-stream", "The file; its own media type where that is known."),
    206: answering(bytes, "application/octet-stream", "The part of it that was asked for with Range."),
    304: answering(None, "application/octet-stream", "It is the one that was named with If-None-Match."),
}
REFUSING = (JobNotFound, BlobUnavailable, RangeNotSatisfiable, TooManyDownloads, RateExceeded, QuotaExceeded)
METHODS = (HttpMethod.GET, HttpMethod.HEAD)


@get("/jobs/{job_id:str}/artifacts", scope="read", responses=refusing(JobNotFound))
async def artifacts(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], job_id: FromPath[str]
) -> ArtifactsPage:
    """The files that the job's stages have made so far."""
    return {"items": await view.artifacts(tools, await tools.job(caller, job_id)), "next": None}


@route(
    "/jobs/{job_id:str}/artifacts/{name:path}",
    http_method=METHODS,
    scope="read",
    responses={**refusing(*REFUSING, ArtifactNotFound), **SENT},
)
async def artifact(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    job_id: FromPath[str],
    name: FromPath[str],
) -> ASGIApp:
    """One of them, by its name; or a part of it, with Range."""
    return await send_artifact(request, tools, caller, job_id, name.removeprefix("/"))


@route(
    "/jobs/{job_id:str}/result",
    http_method=METHODS,
    scope="read",
    responses={**refusing(*REFUSING, NotFinished), **SENT},
)
async def result(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    job_id: FromPath[str],
) -> ASGIApp:
    """The file the job returned, or a part of it; several as a zip; if there is none, the value as JSON."""
    return await send_result(request, tools, caller, job_id)


async def send_artifact(
    request: Request[Any, Any, State], tools: Tools, caller: Caller, job_id: str, name: str
) -> ASGIApp:
    """Raises JobNotFound, ArtifactNotFound and what a download may be refused with."""
    with tools.downloads.looking(caller, job_id, name):
        content = await _artifact(tools, await tools.job(caller, job_id), name)
    return _answer(request, tools, caller, job_id, content)


async def send_result(request: Request[Any, Any, State], tools: Tools, caller: Caller, job_id: str) -> ASGIApp:
    """Raises JobNotFound, NotFinished and what a download may be refused with."""
    with tools.downloads.looking(caller, job_id, "result"):
        content = await _result(tools, await tools.job(caller, job_id))
    return _answer(request, tools, caller, job_id, content)


def _answer(request: Request[Any, Any, State], tools: Tools, caller: Caller, job_id: str, content: Content) -> ASGIApp:
    """Only what sends bytes costs anything."""
    asked = request.headers
    if is_known(asked.get("if-none-match"), content.etag):
        return ASGIResponse(status_code=304, headers=download.unchanged(content))
    if request.method == "HEAD":
        return ASGIResponse(headers=download.headers(content), is_head_response=True)
    wanted = part(asked.get("range"), asked.get("if-range"), content.etag, content.size) if content.is_file else None
    return Download(tools.downloads, caller, job_id, content, wanted, ended=tools.ended(caller))


async def _artifact(tools: Tools, job: Job, wanted: str) -> Content:
    results = (await tools.store.results([job.id])).get(job.id, {})
    for made in view.files_of(job, results):
        if made.name == wanted:
            return download.one(tools.blobs, made.file, label=wanted, filename=made.file.name)
    raise ArtifactNotFound(job_id=job.id, name=wanted)


async def _result(tools: Tools, job: Job) -> Content:
    if job.status is not Status.COMPLETED:
        raise NotFinished(job_id=job.id, status=job.status.value)
    results = (await tools.store.results([job.id])).get(job.id, {})
    files = result_files(job, results)
    if not files:
        return download.value(json.encode(result_to_json(job, results)))
    source = await _source(tools, job)
    if len(files) > 1:
        name = f"{PurePosixPath(source or job.plan.pipeline).stem}.zip"
        return zipped.several(tools.blobs, files, name, job.completed_at or job.created_at)
    [made] = files
    return download.one(tools.blobs, made.file, label="result", filename=_named(source, made.file.name))


async def _source(tools: Tools, job: Job) -> str | None:
    """The name of the file that the job began with."""
    spec = (await tools.store.specs([job.id])).get(job.id)
    return spec.inputs[0].file.name if spec is not None and spec.inputs else None


def _named(source: str | None, made: str) -> str:
    """After the file the job began with, as a person would know it: of `cat.onnx` and `out.nef`, `cat.nef`."""
    return made if source is None else PurePosixPath(source).stem + PurePosixPath(made).suffix
