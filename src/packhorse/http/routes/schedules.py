"""Schedules: what is run when; every edit is a version, and what became of each tick stays to be seen."""

from __future__ import annotations

import asyncio
from collections.abc import Container, Sequence
from typing import Annotated, Any

from litestar import Request, Response, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromPath, QueryParameter
from msgspec import Struct

from packhorse.auth.caller import Caller
from packhorse.core import cron
from packhorse.core.schedules import Revision, Run, Schedule
from packhorse.core.text import describe_schedule
from packhorse.errors import (
    EditedMeanwhile,
    NotAllowed,
    ScheduleNotFound,
    TooLarge,
    TooSlow,
    UnsupportedMedia,
    VersionNotFound,
)
from packhorse.http.openapi import refusing, taking
from packhorse.http.requests.json_body import asked
from packhorse.http.requests.query import LARGEST, Number
from packhorse.http.services import Tools
from packhorse.schemas.schedules import (
    DifferencePage,
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
from packhorse.store.collections import schedules as schedule_records

SOMEBODY_HERE = "local"
"""Who edits where nobody needs a key."""
SHOWN = 10
"""Fire times of a preview."""
MOST_RUNS = 30
"""Runs that a list shows of each schedule."""
TRIES = 20
"""How often a decision is made anew because a tick was claimed meanwhile."""

BODY = (TooLarge, UnsupportedMedia, TooSlow)
CHANGING = (*BODY, ScheduleNotFound, EditedMeanwhile, NotAllowed)

Limit = Annotated[int, QueryParameter(ge=1, le=200)]
Before = Annotated[float | None, QueryParameter(ge=1, le=LARGEST, description="Only ticks before this moment.")]
Cursor = Annotated[str | None, QueryParameter(description="`next` of the page before.")]
Deleted = Annotated[bool, QueryParameter(description="Also those that were deleted, as long as their runs are kept.")]
Last = Annotated[int, QueryParameter(ge=0, le=MOST_RUNS, description="So many of each one's last runs are told, too.")]
Asking = Request[Any, Any, State]


class Line(Struct):
    """A cron line to look at."""

    cron: str = ""
    zone: str = "UTC"


@get("/schedules", scope="read", responses=refusing())
async def list_schedules(
    request: Asking,
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    deleted: Deleted = False,
    runs: Last = 0,
    cursor: Cursor = None,
    limit: Limit = 50,
) -> SchedulesPage:
    """Schedules by id. `next` is the cursor of the next page."""
    after = None if cursor is None else (caller.tenant, cursor)
    found = await schedule_records.list_all(tools.store, caller.tenant, after=after, limit=limit + 1)
    seen = [each for each in found[:limit] if (deleted or each.ended_at is None) and may_see(caller, each)]
    following = found[limit - 1].id if len(found) > limit else None
    items = [schedule_to_json(each) for each in seen]
    if runs:
        pages = await asyncio.gather(
            *(schedule_records.runs(tools.store, caller.tenant, each.id, limit=runs) for each in seen)
        )
        for item, page in zip(items, await _shown_runs(tools, caller, pages, base_of(request)), strict=True):
            item["runs"] = page
    return {"items": items, "next": following}


@post(
    "/schedules/preview",
    scope="read",
    status_code=200,
    operation_class=taking(Line, required=True),
    responses=refusing(*BODY),
)
async def preview_schedule(request: Asking, tools: NamedDependency[Tools]) -> PreviewPage:
    """The next ten times a cron line fires, and the local times that are skipped or come twice where clocks change."""
    line = await asked(request, tools.settings, Line)
    now = tools.store.now()
    cron.check(line.cron, line.zone, now)
    found = cron.preview(line.cron, line.zone, now, SHOWN)
    items = [moment_to_json(each) for each in found]
    return {"when": describe_schedule(line.cron, line.zone), "items": items, "next": None}


@get("/schedules/{schedule_id:str}", scope="read", responses=refusing(ScheduleNotFound))
async def get_schedule(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], schedule_id: FromPath[str]
) -> Response[ScheduleDocument]:
    """One schedule; its `ETag` names the version. One that was deleted is there until its runs are."""
    return shown(await schedule_of(tools, caller, schedule_id))


@get("/schedules/{schedule_id:str}/versions", scope="read", responses=refusing(ScheduleNotFound))
async def list_versions(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    before: Number = LARGEST,
    limit: Limit = 50,
) -> VersionsPage:
    """Every version, newest first: who made it, when, why, and what it changed. A key of one user sees those for it."""
    await schedule_of(tools, caller, schedule_id)
    found = await schedule_records.revisions(tools.store, caller.tenant, schedule_id, before=before, limit=limit + 1)
    pairs = list(zip(found, [*found[1:], None], strict=True))[:limit]
    items = [version_to_json(made, _seen(caller, before)) for made, before in pairs if may_see(caller, made)]
    return {"items": items, "next": found[limit - 1].version if len(found) > limit else None}


