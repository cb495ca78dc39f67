"""Reading jobs: a list, one job, why it waits, how long it takes, its history, log, metrics and files.

A page of one job is `job_page`, which needs a single read of the job; each of the other functions answers one request.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from itertools import chain
from typing import TypedDict

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from packhorse.auth import access
from packhorse.auth.access import Caller
from packhorse.core.models import Artifact, Job, Task, TaskId
from packhorse.core.plan import Status
from packhorse.define.validation import NOT_VALID, NUL, FieldError, invalid, list_some, quote_short
from packhorse.errors import InvalidInput, JobNotFound, UnknownPipeline
from packhorse.jobs.explain import Fleet, estimate_job, explain_job, live_workers, read_fleet
from packhorse.jobs.search import find_jobs
from packhorse.jobs.services import Services, read_readable
from packhorse.schemas import job_details
from packhorse.schemas import jobs as job_schemas
from packhorse.schemas.job_details import EstimateDocument, ReasonDocument, estimate_to_json, reason_to_json
from packhorse.schemas.operations import PipelineDocument, pipeline_to_json
from packhorse.schemas.progress import Reported, duration_ms, iso, job_percent
from packhorse.store.base import Filter, Line, Snapshot, Store

LOG_WINDOW = 5000
"""Line numbers of a log that are read at once while lines are looked for."""
LOG_WINDOWS = 4
"""How many of these one request reads: the next one continues where it stopped."""
ATTEMPT_EVENTS = 20_000
"""Events of a job, the newest, in which the attempts of one element are looked for."""
EVENTS_PAGE = 5000
MOST_COUNTED = 1000
"""Jobs of a filter are counted no further than this: a page says 1,000+."""


async def job(services: Services, caller: Caller, job_id: str) -> job_schemas.JobDocument:
    """Raises JobNotFound."""
    return await services.document(await services.job(caller, job_id), caller)


async def list_jobs(
    services: Services, caller: Caller, wanted: Filter, text: str = "", *, cursor: str | None = None, limit: int
) -> job_schemas.JobsPage:
    """Newest first; ``next`` is the cursor of the next page. ``text`` is searched for, see `jobs.search`."""
    found, following = await _find_page(services, caller, wanted, text, cursor, limit)
    return {"items": await services.documents(found), "next": following}


class JobRow(TypedDict):
    """A job in the list of a page: of what the store keeps beside it, only the progress is read."""

    job_id: str
    pipeline: str
    user_id: str
    name: str
    """Its file, else its parameters in short; empty if it has none."""
    status: Status
    stopping: str | None
    stage: str | None
    """The stage that runs, or that the run failed in."""
    error: str | None
    progress: float
    created_at: str | None
    started_at: str | None
    starts_at: str | None
    """When it may start, if it was submitted for later."""
    duration_ms: int | None


async def job_rows(
    services: Services, caller: Caller, wanted: Filter, text: str = "", *, cursor: str | None = None, limit: int
) -> tuple[list[JobRow], str | None]:
    """Newest first, and the cursor of the next page."""
    found, following = await _find_page(services, caller, wanted, text, cursor, limit)
    return await read_readable(partial(_rows, services.store), found), following


async def latest_jobs(services: Services, caller: Caller, limit: int) -> tuple[list[JobRow], list[JobRow]]:
    """The newest jobs that run, and the newest that do not: at most so many of each."""
    filters = access.jobs_filters(caller, Filter())
    running, recent = await asyncio.gather(
        _find(services.store, [replace(each, status=Status.RUNNING) for each in filters], None, limit),
        _find(services.store, filters, None, 2 * limit),
    )
    known = {job.id: job for job in (*running, *recent)}
    rows = await read_readable(partial(_rows, services.store), [known[id] for id in sorted(known, reverse=True)])
    return [row for row in rows if row["status"] == "running"][:limit], [
        row for row in rows if row["status"] != "running"
    ][:limit]


async def _rows(store: Store, jobs: Sequence[Job]) -> list[JobRow]:
    ids = [job.id for job in jobs]
    progress, specs = await asyncio.gather(store.progress(ids), store.specs(ids))
    return [
        {
            "job_id": job.id,
            "pipeline": job.plan.pipeline,
            "user_id": job.user,
            "name": job_schemas.name_of(job, specs.get(job.id)),
            "status": job.status,
            "stopping": job.stopping,
            "stage": _stage_of(job),
            "error": None if job.error is None else job.error.message.partition("\n")[0] or job.error.code,
            "progress": job_percent(job, progress.get(job.id, {})),
            "created_at": iso(job.created_at),
            "started_at": iso(job.started_at),
            "starts_at": iso(job.not_before) if job.not_before > job.created_at else None,
            "duration_ms": duration_ms(job.started_at, job.completed_at),
        }
        for job in jobs
        if not job.is_purging
    ]


def _stage_of(job: Job) -> str | None:
    if job.error is not None:
        return job.error.stage
    return next((at.stage for at in job.running_tasks()), None) if job.status is Status.RUNNING else None


async def count_by_status(
    services: Services, caller: Caller, wanted: Filter
) -> dict[Status, job_schemas.CountDocument]:
    """How many jobs match but for their status, by status: in one question to the store."""
    filters = [
        (status, each) for status in Status for each in access.jobs_filters(caller, replace(wanted, status=status))
    ]
    most = MOST_COUNTED if wanted.is_indexed else MOST_COUNTED // 10
    found = await services.store.count([each for _, each in filters], most=most)
    counts: dict[Status, job_schemas.CountDocument] = {status: {"count": 0, "is_at_least": False} for status in Status}
    for (status, _), count in zip(filters, found, strict=True):
        counts[status]["count"] += count.number
        counts[status]["is_at_least"] |= not count.is_all
    return counts


async def count_jobs(services: Services, caller: Caller, wanted: Filter) -> job_schemas.CountDocument:
    filters = access.jobs_filters(caller, wanted)
    found = await services.store.count(filters, most=MOST_COUNTED)
    number = sum(each.number for each in found)
    if not number:
        await check_pipeline(services, caller, wanted.pipeline)
    return {
        "count": min(number, MOST_COUNTED),
        "is_at_least": number > MOST_COUNTED or not all(x.is_all for x in found),
    }


async def _find_page(
    services: Services, caller: Caller, wanted: Filter, text: str, cursor: str | None, limit: int
) -> tuple[list[Job], str | None]:
    """Raises UnknownPipeline if there is nothing to find because the filter names none."""
    filters = access.jobs_filters(caller, wanted)
    if text.strip():
        found, following = await find_jobs(services.store, filters, text, before=cursor, limit=limit)
    else:
        found = await _find(services.store, filters, cursor, limit + 1)
        following = found[limit - 1].id if len(found) > limit else None
    if not found:
        await check_pipeline(services, caller, wanted.pipeline)
    return found[:limit], following


async def _find(store: Store, filters: Sequence[Filter], before: str | None, limit: int) -> list[Job]:
    """Jobs that match one of the filters, newest first. Ids sort by time."""
    found = [await store.find(each, before=before, limit=limit) for each in filters]
    return found[0] if len(found) == 1 else sorted(chain(*found), key=lambda job: job.id, reverse=True)[:limit]


async def check_pipeline(services: Services, caller: Caller, name: str | None) -> None:
    """Raises UnknownPipeline for a name that no published pipeline and none of the caller's jobs has: a typo."""
    if name is None:
        return
    try:
        await services.catalog.get(name, caller.app)
    except UnknownPipeline as error:
        if not await _find(services.store, access.jobs_filters(caller, Filter(None, None, None, name)), None, 1):
            error.hint = "List the pipelines with: packhorse pipelines"
            raise


