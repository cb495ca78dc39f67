"""Schedules: their terms, versions and runs. Each edit is a version that counts from the next tick.

A key of one user sees the schedules that act for that user. Nobody overwrites an edit that they have not seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Container, Mapping, Sequence
from itertools import islice, pairwise
from typing import Any

import msgspec
from msgspec import Struct, field
from msgspec.structs import replace

from packhorse.auth import access
from packhorse.auth.access import LOCAL_USER, Caller
from packhorse.core import cron, json
from packhorse.core import schedules as rules
from packhorse.core.json import values_at
from packhorse.core.records import Put
from packhorse.core.redaction import MASK, restore_masked
from packhorse.core.schedules import Misfire, Move, Overlap, Revision, Run, Schedule, Terms, check_terms
from packhorse.core.text import describe_schedule
from packhorse.define.introspection import check_name
from packhorse.define.options import seconds
from packhorse.define.validation import NOT_VALID, ErrorCollector, find_nul, invalid
from packhorse.errors import (
    Conflict,
    EditedMeanwhile,
    NotAllowed,
    TooLarge,
    TooManySchedules,
    VersionNeeded,
    VersionNotFound,
)
from packhorse.jobs.catalog import Published
from packhorse.jobs.encryption import get_encryptor
from packhorse.jobs.services import Services, check_reason, read_field
from packhorse.schemas import schedules as schemas
from packhorse.settings import Settings
from packhorse.store.collections import schedules as records

PREVIEWED = 10
"""Fire times of a preview."""
LARGEST = 2**53 - 1
"""No version has a larger number: JSON and every store can represent it."""
COMPARED = 100
"""Ticks that are compared with the shortest interval."""
FENCE = "schedule_fence"
"""A record per tenant that changes whenever a schedule is added: two at once are counted one after the other."""
TRIES = 20
"""Decisions on an edit while ticks of the schedule are claimed."""

Edit = dict[str, Any]
"""Author, reason and time of an edit, as the functions of `core.schedules` take them."""
Decide = Callable[[Schedule | None, Edit], Move | None]
"""Decides on an edit; None if there is nothing to change."""


async def list_schedules(
    services: Services,
    caller: Caller,
    *,
    deleted: bool = False,
    runs: int = 0,
    cursor: str | None = None,
    limit: int = 50,
    base: str = "",
) -> schemas.SchedulesPage:
    """By id; with ``runs``, so many of the last runs of each. ``base`` is the path of the API."""
    after = None if cursor is None else (caller.tenant, cursor)
    found = await records.list_all(services.store, caller.tenant, after=after, limit=limit + 1)
    seen = [each for each in found[:limit] if (deleted or each.ended_at is None) and access.may_see_terms(caller, each)]
    following = found[limit - 1].id if len(found) > limit else None
    items = [_to_json(caller, each) for each in seen]
    if runs:
        pages = await asyncio.gather(
            *(records.runs(services.store, caller.tenant, each.id, limit=runs) for each in seen)
        )
        for item, page in zip(items, await _runs_to_json(services, caller, pages, base), strict=True):
            item["runs"] = page
    return {"items": items, "next": following}


def preview(services: Services, line: str, zone: str) -> schemas.PreviewPage:
    """The next times of a cron expression. Raises InvalidInput."""
    now = services.store.now()
    cron.check(line, zone, now)
    items = [schemas.moment_to_json(each) for each in cron.preview(line, zone, now, PREVIEWED)]
    return {"when": describe_schedule(line, zone), "items": items, "next": None}


async def find(services: Services, caller: Caller, schedule_id: str) -> Schedule | None:
    """None if there is none; raises ScheduleNotFound for one of another user."""
    found = None if "\0" in schedule_id else await records.get(services.store, caller.tenant, schedule_id)
    return None if found is None else access.schedule(caller, found, schedule_id)


async def get(services: Services, caller: Caller, schedule_id: str) -> Schedule:
    """Raises ScheduleNotFound, also for one of somebody else."""
    return access.schedule(caller, await find(services, caller, schedule_id), schedule_id)


async def schedule(services: Services, caller: Caller, schedule_id: str) -> schemas.ScheduleDocument:
    """Raises ScheduleNotFound."""
    return _to_json(caller, await get(services, caller, schedule_id))


def _to_json(caller: Caller, schedule: Schedule) -> schemas.ScheduleDocument:
    """For a caller who sees one app, what another app declares is nothing to compare with."""
    is_ours = schedule.declared is not None and caller.sees_pipeline(schedule.declared.pipeline)
    return schemas.schedule_to_json(schedule if is_ours else replace(schedule, declared=None))


async def list_versions(
    services: Services, caller: Caller, schedule_id: str, *, before: int = LARGEST, limit: int = 50
) -> schemas.VersionsPage:
    """Newest first. Raises ScheduleNotFound."""
    await get(services, caller, schedule_id)
    found = await records.revisions(services.store, caller.tenant, schedule_id, before=before, limit=limit + 1)
    pairs = list(zip(found, [*found[1:], None], strict=True))[:limit]
    items = [
        schemas.version_to_json(made, _if_visible(caller, earlier))
        for made, earlier in pairs
        if access.may_see_terms(caller, made)
    ]
    return {"items": items, "next": found[limit - 1].version if len(found) > limit else None}


async def version(services: Services, caller: Caller, schedule_id: str, number: int) -> schemas.VersionDocument:
    """Raises ScheduleNotFound and VersionNotFound."""
    await get(services, caller, schedule_id)
    found = await revision_of(services, caller, schedule_id, number)
    before = await records.revisions(services.store, caller.tenant, schedule_id, before=number, limit=1)
    return schemas.version_to_json(found, _if_visible(caller, before[0] if before else None))


async def diff(
    services: Services, caller: Caller, schedule_id: str, old: int, new: int
) -> list[schemas.DifferenceDocument]:
    """What differs between two versions. Raises ScheduleNotFound and VersionNotFound."""
    await get(services, caller, schedule_id)
    before, after = [await revision_of(services, caller, schedule_id, each) for each in (old, new)]
    return schemas.differences_to_json(before.terms, after.terms)


async def list_runs(
    services: Services, caller: Caller, schedule_id: str, *, before: float | None = None, limit: int = 50, base: str
) -> schemas.RunsPage:
    """The result of each tick, newest first. Raises ScheduleNotFound."""
    await get(services, caller, schedule_id)
    found = await records.runs(services.store, caller.tenant, schedule_id, before=before, limit=limit + 1)
    [items] = await _runs_to_json(services, caller, [found[:limit]], base)
    return {"items": items, "next": found[limit - 1].tick if len(found) > limit else None}


async def revision_of(services: Services, caller: Caller, schedule_id: str, version: int) -> Revision:
    """Raises VersionNotFound, also for one that acts for a user of somebody else."""
    found = []
    if 0 < version < LARGEST:
        found = await records.revisions(services.store, caller.tenant, schedule_id, before=version + 1, limit=1)
    if not found or found[0].version != version or not access.may_see_terms(caller, found[0]):
        raise VersionNotFound(schedule_id=schedule_id, version=version)
    return found[0]


async def _runs_to_json(
    services: Services, caller: Caller, pages: Sequence[Sequence[Run]], base: str
) -> list[list[schemas.RunDocument]]:
    """Of each schedule those that the caller may see, with the status of their jobs, which are read at once."""
    own: list[list[Run]] = []
    for page in pages:
        seen = await _seen_versions(services, caller, page)
        own.append([run for run in page if run.version in seen])
    live = [run.job_id for page in own for run in page if run.status == "fired" and run.job_id is not None]
    jobs = dict(zip(live, await services.store.get(live) if live else [], strict=True))
    return [[schemas.run_to_json(run, jobs.get(run.job_id or ""), base) for run in page] for page in own]


async def _seen_versions(services: Services, caller: Caller, runs: Sequence[Run]) -> Container[int]:
    """The versions of these runs that the caller may see."""
    versions = [run.version for run in runs]
    if not runs or (caller.user is None and not caller.app):
        return versions
    newest, size = max(versions), max(versions) - min(versions) + 1
    found = await records.revisions(services.store, caller.tenant, runs[0].schedule, before=newest + 1, limit=size)
    return {each.version for each in found if access.may_see_terms(caller, each)}


def _if_visible(caller: Caller, revision: Revision | None) -> Revision | None:
    return revision if revision is not None and access.may_see_terms(caller, revision) else None


# Edits


class ScheduleRequest(Struct):
    """A schedule as it is to be. Omitted fields get their defaults, not their current values."""

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
    """Save nothing: return the schedule as it would be, and its changes."""


async def put(
    services: Services, caller: Caller, schedule_id: str, wanted: ScheduleRequest, written: bytes, match: str | None
) -> tuple[schemas.ScheduleDocument, bool]:
    """Make a schedule, or a new version of it; return it, and whether it is new.

    ``written`` are the parameters as the caller spelled them. ``match`` names the version that the caller has
    seen (as in If-Match). With ``dry_run`` nothing is stored. Raises InvalidInput, EditedMeanwhile and VersionNeeded.
    """
    early, pipeline = ErrorCollector(), None
    with early:
        read_field("schedule_id", check_name, schedule_id)
    with early:
        check_reason(wanted.reason)
    with early:
        pipeline = await services.catalog.get(wanted.pipeline, caller.app)

    def decide(found: Schedule | None, edit: Edit) -> Move:
        kept = None if found is None else found.terms
        errors, parameters = early.copy(), b"{}"
        if pipeline is not None:
            with errors:
                parameters = accept_parameters(pipeline, wanted, written, services.settings, caller.tenant, kept)
        terms = _terms(errors, wanted, "" if pipeline is None else pipeline.plan.pipeline, parameters, caller)
        with errors:
            check_terms(terms, edit["now"])
            _check_interval(terms, edit["now"], services.settings.schedule_interval)
        errors.check(NOT_VALID)
        if found is None or found.ended_at is not None:
            if match is not None:
                raise EditedMeanwhile("There is no such schedule any more.", schedule_id=schedule_id, version=0)
            if found is None:
                return rules.create(caller.tenant, schedule_id, terms, **edit)
            return rules.revive(found, terms, **edit)
        if match is None:
            raise VersionNeeded(schedule_id=schedule_id)
        return rules.edit(found, terms, **edit)

    move = await _commit(services, caller, schedule_id, match, wanted.reason, decide, is_trial=wanted.dry_run)
    is_new = move.before is None or move.before.ended_at is not None
    document = _to_json(caller, move.after)
    if wanted.dry_run:
        before = move.after if is_new or move.before is None else move.before
        document["changes"] = schemas.differences_to_json(before.terms, move.after.terms)
    return document, is_new and not wanted.dry_run


async def switch(
    services: Services, caller: Caller, schedule_id: str, match: str | None, *, active: bool, reason: str
) -> schemas.ScheduleDocument:
    """Pause or resume it. Raises ScheduleNotFound and EditedMeanwhile, as all edits below."""

    def decide(found: Schedule, edit: Edit) -> Move | None:
        if found.terms.active == active and found.ended_at is None:
            return None
        return rules.edit(found, replace(found.terms, active=active), action="resumed" if active else "paused", **edit)

    return await _edit(services, caller, schedule_id, match, reason, decide)


async def delete(
    services: Services, caller: Caller, schedule_id: str, match: str | None, reason: str
) -> schemas.ScheduleDocument:
    """Fire it no more. Its versions and runs can be read until they are purged."""
    return await _edit(services, caller, schedule_id, match, reason, lambda found, edit: rules.end(found, **edit))


async def reset(
    services: Services, caller: Caller, schedule_id: str, match: str | None, reason: str
) -> schemas.ScheduleDocument:
    """Make it what the app's code declares, again."""

    def decide(found: Schedule, edit: Edit) -> Move | None:
        if found.declared is None:
            raise NotAllowed("No code declares this schedule.", verb="reset", status="undeclared")
        return rules.edit(found, found.declared, action="reset", **edit) if found.is_adrift else None

    return await _edit(services, caller, schedule_id, match, reason, decide)


