"""Editing schedules: each edit is a version, from the next tick on, and none is made over one that was not seen."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from packhorse.auth.access import LOCAL_USER, Caller
from packhorse.core import json
from packhorse.core import schedules as rules
from packhorse.core.json import values_at
from packhorse.core.plan import Plan
from packhorse.core.redaction import MASK, restore_masked
from packhorse.core.schedules import Misfire, Move, Overlap, Schedule, Terms, check_terms
from packhorse.define.durations import seconds
from packhorse.define.introspection import check_name
from packhorse.define.validation import NOT_VALID, ErrorCollector, find_nul, invalid
from packhorse.errors import Conflict, EditedMeanwhile, NotAllowed, ScheduleNotFound, TooLarge, VersionNeeded
from packhorse.jobs import schedules
from packhorse.jobs.catalog import Published
from packhorse.jobs.encryption import get_encryptor
from packhorse.jobs.services import Services
from packhorse.schemas.schedules import (
    RunDocument,
    ScheduleDocument,
    differences_to_json,
    run_to_json,
    schedule_to_json,
)
from packhorse.settings import Settings
from packhorse.store.collections import schedules as records

LONGEST_REASON = 500
TRIES = 20
"""How often a decision is made anew because a tick was claimed meanwhile."""

Decide = Callable[[Schedule | None, float, str], Move | None]
"""What is to become of the schedule, given the time and who wants it; None if it is so already."""


class ScheduleRequest(Struct):
    """A schedule as it is to be. What is left out is as if it had never been said."""

    cron: str = ""
    """Five fields, or six with the second in front."""
    pipeline: str | None = None
    parameters: dict[str, Any] = field(default_factory=dict)
    user_id: str | None = None
    zone: str = "UTC"
    active: bool = True
    overlap: Overlap = "skip"
    misfire: Misfire = "skip"
    window: float | str = 3600.0
    labels: dict[str, str] = field(default_factory=dict)
    reason: str = ""
    dry_run: bool = False
    """Only tell what would become of it, and what would be different."""


def check_reason(reason: str) -> None:
    if len(reason) > LONGEST_REASON or "\0" in reason:
        message = f"It must be a text of at most {LONGEST_REASON} characters"
        raise invalid(NOT_VALID, [{"field": "reason", "message": message}])


def window_seconds(wanted: ScheduleRequest) -> float:
    try:
        return seconds(wanted.window)
    except ValueError as error:
        raise invalid(NOT_VALID, [{"field": "window", "message": str(error)}]) from error


def accept_parameters(
    pipeline: Published, wanted: ScheduleRequest, written: bytes, settings: Settings, tenant: str, before: Terms | None
) -> bytes:
    """Check the parameters and return them as they are stored. Every schedule's parameters pass here.

    A mask in place of a secret keeps the stored secret. Parameters equal to the stored ones keep their stored
    spelling: otherwise every edit in a form would show as a difference from the code.
    """
    if len(written) > settings.parameters_limit:
        raise TooLarge(field="parameters", limit=settings.parameters_limit)
    plan, encryptor = pipeline.plan, get_encryptor(settings.secret_key)
    is_kept = before is not None and before.pipeline == plan.pipeline and MASK in _secrets(wanted, plan)
    kept = before.parameters if before is not None and is_kept else b"{}"
    _check(
        pipeline, restore_masked(wanted.parameters, json.decode(encryptor.decrypt(kept, plan, tenant)), plan.secrets)
    )
    stored = written
    if plan.secrets:
        sealed = restore_masked(wanted.parameters, json.decode(kept), plan.secrets)
        stored = encryptor.encrypt_rest(json.encode(sealed), plan, tenant)
    if before is not None and before.pipeline == plan.pipeline and _canonical(stored) == _canonical(before.parameters):
        return before.parameters
    return stored


def _canonical(parameters: bytes) -> bytes:
    """One spelling for equal values. As bytes: Python considers 1, 1.0 and True equal."""
    return msgspec.json.encode(json.decode(parameters), order="sorted")


def _secrets(wanted: ScheduleRequest, plan: Plan) -> list[Any]:
    return list(values_at(wanted.parameters, plan.secrets))


def _check(pipeline: Published, given: Mapping[str, Any]) -> None:
    files = [name for name in given if name in pipeline.files]
    masks = [".".join(path) for path in pipeline.plan.secrets if MASK in values_at(given, [path])]
    mistakes = [
        *({"field": name, "message": "A schedule cannot hold files"} for name in files),
        *pipeline.mistakes(given),
        *find_nul(given),
        *({"field": name, "message": "These dots only stand for a secret"} for name in masks),
    ]
    if mistakes:
        raise invalid(NOT_VALID, mistakes)


# Edits


class Edited(NamedTuple):
    schedule: ScheduleDocument
    is_new: bool


async def put(
    services: Services, caller: Caller, schedule_id: str, wanted: ScheduleRequest, written: bytes, match: str | None
) -> Edited:
    """Make a schedule, or a new version of it; ``written`` are the parameters as they were spelled.

    ``match`` names the version that the caller has seen (as in If-Match). With ``dry_run`` nothing is stored. Raises
    InvalidInput, EditedMeanwhile and VersionNeeded.
    """
    early, pipeline = ErrorCollector(), None
    with early:
        _check_id(schedule_id)
    with early:
        check_reason(wanted.reason)
    with early:
        pipeline = await services.catalog.get(wanted.pipeline)

    def decide(found: Schedule | None, now: float, author: str) -> Move:
        kept = None if found is None else found.terms
        gathered, parameters = early.copy(), b"{}"
        if pipeline is not None:
            with gathered:
                parameters = accept_parameters(pipeline, wanted, written, services.settings, caller.tenant, kept)
        terms = _terms(gathered, wanted, "" if pipeline is None else pipeline.plan.pipeline, parameters, caller)
        with gathered:
            check_terms(terms, now)
        gathered.check(NOT_VALID)
        if found is None or found.ended_at is not None:
            if match is not None:
                raise EditedMeanwhile("There is no such schedule any more.", schedule_id=schedule_id, version=0)
            if found is None:
                return rules.create(caller.tenant, schedule_id, terms, author=author, reason=wanted.reason, now=now)
            return rules.revive(found, terms, author=author, reason=wanted.reason, now=now)
        if match is None:
            raise VersionNeeded(schedule_id=schedule_id)
        return rules.edit(found, terms, author=author, reason=wanted.reason, now=now)

    move = await _commit(services, caller, schedule_id, match, decide, is_trial=wanted.dry_run)
    is_new = move.before is None or move.before.ended_at is not None
    told = schedule_to_json(move.after)
    if wanted.dry_run:
        before = move.before
        told["changes"] = [] if before is None or is_new else differences_to_json(before.terms, move.after.terms)
    return Edited(told, is_new and not wanted.dry_run)


async def switch(
    services: Services, caller: Caller, schedule_id: str, match: str | None, *, active: bool, reason: str
) -> ScheduleDocument:
    """Pause or resume it. Raises ScheduleNotFound and EditedMeanwhile, as all edits below."""
    check_reason(reason)
    return await _edit(services, caller, schedule_id, match, _switching(active, reason))


async def delete(
    services: Services, caller: Caller, schedule_id: str, match: str | None, reason: str
) -> ScheduleDocument:
    """Fire it no more. Its versions and runs can be looked at until they are purged."""
    check_reason(reason)
    return await _edit(
        services, caller, schedule_id, match, lambda s, now, by: rules.end(s, author=by, reason=reason, now=now)
    )


async def reset(
    services: Services, caller: Caller, schedule_id: str, match: str | None, reason: str
) -> ScheduleDocument:
    """Make it what the app's code declares, again."""
    check_reason(reason)

    def decide(found: Schedule, now: float, author: str) -> Move | None:
        if found.declared is None:
            raise NotAllowed("No code declares this schedule.", verb="reset", status="undeclared")
        if not found.is_adrift:
            return None
        return rules.edit(found, found.declared, author=author, reason=reason, now=now, action="reset")

    return await _edit(services, caller, schedule_id, match, decide)