async def pipelines(services: Services, caller: Caller) -> list[PipelineDocument]:
    live = await live_workers(services.store, services.settings.lease)
    return [pipeline_to_json(each.definition, live) for each in await services.catalog.all(caller.app)]


async def explain(services: Services, job: Job) -> list[ReasonDocument]:
    """As it stands now. The page of a job, which is read again at every event, shares one look at the fleet instead."""
    return await _explain(services, job, partial(read_fleet, services.store, services.settings.lease))


async def _explain(services: Services, job: Job, fleet: Callable[[], Awaitable[Fleet]]) -> list[ReasonDocument]:
    return [reason_to_json(each) for each in await explain_job(services.store, job, fleet)]


async def estimate(services: Services, job: Job) -> EstimateDocument:
    reported = (await services.store.progress([job.id])).get(job.id, {})
    return await _estimate(services, job, reported)


async def _estimate(services: Services, job: Job, reported: Reported) -> EstimateDocument:
    past, _ = await services.past_durations(job.plan.pipeline)
    now = services.store.now()
    return estimate_to_json(estimate_job(job, reported, past, now), now)


async def history(services: Services, job: Job, *, after: int, limit: int) -> job_details.HistoryPage:
    found = await services.store.events(job.id, after=after, limit=limit + 1)
    following = found[limit - 1].n if len(found) > limit else None
    return {"items": [job_details.event_to_json(each) for each in found[:limit]], "next": following}


