"""Runs a schedule when another system asks for it, with a signed token in place of a key.

A token is for one schedule and is not stored: it is signed with the deployment's secret key. It ends with its time,
with the schedule, and when the secret key that signed it is no longer configured.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, TypedDict

from packhorse.auth.access import Caller
from packhorse.core.schedules import Run, Schedule, run_now
from packhorse.errors import Conflict, NoSecretKey, Unauthorized
from packhorse.jobs import schedules
from packhorse.jobs.services import Services
from packhorse.schemas.progress import iso
from packhorse.schemas.schedules import RunDocument, run_to_json
from packhorse.settings import secret_keys
from packhorse.store.collections import schedules as records

REMEMBERED = 50
"""Newest runs in which a repeated message is recognised."""
TRIES = 20
BAD = "the token is missing, ended, or for another schedule"


class TokenDocument(TypedDict):
    """``path`` is where to send a POST. The token is shown only now."""

    schedule_id: str
    token: str
    path: str
    expires_at: str | None


async def create_token(services: Services, caller: Caller, schedule_id: str, seconds: int | None) -> TokenDocument:
    """Raises ScheduleNotFound and NoSecretKey."""
    found = await schedules.get(services, caller, schedule_id)
    caller.acting_for(found.terms.user)
    keys = secret_keys(services.settings.secret_key)
    if not keys:
        raise NoSecretKey
    ends = 0 if seconds is None else int(services.store.now()) + seconds
    body = f"{urlsafe_b64encode(found.tenant.encode()).decode().rstrip('=')}.{ends}"
    token = f"{body}.{_signature(keys[0], body, found)}"
    services.audit.tell("schedule.token", caller, schedule_id=schedule_id, expires_at=iso(ends or None))
    path = f"/trigger/{schedule_id}?token={token}"
    return {"schedule_id": schedule_id, "token": token, "path": path, "expires_at": iso(ends or None)}


async def fire(services: Services, schedule_id: str, token: str, message: Any, base: str) -> RunDocument:
    """Run the schedule now. A message that comes again, by its id, is answered with the run it has caused.

    Raises Unauthorized, and NotAllowed for a schedule that was deleted meanwhile.
    """
    trace_id = _trace_of(message)
    for _ in range(TRIES):
        found = await _authorized(services, schedule_id, token)
        if trace_id and (earlier := await _run_of(services, found, trace_id)) is not None:
            return run_to_json(earlier, None, base)
        move = run_now(found, services.store.now(), trace_id)
        try:
            await records.move(services.store, move)  # refused if another message was faster
        except Conflict:
            continue
        services.audit.tell("schedule.triggered", Caller(found.tenant, frozenset()), schedule_id=schedule_id)
        return run_to_json(move.runs[0], None, base)
    raise Conflict(schedule_id=schedule_id)


async def _authorized(services: Services, schedule_id: str, token: str) -> Schedule:
    body, _, signature = token.rpartition(".")
    coded, _, ends = body.partition(".")
    try:
        tenant = urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
        end = int(ends)
    except ValueError:
        raise Unauthorized(reason=BAD) from None
    found = None if "\0" in schedule_id + tenant else await records.get(services.store, tenant, schedule_id)
    if found is None or (end and end < services.store.now()):
        raise Unauthorized(reason=BAD)
    keys = secret_keys(services.settings.secret_key)
    if not any(hmac.compare_digest(_signature(key, body, found), signature) for key in keys):
        raise Unauthorized(reason=BAD)
    return found


def _signature(key: str, body: str, schedule: Schedule) -> str:
    """Of a schedule that is made anew under the same name, it is another."""
    signed = f"trigger:{schedule.id}:{schedule.created_at!r}:{body}".encode()
    return hmac.new(key.encode(), signed, hashlib.sha256).hexdigest()


async def _run_of(services: Services, schedule: Schedule, trace_id: str) -> Run | None:
    runs = await records.runs(services.store, schedule.tenant, schedule.id, limit=REMEMBERED)
    return next((run for run in runs if run.is_manual and run.trace_id == trace_id), None)


def _trace_of(message: Any) -> str:
    """The trace of a Pub/Sub message, from its id, so that a repeated message has the same; empty without an id."""
    found = message.get("message") if isinstance(message, dict) else None
    given = found.get("messageId") or found.get("message_id") if isinstance(found, dict) else None
    return hashlib.sha256(str(given).encode()).hexdigest()[:32] if given else ""