async def roll_back(
    services: Services, caller: Caller, schedule_id: str, match: str | None, version: int, reason: str
) -> ScheduleDocument:
    """Make an earlier version the newest again: a new version with the same terms. Raises VersionNotFound."""
    check_reason(reason)
    await schedules.get(services, caller, schedule_id)
    old = await schedules.revision_of(services, caller, schedule_id, version)
    action = f"rolled back to {old.version}"
    return await _edit(
        services,
        caller,
        schedule_id,
        match,
        lambda s, now, by: rules.edit(s, old.terms, author=by, reason=reason, now=now, action=action),
    )


async def run(services: Services, caller: Caller, schedule_id: str, base: str) -> RunDocument:
    """Run it now, beside its ticks, and also while it is paused."""
    decide = _required(schedule_id, lambda s, now, _: rules.run_now(s, now))
    move = await _commit(services, caller, schedule_id, None, decide)
    return run_to_json(move.runs[0], None, base)


async def _edit(
    services: Services,
    caller: Caller,
    schedule_id: str,
    match: str | None,
    decide: Callable[[Schedule, float, str], Move | None],
) -> ScheduleDocument:
    move = await _commit(services, caller, schedule_id, match, _required(schedule_id, decide))
    return schedule_to_json(move.after)


def _switching(active: bool, reason: str) -> Callable[[Schedule, float, str], Move | None]:
    action = "resumed" if active else "paused"

    def decide(found: Schedule, now: float, author: str) -> Move | None:
        if found.terms.active == active and found.ended_at is None:
            return None
        terms = replace(found.terms, active=active)
        return rules.edit(found, terms, author=author, reason=reason, now=now, action=action)

    return decide