async def roll_back(
    services: Services, caller: Caller, schedule_id: str, match: str | None, version: int, reason: str
) -> schemas.ScheduleDocument:
    """Make an earlier version the newest again: a new version with the same terms. Raises VersionNotFound."""
    check_reason(reason)
    await get(services, caller, schedule_id)
    old = await revision_of(services, caller, schedule_id, version)

    def decide(found: Schedule, edit: Edit) -> Move:
        return rules.edit(found, old.terms, action=f"rolled back to {old.version}", **edit)

    return await _edit(services, caller, schedule_id, match, reason, decide)


async def run(services: Services, caller: Caller, schedule_id: str, base: str) -> schemas.RunDocument:
    """Run it now, beside its ticks, and also while it is paused."""

    def decide(found: Schedule | None, edit: Edit) -> Move:
        return rules.run_now(access.schedule(caller, found, schedule_id), edit["now"])

    move = await _commit(services, caller, schedule_id, None, "", decide)
    return schemas.run_to_json(move.runs[0], None, base)


async def _edit(
    services: Services,
    caller: Caller,
    schedule_id: str,
    match: str | None,
    reason: str,
    decide: Callable[[Schedule, Edit], Move | None],
) -> schemas.ScheduleDocument:
    check_reason(reason)

    def decide_existing(found: Schedule | None, edit: Edit) -> Move | None:
        return decide(access.schedule(caller, found, schedule_id), edit)

    move = await _commit(services, caller, schedule_id, match, reason, decide_existing)
    return _to_json(caller, move.after)