@get(
    "/schedules/{schedule_id:str}/versions/{version:int}",
    scope="read",
    responses=refusing(ScheduleNotFound, VersionNotFound),
)
async def get_version(
    tools: NamedDependency[Tools], caller: NamedDependency[Caller], schedule_id: FromPath[str], version: FromPath[int]
) -> VersionDocument:
    """One version."""
    await schedule_of(tools, caller, schedule_id)
    found = await revision_of(tools, caller, schedule_id, version)
    before = await schedule_records.revisions(tools.store, caller.tenant, schedule_id, before=version, limit=1)
    return version_to_json(found, _seen(caller, before[0] if before else None))


Version = Annotated[int, QueryParameter(ge=1, le=LARGEST)]


@get("/schedules/{schedule_id:str}/diff", scope="read", responses=refusing(ScheduleNotFound, VersionNotFound))
async def diff_versions(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    old: Version,
    new: Version,
) -> DifferencePage:
    """What is different between two versions."""
    await schedule_of(tools, caller, schedule_id)
    before, after = [await revision_of(tools, caller, schedule_id, each) for each in (old, new)]
    return {"items": differences_to_json(before.terms, after.terms), "next": None}


@get("/schedules/{schedule_id:str}/runs", scope="read", responses=refusing(ScheduleNotFound))
async def list_runs(
    request: Asking,
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    schedule_id: FromPath[str],
    before: Before = None,
    limit: Limit = 50,
) -> RunsPage:
    """What became of each tick, the newest first. A key of one user sees the runs of versions for it."""
    await schedule_of(tools, caller, schedule_id)
    found = await schedule_records.runs(tools.store, caller.tenant, schedule_id, before=before, limit=limit + 1)
    [items] = await _shown_runs(tools, caller, [found[:limit]], base_of(request))
    return {"items": items, "next": found[limit - 1].tick if len(found) > limit else None}


ROUTES = [
    list_schedules,
    preview_schedule,
    get_schedule,
    list_versions,
    get_version,
    diff_versions,
    list_runs,
]


# What the edits use, too.


async def known(tools: Tools, caller: Caller, schedule_id: str) -> Schedule | None:
    found = None if "\0" in schedule_id else await schedule_records.get(tools.store, caller.tenant, schedule_id)
    if found is not None and not may_see(caller, found):
        raise ScheduleNotFound(schedule_id=schedule_id[:100])
    return found


async def schedule_of(tools: Tools, caller: Caller, schedule_id: str) -> Schedule:
    """A foreign one and a missing one look the same."""
    if (found := await known(tools, caller, schedule_id)) is None:
        raise ScheduleNotFound(schedule_id=schedule_id[:100])
    return found


async def revision_of(tools: Tools, caller: Caller, schedule_id: str, version: int) -> Revision:
    """One for a user whom the caller may not act for, and a missing one look the same."""
    found = []
    if 0 < version < LARGEST:
        found = await schedule_records.revisions(tools.store, caller.tenant, schedule_id, before=version + 1, limit=1)
    if not found or found[0].version != version or not may_see(caller, found[0]):
        raise VersionNotFound(schedule_id=schedule_id, version=version)
    return found[0]


async def _shown_runs(
    tools: Tools, caller: Caller, pages: Sequence[Sequence[Run]], base: str
) -> list[list[RunDocument]]:
    """Of each schedule those that the caller may see; with how their jobs stand, all asked for at once."""
    own: list[list[Run]] = []
    for page in pages:
        seen = await _seen_versions(tools, caller, page)
        own.append([run for run in page if run.version in seen])
    live = [run.job_id for page in own for run in page if run.status == "fired" and run.job_id is not None]
    jobs = dict(zip(live, await tools.store.get(live) if live else [], strict=True))
    return [[run_to_json(run, jobs.get(run.job_id or ""), base) for run in page] for page in own]


async def _seen_versions(tools: Tools, caller: Caller, runs: Sequence[Run]) -> Container[int]:
    """The versions of these runs that the caller may know of."""
    versions = [run.version for run in runs]
    if caller.user is None or not runs:
        return versions
    newest, size = max(versions), max(versions) - min(versions) + 1
    found = await schedule_records.revisions(
        tools.store, caller.tenant, runs[0].schedule, before=newest + 1, limit=size
    )
    return {each.version for each in found if may_see(caller, each)}


def _seen(caller: Caller, revision: Revision | None) -> Revision | None:
    return revision if revision is not None and may_see(caller, revision) else None


def may_see(caller: Caller, found: Schedule | Revision) -> bool:
    return caller.user in (None, found.terms.user)


def shown(schedule: Schedule, status_code: int = 200) -> Response[ScheduleDocument]:
    return Response(schedule_to_json(schedule), status_code=status_code, headers={"ETag": f'"{schedule.version}"'})


def base_of(request: Asking) -> str:
    return request.url.path.partition("/schedules")[0]
