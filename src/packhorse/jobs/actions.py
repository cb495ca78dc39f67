"""What a caller does with jobs: cancel, retry, delete one or many, and promote a result."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from packhorse import errors
from packhorse.auth import access
from packhorse.auth.access import Caller
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.core.plan import Status
from packhorse.define.validation import NOT_VALID, invalid, list_some, quote_short
from packhorse.jobs.promote import Destination, copy_files
from packhorse.jobs.services import Services
from packhorse.jobs.view import MOST_COUNTED, check_pipeline, check_selection, check_stage, selection_errors, time_from
from packhorse.schemas.jobs import ChangedDocument, JobDocument, result_files, stable_names
from packhorse.store.base import Filter

EVERYTHING = "*"


async def cancel(services: Services, caller: Caller, job_id: str) -> JobDocument:
    """Cancel a waiting job at once, or ask the workers that run it to stop."""
    await services.job(caller, job_id)
    job = await services.transact(job_id, lambda job: lifecycle.cancel(job, now=services.store.now()))
    services.audit.tell("job.cancelled", caller, job_id=job_id)
    return await services.document(job, caller)


async def retry(
    services: Services, caller: Caller, job_id: str, stage: str | None = None, *, failed_elements: bool = False
) -> JobDocument:
    """Start a new run: of what has not finished, of a stage and what follows it, or of everything (``*``).

    ``failed_elements``: of the elements that failed and were left out, and of what follows them.
    """
    await services.job(caller, job_id)
    if failed_elements and stage is not None:
        raise errors.InvalidInput("Name a stage, or ask for the failed elements, not both.", field="failed_elements")

    def decide(job: Job) -> Change | None:
        if stage != EVERYTHING:
            check_stage(job, stage)
        return lifecycle.retry(job, stage=stage, failed_elements=failed_elements, now=services.store.now())

    job = await services.transact(job_id, decide)
    services.audit.tell("job.retried", caller, job_id=job_id, run=job.run)
    return await services.document(job)


async def delete(services: Services, caller: Caller, job_id: str) -> None:
    """Delete an ended job with its files."""
    await services.job(caller, job_id)
    await services.transact(job_id, lambda job: lifecycle.delete(job, now=services.store.now()))
    services.audit.tell("job.deleted", caller, job_id=job_id)


async def promote(services: Services, caller: Caller, job_id: str, name: str | None = None) -> JobDocument:
    """Copy the result files to a permanent place. A second call copies only what is missing there."""
    destination = _destination(services, name)
    job = await services.job(caller, job_id)
    if job.status is not Status.COMPLETED:
        raise errors.NotFinished(job_id=job.id, status=job.status.value)
    results = (await services.store.results([job.id])).get(job.id, {})
    names = stable_names(job, results)
    files = {names[each.name]: each.file for each in result_files(job, results)}
    if not files:
        raise errors.NotAllowed(
            "The result has no files that could be promoted.", verb="promote", status=job.status.value
        )
    to = f"{destination.address}/jobs/{job.id}"
    await copy_files(services.blobs, destination, files, is_known=to in job.promoted)
    now = services.store.now
    job = await services.transact(job_id, lambda found: lifecycle.promote(found, to=to, run=job.run, now=now()))
    services.audit.tell("job.promoted", caller, job_id=job.id, to=to)
    return await services.document(job)


def _destination(services: Services, name: str | None) -> Destination:
    if not services.destinations:
        raise errors.InvalidInput(
            "No destination is configured. The operator sets PACKHORSE_PROMOTE_TO.", field="destination"
        )
    if name is None:
        return next(iter(services.destinations.values()))
    if name not in services.destinations:
        message = f"There is no destination {quote_short(name)}. Destinations: {list_some(services.destinations)}."
        raise errors.InvalidInput(message, field="destination")
    return services.destinations[name]


# Many jobs: those with these ids, or all that a filter finds, step by step

MOST_IDS = 200
"""Jobs per request: few enough for an answer in a few seconds."""
FIRST = 10
"""Jobs that a dry run shows."""
NAMED = 20
"""Unchanged jobs that an answer names. It counts the others."""


class Verb(NamedTuple):
    decide: Callable[..., Change | None]
    scope: str
    event: str
    """In the audit log."""
    excluded: frozenset[Status] = frozenset()
    """Statuses in which the verb needs a stage, which a request about many jobs cannot name."""


VERBS = {
    "cancel": Verb(lifecycle.cancel, "cancel", "jobs.cancelled"),
    "retry": Verb(lifecycle.retry, "submit", "jobs.retried", frozenset({Status.COMPLETED})),
    "delete": Verb(lifecycle.delete, "submit", "jobs.deleted"),
}
UNCHANGED = (errors.JobNotFound, errors.SlotTaken, errors.NotAllowed, errors.CorruptRecord, errors.SchemaTooNew)
"""Errors of one job that do not stop the others."""

CURSOR = re.compile(r"(?P<until>[0-9.e+]{1,30}):(?P<status>[a-z]{1,20}):(?P<before>[0-9a-f-]{36})?")


class Meant(Struct):
    """Which jobs to change: those in ``ids``, or all that match the filters, or with ``all`` every job."""

    ids: list[str] = []
    """Up to 200."""
    all: bool = False
    """Needed where neither ids nor anything else is named."""
    user_id: str | None = None
    status: str | None = None
    """One of ours, or an app's own name for it."""
    pipeline: str | None = None
    created_from: str | None = None
    """A time in ISO 8601, as `created_until`."""
    created_until: str | None = None
    dry_run: bool = False
    """Only tell how many they are, and which are the newest."""
    cursor: str | None = None
    """What the answer before this one gave as `next`."""


