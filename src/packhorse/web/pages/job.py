"""``/jobs/{id}``: one job: how it stands and why, what it did when, what it said and has made; what is done with it.

Cancel, retry, promote, delete and share are a form each, and the use case decides.
"""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery

from packhorse.auth import access
from packhorse.errors import InvalidInput, PackhorseError
from packhorse.jobs import actions, keys, view
from packhorse.plurals import counted
from packhorse.web.forms import form
from packhorse.web.render import HEADERS, Page, redirect, render_page, sentence, services_and_caller
from packhorse.web.widgets import formatting
from packhorse.web.widgets import job as widgets

LINES = 500  # of the log that are shown: the last ones
EVENTS = 1000  # that are looked at to tell when what ran; of these the newest are listed
LISTED = 200
TEXT = 65_536  # characters of a value that are shown; a result may be four times as large
PAGE = 5000  # lines of the whole log asked for at a time

FAILED_ELEMENTS = "failed elements"  # what a retry names in place of a stage: no stage can have a blank in its name
ENDED = ("completed", "failed", "cancelled")
PREVIEWED = 20 * 1024**2  # bytes of an image that a browser is made to load at once

KINDS = {
    "image/gif": "image",
    "image/jpeg": "image",
    "image/png": "image",
    "image/webp": "image",
    "application/json": "json",
    "application/xml": "text",
    "application/javascript": "text",
    "application/x-yaml": "text",
    "application/yaml": "text",
    "image/svg+xml": "text",
}
"""How a file is shown: what could carry a script, as the text it is."""
LASTING = {"1h": "1 hour", "1d": "1 day", "7d": "1 week", "30d": "30 days"}
"""How long a link for an end user can work."""
USUAL = "1d"
PLAYED = ("audio/flac", "audio/mpeg", "audio/ogg", "audio/wav", "audio/x-wav", "video/mp4", "video/webm")


@get("/jobs/{job_id:str}", scope="read", include_in_schema=False)
async def job(request: Page, job_id: FromPath[str], stage: FromQuery[str | None] = None) -> Response[bytes]:
    """With ``stage``, only what that one has printed."""
    return await _job_page(request, job_id, stage)


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


async def _job_page(
    request: Page, job_id: str, stage: str | None = None, *, refused: str = "", status: int = 200
) -> Response[bytes]:
    """The page; with what was wrong with the last thing asked of it, if anything was."""
    services, caller = services_and_caller(request)
    found = await view.job_page(services, caller, job_id, events=EVENTS, lines=LINES, stage=stage)
    job = found.job
    rows = widgets.timeline(job, found.events, found.needs, datetime.now(UTC))
    address = str(request.base_url).rstrip("/")
    return render_page(
        request,
        "job.html",
        status=status,
        job=job,
        is_active=job["status"] not in ENDED,
        reasons=[each for each in found.reasons if each["code"] != "ENDED"],
        estimate=found.estimate,
        rows=rows,
        lines=found.lines,
        last_line=found.last_line,
        stage=stage,
        events=[widgets.event_text(each) for each in reversed(found.events[-LISTED:])],
        drawn=widgets.usage_plots(found.series, rows, job["started_at"], job["completed_at"]),
        artifacts=[{**each, "kind": _kind(each)} for each in found.artifacts],
        parameters=_readable(job["parameters"]),
        result=_readable(job["result"]) if job["result"] is not None else None,
        metadata=_readable(job["metadata"]) if job["metadata"] else None,
        commands=widgets.commands(job, address, has_keys=bool(caller.key_id)),
        places=found.destinations,
        refused=refused,
        partial=widgets.partial_text(job["partial"]),
        failed_elements=FAILED_ELEMENTS,
    )


def _kind(artifact: Any) -> str | None:
    """How a browser can show it; None: not at all."""
    named = artifact["content_type"].partition(";")[0].strip().lower()
    if named in PLAYED:
        return str(named.partition("/")[0])
    found = KINDS.get(named) or ("text" if named.startswith("text/") else None)
    return None if found == "image" and artifact["size_bytes"] > PREVIEWED else found


def _readable(value: Any) -> dict[str, Any]:
    """JSON for the eyes, and whether that is all of it."""
    text = json.dumps(value, indent=2, ensure_ascii=False)
    return {"text": text[:TEXT], "is_cut": len(text) > TEXT}


