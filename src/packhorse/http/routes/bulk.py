"""Many jobs at once: counted, cancelled, retried, deleted. Each as it would be alone, so many of them per request."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Any

from litestar import Request, get, post
from litestar.datastructures import State
from litestar.di import NamedDependency
from litestar.params import FromQuery
from msgspec.structs import replace

from packhorse.auth.caller import Caller
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.errors import (
    CorruptRecord,
    JobNotFound,
    NotAllowed,
    PackhorseError,
    SchemaTooNew,
    SlotTaken,
    TooLarge,
    TooSlow,
    UnsupportedMedia,
)
from packhorse.http.openapi import refusing, taking
from packhorse.http.requests.job_selection import MOST_IDS, Meant, Place, capped, meant, place_from
from packhorse.http.requests.json_body import asked
from packhorse.http.routes.jobs import seconds_of, wanted
from packhorse.http.services import Tools
from packhorse.schemas.jobs import ChangedDocument, CountDocument
from packhorse.store.base import Count, Filter

COUNTED = 1000
"""Counted no further than this: a page says 1,000+."""
FIRST = 10
"""Jobs that are shown of those that a trial is about."""
NAMED = 20
"""Jobs that are named because they were left as they are; more are counted."""

Decide = Callable[[Job, float], Change | None]

DECIDE: dict[str, Decide] = {
    "cancel": lambda job, now: lifecycle.cancel(job, now=now),
    "retry": lambda job, now: lifecycle.retry(job, now=now),
    "delete": lambda job, now: lifecycle.delete(job, now=now),
}
WHOLE = {"retry": frozenset({Status.COMPLETED})}
"""What is done again only if somebody says from where on, and so not by those who mean many."""

LEFT = (JobNotFound, SlotTaken, NotAllowed, CorruptRecord, SchemaTooNew)
"""What is wrong with one job, and leaves the others alone."""

CHANGING = (TooLarge, UnsupportedMedia, TooSlow)
MEANT = taking(Meant, required=True)


@get("/jobs/count", scope="read", responses=refusing())
async def count(
    tools: NamedDependency[Tools],
    caller: NamedDependency[Caller],
    user_id: FromQuery[str | None] = None,
    status: FromQuery[Status | None] = None,
    pipeline: FromQuery[str | None] = None,
    created_from: FromQuery[datetime | None] = None,
    created_until: FromQuery[datetime | None] = None,
) -> CountDocument:
    """How many jobs a list with the same filters would have; counted up to 1000, `is_at_least` if there may be more."""
    filter = wanted(caller, user_id, status, pipeline, seconds_of(created_from), seconds_of(created_until))
    found = Count(0, True) if filter is None else await tools.store.count(filter, most=COUNTED)
    return {"count": found.number, "is_at_least": not found.is_all}


@post("/jobs/cancel", scope="cancel", status_code=202, operation_class=MEANT, responses=refusing(*CHANGING))
async def cancel(
    request: Request[Any, Any, State], tools: NamedDependency[Tools], caller: NamedDependency[Caller]
) -> ChangedDocument:
    """Cancel many: those of these ids, or all active ones that a filter finds, up to 200 of them in one request.

    `next` is the cursor with which to go on. With `dry_run` nothing is done: the answer says how many it would be.
    """
    return await Many(tools, caller, "cancel").answer(request)


@post("/jobs/retry", scope="submit", status_code=202, operation_class=MEANT, responses=refusing(*CHANGING))
async def retry(
    request: Request[Any, Any, State], tools: NamedDependency[Tools], caller: NamedDependency[Caller]
) -> ChangedDocument:
    """Start a new run of many, from what has not finished: of these ids, or all failed and cancelled ones of a filter.

    Otherwise as for `POST /jobs/cancel`.
    """
    return await Many(tools, caller, "retry").answer(request)


@post("/jobs/delete", scope="submit", status_code=202, operation_class=MEANT, responses=refusing(*CHANGING))
async def delete(
    request: Request[Any, Any, State], tools: NamedDependency[Tools], caller: NamedDependency[Caller]
) -> ChangedDocument:
    """Delete many with their files: those of these ids, or all ended ones that a filter finds.

    Otherwise as for `POST /jobs/cancel`.
    """
    return await Many(tools, caller, "delete").answer(request)


ROUTES = [count, cancel, retry, delete]


class Many:
    """One verb for many jobs, on behalf of a caller."""

    def __init__(self, tools: Tools, caller: Caller, verb: str) -> None:
        self._tools = tools
        self._caller = caller
        self._verb = verb
        self._able = [each for each in Status if each in lifecycle.ALLOWED_FROM[verb] - WHOLE.get(verb, frozenset())]

    async def answer(self, request: Request[Any, Any, State]) -> ChangedDocument:
        given = await asked(request, self._tools.settings, Meant)
        ids, filter = meant(given, self._caller)
        if given.ids:
            return await self._tried(ids) if given.dry_run else await self._done(ids, None)
        if filter is None or not (statuses := [each for each in self._able if filter.status in (None, each)]):
            return _answer()
        place = place_from(given.cursor, statuses, self._tools.store.now())
        if given.cursor is not None:  # at first all are meant: another's clock may be a little ahead of ours
            filter = capped(filter, place.until)
        if given.dry_run:
            return await self._counted(filter, statuses)
        ids, following = await self._page(filter, place, statuses)
        return await self._done(ids, following)

    async def _page(self, filter: Filter, place: Place, statuses: Sequence[Status]) -> tuple[list[str], Place | None]:
        """The next jobs, and where to go on behind them."""
        found: list[str] = []
        for status in statuses[statuses.index(place.status) :]:
            here = place if status is place.status else Place(place.until, status)
            left = MOST_IDS - len(found)
            page = await self._tools.store.find(replace(filter, status=status), before=here.before, limit=left)
            found += [job.id for job in page if not job.is_purging]
            if len(page) == left:
                return found, Place(place.until, status, page[-1].id)
        return found, None

    async def _done(self, ids: Sequence[str], following: Place | None) -> ChangedDocument:
        whys = await asyncio.gather(*(self._one(each) for each in ids))
        done = [id for id, why in zip(ids, whys, strict=True) if why is None]
        self._tell(done)
        left = {id: why for id, why in zip(ids, whys, strict=True) if why is not None}
        return _answer(len(done), left=left, following=following)

    async def _one(self, job_id: str) -> str | None:
        """Why it was left as it is; None if it was not."""
        left: str | None = None

        def verb(job: Job) -> Change | None:
            nonlocal left
            change = self._decided(job)
            left = _state(job) if change is None else None
            return change

        try:
            if "\0" in job_id:
                raise JobNotFound(job_id=job_id)
            await self._tools.transact(job_id, verb)
        except LEFT as error:
            return _why(error)
        return left

    async def _tried(self, ids: Sequence[str]) -> ChangedDocument:
        """What would become of them."""
        able: list[Job] = []
        left: dict[str, str] = {}
        for id in ids:
            try:
                job = await self._tools.job(self._caller, id)
                change = self._decided(job)
            except LEFT as error:
                left[id] = _why(error)
                continue
            if change is None:
                left[id] = _state(job)
            else:
                able.append(job)
        return _answer(len(able), left=left, first=await self._tools.listed(able[:FIRST]))

    def _decided(self, job: Job) -> Change | None:
        return DECIDE[self._verb](self._caller.check(job, job.id), self._tools.store.now())

    async def _counted(self, filter: Filter, statuses: Sequence[Status]) -> ChangedDocument:
        store, number, first = self._tools.store, 0, list[Job]()
        for status in statuses:
            here = replace(filter, status=status)
            found = await store.count(here, most=COUNTED - number)
            number += found.number
            first += await store.find(here, limit=FIRST - len(first)) if found.number and len(first) < FIRST else []
            if not found.is_all:
                return _answer(number, is_at_least=True, first=await self._tools.listed(first))
        return _answer(number, first=await self._tools.listed(first))

    def _tell(self, ids: Sequence[str]) -> None:
        """As for one alone, of which only the deletion is told; that it was many, for each verb."""
        if not ids:
            return
        past = {"cancel": "jobs.cancelled", "retry": "jobs.retried", "delete": "jobs.deleted"}
        self._tools.audit.tell(past[self._verb], self._caller, count=len(ids))
        for id in ids if self._verb == "delete" else ():
            self._tools.audit.tell("job.deleted", self._caller, job_id=id)


def _why(error: PackhorseError) -> str:
    match error:
        case JobNotFound():
            return "gone"
        case SlotTaken():
            return "slot_taken"
        case NotAllowed():
            return str(error.facts["status"])
    return "unreadable"


def _state(job: Job) -> str:
    return "stopping" if job.stopping and not job.status.is_terminal else job.status.value


def _answer(
    count: int = 0,
    *,
    is_at_least: bool = False,
    left: dict[str, str] | None = None,
    first: Sequence[Any] = (),
    following: Place | None = None,
) -> ChangedDocument:
    left = left or {}
    return {
        "count": count,
        "is_at_least": is_at_least,
        "left": dict(Counter(left.values())),
        "named": [{"job_id": id[:100], "why": why} for id, why in list(left.items())[:NAMED]],
        "first": list(first),
        "next": None if following is None else str(following),
    }
