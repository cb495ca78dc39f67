"""What a job has made: its artifacts and its result."""

from __future__ import annotations

from pathlib import PurePosixPath

from litestar import get
from litestar.di import NamedDependency
from litestar.params import FromPath
from litestar.response.base import ASGIResponse
from litestar.types import ASGIApp

from packhorse.api import download, shapes
from packhorse.api.callers import Caller
from packhorse.api.described import answering, refusing
from packhorse.api.documents import ArtifactsPage
from packhorse.api.shapes import of_stage_in_order
from packhorse.api.tools import Tools
from packhorse.core import wire
from packhorse.core.model import Artifact, Job, Status
from packhorse.errors import ArtifactNotFound, BlobUnavailable, JobNotFound, NotFinished

FILE = answering(bytes, "application/octet-stream", "The file; its own media type where that is known.")


@get("/jobs/{job_id:str}/artifacts", scope="read", responses=refusing(JobNotFound))
async def artifacts(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], job_id: FromPath[str]
) -> ArtifactsPage:
    """The files that the job's stages have made so far."""
    made = await _artifacts(tools, await tools.job(caller, job_id))
    return {"items": [shapes.artifact(each) for each in made], "next": None}


@get(
    "/jobs/{job_id:str}/artifacts/{name:path}",
    scope="read",
    responses={**refusing(JobNotFound, ArtifactNotFound, BlobUnavailable), 200: FILE},
)
async def artifact(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], job_id: FromPath[str], name: FromPath[str]
) -> ASGIApp:
    """One of them, by its name."""
    wanted = name.removeprefix("/")
    for made in await _artifacts(tools, await tools.job(caller, job_id)):
        if made.name == wanted:
            return download.one(tools.blobs, made.file)
    raise ArtifactNotFound(job_id=job_id, name=wanted)


@get(
    "/jobs/{job_id:str}/result",
    scope="read",
    responses={**refusing(JobNotFound, NotFinished, BlobUnavailable), 200: FILE},
)
async def result(tools: NamedDependency[Tools], caller: NamedDependency[Caller], job_id: FromPath[str]) -> ASGIApp:
    """The file the job returned; several as a zip; if there is none, the value as JSON."""
    job = await tools.job(caller, job_id)
    if job.status is not Status.COMPLETED:
        raise NotFinished(job_id=job.id, status=job.status.value)
    results = (await tools.store.results([job.id])).get(job.id, {})
    files = [made for plan in job.plan.sinks for one in of_stage_in_order(results, plan.name) for made in one.files]
    if len(files) == 1:
        return download.one(tools.blobs, files[0].file)
    if files:
        return download.several(tools.blobs, files, await _zip_name(tools, job), job.completed_at or job.created_at)
    value = wire.encode(shapes.result_of(job, results))
    return ASGIResponse(body=value, media_type="application/json", headers={"Cache-Control": "no-store"})


async def _artifacts(tools: Tools, job: Job) -> list[Artifact]:
    results = (await tools.store.results([job.id])).get(job.id, {})
    return [made for plan in job.plan.stages for one in of_stage_in_order(results, plan.name) for made in one.artifacts]


async def _zip_name(tools: Tools, job: Job) -> str:
    """After the file the job began with, as a person would know it."""
    spec = (await tools.store.specs([job.id])).get(job.id)
    source = spec.inputs[0].file.name if spec is not None and spec.inputs else job.plan.pipeline
    return f"{PurePosixPath(source).stem}.zip"