async def log_lines(
    services: Services, job: Job, *, after: int = 0, stage: str | None = None, limit: int, newest: bool = False
) -> tuple[list[Line], int | None]:
    """Lines after that number, or the newest ones; and after which number the next page begins."""
    check_stage(job, stage)
    found = await services.store.lines(
        job.id, after=after, limit=limit if newest else limit + 1, stage=stage, newest=newest
    )
    return found[:limit], found[limit - 1].n if len(found) > limit else None


async def artifacts(services: Services, caller: Caller, job: Job) -> list[job_schemas.ArtifactDocument]:
    results = (await services.store.results([job.id])).get(job.id, {})
    found = files_of(job, results) if caller.job_id is None else job_schemas.final_files(job, results)
    return [job_schemas.artifact_to_json(each) for each in found]


def files_of(job: Job, results: job_schemas.Results) -> list[Artifact]:
    """What the stages have made so far."""
    return list(chain.from_iterable(files_by_stage(job, results).values()))


def files_by_stage(job: Job, results: job_schemas.Results) -> dict[str, list[Artifact]]:
    """Of the stages that have made any, in the order of the graph and of their elements."""
    found: dict[str, list[Artifact]] = {plan.name: [] for plan in job.plan.stages}
    for at in sorted(at for at, result in results.items() if result.artifacts):
        found.setdefault(at.stage, []).extend(results[at].artifacts)
    return {name: made for name, made in found.items() if made}


async def stage_files(services: Services, job: Job, stage: str) -> list[Artifact]:
    """Raises InvalidInput for a stage that the job does not have."""
    check_stage(job, stage)
    return files_by_stage(job, (await services.store.results([job.id])).get(job.id, {})).get(stage, [])


class LogQuery(Struct, frozen=True):
    """Which lines of a log are wanted: all, unless it says something."""

    stage: str | None = None
    element: int | None = None
    text: str = ""
    """They contain it, in small or capital letters."""

    def matches(self, line: Line) -> bool:
        return (
            self.stage in (None, line.task.stage)
            and self.element in (None, line.task.element)
            and self.text.casefold() in line.text.casefold()
        )


async def find_lines(
    services: Services, job: Job, wanted: LogQuery, *, before: int | None = None, limit: int
) -> tuple[list[Line], int | None]:
    """The newest lines with a smaller number than ``before``, in order; and where to continue, None at the beginning.

    It may find fewer lines than there are: one call looks at a bounded part of the log.
    """
    check_stage(job, wanted.stage)
    store, found = services.store, list[Line]()
    oldest, newest = await store.lines(job.id, limit=1), await store.lines(job.id, limit=1, newest=True)
    if not oldest or not newest:
        return [], None
    first = oldest[0].n
    at = newest[-1].n + 1 if before is None else min(before, newest[-1].n + 1)
    window = LOG_WINDOW if wanted.text or wanted.stage or wanted.element is not None else limit
    for _ in range(LOG_WINDOWS):
        start = max(first, at - window)
        if start >= at or len(found) >= limit:
            break
        page = await store.lines(job.id, after=start - 1, limit=at - start, stage=wanted.stage)
        found = [line for line in page if line.n < at and wanted.matches(line)] + found
        at = start
    if len(found) > limit:
        return found[-limit:], found[-limit].n
    return found, at if at > first else None


class ElementPage(Struct, frozen=True):
    """One element of a stage, or the one task of a stage that has no elements."""

    stored: Job
    stage: str
    element: int
    task: Task
    attempts: Sequence[Mapping[str, object]]
    """Its events of all runs, in order."""
    is_cut: bool
    """There were more events than were looked at."""
    lines: Sequence[Line]
    earlier: int | None
    """Whether there may be more lines, see `find_lines`."""
    files: Sequence[Artifact]
    value: bytes | None
    """The result, as JSON."""


async def element_page(
    services: Services, caller: Caller, job_id: str, stage: str, element: int, *, lines: int
) -> ElementPage:
    """Raises JobNotFound, and InvalidInput for a stage or an element that the job does not have."""
    job = await services.job(caller, job_id)
    check_stage(job, stage)
    at = TaskId(stage, element)
    task = job.task(at)
    if task is None:
        count = len(job.stage(stage).tasks or ())
        raise InvalidInput(f"Stage {stage} has {count} elements, numbered from 0.", field="element")
    events, after = list[Mapping[str, object]](), max(0, job.events - ATTEMPT_EVENTS)
    is_cut = after > 0
    while page := await services.store.events(job.id, after=after, limit=EVENTS_PAGE):
        told = [event for event in page if event.data.get("stage") == stage and event.data.get("element", 0) == element]
        events += [job_details.event_to_json(event) for event in told]
        after = page[-1].n
        if len(page) < EVENTS_PAGE:
            break
    found, earlier = await find_lines(services, job, LogQuery(stage, element), limit=lines)
    result = (await services.store.results([job.id])).get(job.id, {}).get(at)
    return ElementPage(
        job,
        stage,
        element,
        task,
        events,
        is_cut,
        found,
        earlier,
        () if result is None else result.artifacts,
        None if result is None or result.files else result.value,
    )


