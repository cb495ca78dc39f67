"""Keys: made, listed, renewed and ended; and tokens for the person who waits for one job."""

from __future__ import annotations

from typing import Annotated, Any

from litestar import Request, delete, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, FromQuery, QueryParameter
from msgspec import Struct, field

from packhorse.auth import issue
from packhorse.auth.caller import ANY, Caller
from packhorse.define.durations import seconds
from packhorse.define.validation import NOT_VALID, invalid
from packhorse.errors import Forbidden, InvalidInput, JobNotFound, KeyNotFound, TooLarge, TooSlow, UnsupportedMedia
from packhorse.http.openapi import refusing, taking
from packhorse.http.requests.json_body import asked
from packhorse.http.requests.query import LARGEST
from packhorse.http.services import Tools
from packhorse.schemas.keys import (
    AuditPage,
    KeyDocument,
    KeysPage,
    LimitsPage,
    MadeKeyDocument,
    MeDocument,
    audit_entry_to_json,
    key_to_json,
    limit_to_json,
)
from packhorse.store.collections import audit as audit_records
from packhorse.store.collections import keys
from packhorse.store.collections.keys import Key

BODY = (TooLarge, UnsupportedMedia, TooSlow)
Before = Annotated[int | None, QueryParameter(ge=1, le=LARGEST)]
Limit = Annotated[int, QueryParameter(ge=1, le=200)]

TOKEN = 86_400.0
"""Seconds a token is good for if nobody says."""
LONGEST_TOKEN = 30 * 86_400.0


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
    found = await keys.list_newest(tools.store, caller.tenant, before=cursor, limit=limit + 1)
    following = found[limit - 1].id if len(found) > limit else None
    return {"items": [key_to_json(each) for each in found[:limit]], "next": following}


@post("/keys", scope="admin", operation_class=taking(AskedKey, required=True), responses=refusing(*BODY))
async def create_key(
    request: Request[Any, Any, State], tools: NamedDependency[Tools], caller: NamedDependency[Caller]
) -> MadeKeyDocument:
    """Make a key. Its text is in this answer, and never again."""
    given = await asked(request, tools.settings, AskedKey)
    made = await issue.create(
        tools.store,
        caller.tenant,
        given.scopes,
        by=caller.key_id,
        name=given.name,
        user=given.user_id,
        lasting=None if given.expires_in is None else _seconds("expires_in", given.expires_in),
    )
    return _made(tools, caller, "key.created", *made)


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
    overlap = _seconds("overlap", given.overlap, least=0.0)
    old = await issue.find(tools.store, key_id, caller.tenant)
    made = await issue.rotate(tools.store, old, by=caller.key_id, overlap=overlap)
    tools.keyring.forget(old.id)
    return _made(tools, caller, "key.rotated", *made, replaces=old.id)


@delete("/keys/{key_id:str}", scope="admin", status_code=200, responses=refusing(KeyNotFound))
async def revoke_key(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], key_id: FromPath[str]
) -> KeyDocument:
    """End a key now. What is open with it is cut within a second."""
    return await _end(tools, caller, await issue.find(tools.store, key_id, caller.tenant), "key.revoked")


@get("/keys/{key_id:str}", scope="admin", responses=refusing(KeyNotFound))
async def get_key(tools: NamedDependency[Tools], caller: NamedDependency[Caller], key_id: FromPath[str]) -> KeyDocument:
    """One key of this tenant, also if it has ended. Never what is secret of it."""
    return key_to_json(await issue.find(tools.store, key_id, caller.tenant))


@get("/keys/{key_id:str}/limits", scope="admin", responses=refusing(KeyNotFound))
async def key_limits(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], key_id: FromPath[str]
) -> LimitsPage:
    """What a key may still ask for and download. A rotated key, and its tokens, share what they stand for."""
    client = (await issue.find(tools.store, key_id, caller.tenant)).client
    found = [(each, each.charge(client, 0)) for each in tools.downloads.limits]
    if tools.door.rates is not None:
        found.insert(0, (tools.door.limit, tools.door.rates.charge(client, 0)))
    spent = await tools.store.spend([charge for _, charge in found])
    return {
        "items": [
            limit_to_json(each.name, each.unit, each.most, each.window, left)
            for (each, _), left in zip(found, spent.left, strict=True)
        ],
        "next": None,
    }


@get("/jobs/{job_id:str}/tokens", scope="submit", responses=refusing(JobNotFound))
async def list_tokens(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], job_id: FromPath[str]
) -> KeysPage:
    """The tokens that were given out for this job."""
    job = await tools.job(caller, job_id)
    return {"items": [key_to_json(each) for each in await keys.list_of_job(tools.store, job.id)], "next": None}


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
    lasting = _seconds("expires_in", given.expires_in, most=LONGEST_TOKEN)
    if "read" not in caller.allowed:
        raise Forbidden(scope="read")
    job = await tools.job(caller, job_id)
    made = await issue.token(tools.store, job, by=caller.key_id, client=caller.client, lasting=lasting)
    return _made(tools, caller, "token.created", *made)


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
    job = await tools.job(caller, job_id)
    for token in await keys.list_of_job(tools.store, job.id):
        if token.id == key_id:
            return await _end(tools, caller, token, "token.revoked")
    raise KeyNotFound(key_id=key_id)


@get("/audit", scope="admin", responses=refusing())
async def audit(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    before: Before = None,
    limit: Limit = 50,
) -> AuditPage:
    """Who did what with which key, newest first. `next` is the `before` of the next page."""
    await tools.audit.flush()
    found = await audit_records.tail(tools.store, caller.tenant, before=before, limit=limit + 1)
    following = found[limit - 1].n if len(found) > limit else None
    return {"items": [audit_entry_to_json(each) for each in found[:limit]], "next": following}


def _made(tools: Tools, caller: Caller, event: str, key: Key, text: str, **details: str) -> MadeKeyDocument:
    tools.audit.tell(event, caller, job_id=key.job_id or "", key_id=key.id, **details)
    return {**key_to_json(key), "key": text}


async def _end(tools: Tools, caller: Caller, key: Key, event: str) -> KeyDocument:
    ended = await issue.revoke(tools.store, key.id, by=caller.key_id)
    tools.keyring.forget(key.id)
    tools.audit.tell(event, caller, job_id=key.job_id or "", key_id=key.id)
    return key_to_json(ended)


def _seconds(name: str, value: float | str, *, least: float = 1.0, most: float = 10 * 366 * 86_400.0) -> float:
    try:
        found = seconds(value)
    except ValueError as error:
        raise invalid(NOT_VALID, [{"field": name, "message": str(error)}]) from error
    if not least <= found <= most:
        raise InvalidInput(f"{name} must be from {least:g} to {most:g} seconds.", field=name)
    return found


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
]
