"""Keys, tokens of one job, browser sessions, and the audit log."""

from __future__ import annotations

from typing import Annotated

from litestar import delete, get, post
from litestar.params import FromQuery, QueryParameter
from msgspec import Struct, field

from packhorse.auth.access import ANY, Caller
from packhorse.auth.rate_limits import Limit
from packhorse.errors import JobNotFound, KeyNotFound, SessionNotFound, TooMany
from packhorse.http.openapi import error_responses, json_body
from packhorse.http.requests import LARGEST, HttpRequest, Id, PageSize, read_json
from packhorse.http.services import FromCaller, FromServices, HttpServices
from packhorse.jobs import keys
from packhorse.schemas import keys as schemas
from packhorse.store.counters import Charge, Counts

Before = Annotated[int | None, QueryParameter(ge=1, le=LARGEST)]

TOKEN = 86_400.0
"""Default lifetime of a token, in seconds."""


class AskedKey(Struct):
    """A key to create."""

    scopes: list[str] = field(default_factory=list)
    name: str = ""
    user_id: str | None = None
    """The only user it may act for."""
    client_name: str = ""
    """The program that uses the key. Its jobs show it as `created_by_client_id`; without one, they show a key id."""
    expires_in: float | str | None = None


class Renewed(Struct):
    overlap: float | str = 0.0
    """How long the old key stays valid beside the new one."""


class AskedToken(Struct):
    expires_in: float | str = TOKEN


@get("/me", scope=ANY, responses=error_responses())
async def me(caller: FromCaller) -> schemas.MeDocument:
    """The caller: what its key or token allows."""
    return {
        "key_id": caller.key_id or None,
        "tenant_id": caller.tenant,
        "allowed": sorted(caller.allowed),
        "user_id": caller.user,
        "job_id": caller.job_id,
    }


@get("/keys", scope="admin", responses=error_responses())
async def list_keys(
    services: FromServices, caller: FromCaller, cursor: FromQuery[str | None] = None, limit: PageSize = 50
) -> schemas.KeysPage:
    """The keys of this tenant, newest first, also ended ones. Never their secrets."""
    return await keys.list_keys(services, caller, cursor=cursor, limit=limit)


@post("/keys", scope="admin", **json_body(AskedKey, required=True))
async def create_key(request: HttpRequest, services: FromServices, caller: FromCaller) -> schemas.MadeKeyDocument:
    """Create a key. Its text is shown only in this answer."""
    given = await read_json(request, AskedKey)
    return await keys.create_key(
        services,
        caller,
        given.scopes,
        name=given.name,
        user=given.user_id,
        client_name=given.client_name,
        expires_in=given.expires_in,
    )


@post("/keys/{key_id:str}/rotate", scope="admin", **json_body(Renewed, KeyNotFound))
async def rotate_key(
    request: HttpRequest, services: FromServices, caller: FromCaller, key_id: Id
) -> schemas.MadeKeyDocument:
    """Create a key with the same rights, and end the old one: now, or after an overlap."""
    given = await read_json(request, Renewed)
    return await keys.rotate_key(services, caller, key_id, given.overlap)


@delete("/keys/{key_id:str}", scope="admin", status_code=200, responses=error_responses(KeyNotFound))
async def revoke_key(services: FromServices, caller: FromCaller, key_id: Id) -> schemas.KeyDocument:
    """End a key now. Its open streams and downloads are cut within a second."""
    return await keys.revoke_key(services, caller, key_id)


@get("/keys/{key_id:str}", scope="admin", responses=error_responses(KeyNotFound))
async def get_key(services: FromServices, caller: FromCaller, key_id: Id) -> schemas.KeyDocument:
    """One key of this tenant, also if it has ended. Never its secret."""
    return schemas.key_to_json(await keys.find_key(services, caller, key_id))


@get("/keys/{key_id:str}/limits", scope="admin", responses=error_responses(KeyNotFound))
async def key_limits(services: FromServices, caller: FromCaller, key_id: Id) -> schemas.LimitsPage:
    """What is left of the limits of a key. A key and the key that replaces it share their limits.

    If downloads are limited per user, and the key is for any user, `left` is null for their limits.
    """
    return {"items": await limits_left(services, caller, key_id), "next": None}