def _terms(
    gathered: ErrorCollector, wanted: ScheduleRequest, pipeline: str, parameters: bytes, caller: Caller
) -> Terms:
    """Where something is wrong with a field, with anything in its place."""
    user, window = "-", 0.0
    with gathered:
        user = caller.acting_for(wanted.user_id)
    with gathered:
        window = window_seconds(wanted)
    return Terms(
        pipeline=pipeline,
        parameters=parameters,
        cron=" ".join(wanted.cron.split()),
        zone=wanted.zone,
        user=user,
        active=wanted.active,
        overlap=wanted.overlap,
        misfire=wanted.misfire,
        window=window,
        labels=wanted.labels,
    )


def _check_id(schedule_id: str) -> None:
    try:
        check_name(schedule_id)
    except ValueError as error:
        raise invalid(NOT_VALID, [{"field": "schedule_id", "message": str(error)}]) from error


async def _commit(
    services: Services, caller: Caller, schedule_id: str, match: str | None, decide: Decide, *, is_trial: bool = False
) -> Move:
    """Read, decide, commit; decided anew while only ticks are claimed. Of an edit in between the caller is told.

    A trial is refused as the edit would be, and leaves everything as it is.
    """
    for _ in range(TRIES):
        found = await schedules.find(services, caller, schedule_id)
        if found is not None and match is not None and not _is_seen(match, found):
            raise EditedMeanwhile(schedule_id=schedule_id, version=found.version)
        move = decide(found, services.store.now(), caller.key_id or LOCAL_USER)
        if move is None:
            assert found is not None
            return Move(found, found)
        caller.acting_for(move.after.terms.user)  # an older version, or the code, may have been for somebody else
        if is_trial:
            return move
        try:
            await records.move(services.store, move)
        except Conflict:
            continue
        _tell(services, caller, move)
        return move
    raise Conflict(schedule_id=schedule_id)


def _required(schedule_id: str, decide: Callable[[Schedule, float, str], Move | None]) -> Decide:
    def decide_required(found: Schedule | None, now: float, author: str) -> Move | None:
        if found is None:
            raise ScheduleNotFound(schedule_id=schedule_id[:100])
        return decide(found, now, author)

    return decide_required


def _tell(services: Services, caller: Caller, move: Move) -> None:
    id, made = move.after.id, move.revision
    if made is None:
        services.audit.tell("schedule.run", caller, schedule_id=id)
    else:
        facts: dict[str, Any] = {"version": made.version, "action": made.action, "reason": made.reason}
        services.audit.tell("schedule.changed", caller, schedule_id=id, **facts)


def _is_seen(match: str, schedule: Schedule) -> bool:
    return any(each.strip() in (f'"{schedule.version}"', "*") for each in match.split(","))
