"""Keys and the tokens of one job: made, listed, renewed and revoked; sessions of browsers; and the audit log."""

from __future__ import annotations

from packhorse.auth import access, keys
from packhorse.auth.access import Caller
from packhorse.define.options import seconds
from packhorse.errors import Forbidden, InvalidInput
from packhorse.jobs.services import Services, read_field
from packhorse.schemas import keys as schemas
from packhorse.schemas.progress import iso
from packhorse.store.collections import audit as audit_records
from packhorse.store.collections import keys as records
from packhorse.store.collections.keys import Key

LONGEST = 10 * 366 * 86_400.0
LONGEST_TOKEN = 30 * 86_400.0


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
    made = await keys.create_token(services.store, job, by=caller.key_id, client=caller.client, lasting=lasting)
    return _report_new(services, caller, "token.created", *made)


async def revoke_token(services: Services, caller: Caller, job_id: str, key_id: str) -> schemas.KeyDocument:
    """Raises JobNotFound and KeyNotFound."""
    job = await services.job(caller, job_id)
    token = await keys.find(services.store, key_id, job_id=job.id)
    return await _end(services, caller, token, "token.revoked")


async def audit(services: Services, caller: Caller, *, before: int | None = None, limit: int = 50) -> schemas.AuditPage:
    """Who did what with which key, newest first."""
    await services.audit.flush()
    found = await audit_records.tail(services.store, caller.tenant, before=before, limit=limit + 1)
    following = found[limit - 1].n if len(found) > limit else None
    return {"items": [schemas.audit_entry_to_json(each) for each in found[:limit]], "next": following}


async def start_session(services: Services, caller: Caller) -> schemas.SessionDocument:
    """Log a browser in. The text of the session is in the answer, and nobody can read it again. Raises Forbidden."""
    key = await services.keyring.get(caller.key_id) if caller.key_id else None
    if key is None or caller.session:
        raise Forbidden("Logging in takes a key, in the header Authorization.", scope="read")
    session, text = await keys.start_session(services.store, key, services.settings.session)
    services.audit.tell("session.started", caller, session_id=session.id)
    return {"session_id": session.id, "session": text, "ends_at": iso(session.ends_at)}


async def end_session(services: Services, caller: Caller) -> None:
    if caller.session:
        await records.end_session(services.store, caller.session)
        services.audit.tell("session.ended", caller, session_id=caller.session)


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
