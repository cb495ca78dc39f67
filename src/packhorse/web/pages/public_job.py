"""``/p/{token}``: the page for the end user, who needs only the token in the address.

It shows no internals: no parameters, no log, no names of workers or queues.
"""

from __future__ import annotations

from typing import Any

from litestar import Response, get, post
from litestar.exceptions import HTTPException
from litestar.params import FromPath
from litestar.types import ASGIApp

from packhorse.auth.access import Caller, check_route
from packhorse.errors import NotFound, PackhorseError
from packhorse.http import problems
from packhorse.http.requests import Number
from packhorse.http.routes.events import last_event, stream_events
from packhorse.http.routes.results import send_artifact, send_result
from packhorse.http.services import HttpServices
from packhorse.jobs import actions, view
from packhorse.schemas.jobs import JobDocument, artifact_to_json, public_error
from packhorse.web.render import Page, redirect, render_page

ENDED = ("completed", "failed", "cancelled")


def gone(request: Page, error: Exception) -> Response[bytes]:
    """An invalid link gets an error, and nothing else."""
    known = problems.known_error(request, error)
    problems.log_failure(known, request, error, path="/p/…")
    is_unknown = isinstance(error, HTTPException) or known.status in (400, 401, 403, 422)
    code = 404 if is_unknown and known.status < 500 else known.status
    answer = render_page(request, "gone.html", status=code, code=code)
    if "Retry-After" in (headers := problems.headers(known, error)):
        answer.headers["Retry-After"] = headers["Retry-After"]
    return _private(answer)


OPEN: dict[str, Any] = {"scope": None, "include_in_schema": False, "exception_handlers": {Exception: gone}}


@get("/p/{token:str}", **OPEN)
async def waiting(request: Page, token: FromPath[str]) -> Response[bytes]:
    services, caller, job_id = await _holder(request, token, "read")
    found = await view.job_page(services, caller, job_id, events=1, lines=1)
    job = found.job
    sinks = _last(job)
    return _private(
        render_page(
            request,
            "waiting.html",
            job=job,
            token=token,
            is_active=job["status"] not in ENDED,
            ahead=next((each["ahead"] for each in found.reasons if "ahead" in each), None),
            estimate=found.estimate,
            files=[artifact_to_json(each) for each in found.final if each.file.key in sinks],
            why=None if (error := public_error(job["error"])) is None else error["message"],
        )
    )


@post("/p/{token:str}/cancel", status_code=200, **OPEN)
async def cancel(request: Page, token: FromPath[str]) -> Response[bytes]:
    try:
        found = await actions.cancel(*await _holder(request, token, "cancel"))
    except PackhorseError as error:
        if error.status != 409:
            raise
        return redirect(request, f"/p/{token}", said="The job has already ended.")
    is_over = found["status"] == "cancelled"
    return redirect(request, f"/p/{token}", said="Job cancelled." if is_over else "Cancelling the job.")


@get("/p/{token:str}/result", **OPEN)
async def result(request: Page, token: FromPath[str]) -> ASGIApp:
    return await send_result(request, *await _holder(request, token, "read"))


@get("/p/{token:str}/artifacts/{name:path}", **OPEN)
async def artifact(request: Page, token: FromPath[str], name: FromPath[str]) -> ASGIApp:
    return await send_artifact(request, *await _holder(request, token, "read"), name.lstrip("/"))


@get("/p/{token:str}/events", **OPEN)
async def events(request: Page, token: FromPath[str], after: Number = 0) -> ASGIApp:
    """What happens after what the page shows."""
    after = last_event(request.headers.get("last-event-id"), after)
    return await stream_events(*await _holder(request, token, "read"), after, None)


async def _holder(request: Page, token: str, scope: str) -> tuple[HttpServices, Caller, str]:
    """Whom the token stands for, and its job. A wrong one is counted as every wrong key is."""
    services: HttpServices = request.app.state.services
    caller = await services.authenticator.holder(request.scope, token)
    await services.authenticator.admit(caller)
    if caller.job_id is None:
        raise NotFound(path="/p/…")  # a key is no token: it must not appear in addresses
    check_route(caller, {"scope": scope, "tokens": True}, {"job_id": caller.job_id})
    return services, caller, caller.job_id


def _last(job: JobDocument) -> set[str]:
    """The keys of the files that are the result: of all that were made, those of the last stages."""
    if job["status"] != "completed":
        return set()
    found: set[str] = set()
    _gather(job["result"], found)
    return found


def _gather(value: Any, found: set[str]) -> None:
    if isinstance(value, dict):
        if isinstance(value.get("object_key"), str):
            found.add(value["object_key"])
        for each in value.values():
            _gather(each, found)
    elif isinstance(value, list):
        for each in value:
            _gather(each, found)


def _private(answer: Response[bytes]) -> Response[bytes]:
    answer.headers["X-Robots-Tag"] = "noindex, nofollow"
    return answer


ROUTES = [waiting, cancel, result, artifact, events]
