"""Keys and the tokens of one job: made, listed, renewed and revoked; sessions of browsers; and the audit log."""

from __future__ import annotations

from packhorse.auth import access, keys
from packhorse.auth.access import Caller
from packhorse.auth.rate_limits import Limit, refusal
from packhorse.define.options import seconds
from packhorse.errors import Forbidden, InvalidInput, RateExceeded, SessionNotFound, TooMany
from packhorse.jobs.services import Services, read_field
from packhorse.schemas import keys as schemas
from packhorse.schemas.progress import iso
from packhorse.store.collections import audit as audit_records
from packhorse.store.collections import keys as records
from packhorse.store.collections.audit import Entry
from packhorse.store.collections.keys import Key

LONGEST = 10 * 366 * 86_400.0
LONGEST_TOKEN = 30 * 86_400.0
DAY = 86_400.0
MOST_TOKENS = 100
"""Tokens of one job that are kept."""


async def list_keys(
    services: Services, caller: Caller, *, cursor: str | None = None, limit: int = 50
) -> schemas.KeysPage:
    """The keys of the tenant, newest first, ended ones too; never their secrets."""
    found = await records.list_newest(services.store, caller.tenant, before=cursor, limit=limit + 1)
    following = found[limit - 1].id if len(found) > limit else None
    return {"items": [schemas.key_to_json(each) for each in found[:limit]], "next": following}


async def find_key(services: Services, caller: Caller, key_id: str) -> Key:
    """Raises KeyNotFound."""
    return await keys.find(services.store, key_id, caller.tenant)


async def create_key(
    services: Services,
    caller: Caller,
    scopes: list[str],
    *,
    name: str = "",
    user: str | None = None,
    client_name: str = "",
    expires_in: float | str | None = None,
) -> schemas.MadeKeyDocument:
    """The key with its text, which nobody can read again. Raises InvalidInput."""
    made = await keys.create(
        services.store,
        caller.tenant,
        scopes,
        by=caller.key_id,
        name=name,
        user=user,
        client_name=client_name,
        lasting=None if expires_in is None else _seconds("expires_in", expires_in),
    )
    return _report_new(services, caller, "key.created", *made)


async def rotate_key(services: Services, caller: Caller, key_id: str, overlap: float | str) -> schemas.MadeKeyDocument:
    """A key with the same rights; the old one ends after the overlap. Raises KeyNotFound and InvalidInput."""
    lasting = _seconds("overlap", overlap, least=0.0)
    old = await find_key(services, caller, key_id)
    made = await keys.rotate(services.store, old, by=caller.key_id, overlap=lasting)
    services.keyring.forget(old.id)
    return _report_new(services, caller, "key.rotated", *made, replaces=old.id)


async def revoke_key(services: Services, caller: Caller, key_id: str) -> schemas.KeyDocument:
    """Raises KeyNotFound."""
    return await _end(services, caller, await find_key(services, caller, key_id), "key.revoked")


async def list_tokens(services: Services, caller: Caller, job_id: str) -> list[schemas.KeyDocument]:
    """Raises JobNotFound."""
    job = await services.job(caller, job_id)
    return [schemas.key_to_json(each) for each in await records.list_of_job(services.store, job.id)]


async def create_token(
    services: Services, caller: Caller, job_id: str, expires_in: float | str
) -> schemas.MadeKeyDocument:
    """A token with which somebody can read and cancel this job, and nothing else. Raises JobNotFound."""
    lasting = _seconds("expires_in", expires_in, most=LONGEST_TOKEN)
    access.require(caller, "read")
    job = await services.job(caller, job_id)
    await _make_room(services, caller, job.id)
    made = await keys.create_token(services.store, job, by=caller.key_id, client=caller.client, lasting=lasting)
    return _report_new(services, caller, "token.created", *made)


async def _make_room(services: Services, caller: Caller, job_id: str) -> None:
    """Raises TooMany for a job or a key with too many tokens."""
    store, limit = (
        services.store,
        Limit("tokens", services.settings.tokens_limit, DAY, "requests", RateExceeded, what="tokens"),
    )
    if len(found := await records.list_of_job(store, job_id)) >= MOST_TOKENS:
        ended = [each.id for each in found if not services.keyring.is_live(each)]
        if not ended:
            raise TooMany(reason=f"{MOST_TOKENS} valid tokens of one job; revoke one first")
        await records.drop(store, ended)
    if caller.client and limit.most:
        refused = refusal([limit], await store.spend([limit.charge(caller.client, 1)]))
        if refused is not None:
            raise refused