@post("/jobs/{job_id:str}/cancel", scope="cancel", status_code=200, include_in_schema=False)
async def cancel(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    try:
        found = await actions.cancel(*services_and_caller(request), job_id)
    except PackhorseError as error:
        return await _refused(request, job_id, error)
    is_over = found["status"] == "cancelled"
    return redirect(request, f"/jobs/{job_id}", said="Job cancelled." if is_over else "Cancelling the job.")


@post("/jobs/{job_id:str}/retry", scope="submit", status_code=200, include_in_schema=False)
async def retry(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    try:
        stage = str(given.get("stage", "")) or None
        is_partial = stage == FAILED_ELEMENTS
        found = await actions.retry(
            *services_and_caller(request), job_id, None if is_partial else stage, failed_elements=is_partial
        )
    except PackhorseError as error:
        return await _refused(request, job_id, error)
    return redirect(request, f"/jobs/{job_id}", said=f"Retry started (run {found['run']}).")


@post("/jobs/{job_id:str}/promote", scope="operate", status_code=200, include_in_schema=False)
async def promote(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    given = await form(request)
    try:
        found = await actions.promote(*services_and_caller(request), job_id, str(given.get("destination", "")) or None)
    except PackhorseError as error:
        return await _refused(request, job_id, error)
    count = len(found["promoted_object_keys"])
    return redirect(request, f"/jobs/{job_id}", said=f"{counted(count, 'file')} promoted.")


@get("/jobs/{job_id:str}/delete", scope="submit", include_in_schema=False)
async def ask_delete(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    services, caller = services_and_caller(request)
    access.require(caller, "read")
    found = await services.job(caller, job_id)
    shape = await services.document(found)
    files = len(await view.artifacts(services, caller, found)) + len(shape["inputs"])
    return render_page(request, "job_delete.html", job=shape, files=files)


@post("/jobs/{job_id:str}/delete", scope="submit", status_code=200, include_in_schema=False)
async def delete(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    try:
        await actions.delete(*services_and_caller(request), job_id)
    except PackhorseError as error:
        return await _refused(request, job_id, error)
    return redirect(request, "/jobs", said="Job deleted.")


async def _refused(request: Page, job_id: str, error: PackhorseError) -> Response[bytes]:
    """The page again, with why nothing was done."""
    if error.status in (401, 403, 404) or error.status >= 500:
        raise error
    return await _job_page(request, job_id, refused=sentence(error), status=error.status)


@get("/jobs/{job_id:str}/share", scope="submit", include_in_schema=False)
async def share(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    return await _share_page(request, job_id)


@post("/jobs/{job_id:str}/share", scope="submit", status_code=200, include_in_schema=False)
async def create_link(request: Page, job_id: FromPath[str]) -> Response[bytes]:
    """Responds with the link instead of a redirect: it is shown only once."""
    given = await form(request)
    lasting = str(given.get("expires_in") or USUAL)
    try:
        made = await keys.create_token(*services_and_caller(request), job_id, lasting)
    except InvalidInput as error:
        return await _share_page(request, job_id, lasting=lasting, mistake=sentence(error))
    return await _share_page(request, job_id, made=made)


@post("/jobs/{job_id:str}/share/{key_id:str}/revoke", scope="submit", status_code=200, include_in_schema=False)
async def revoke_link(request: Page, job_id: FromPath[str], key_id: FromPath[str]) -> Response[bytes]:
    await keys.revoke_token(*services_and_caller(request), job_id, key_id)
    return redirect(request, f"/jobs/{job_id}/share", said="Link revoked.")


async def _share_page(
    request: Page, job_id: str, *, made: object = None, lasting: str = USUAL, mistake: str = ""
) -> Response[bytes]:
    tokens, now = await keys.list_tokens(*services_and_caller(request), job_id), datetime.now(UTC)
    return render_page(
        request,
        "share.html",
        status=422 if mistake else 200,
        job_id=job_id,
        made=made,
        tokens=[each for each in tokens if (formatting.moment(each["ends_at"]) or now) > now],
        choices=LASTING,
        lasting=lasting,
        mistake=mistake,
    )


ROUTES = [job, whole_log, cancel, retry, promote, ask_delete, delete, share, create_link, revoke_link]
