"""Runs a schedule for another system, which shows a signed token instead of a key.

A token is for one schedule and is not stored: the deployment's secret key signs it. It ends at its time, when the
schedule is deleted or acts for another user, and when the secret key that signed it is no longer configured.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import urlsafe_b64decode, urlsafe_b64encode
from typing import Any, TypedDict

from packhorse.auth.access import Caller
from packhorse.core import json
from packhorse.core.schedules import Run, Schedule, run_now
from packhorse.errors import Conflict, NoSecretKey, TokenRefused
from packhorse.jobs import schedules
from packhorse.jobs.services import Services
from packhorse.schemas.progress import iso
from packhorse.settings import secret_keys
from packhorse.store.collections import schedules as records

LIFETIME = 365 * 86400  # seconds that a token is valid if its request names no time
REMEMBERED = 100
"""Newest runs in which a repeated message is recognised."""


class TokenDocument(TypedDict):
    """A POST to ``path`` runs the schedule. The token is shown only now."""

    schedule_id: str
    token: str
    path: str
    expires_at: str | None


class TriggerDocument(TypedDict):
    """The run of a message. It says nothing of the job: a token allows to run the schedule, not to read it."""

    schedule_id: str
    tick: str
    trace_id: str | None
    """Derived from the message's id; null for a request without one, whose run has a trace of its own."""
    is_repeated: bool
    """The message has come before and has run the schedule then."""


async def create_token(
    services: Services, caller: Caller, schedule_id: str, seconds: int | None, base: str
) -> TokenDocument:
    """``base`` is the path of the API. Raises ScheduleNotFound, NotAllowed for a deleted schedule, and NoSecretKey."""
    found = await schedules.get(services, caller, schedule_id)
    caller.acting_for(found.terms.user)
    run_now(found, services.store.now())  # refused if the schedule cannot run
    keys = secret_keys(services.settings.secret_key)
    if not keys:
        raise NoSecretKey
    ends = int(services.store.now()) + (LIFETIME if seconds is None else seconds)
    body = f"{urlsafe_b64encode(found.tenant.encode()).decode().rstrip('=')}.{ends}"
    token = f"{body}.{_signature(keys[0], body, found)}"
    services.audit.tell("schedule.token", caller, schedule_id=schedule_id, expires_at=iso(ends))
    path = f"{base}/schedules/{schedule_id}/trigger?token={token}"
    return {"schedule_id": schedule_id, "token": token, "path": path, "expires_at": iso(ends)}


async def check_token(services: Services, schedule_id: str, token: str) -> Schedule | None:
    """The schedule, if the token is for it and valid. Reads nothing else of the request."""
    body, _, signature = token.rpartition(".")
    coded, _, ends = body.partition(".")
    try:
        tenant = urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
        end = int(ends)
    except ValueError:
        return None
    if "\0" in schedule_id + tenant or (end and end < services.store.now()):
        return None
    found = await records.get(services.store, tenant, schedule_id)
    if found is None or found.ended_at is not None:
        return None
    given = signature.encode("utf-8", "replace")  # compare_digest refuses text that is not ASCII
    keys = secret_keys(services.settings.secret_key)
    return found if any(hmac.compare_digest(_signature(key, body, found).encode(), given) for key in keys) else None


async def fire(services: Services, caller: Caller, found: Schedule, token: str, message: Any) -> TriggerDocument:
    """Run the schedule now. A message that comes again, by its id, runs nothing.

    ``caller`` is the holder of the token, which was valid for this schedule. Raises TokenRefused if it ended meanwhile.
    """
    trace_id = _trace_of(message)
    for _ in range(schedules.TRIES):
        if trace_id and (earlier := await _run_of(services, found, trace_id)) is not None:
            return _to_json(earlier, trace_id, is_repeated=True)
        move = run_now(found, services.store.now(), trace_id)
        try:
            await records.move(services.store, move)  # refused if the schedule has changed, or another message ran it
        except Conflict:
            current = await check_token(services, found.id, token)
            if current is None:
                raise TokenRefused from None
            found = current
            continue
        services.audit.tell("schedule.triggered", caller, schedule_id=found.id)
        return _to_json(move.runs[0], trace_id, is_repeated=False)
    raise Conflict(schedule_id=found.id)


def _signature(key: str, body: str, schedule: Schedule) -> str:
    """Another one after a delete and a new create of the same id, and when the schedule acts for another user."""
    parts = ["trigger", schedule.tenant, schedule.id, schedule.created_at, schedule.since, schedule.terms.user, body]
    return hmac.new(key.encode(), json.encode(parts), hashlib.sha256).hexdigest()


async def _run_of(services: Services, schedule: Schedule, trace_id: str) -> Run | None:
    runs = await records.runs(services.store, schedule.tenant, schedule.id, limit=REMEMBERED)
    return next((run for run in runs if run.is_manual and run.trace_id == trace_id), None)


def _to_json(run: Run, trace_id: str, *, is_repeated: bool) -> TriggerDocument:
    return {
        "schedule_id": run.schedule,
        "tick": iso(run.tick) or "",
        "trace_id": trace_id or None,
        "is_repeated": is_repeated,
    }


def _trace_of(message: Any) -> str:
    """The trace for a Pub/Sub message: the same for a repeated message. Empty without an id."""
    inner = message.get("message") if isinstance(message, dict) else None
    given = inner.get("messageId") or inner.get("message_id") if isinstance(inner, dict) else None
    if not isinstance(given, str | int):
        return ""
    return hashlib.sha256(json.encode([message.get("subscription"), given])).hexdigest()[:32]
