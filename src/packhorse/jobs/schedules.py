"""Reading schedules: their terms, versions and runs. A key of one user sees the schedules that act for that user."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence

from packhorse.auth import access
from packhorse.auth.access import Caller
from packhorse.core import cron
from packhorse.core.schedules import Revision, Run, Schedule
from packhorse.core.text import describe_schedule
from packhorse.errors import VersionNotFound
from packhorse.jobs.services import Services
from packhorse.schemas.schedules import (
    DifferenceDocument,
    PreviewPage,
    RunDocument,
    RunsPage,
    ScheduleDocument,
    SchedulesPage,
    VersionDocument,
    VersionsPage,
    differences_to_json,
    moment_to_json,
    run_to_json,
    schedule_to_json,
    version_to_json,
)
from packhorse.store.collections import schedules as records

PREVIEWED = 10
"""Fire times of a preview."""
LARGEST = 2**53 - 1
"""No version has a larger number: every program and every store can count to it."""


async def list_schedules(
    services: Services,
    caller: Caller,
    *,
    deleted: bool = False,
    runs: int = 0,
    cursor: str | None = None,
    limit: int = 50,
    base: str = "",
) -> SchedulesPage:
    """By id; with ``runs``, so many of the last runs of each. ``base`` is the path of the API."""
    after = None if cursor is None else (caller.tenant, cursor)
    found = await records.list_all(services.store, caller.tenant, after=after, limit=limit + 1)
    seen = [each for each in found[:limit] if (deleted or each.ended_at is None) and access.may_see_terms(caller, each)]
    following = found[limit - 1].id if len(found) > limit else None
    items = [schedule_to_json(each) for each in seen]
    if runs:
        pages = await asyncio.gather(
            *(records.runs(services.store, caller.tenant, each.id, limit=runs) for each in seen)
        )
        for item, page in zip(items, await _runs_to_json(services, caller, pages, base), strict=True):
            item["runs"] = page
    return {"items": items, "next": following}


def preview(services: Services, line: str, zone: str) -> PreviewPage:
    """The next times a cron line fires. Raises InvalidInput."""
    now = services.store.now()
    cron.check(line, zone, now)
    items = [moment_to_json(each) for each in cron.preview(line, zone, now, PREVIEWED)]
    return {"when": describe_schedule(line, zone), "items": items, "next": None}


async def find(services: Services, caller: Caller, schedule_id: str) -> Schedule | None:
    """None if there is none; raises ScheduleNotFound for one of another user."""
    found = None if "\0" in schedule_id else await records.get(services.store, caller.tenant, schedule_id)
    return None if found is None else access.schedule(caller, found, schedule_id)


async def get(services: Services, caller: Caller, schedule_id: str) -> Schedule:
    """Raises ScheduleNotFound, also for one of somebody else."""
    return access.schedule(caller, await find(services, caller, schedule_id), schedule_id)


async def schedule(services: Services, caller: Caller, schedule_id: str) -> ScheduleDocument:
    """Raises ScheduleNotFound."""
    return schedule_to_json(await get(services, caller, schedule_id))


async def list_versions(
    services: Services, caller: Caller, schedule_id: str, *, before: int = LARGEST, limit: int = 50
) -> VersionsPage:
    """Newest first. Raises ScheduleNotFound."""
    await get(services, caller, schedule_id)
    found = await records.revisions(services.store, caller.tenant, schedule_id, before=before, limit=limit + 1)
    pairs = list(zip(found, [*found[1:], None], strict=True))[:limit]
    items = [
        version_to_json(made, _seen(caller, earlier)) for made, earlier in pairs if access.may_see_terms(caller, made)
    ]
    return {"items": items, "next": found[limit - 1].version if len(found) > limit else None}


async def version(services: Services, caller: Caller, schedule_id: str, number: int) -> VersionDocument:
    """Raises ScheduleNotFound and VersionNotFound."""
    await get(services, caller, schedule_id)
    found = await revision_of(services, caller, schedule_id, number)
    before = await records.revisions(services.store, caller.tenant, schedule_id, before=number, limit=1)
    return version_to_json(found, _seen(caller, before[0] if before else None))


async def diff(services: Services, caller: Caller, schedule_id: str, old: int, new: int) -> list[DifferenceDocument]:
    """What differs between two versions. Raises ScheduleNotFound and VersionNotFound."""
    await get(services, caller, schedule_id)
    before, after = [await revision_of(services, caller, schedule_id, each) for each in (old, new)]
    return differences_to_json(before.terms, after.terms)


async def list_runs(
    services: Services, caller: Caller, schedule_id: str, *, before: float | None = None, limit: int = 50, base: str
) -> RunsPage:
    """What became of each tick, the newest first. Raises ScheduleNotFound."""
    await get(services, caller, schedule_id)
    found = await records.runs(services.store, caller.tenant, schedule_id, before=before, limit=limit + 1)
    [items] = await _runs_to_json(services, caller, [found[:limit]], base)
    return {"items": items, "next": found[limit - 1].tick if len(found) > limit else None}


async def revision_of(services: Services, caller: Caller, schedule_id: str, version: int) -> Revision:
    """One for a user whom the caller may not act for, and a missing one look the same."""
    found = []
    if 0 < version < LARGEST:
        found = await records.revisions(services.store, caller.tenant, schedule_id, before=version + 1, limit=1)
    if not found or found[0].version != version or not access.may_see_terms(caller, found[0]):
        raise VersionNotFound(schedule_id=schedule_id, version=version)
    return found[0]


async def _runs_to_json(
    services: Services, caller: Caller, pages: Sequence[Sequence[Run]], base: str
) -> list[list[RunDocument]]:
    """Of each schedule those that the caller may see; with how their jobs stand, all asked for at once."""
    own: list[list[Run]] = []
    for page in pages:
        seen = await _seen_versions(services, caller, page)
        own.append([run for run in page if run.version in seen])
    live = [run.job_id for page in own for run in page if run.status == "fired" and run.job_id is not None]
    jobs = dict(zip(live, await services.store.get(live) if live else [], strict=True))
    return [[run_to_json(run, jobs.get(run.job_id or ""), base) for run in page] for page in own]


async def _seen_versions(services: Services, caller: Caller, runs: Sequence[Run]) -> Container[int]:
    """The versions of these runs that the caller may know of."""
    versions = [run.version for run in runs]
    if caller.user is None or not runs:
        return versions
    newest, size = max(versions), max(versions) - min(versions) + 1
    found = await records.revisions(services.store, caller.tenant, runs[0].schedule, before=newest + 1, limit=size)
    return {each.version for each in found if access.may_see_terms(caller, each)}


def _seen(caller: Caller, revision: Revision | None) -> Revision | None:
    return revision if revision is not None and access.may_see_terms(caller, revision) else None
