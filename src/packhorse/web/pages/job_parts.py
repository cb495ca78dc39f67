"""Parts of a job, each at an address of its own: its log, one element, the files of a stage, what changes."""

from __future__ import annotations

import msgspec
from litestar import Response, get
from litestar.params import FromPath, FromQuery
from litestar.types import ASGIApp

from packhorse.core.models import Job
from packhorse.http import download
from packhorse.http.requests import MaybeNumber, Number
from packhorse.http.routes.events import HEADERS as EVENT_HEADERS
from packhorse.http.stream import Streamed
from packhorse.jobs import view
from packhorse.jobs.view import LogQuery
from packhorse.schemas import job_details
from packhorse.schemas.progress import iso
from packhorse.web import broadcast
from packhorse.web.render import HEADERS, Page, allowed_on, as_json, render_page, services_and_caller
from packhorse.web.sections import Rights
from packhorse.web.widgets import job as widgets

PAGE = 5000  # lines of the whole log per request
LINES = 300  # of a log that are shown, and loaded at a time
FILES = 100  # of a stage on one page


@get("/jobs/{job_id:str}/log.txt", scope="read", include_in_schema=False)
async def whole_log(request: Page, job_id: FromPath[str], stage: FromQuery[str | None] = None) -> Response[bytes]:
    """All that is kept of it, as plain text. That is a bounded size."""
    services, caller = services_and_caller(request)
    found = await services.job(caller, job_id)
    after: int | None = 0
    texts: list[str] = []
    while after is not None:
        lines, after = await view.log_lines(services, found, after=after, stage=stage, limit=PAGE)
        texts += [each.text.rstrip("\n") + "\n" for each in lines]
    return Response("".join(texts).encode(), media_type="text/plain; charset=utf-8", headers=HEADERS)


@get("/jobs/{job_id:str}/log", scope="read", include_in_schema=False)
async def log(
    request: Page,
    job_id: FromPath[str],
    stage: FromQuery[str | None] = None,
    element: MaybeNumber = None,
    q: FromQuery[str | None] = None,
    before: MaybeNumber = None,
) -> Response[bytes]:
    """Lines before that number, for the script of the page; ``before`` in the answer is where it may continue."""
    services, caller = services_and_caller(request)
    found = await services.job(caller, job_id)
    wanted = LogQuery(stage or None, element, q or "")
    lines, earlier = await view.find_lines(services, found, wanted, before=before, limit=LINES)
    return as_json(200, {"lines": [widgets.line_parts(each) for each in lines], "before": earlier})


@get("/jobs/{job_id:str}/element", scope="read", include_in_schema=False)
async def element(
    request: Page, job_id: FromPath[str], stage: FromQuery[str] = "", element: Number = 0
) -> Response[bytes]:
    """One element of a stage: its attempts, what it printed, why it failed, and what it has made."""
    found = await view.element_page(*services_and_caller(request), job_id, stage, element, lines=LINES)
    task, is_many = found.task, found.stored.plan.stage(stage).over is not None
    ended = task.ended_at if task.status.is_terminal else None
    value = None if found.value is None else widgets.readable(msgspec.json.decode(found.value))
    return render_page(
        request,
        "job_element.html",
        job_id=job_id,
        title=_title(found.stored),
        stage=stage,
        element=element,
        count=len(found.stored.stage(stage).tasks or ()),
        where=f"{stage}[{element}]" if is_many else stage,
        is_many=is_many,
        state=task.status,
        attempt=task.attempt,
        started_at=iso(task.started_at),
        took=None if task.started_at is None or ended is None else ended - task.started_at,
        error=task.error,
        events=[widgets.event_text(each) for each in found.attempts],
        is_cut=found.is_cut,
        lines=[job_details.line_to_json(each) for each in found.lines],
        earlier=found.earlier,
        files=[widgets.file_preview(each) for each in found.files],
        value=value,
    )


@get("/jobs/{job_id:str}/files", scope="read", include_in_schema=False)
async def files(request: Page, job_id: FromPath[str], stage: FromQuery[str] = "", skip: Number = 0) -> Response[bytes]:
    """The files of a stage, so many at a time."""
    services, caller = services_and_caller(request)
    found = await services.job(caller, job_id)
    made = await view.stage_files(services, found, stage)
    return render_page(
        request,
        "job_files.html",
        job_id=job_id,
        title=_title(found),
        stage=stage,
        count=len(made),
        skip=skip,
        page=FILES,
        files=[widgets.file_preview(each) for each in made[skip : skip + FILES]],
    )


@get("/jobs/{job_id:str}/files.zip", scope="read", include_in_schema=False)
async def all_files(request: Page, job_id: FromPath[str], stage: FromQuery[str] = "") -> ASGIApp:
    """The files of a stage in one."""
    services, caller = services_and_caller(request)
    found = await services.job(caller, job_id)
    made = await view.stage_files(services, found, stage)
    content = download.zip_content(services.blobs, made, f"{stage}.zip", found.completed_at or found.created_at)
    return download.Download(services.downloads, caller, found, content, None, ended=services.key_end(caller))


@get("/jobs/{job_id:str}/live", scope="read", include_in_schema=False)
async def live(request: Page, job_id: FromPath[str], log_after: Number = 0, shape: FromQuery[str] = "") -> ASGIApp:
    """What changes, as server-sent events: `state` first, then `delta` and `parts`, then `end`."""
    services, caller = services_and_caller(request)
    await services.job(caller, job_id)
    services.streams.check(caller)
    rights = Rights(request.scope.get("root_path", ""), allowed_on(caller))
    pieces = services.streams.count(caller, broadcast.frames(services, job_id, rights, log_after, shape))
    return Streamed(pieces, EVENT_HEADERS, ended=services.key_end(caller))


def _title(job: Job) -> str:
    return f"{job.plan.pipeline} {job.id[:8]}"


ROUTES = [whole_log, log, element, files, all_files, live]
