"""``/p/{token}``: the page for the person who waits. The token in the address is all they have, and all they need.

Nothing is told here of how things are done inside: no parameters, no log, no names of workers or queues.
"""

from __future__ import annotations

import asyncio
from typing import Any

from litestar import Response, get, post
from litestar.exceptions import HTTPException
from litestar.params import FromPath, FromQuery
from litestar.types import ASGIApp

from packhorse.core.error_codes import CODES
from packhorse.errors import PackhorseError
from packhorse.log import log
from packhorse.web.api_calls import Api, Json, Page, Problem
from packhorse.web.render import moved, rendered

ENDED = ("completed", "failed", "cancelled")
UNTOLD = frozenset(CODES) - {"INVALID", "PERMANENT"}
"""Codes of failures whose message is for those who run it. Other codes a stage has chosen, and its words with them."""
PRIVATE = {"X-Robots-Tag": "noindex, nofollow"}


def gone(request: Page, error: Exception) -> Response[bytes]:
    """A clear word for whoever has a link that does not work; the rest is told as on every page."""
    code = error.status if isinstance(error, Problem) else 500
    if isinstance(error, HTTPException | PackhorseError):
        code = 404  # no such address
    elif code == 500 and not isinstance(error, Problem):  # what the API answers, it has logged
        log.request_failed(request.method, "/p/…", error)
    code = 404 if code in (401, 403) else code
    answer = rendered(request, "gone.html", status=code, code=code)
    if isinstance(error, Problem) and "retry-after" in error.headers:
        answer.headers["Retry-After"] = error.headers["retry-after"]
    return _private(answer)


OPEN: dict[str, Any] = {"scope": None, "include_in_schema": False, "exception_handlers": {Exception: gone}}


@get("/p/{token:str}", **OPEN)
async def waiting(request: Page, token: FromPath[str]) -> Response[bytes]:
    api, path = await _door(request, token)
    found, reasons, estimate, made = await asyncio.gather(
        api.get(path), api.get(f"{path}/explain"), api.get(f"{path}/estimate"), api.get(f"{path}/artifacts")
    )
    sinks = _last(found)
    return _private(
        rendered(
            request,
            "waiting.html",
            job=found,
            token=token,
            is_active=found["status"] not in ENDED,
            ahead=next((each["ahead"] for each in reasons["reasons"] if "ahead" in each), None),
            estimate=estimate,
            files=[each for each in made["items"] if each["object_key"] in sinks] if sinks else [],
            why=_told(found["error"]),
        )
    )


@post("/p/{token:str}/cancel", status_code=200, **OPEN)
async def cancel(request: Page, token: FromPath[str]) -> Response[bytes]:
    api, path = await _door(request, token)
    try:
        found = await api.post(f"{path}/cancel")
    except Problem as problem:
        if problem.status != 409:
            raise
        return moved(request, f"/p/{token}", said="It has ended already.")
    is_over = found["status"] == "cancelled"
    return moved(request, f"/p/{token}", said="It is cancelled." if is_over else "It is being stopped.")


@get("/p/{token:str}/result", **OPEN)
async def result(request: Page, token: FromPath[str]) -> ASGIApp:
    api, path = await _door(request, token)
    return api.forwarded(f"{path}/result")


@get("/p/{token:str}/artifacts/{name:path}", **OPEN)
async def artifact(request: Page, token: FromPath[str], name: FromPath[str]) -> ASGIApp:
    api, path = await _door(request, token)
    return api.forwarded(f"{path}/artifacts/{name.lstrip('/')}")


@get("/p/{token:str}/events", **OPEN)
async def events(request: Page, token: FromPath[str], after: FromQuery[int] = 0) -> ASGIApp:
    """What happens after what the page has told."""
    api, path = await _door(request, token)
    return api.forwarded(f"{path}/events", log=False, after=after)


async def _door(request: Page, token: str) -> tuple[Api, str]:
    """The API as the token opens it, and where its job is. A wrong one is counted there as every wrong key is."""
    api = Api(request, key=token)
    job_id = (await api.get("/me"))["job_id"]
    if job_id is None:
        raise Problem(404, {}, {})  # a key is no token: it is not to be shown around in addresses
    return api, f"/jobs/{job_id}"


def _last(job: Json) -> set[str]:
    """The keys of the files that are the result: of all that were made, those of the last stages."""
    if job["status"] != "completed":
        return set()
    found: set[str] = set()
    _gather(job["result"], found)
    return found


def _gather(value: Json, found: set[str]) -> None:
    if isinstance(value, dict):
        if isinstance(value.get("object_key"), str):
            found.add(value["object_key"])
        for each in value.values():
            _gather(each, found)
    elif isinstance(value, list):
        for each in value:
            _gather(each, found)


def _told(error: Json) -> str | None:
    """What a stage wanted them to know; what went wrong inside is for others."""
    if error is None or error["code"] in UNTOLD or error["code"].startswith("HTTP_"):
        return None
    return str(error["message"])


def _private(answer: Response[bytes]) -> Response[bytes]:
    for name, value in PRIVATE.items():
        answer.headers[name] = value
    return answer


ROUTES = [waiting, cancel, result, artifact, events]
