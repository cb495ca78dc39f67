"""``/keys`` and ``/audit``: who may ask, how much is left to them, and what was done."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Response, get, post
from litestar.params import FromPath, FromQuery, QueryParameter

from packhorse.errors import InvalidInput
from packhorse.http.routes.keys import Before, limits_left
from packhorse.jobs import keys as use_cases
from packhorse.schemas.keys import key_to_json
from packhorse.web.forms import form
from packhorse.web.render import Page, mistakes, redirect, render_page, services_and_caller

SCOPES = {
    "submit": "submit jobs",
    "read": "see jobs and download results",
    "operate": "see and control queues, workers, failures and schedules",
    "admin": "create and revoke keys, read the audit log",
}
LASTING = {"": "never", "1d": "in a day", "30d": "in 30 days", "90d": "in 90 days", "365d": "in a year"}
Routine = Annotated[bool, QueryParameter(description="Also each use of a key.")]
NEW = {"name": "", "scopes": ["submit", "read"], "client_name": "", "user_id": None, "expires_in": None}
OVERLAPS = {"0s": "at once", "1h": "in an hour", "1d": "in a day", "7d": "in a week"}

LIMITS = {
    "api": "Requests",
    "downloads": "Downloads at once",
    "downloads-10s": "Downloads",
    "downloads-minute": "Downloads",
    "bytes-hour": "Downloaded",
    "bytes-day": "Downloaded",
}
"""What is limited, in words; the page shows the time window next to it."""


@get("/keys", scope="admin", include_in_schema=False)
async def keys(request: Page, cursor: FromQuery[str | None] = None) -> Response[bytes]:
    return await _shown(request, cursor=cursor)


@post("/keys", scope="admin", include_in_schema=False, status_code=200)
async def create(request: Page) -> Response[bytes]:
    """The answer is the page itself, not a way to it: the key is shown this once and is in no address."""
    given = await form(request)
    asked: dict[str, Any] = {
        "name": str(given.get("name", "")).strip(),
        "scopes": [scope for scope in SCOPES if scope in given],
        "client_name": str(given.get("client_name", "")).strip(),
        "user_id": str(given.get("user_id", "")).strip() or None,
        "expires_in": str(given.get("expires_in", "")) or None,
    }
    try:
        made = await use_cases.create_key(
            *services_and_caller(request),
            asked["scopes"],
            name=asked["name"],
            user=asked["user_id"],
            client_name=asked["client_name"],
            expires_in=asked["expires_in"],
        )
    except InvalidInput as error:
        return await _shown(request, typed=asked, wrong=mistakes(error))
    return await _shown(request, made=made)


@post("/keys/{key_id:str}/rotate", scope="admin", include_in_schema=False, status_code=200)
async def rotate(request: Page, key_id: FromPath[str]) -> Response[bytes]:
    """Asks first, because every client of the old key needs the new one."""
    given = await form(request)
    services, caller = services_and_caller(request)
    overlap = str(given.get("overlap", "0s"))
    if not given.get("sure"):
        found = key_to_json(await use_cases.find_key(services, caller, key_id))
        ends = OVERLAPS.get(overlap, overlap)
        return render_page(
            request, "key_rotate.html", key=found, overlap=overlap, ends=ends, is_own=_is_own(request, key_id)
        )
    made = await use_cases.rotate_key(services, caller, key_id, overlap)
    return await _shown(request, made=made)


@get("/keys/{key_id:str}", scope="admin", include_in_schema=False)
async def key(request: Page, key_id: FromPath[str]) -> Response[bytes]:
    services, caller = services_and_caller(request)
    found = key_to_json(await use_cases.find_key(services, caller, key_id))
    return render_page(
        request,
        "key.html",
        key=found,
        limits=await limits_left(services, caller, key_id),
        names=LIMITS,
        overlaps=OVERLAPS,
        is_own=_is_own(request, key_id),
    )


@post("/keys/{key_id:str}/revoke", scope="admin", include_in_schema=False, status_code=303)
async def revoke(request: Page, key_id: FromPath[str]) -> Response[bytes]:
    await use_cases.revoke_key(*services_and_caller(request), key_id)
    return redirect(request, "/keys", said=f"Key {key_id} was revoked.")


@get("/audit", scope="admin", include_in_schema=False)
async def audit(request: Page, before: Before = None, routine: Routine = False) -> Response[bytes]:
    found = await use_cases.audit(*services_and_caller(request), before=before, limit=100, with_routine=routine)
    return render_page(
        request,
        "audit.html",
        entries=found["items"],
        next=found["next"],
        query={"routine": "true" if routine else None, "before": before},
    )


def _is_own(request: Page, key_id: str) -> bool:
    """Whether the viewer has logged in with it, and is out when it ends."""
    return services_and_caller(request)[1].key_id == key_id


async def _shown(
    request: Page,
    *,
    cursor: str | None = None,
    made: Any = None,
    typed: Any = None,
    wrong: dict[str, str] | None = None,
) -> Response[bytes]:
    found = await use_cases.list_keys(*services_and_caller(request), cursor=cursor)
    return render_page(
        request,
        "keys.html",
        status=200 if wrong is None else 422,
        keys=found["items"],
        next=found["next"],
        query={"cursor": cursor},
        made=made,
        typed=typed or NEW,
        mistakes=wrong or {},
        scopes=SCOPES,
        lasting=LASTING,
    )


ROUTES = [keys, create, key, rotate, revoke, audit]
