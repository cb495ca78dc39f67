"""What a person does with one job: cancel, retry, promote and delete it. Each a form, and the API decides."""

from __future__ import annotations

from litestar import Response, get, post
from litestar.params import FromPath

from packhorse.core.text import plural
from packhorse.web.api_calls import Api, Json, Page, Problem
from packhorse.web.forms import form
from packhorse.web.pages.job import shown
from packhorse.web.render import moved, rendered


@post("/jobs/{job_id:str}/cancel", scope="cancel", status_code=200, include_in_schema=False)
async def cancel(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    found = await _tried(request, job_id, "cancel")
    if isinstance(found, Response):
        return found
    is_over = found["status"] == "cancelled"
    return moved(request, f"/jobs/{job_id}", said="The job is cancelled." if is_over else "The job is asked to stop.")


@post("/jobs/{job_id:str}/retry", scope="submit", status_code=200, include_in_schema=False)
async def retry(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    stage = given.get("stage") or None
    found = await _tried(request, job_id, "retry", {"stage": stage})
    if isinstance(found, Response):
        return found
    return moved(request, f"/jobs/{job_id}", said=f"Run {found['run']} is asked for.")


@post("/jobs/{job_id:str}/promote", scope="operate", status_code=200, include_in_schema=False)
async def promote(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    found = await _tried(request, job_id, "promote", {"destination": given.get("destination") or None})
    if isinstance(found, Response):
        return found
    count = len(found["promoted_object_keys"])
    return moved(request, f"/jobs/{job_id}", said=f"{count} {plural(count, 'file is', 'files are')} promoted.")


@get("/jobs/{job_id:str}/delete", scope="submit", include_in_schema=False)
async def asked_to_delete(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    """Before it is done."""
    api = Api(request)
    found = await api.get(f"/jobs/{job_id}")
    made = (await api.get(f"/jobs/{job_id}/artifacts"))["items"]
    return rendered(request, "job_delete.html", job=found, files=len(made) + len(found["inputs"]))


@post("/jobs/{job_id:str}/delete", scope="submit", status_code=200, include_in_schema=False)
async def delete(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    try:
        await Api(request).ask("DELETE", f"/jobs/{job_id}")
    except Problem as problem:
        return await _refused(request, job_id, problem)
    return moved(request, "/jobs", said="The job is deleted.")


async def _tried(request: Page, job_id: str, verb: str, body: Json = None) -> Json | Response[bytes]:
    """What the API answered; or the page again, with why it did not."""
    try:
        return await Api(request).post(f"/jobs/{job_id}/{verb}", body)
    except Problem as problem:
        return await _refused(request, job_id, problem)


async def _refused(request: Page, job_id: str, problem: Problem) -> Response[bytes]:
    if problem.status in (401, 403, 404):
        raise problem
    said = "; ".join(problem.mistakes.values()) or problem.told.get("detail", "")
    return await shown(request, job_id, refused=said, status=problem.status)


ROUTES = [cancel, retry, promote, asked_to_delete, delete]