class JobPage(Struct, frozen=True):
    """Everything that a page of one job shows."""

    stored: Job
    job: job_schemas.JobDocument
    reasons: Sequence[ReasonDocument]
    estimate: EstimateDocument
    events: Sequence[Mapping[str, object]]
    lines: Sequence[job_details.LineDocument]
    last_line: int
    series: Sequence[job_details.SeriesDocument]
    files: Mapping[str, Sequence[Artifact]]
    """By stage, of those that have made any."""
    final: Sequence[Artifact]
    """The files of the result of a completed job."""
    needs: Mapping[str, Sequence[str]]
    """For each stage, the stages it waits for."""
    destinations: Sequence[str]
    """Where somebody who may could promote its files to."""


async def job_page(
    services: Services, caller: Caller, job_id: str, *, events: int, lines: int, stage: str | None = None
) -> JobPage:
    """Raises JobNotFound, and InvalidInput for a stage that the job does not have."""
    access.require(caller, "read")
    if "\0" in job_id or "\0" in (stage or ""):
        raise JobNotFound(job_id=job_id)
    found = await services.store.snapshot(job_id, events=events, lines=lines, stage=stage)
    job = access.job(caller, None if found is None else found.job, job_id)
    assert found is not None
    check_stage(job, stage)
    return await compose_job_page(services, found)


async def compose_job_page(services: Services, found: Snapshot) -> JobPage:
    """The same for everybody who may see the job."""
    job = found.job
    return JobPage(
        job,
        job_schemas.job_to_json(job, found.spec, found.results, found.progress),
        await _explain(services, job, services.fleet.value),
        await _estimate(services, job, found.progress),
        [job_details.event_to_json(each) for each in found.events],
        [job_details.line_to_json(each) for each in found.lines],
        found.last_line,
        job_details.usage_to_json(found.samples),
        files_by_stage(job, found.results),
        job_schemas.final_files(job, found.results),
        {plan.name: [need.stage for need in plan.needs] for plan in job.plan.stages},
        _destinations(services, job, found.results),
    )


def _destinations(services: Services, job: Job, results: job_schemas.Results) -> list[str]:
    """The places to promote the result to; none if there is nothing to promote."""
    if job.status is not Status.COMPLETED:
        return []
    return list(services.destinations) if any(each.files for each in results.values()) else []


def check_stage(job: Job, stage: str | None) -> None:
    if stage is not None and stage not in job.plan.index:
        raise InvalidInput(
            f"There is no stage {quote_short(stage)}. Stages of this job: {list_some(job.plan.index)}.", field="stage"
        )


def selection_errors(ids: Sequence[str], most: int, texts: Mapping[str, str | None]) -> list[FieldError]:
    """Of a request about many: too many ids, and texts that cannot be stored."""
    errors = [{"field": "ids", "message": f"There are more than {most}"}] if len(ids) > most else []
    return errors + [{"field": name, "message": NUL} for name, text in texts.items() if "\0" in (text or "")]


def check_selection(ids: Sequence[str], errors: list[FieldError], *, is_filter: bool, choices: str) -> None:
    """Raises InvalidInput for the errors, and unless there are either ids or a filter."""
    if not errors and bool(ids) == is_filter:
        what = "Give ids or filters, not both" if is_filter else f"Nothing is selected: give {choices}"
        errors = [{"field": "ids", "message": what}]
    if errors:
        raise invalid(NOT_VALID, errors)


def seconds_of(at: datetime | None) -> float | None:
    """A time without a zone is UTC."""
    if at is None:
        return None
    return (at if at.tzinfo is not None else at.replace(tzinfo=UTC)).timestamp()


def time_from(text: str | None, field: str, errors: list[FieldError]) -> float | None:
    """The time that a text names; adds to ``errors`` if it names none."""
    if text is None:
        return None
    try:
        return seconds_of(msgspec.convert(text, datetime))
    except (msgspec.ValidationError, OverflowError, ValueError):
        errors.append({"field": field, "message": "It must be a time such as 2026-01-31T12:00:00Z"})
        return None
