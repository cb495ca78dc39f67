"""Keys, tokens for the person who waits for one job, sessions of browsers, and the audit log."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct, field

from packhorse.auth.access import ANY, Caller
from packhorse.errors import JobNotFound, KeyNotFound, TooLarge, TooSlow, UnsupportedMedia
from packhorse.http.openapi import refusing, taking
from packhorse.http.requests.json_body import asked
from packhorse.http.requests.query import LARGEST
from packhorse.http.services import Tools
from packhorse.jobs import keys
from packhorse.schemas.keys import (
    AuditPage,
    KeyDocument,
    KeysPage,
    LimitDocument,
    LimitsPage,
    MadeKeyDocument,
    MeDocument,
    SessionDocument,
    key_to_json,
    limit_to_json,
)

BODY = (TooLarge, UnsupportedMedia, TooSlow)
Before = Annotated[int | None, QueryParameter(ge=1, le=LARGEST)]
Limit = Annotated[int, QueryParameter(ge=1, le=200)]

TOKEN = 86_400.0
"""Seconds a token is good for if nobody says."""


class AskedKey(Struct):
    """The key that is wanted."""

    scopes: list[str] = field(default_factory=list)
    name: str = ""
    user_id: str | None = None
    """The only user it may act for."""
    expires_in: float | str | None = None


class Renewed(Struct):
    overlap: float | str = 0.0
    """How long the old key is good besides the new one."""


class AskedToken(Struct):
    expires_in: float | str = TOKEN


@get("/me", scope=ANY, responses=refusing())
async def me(caller: NamedDependency[Caller]) -> MeDocument:
    """Who asks: what the key, or the token, is good for."""
    return {
        "key_id": caller.key_id or None,
        "tenant_id": caller.tenant,
        "allowed": sorted(caller.allowed),
        "user_id": caller.user,
        "job_id": caller.job_id,
    }


@get("/keys", scope="admin", responses=refusing())
async def list_keys(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    cursor: FromQuery[str | None] = None,
    limit: Limit = 50,
) -> KeysPage:
    """The keys of this tenant, newest first, ended ones too. Never what is secret of them."""
    return await keys.list_keys(tools, caller, cursor=cursor, limit=limit)


@post("/keys", scope="admin", operation_class=taking(AskedKey, required=True), responses=refusing(*BODY))
async def create_key(
    request: Request[Any, Any, State], tools: NamedDependency[Tools], caller: NamedDependency[Caller]
) -> MadeKeyDocument:
    """Make a key. Its text is in this answer, and never again."""
    given = await asked(request, tools.settings, AskedKey)
    return await keys.create_key(
        tools, caller, given.scopes, name=given.name, user=given.user_id, expires_in=given.expires_in
    )


@post(
    "/keys/{key_id:str}/rotate",
    scope="admin",
    operation_class=taking(Renewed),
    responses=refusing(KeyNotFound, *BODY),
)
async def rotate_key(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    key_id: FromPath[str],
) -> MadeKeyDocument:
    """Make a key with the same rights, and let the old one end: now, or after an overlap."""
    given = await asked(request, tools.settings, Renewed)
    return await keys.rotate_key(tools, caller, key_id, given.overlap)


@delete("/keys/{key_id:str}", scope="admin", status_code=200, responses=refusing(KeyNotFound))
async def revoke_key(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], key_id: FromPath[str]
) -> KeyDocument:
    """End a key now. What is open with it is cut within a second."""
    return await keys.revoke_key(tools, caller, key_id)


@get("/keys/{key_id:str}", scope="admin", responses=refusing(KeyNotFound))
async def get_key(tools: NamedDependency[Tools], caller: NamedDependency[Caller], key_id: FromPath[str]) -> KeyDocument:
    """One key of this tenant, also if it has ended. Never what is secret of it."""
    return key_to_json(await keys.find_key(tools, caller, key_id))


@get("/keys/{key_id:str}/limits", scope="admin", responses=refusing(KeyNotFound))
async def key_limits(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], key_id: FromPath[str]
) -> LimitsPage:
    """What a key may still ask for and download. A rotated key, and its tokens, share what they stand for."""
    return {"items": await limits_left(tools, caller, key_id), "next": None}


@get("/jobs/{job_id:str}/tokens", scope="submit", responses=refusing(JobNotFound))
async def list_tokens(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], job_id: FromPath[str]
) -> KeysPage:
    """The tokens that were given out for this job."""
    return {"items": await keys.list_tokens(tools, caller, job_id), "next": None}


@post(
    "/jobs/{job_id:str}/tokens",
    scope="submit",
    operation_class=taking(AskedToken),
    responses=refusing(JobNotFound, *BODY),
)
async def create_token(
    request: Request[Any, Any, State],
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    job_id: FromPath[str],
) -> MadeKeyDocument:
    """Make a token for the person who waits: it can read and cancel this job, and nothing else."""
    given = await asked(request, tools.settings, AskedToken)
    return await keys.create_token(tools, caller, job_id, given.expires_in)


@delete(
    "/jobs/{job_id:str}/tokens/{key_id:str}",
    scope="submit",
    status_code=200,
    responses=refusing(JobNotFound, KeyNotFound),
)
async def revoke_token(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], job_id: FromPath[str], key_id: FromPath[str]
) -> KeyDocument:
    """End a token now."""
    return await keys.revoke_token(tools, caller, job_id, key_id)


@get("/audit", scope="admin", responses=refusing())
async def audit(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    before: Before = None,
    limit: Limit = 50,
) -> AuditPage:
    """Who did what with which key, newest first. `next` is the `before` of the next page."""
    return await keys.audit(tools, caller, before=before, limit=limit)


@post("/sessions", scope="read", responses=refusing())
async def log_in(tools: NamedDependency[Tools], caller: NamedDependency[Caller]) -> SessionDocument:
    """Log in a browser with the key that is shown here. The text of the session is in this answer, and never again."""
    return await keys.start_session(tools, caller)


@delete("/sessions/current", scope="read", status_code=204, responses=refusing())
async def log_out(tools: NamedDependency[Tools], caller: NamedDependency[Caller]) -> None:
    """End the session this is asked with; without one, nothing happens."""
    await keys.end_session(tools, caller)


async def limits_left(tools: Tools, caller: Caller, key_id: str) -> list[LimitDocument]:
    """Raises KeyNotFound."""
    client = (await keys.find_key(tools, caller, key_id)).client
    found = [(each, each.charge(client, 0)) for each in tools.downloads.limits]
    if tools.authenticator.rates is not None:
        found.insert(0, (tools.authenticator.limit, tools.authenticator.rates.charge(client, 0)))
    spent = await tools.store.spend([charge for _, charge in found])
    return [
        limit_to_json(each.name, each.unit, each.most, each.window, left)
        for (each, _), left in zip(found, spent.left, strict=True)
    ]


ROUTES = [
    me,
    list_keys,
    create_key,
    get_key,
    rotate_key,
    revoke_key,
    key_limits,
    list_tokens,
    create_token,
    revoke_token,
    audit,
    log_in,
    log_out,
]