class Place(NamedTuple):
    """The position of a cursor: status by status, and in each from the newest job to the oldest."""

    until: float
    """The time of the first request. Later jobs are not selected."""
    status: Status
    before: str | None = None

    def __str__(self) -> str:
        return f"{self.until!r}:{self.status.value}:{self.before or ''}"


def select_jobs(given: Meant, caller: Caller, status: Status | None) -> tuple[list[str], Filter | None]:
    """Ids, or a filter; neither for a user that the caller cannot act for. Raises InvalidInput.

    ``status``: what the word in ``given`` means.
    """
    mistakes = selection_errors(given.ids, MOST_IDS, {"user_id": given.user_id, "pipeline": given.pipeline})
    created_from = time_from(given.created_from, "created_from", mistakes)
    created_until = time_from(given.created_until, "created_until", mistakes)
    named = (given.user_id, given.status, given.pipeline, created_from, created_until)
    is_filter = given.all or any(each is not None for each in named)
    check_selection(given.ids, mistakes, is_filter=is_filter, choices="ids, a filter or all")
    if given.ids:
        return list(dict.fromkeys(given.ids)), None
    wanted = Filter(None, given.user_id, status, given.pipeline, created_from, created_until)
    filters = access.jobs_filters(caller, wanted)
    if len(filters) > 1:
        raise invalid(
            NOT_VALID,
            [
                {
                    "field": "pipeline",
                    "message": f"Required. Pipelines of this app: {list_some(sorted(caller.pipelines))}",
                }
            ],
        )
    return [], next(iter(filters), None)


def place_from(cursor: str | None, statuses: Sequence[Status], now: float) -> Place:
    """Where to continue; without a cursor, the beginning. Raises InvalidInput."""
    if cursor is None:
        return Place(now, statuses[0])
    found = CURSOR.fullmatch(cursor)
    try:
        if found is not None and Status(found["status"]) in statuses:
            return Place(min(now, float(found["until"])), Status(found["status"]), found["before"])
    except ValueError:
        pass
    raise invalid(NOT_VALID, [{"field": "cursor", "message": "It must be what the answer before gave as `next`"}])


