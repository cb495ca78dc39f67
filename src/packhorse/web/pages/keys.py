"""``/keys`` and ``/audit``: who may ask, how much is left to them, and what was done."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from packhorse.web.api_calls import Api, Page, Problem, viewer
from packhorse.web.forms import form
from packhorse.web.render import moved, rendered

SCOPES = {
    "submit": "submit jobs",
    "read": "see jobs and download results",
    "operate": "see and do what operators do",
    "admin": "make and end keys, read the audit",
}
LASTING = {"": "never", "1d": "in a day", "30d": "in 30 days", "90d": "in 90 days", "365d": "in a year"}
OVERLAPS = {"0s": "at once", "1h": "in an hour", "1d": "in a day", "7d": "in a week"}

LIMITS = {
    "api": "Requests",
    "downloads": "Downloads at once",
    "downloads-10s": "Downloads",
    "downloads-minute": "Downloads",
    "bytes-hour": "Downloaded",
    "bytes-day": "Downloaded",
}
"""What is limited, in the words that people use; in which time stands beside it."""

Before = Annotated[int | None, QueryParameter(ge=1)]


@get("/keys", scope="admin", include_in_schema=False)
async def keys(request: Page, cursor: FromQuery[str | None] = None) -> Response[bytes]:
    return await _shown(request, cursor=cursor)


@post("/keys", scope="admin", include_in_schema=False, status_code=200)
async def create(request: Page) -> Response[bytes]:
    """The answer is the page itself, not a way to it: the key is shown this once and is in no address."""
    given = await form(request)
    asked = {
        "name": str(given.get("name", "")).strip(),
        "scopes": [scope for scope in SCOPES if scope in given],
        "user_id": str(given.get("user_id", "")).strip() or None,
        "expires_in": str(given.get("expires_in", "")) or None,
    }
    try:
        made = await Api(request).post("/keys", asked)
    except Problem as problem:
        if problem.status != 422:
            raise
        return await _shown(request, status=422, typed=asked, mistakes=problem.mistakes)
    return await _shown(request, made=made)


@post("/keys/{key_id:str}/rotate", scope="admin", include_in_schema=False, status_code=200)
async def rotate(request: Page, key_id: FromPath[str]) -> Response[bytes]:
    """Asked again before, for whoever uses the old key has to be given the new one."""
    given = await form(request)
    api, overlap = Api(request), str(given.get("overlap", "0s"))
    if not given.get("sure"):
        found = await api.get(f"/keys/{key_id}")
        ends = OVERLAPS.get(overlap, overlap)
        return rendered(
            request, "key_rotate.html", key=found, overlap=overlap, ends=ends, is_own=_is_own(request, key_id)
        )
    made = await api.post(f"/keys/{key_id}/rotate", {"overlap": overlap})
    return await _shown(request, made=made)


@get("/keys/{key_id:str}", scope="admin", include_in_schema=False)
async def key(request: Page, key_id: FromPath[str]) -> Response[bytes]:
    api = Api(request)
    found, limits = await asyncio.gather(api.get(f"/keys/{key_id}"), api.get(f"/keys/{key_id}/limits"))
    return rendered(
        request,
        "key.html",
        key=found,
        limits=limits["items"],
        names=LIMITS,
        overlaps=OVERLAPS,
        is_own=_is_own(request, key_id),
    )


@post("/keys/{key_id:str}/revoke", scope="admin", include_in_schema=False, status_code=303)
async def revoke(request: Page, key_id: FromPath[str]) -> Response[bytes]:
    await Api(request).ask("DELETE", f"/keys/{key_id}")
    return moved(request, "/keys", said=f"Key {key_id} has ended.")


@get("/audit", scope="admin", include_in_schema=False)
async def audit(request: Page, before: Before = None) -> Response[bytes]:
    found = await Api(request).get("/audit", before=before, limit=100)
    return rendered(request, "audit.html", entries=found["items"], next=found["next"], before=before)


def _is_own(request: Page, key_id: str) -> bool:
    """Whether the viewer has logged in with it, and is out when it ends."""
    return viewer(request).key_id == key_id


async def _shown(
    request: Page,
    *,
    status: int = 200,
    cursor: str | None = None,
    made: Any = None,
    typed: Any = None,
    mistakes: dict[str, str] | None = None,
) -> Response[bytes]:
    found = await Api(request).get("/keys", cursor=cursor)
    return rendered(
        request,
        "keys.html",
        status=status,
        keys=found["items"],
        next=found["next"],
        query={"cursor": cursor},
        made=made,
        typed=typed or {"name": "", "scopes": ["submit", "read"], "user_id": None, "expires_in": None},
        mistakes=mistakes or {},
        scopes=SCOPES,
        lasting=LASTING,
    )


ROUTES = [keys, create, key, rotate, revoke, audit]