async def revoke_token(services: Services, caller: Caller, job_id: str, key_id: str) -> schemas.KeyDocument:
    """Raises JobNotFound and KeyNotFound."""
    job = await services.job(caller, job_id)
    token = await keys.find(services.store, key_id, job_id=job.id)
    return await _end(services, caller, token, "token.revoked")


ROUTINE = "key.accepted"
"""What the audit log has for every use of a key: most of its entries."""
LOOKS = 10
"""Pages of the log that are read for one without routine entries."""


async def audit(
    services: Services, caller: Caller, *, before: int | None = None, limit: int = 50, with_routine: bool = True
) -> schemas.AuditPage:
    """Who did what with which key, newest first. Operators also see what callers without a valid key tried.

    Without routine entries a page may be short, and still have a next one.
    """
    await services.audit.flush()
    tenants = (caller.tenant, access.NOBODY.tenant) if caller.tenant == access.OPERATOR else (caller.tenant,)
    found: list[Entry] = []
    for _ in range(LOOKS):
        page = await audit_records.tail(services.store, *tenants, before=before, limit=limit + 1)
        found += [each for each in page if with_routine or each.event != ROUTINE]
        before = page[-1].n if len(page) > limit else None
        if before is None or len(found) > limit:
            break
    following = found[limit - 1].n if len(found) > limit else before
    return {"items": [schemas.audit_entry_to_json(each) for each in found[:limit]], "next": following}


async def start_session(services: Services, caller: Caller) -> schemas.SessionDocument:
    """Log a browser in. The text of the session is in the answer, and nobody can read it again. Raises Forbidden."""
    key = await services.keyring.get(caller.key_id) if caller.key_id else None
    if key is None or caller.session:
        raise Forbidden("Logging in takes a key, in the header Authorization.", scope="read")
    settings = services.settings
    session, text = await keys.start_session(
        services.store, key, settings.session, address=caller.address, most=settings.sessions_limit
    )
    services.audit.tell("session.started", caller, session_id=session.id)
    return {"session_id": session.id, "session": text, "ends_at": iso(session.ends_at)}


async def list_sessions(
    services: Services, caller: Caller, *, cursor: str | None = None, limit: int = 50
) -> schemas.SessionsPage:
    """The sessions that the caller may end and that let somebody in, newest first: of its key, or with the scope admin
    those of its tenant."""
    key_id = None if "admin" in caller.allowed else caller.key_id
    found = await records.list_sessions(
        services.store, tenant=caller.tenant, key_id=key_id, before=cursor, limit=limit + 1
    )
    following = found[limit - 1].id if len(found) > limit else None
    now, idle = services.store.now(), services.settings.session_idle
    live = [each for each in found[:limit] if not each.is_over(now, idle)]
    return {"items": [schemas.session_to_json(each, caller.session) for each in live], "next": following}


async def end_session(services: Services, caller: Caller, session_id: str = "") -> None:
    """End the caller's own session, or the one that is named. Raises SessionNotFound."""
    if session_id:
        [found] = [None] if "\0" in session_id else await records.get_sessions(services.store, [session_id])
        is_theirs = found is not None and ("admin" in caller.allowed or found.key_id == caller.key_id)
        if found is None or found.tenant != caller.tenant or not is_theirs:
            raise SessionNotFound(session_id=session_id[:100])
    if ending := session_id or caller.session:
        await records.end_session(services.store, ending)
        services.audit.tell("session.ended", caller, session_id=ending)


def _report_new(
    services: Services, caller: Caller, event: str, key: Key, text: str, **details: str
) -> schemas.MadeKeyDocument:
    services.audit.tell(event, caller, job_id=key.job_id or "", key_id=key.id, **details)
    return {**schemas.key_to_json(key), "key": text}


async def _end(services: Services, caller: Caller, key: Key, event: str) -> schemas.KeyDocument:
    ended = await keys.revoke(services.store, key.id, by=caller.key_id)
    services.keyring.forget(key.id)
    services.audit.tell(event, caller, job_id=key.job_id or "", key_id=key.id)
    return schemas.key_to_json(ended)


def _seconds(name: str, value: float | str, *, least: float = 1.0, most: float = LONGEST) -> float:
    found = read_field(name, seconds, value)
    if not least <= found <= most:
        raise InvalidInput(f"{name} must be from {least:g} to {most:g} seconds.", field=name)
    return found