async def _commit(
    services: Services,
    caller: Caller,
    schedule_id: str,
    match: str | None,
    reason: str,
    decide: Decide,
    *,
    is_trial: bool = False,
) -> Move:
    """Read, decide, commit; again if only a tick was claimed meanwhile. Raises EditedMeanwhile after another edit.

    A trial is refused as the edit would be, and changes nothing.
    """
    for _ in range(TRIES):
        found = await find(services, caller, schedule_id)
        seen = None if match is None else {each.strip() for each in match.split(",")}
        if found is not None and seen is not None and not seen & {f'"{found.version}"', "*"}:
            raise EditedMeanwhile(schedule_id=schedule_id, version=found.version)
        move = decide(found, {"author": caller.key_id or LOCAL_USER, "reason": reason, "now": services.store.now()})
        if move is None:
            assert found is not None
            return Move(found, found)
        # An older version, or the code, may have been for another user, or run a pipeline of another app.
        caller.acting_for(move.after.terms.user)
        if not caller.sees_pipeline(move.after.terms.pipeline):
            message = "The schedule would run a pipeline of another app"
            raise invalid(NOT_VALID, [{"field": "pipeline", "message": message}])
        is_new = move.after.ended_at is None and (found is None or found.ended_at is not None)
        fence = await _fence(services, caller.tenant) if is_new else None
        if is_trial:
            return move
        try:
            await records.move(services.store, move, fence)
        except Conflict:
            continue
        if (made := move.revision) is None:
            services.audit.tell("schedule.run", caller, schedule_id=schedule_id)
        else:
            facts: dict[str, Any] = {"version": made.version, "action": made.action, "reason": made.reason}
            services.audit.tell("schedule.changed", caller, schedule_id=schedule_id, **facts)
        return move
    raise Conflict(schedule_id=schedule_id)


