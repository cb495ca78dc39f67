"""What a person does with one job: cancel, retry, promote and delete it. Each a form, and the use case decides."""

from __future__ import annotations

from litestar import Response, get, post
from litestar.params import FromPath

from packhorse.auth import access
from packhorse.core.text import plural
from packhorse.errors import PackhorseError
from packhorse.http.services import tools_and_caller
from packhorse.jobs import actions, view
from packhorse.web.forms import form
from packhorse.web.pages.job import shown
from packhorse.web.render import Page, moved, rendered, sentence


@post("/jobs/{job_id:str}/cancel", scope="cancel", status_code=200, include_in_schema=False)
async def cancel(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    try:
        found = await actions.cancel(*tools_and_caller(request.scope), job_id)
    except PackhorseError as error:
        return await _refused(request, job_id, error)
    is_over = found["status"] == "cancelled"
    return moved(request, f"/jobs/{job_id}", said="The job is cancelled." if is_over else "The job is asked to stop.")


@post("/jobs/{job_id:str}/retry", scope="submit", status_code=200, include_in_schema=False)
async def retry(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    try:
        found = await actions.retry(*tools_and_caller(request.scope), job_id, str(given.get("stage", "")) or None)
    except PackhorseError as error:
        return await _refused(request, job_id, error)
    return moved(request, f"/jobs/{job_id}", said=f"Run {found['run']} is asked for.")


@post("/jobs/{job_id:str}/promote", scope="operate", status_code=200, include_in_schema=False)
async def promote(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    try:
        found = await actions.promote(
            *tools_and_caller(request.scope), job_id, str(given.get("destination", "")) or None
        )
    except PackhorseError as error:
        return await _refused(request, job_id, error)
    count = len(found["promoted_object_keys"])
    return moved(request, f"/jobs/{job_id}", said=f"{count} {plural(count, 'file is', 'files are')} promoted.")


@get("/jobs/{job_id:str}/delete", scope="submit", include_in_schema=False)
async def asked_to_delete(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    """Before it is done."""
    tools, caller = tools_and_caller(request.scope)
    access.require(caller, "read")
    found = await tools.job(caller, job_id)
    shape = await tools.document(found)
    files = len(await view.artifacts(tools, found)) + len(shape["inputs"])
    return rendered(request, "job_delete.html", job=shape, files=files)


@post("/jobs/{job_id:str}/delete", scope="submit", status_code=200, include_in_schema=False)
async def delete(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    try:
        await actions.delete(*tools_and_caller(request.scope), job_id)
    except PackhorseError as error:
        return await _refused(request, job_id, error)
    return moved(request, "/jobs", said="The job is deleted.")


async def _refused(request: Page, job_id: str, error: PackhorseError) -> Response[bytes]:
    """The page again, with why nothing was done."""
    if error.status in (401, 403, 404) or error.status >= 500:
        raise error
    return await shown(request, job_id, refused=sentence(error), status=error.status)


ROUTES = [cancel, retry, promote, asked_to_delete, delete]