@get("/jobs/{job_id:str}/tokens", scope="submit", responses=error_responses(JobNotFound))
async def list_tokens(services: FromServices, caller: FromCaller, job_id: Id) -> schemas.KeysPage:
    """The tokens of this job."""
    return {"items": await keys.list_tokens(services, caller, job_id), "next": None}


@post("/jobs/{job_id:str}/tokens", scope="submit", **json_body(AskedToken, JobNotFound, TooMany))
async def create_token(
    request: HttpRequest, services: FromServices, caller: FromCaller, job_id: Id
) -> schemas.MadeKeyDocument:
    """Create a token that can read and cancel this job, and nothing else."""
    given = await read_json(request, AskedToken)
    return await keys.create_token(services, caller, job_id, given.expires_in)


@delete(
    "/jobs/{job_id:str}/tokens/{key_id:str}",
    scope="submit",
    status_code=200,
    responses=error_responses(JobNotFound, KeyNotFound),
)
async def revoke_token(services: FromServices, caller: FromCaller, job_id: Id, key_id: Id) -> schemas.KeyDocument:
    """End a token now."""
    return await keys.revoke_token(services, caller, job_id, key_id)


@get("/audit", scope="admin", responses=error_responses())
async def audit(
    services: FromServices, caller: FromCaller, before: Before = None, limit: PageSize = 50
) -> schemas.AuditPage:
    """Who did what with which key, newest first. `next` is the `before` of the next page."""
    return await keys.audit(services, caller, before=before, limit=limit)


@post("/sessions", scope="read", responses=error_responses())
async def log_in(services: FromServices, caller: FromCaller) -> schemas.SessionDocument:
    """Log a browser in with the key of this request. The text of the session is shown only in this answer."""
    return await keys.start_session(services, caller)


@get("/sessions", scope="read", responses=error_responses())
async def list_sessions(
    services: FromServices, caller: FromCaller, cursor: FromQuery[str | None] = None, limit: PageSize = 50
) -> schemas.SessionsPage:
    """The browser sessions of this key, newest first; with the scope admin, those of all keys of the tenant."""
    return await keys.list_sessions(services, caller, cursor=cursor, limit=limit)


@delete("/sessions/current", scope="read", status_code=204, responses=error_responses())
async def log_out(services: FromServices, caller: FromCaller) -> None:
    """End the session of this request; without one, nothing happens."""
    await keys.end_session(services, caller)


@delete("/sessions/{session_id:str}", scope="read", status_code=204, responses=error_responses(SessionNotFound))
async def end_session(services: FromServices, caller: FromCaller, session_id: Id) -> None:
    """Log a browser out: one that has logged in with this key, or with the scope admin any of the tenant.

    What is streamed to it is cut within a second.
    """
    await keys.end_session(services, caller, session_id)


async def limits_left(services: HttpServices, caller: Caller, key_id: str) -> list[schemas.LimitDocument]:
    """Of limits per user, a key for any user has no count. Raises KeyNotFound."""
    key = await keys.find_key(services, caller, key_id)
    client, owner = key.client, Caller(key.tenant, frozenset(), client=key.client)
    plans = [None, *(each.plan for each in await services.catalog.all() if each.plan.downloads is not None)]
    found: list[tuple[Limit, Charge]] = []
    uncounted: list[Limit] = []
    for plan in plans:
        limits = services.downloads.limits_of(owner, plan, key.user or "")
        if key.user is None and not services.downloads.is_per_key(plan):
            uncounted += [each for each, _ in limits]
        else:
            found += [(each, each.charge(whose, 0)) for each, whose in limits]
    if services.authenticator.rates is not None:
        found.insert(0, (services.authenticator.limit, services.authenticator.rates.charge(client, 0)))
    spent = await services.store.spend([charge for _, charge in found])
    shown = [
        schemas.limit_to_json(each.name, each.unit, each.most, each.window, left)
        for each, left in [
            *zip((limit for limit, _ in found), spent.left, strict=True),
            *((limit, None) for limit in uncounted),
        ]
    ]
    jobs, size = services.settings.quotas or (0, 0)
    used = await services.store.count_by_status(0, tenant=caller.tenant) if jobs or size else Counts()
    if jobs:
        shown.append(schemas.limit_to_json("tenant-jobs", "unfinished-jobs", jobs, 0, max(0, jobs - used.active)))
    if size:
        shown.append(schemas.limit_to_json("tenant-bytes", "stored-bytes", size, 0, max(0, size - used.bytes)))
    return shown