async def _fence(services: Services, tenant: str) -> Put | None:
    """Raises TooManySchedules. Else a write that is refused if another schedule of the tenant was added meanwhile."""
    most = services.settings.tenant_schedules
    if not most:
        return None
    [fence] = await services.store.fetch(FENCE, [tenant])
    if await records.count_live(services.store, tenant, most) >= most:
        raise TooManySchedules(tenant=tenant, limit=most)
    return Put(FENCE, tenant, b"1", stamp=0 if fence is None else fence.stamp)


def _check_interval(terms: Terms, now: float, least: float) -> None:
    """Raises InvalidInput if two of its next ticks are too close."""
    ticks = islice(cron.ticks(terms.cron, terms.zone, now), COMPARED) if least and terms.cron else ()
    if any(later - earlier < least for earlier, later in pairwise(ticks)):
        message = f"It fires more often than every {least:g} seconds, which is the limit (PACKHORSE_SCHEDULE_INTERVAL)"
        raise invalid(NOT_VALID, [{"field": "cron", "message": message}])


def _terms(errors: ErrorCollector, wanted: ScheduleRequest, pipeline: str, parameters: bytes, caller: Caller) -> Terms:
    """With a placeholder for each field that is not valid."""
    user, window = "-", 0.0
    with errors:
        user = caller.acting_for(wanted.user_id)
    with errors:
        window = read_field("window", seconds, wanted.window)
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
    same = before if before is not None and before.pipeline == plan.pipeline else None
    is_masked = MASK in list(values_at(wanted.parameters, plan.secrets))
    kept = same.parameters if same is not None and is_masked else b"{}"
    _check_parameters(
        pipeline, restore_masked(wanted.parameters, json.decode(encryptor.decrypt(kept, plan, tenant)), plan.secrets)
    )
    stored = written
    if plan.secrets:
        sealed = restore_masked(wanted.parameters, json.decode(kept), plan.secrets)
        stored = encryptor.encrypt_rest(json.encode(sealed), plan, tenant)
    return same.parameters if same is not None and _canonical(stored) == _canonical(same.parameters) else stored


def _canonical(parameters: bytes) -> bytes:
    """One spelling for equal values. As bytes: Python considers 1, 1.0 and True equal."""
    return msgspec.json.encode(json.decode(parameters), order="sorted")


def _check_parameters(pipeline: Published, given: Mapping[str, Any]) -> None:
    files = [name for name in given if name in pipeline.files]
    masks = [".".join(path) for path in pipeline.plan.secrets if MASK in values_at(given, [path])]
    errors = [
        *({"field": name, "message": "A schedule cannot hold files"} for name in files),
        *pipeline.find_errors(given),
        *find_nul(given),
        *({"field": name, "message": "These dots only stand for a secret"} for name in masks),
    ]
    if errors:
        raise invalid(NOT_VALID, errors)