class BulkAction:
    """One verb for many jobs, on behalf of a caller."""

    def __init__(self, services: Services, caller: Caller, verb: str) -> None:
        self._services = services
        self._caller = caller
        self._verb = VERBS[verb]
        self._able = [each for each in Status if each in lifecycle.ALLOWED_FROM[verb] - self._verb.excluded]

    async def run(self, given: Meant) -> ChangedDocument:
        """One step: up to 200 jobs; ``next`` in the answer is the cursor of the following one. Raises InvalidInput."""
        access.require(self._caller, self._verb.scope)
        status = await self._services.catalog.read_status(given.status, given.pipeline, self._caller.app)
        ids, filter = select_jobs(given, self._caller, status)
        if given.ids:
            return await self._try_ids(ids) if given.dry_run else await self._change(ids, None)
        if filter is None or not (statuses := [each for each in self._able if filter.status in (None, each)]):
            return _answer()
        place = place_from(given.cursor, statuses, self._services.store.now())
        if given.cursor is not None:  # not in the first request: another clock may be a little ahead of ours
            latest = place.until if filter.created_until is None else min(place.until, filter.created_until)
            filter = replace(filter, created_until=latest)
        if given.dry_run:
            counted = await self._count(filter, statuses)
            if not counted["count"]:
                await check_pipeline(self._services, self._caller, given.pipeline)
            return counted
        ids, following = await self._page(filter, place, statuses)
        if not ids and given.cursor is None:
            await check_pipeline(self._services, self._caller, given.pipeline)
        return await self._change(ids, following)

    async def _page(self, filter: Filter, place: Place, statuses: Sequence[Status]) -> tuple[list[str], Place | None]:
        """The next jobs, and the position behind them."""
        found: list[str] = []
        for status in statuses[statuses.index(place.status) :]:
            here = place if status is place.status else Place(place.until, status)
            left = MOST_IDS - len(found)
            page = await self._services.store.find(replace(filter, status=status), before=here.before, limit=left)
            found += [job.id for job in page if not job.is_purging]
            if len(page) == left:
                return found, Place(place.until, status, page[-1].id)
        return found, None

    async def _change(self, ids: Sequence[str], following: Place | None) -> ChangedDocument:
        whys = dict(zip(ids, await asyncio.gather(*(self._change_one(each) for each in ids)), strict=True))
        done = [id for id, why in whys.items() if why is None]
        if done:
            self._services.audit.tell(self._verb.event, self._caller, count=len(done))
        for id in done if self._verb is VERBS["delete"] else ():
            self._services.audit.tell("job.deleted", self._caller, job_id=id)
        left = {id: why for id, why in whys.items() if why is not None}
        return _answer(len(done), left=left, following=following)

    async def _change_one(self, job_id: str) -> str | None:
        """None, or why the job is unchanged."""
        left: str | None = None

        def verb(job: Job) -> Change | None:
            nonlocal left
            change = self._decide(job)
            left = _state(job) if change is None else None
            return change

        try:
            if "\0" in job_id:
                raise errors.JobNotFound(job_id=job_id)
            await self._services.transact(job_id, verb)
        except UNCHANGED as error:
            return _why(error)
        return left

    async def _try_ids(self, ids: Sequence[str]) -> ChangedDocument:
        """What would happen to them."""
        able: list[Job] = []
        left: dict[str, str] = {}
        for id in ids:
            try:
                job = await self._services.job(self._caller, id)
                change = self._decide(job)
            except UNCHANGED as error:
                left[id] = _why(error)
                continue
            if change is None:
                left[id] = _state(job)
            else:
                able.append(job)
        return _answer(len(able), left=left, first=await self._services.documents(able[:FIRST]))

    def _decide(self, job: Job) -> Change | None:
        return self._verb.decide(access.job(self._caller, job, job.id), now=self._services.store.now())

    async def _count(self, filter: Filter, statuses: Sequence[Status]) -> ChangedDocument:
        store, number, first = self._services.store, 0, list[Job]()
        for status in statuses:
            here = replace(filter, status=status)
            [found] = await store.count([here], most=MOST_COUNTED - number)
            number += found.number
            first += await store.find(here, limit=FIRST - len(first)) if found.number and len(first) < FIRST else []
            if not found.is_all:
                return _answer(number, is_at_least=True, first=await self._services.documents(first))
        return _answer(number, first=await self._services.documents(first))


def _why(error: errors.PackhorseError) -> str:
    match error:
        case errors.JobNotFound():
            return "gone"
        case errors.SlotTaken():
            return "slot_taken"
        case errors.NotAllowed():
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
