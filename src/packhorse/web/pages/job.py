"""``/jobs/{id}``: one job: its status and reason, timeline, log and files, and the actions on it.

Cancel, retry, promote, delete and share are a form each, and the use case decides.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery

from packhorse.auth import access
from packhorse.core.models import Artifact, Job
from packhorse.errors import InvalidInput, PackhorseError
from packhorse.http.requests import MaybeNumber
from packhorse.jobs import actions, keys, view
from packhorse.jobs.view import JobPage, LogQuery
from packhorse.plurals import counted
from packhorse.schemas.job_details import line_to_json
from packhorse.web.forms import form
from packhorse.web.render import Page, redirect, render_page, sentence, services_and_caller
from packhorse.web.widgets import formatting, stages
from packhorse.web.widgets import job as widgets

LINES = 300  # of the log that are shown: the last ones, or those around one that was named
EVENTS = 1000  # that are looked at to tell when what ran; of these the newest are listed
LISTED = 200
FINAL = 6  # files of the result that are listed beside it
INLINE = 8  # files of a stage that are listed at once; more are loaded when somebody opens them
FAILED = 50  # failed elements of a stage that are linked

FAILED_ELEMENTS = "failed elements"  # what a retry names in place of a stage: no stage can have a blank in its name
ENDED = ("completed", "failed", "cancelled")
LASTING = {"1h": "1 hour", "1d": "1 day", "7d": "1 week", "30d": "30 days"}
"""How long a link for an end user can work."""
USUAL = "1d"


@get("/jobs/{job_id:str}", scope="read", include_in_schema=False)
async def job(
    request: Page,
    job_id: FromPath[str],
    stage: FromQuery[str | None] = None,
    element: FromQuery[str | None] = None,
    q: FromQuery[str | None] = None,
    line: MaybeNumber = None,
    before: MaybeNumber = None,
) -> Response[bytes]:
    """With ``stage``, ``element`` and ``q``, only such lines of its log; with ``line``, those around one."""
    number = int(element) if element and element.isascii() and element.isdigit() and len(element) < 10 else None
    return await _job_page(request, job_id, Lines(LogQuery(stage or None, number, q or ""), line, before))


class Lines(NamedTuple):
    """Which lines of the log a page shows; the newest, unless it says something else."""

    wanted: LogQuery = LogQuery()
    line: int | None = None
    before: int | None = None

    @property
    def chosen(self) -> dict[str, Any]:
        wanted = self.wanted
        return {"stage": wanted.stage, "element": wanted.element, "q": wanted.text, "line": self.line}


async def _job_page(
    request: Page, job_id: str, lines: Lines = Lines(), *, refused: str = "", status: int = 200
) -> Response[bytes]:
    """The page; with what was wrong with the last thing asked of it, if anything was."""
    services, caller = services_and_caller(request)
    is_newest = lines.wanted == LogQuery() and lines.line is None and lines.before is None
    found = await view.job_page(services, caller, job_id, events=EVENTS, lines=LINES if is_newest else 1)
    job, stored = found.job, found.stored
    shown: Sequence[Any] = found.lines
    earlier = shown[0]["n"] if len(shown) == LINES else None
    if not is_newest:
        before = lines.before if lines.line is None else lines.line + LINES // 2
        read, earlier = await view.find_lines(services, stored, lines.wanted, before=before, limit=LINES)
        shown = [line_to_json(each) for each in read]
    return render_page(
        request,
        "job.html",
        status=status,
        **describe(found, datetime.now(UTC)),
        graph=stages.graph(stored.plan),
        has_elements=any(plan.over is not None for plan in stored.plan.stages),
        shape=stages.shape(job),
        lines=shown,
        earlier=earlier,
        is_filtered=lines.wanted != LogQuery(),
        last_line=max([found.last_line, *(each["n"] for each in shown)]),  # a search reads after the rest
        chosen=lines.chosen,
        events=[widgets.event_text(each) for each in reversed(found.events[-LISTED:])],
        parameters=widgets.readable(job["parameters"]),
        metadata=widgets.readable(job["metadata"]) if job["metadata"] else None,
        commands=widgets.commands(job, str(request.base_url).rstrip("/"), has_keys=bool(caller.key_id)),
        refused=refused,
    )


def describe(found: JobPage, now: datetime) -> dict[str, Any]:
    """What the parts of the page need that change with the job. The same for everybody who may see it."""
    job, stored = found.job, found.stored
    is_cut = job["last_event"] > EVENTS
    line = widgets.timeline(job, found.events, found.needs, now, _times(stored, is_cut=is_cut))
    grids = {name: stages.grid(name, text) for name, text in stages.cells(stored).items() if text}
    return {
        "job": job,
        "is_active": job["status"] not in ENDED,
        "reasons": [each for each in found.reasons if each["code"] not in _hidden(stored)],
        "estimate": found.estimate,
        "line": line,
        "grids": grids,
        "failed": {name: _failed(each.letters) for name, each in grids.items()},
        "drawn": widgets.usage_plots(found.series, line.rows, job["started_at"], job["completed_at"]),
        "files": [_group(name, made) for name, made in found.files.items()],
        "final": [widgets.file_preview(each) for each in found.final[:FINAL]],
        "final_count": len(found.final),
        "final_size": sum(each.file.size for each in found.final),
        "result": widgets.readable(job["result"]) if job["result"] is not None else None,
        "places": found.destinations,
        "partial": widgets.partial_text(job["partial"]),
        "failed_elements": FAILED_ELEMENTS,
        "letters": stages.LETTERS,
        "stage_text": stages.stage_text,
        "skip_text": stages.skip_text,
        "node_text": stages.node_text,
        "element_counts": stages.element_counts,
        "pack": stages.pack,
    }


def _hidden(job: Job) -> tuple[str, ...]:
    """Reasons that explain nothing: why a job has ended, or why not all of it runs at once."""
    return ("ENDED", "QUEUED") if job.running_tasks() else ("ENDED",)


def _times(job: Job, *, is_cut: bool) -> dict[str, list[tuple[float, float | None]]]:
    """When the tasks of each stage with elements ran; of every stage if the events do not tell all."""
    return {
        plan.name: [(task.started_at, task.ended_at) for task in job.tasks_of_run(plan.name) if task.started_at]
        for plan in job.plan.stages
        if is_cut or plan.over is not None
    }


def _failed(letters: str) -> list[str]:
    return [str(at) for at, letter in enumerate(letters) if letter == "f"][:FAILED]


def _group(stage: str, files: Sequence[Artifact]) -> dict[str, Any]:
    """The files of a stage: what they are together, and each of them if they are few."""
    return {
        "stage": stage,
        "count": len(files),
        "size": sum(each.file.size for each in files),
        "shown": [widgets.file_preview(each) for each in files] if len(files) <= INLINE else [],
    }


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


ROUTES = [job, cancel, retry, promote, ask_delete, delete, share, create_link, revoke_link]
