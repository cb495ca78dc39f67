"""What operators see and do: the overview, queues, workers and the self-check. All tenants share these."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Literal
from urllib.parse import unquote

from msgspec import Struct

from packhorse.auth import access
from packhorse.auth.access import LOCAL_USER, Caller, may_see
from packhorse.core.limits import Limit, window_of
from packhorse.core.models import Job
from packhorse.define.options import MOST_AT_LIMIT, seconds
from packhorse.define.validation import NOT_VALID, invalid
from packhorse.errors import Forbidden, LimitNotFound, QueueNotFound
from packhorse.jobs import health
from packhorse.jobs.explain import is_live, read_pauses
from packhorse.jobs.health import MACHINE_FRESH
from packhorse.jobs.services import Services, check_reason
from packhorse.jobs.stats import RECENT, Figures, Point, QueueStats, by_queue, count_ended, queue_stats, series
from packhorse.jobs.view import JobRow, latest_jobs
from packhorse.schemas import operations as schemas
from packhorse.schemas.failures import FailureGroupDocument
from packhorse.schemas.progress import iso
from packhorse.store.base import Finding
from packhorse.store.collections import limits as limit_records
from packhorse.store.collections import workers
from packhorse.store.collections.base import get_readable
from packhorse.store.collections.queues import READINGS_KEPT, Level, Pause, drop_pause, put_pause
from packhorse.store.collections.workers import Lost, Machine, Work, WorkerCard
from packhorse.store.counters import MINUTE, percentile
from packhorse.store.limits import LimitState

KEYS_SHOWN = 50
"""Keys of a limit that are shown."""

WorkerState = Literal["alive", "draining", "silent", "lost"]


class Overview(Struct, frozen=True):
    """What the first page shows an operator."""

    survey: QueueStats
    today: int
    """Jobs that have ended since midnight."""
    failed: int
    """Jobs that have failed in 24 hours."""
    series: Sequence[schemas.PointDocument]
    findings: Sequence[schemas.FindingDocument]
    """The bad ones."""
    groups: Sequence[FailureGroupDocument]
    """Groups with open failures and their trends; those that affect most users first."""
    running: Sequence[JobRow]
    recent: Sequence[JobRow]
    """The newest jobs that do not run."""
    estimates: Counter[str]
    """How many runs of the window ended within the estimate (kept), and how many did not (missed)."""


async def overview(services: Services, caller: Caller, window: str, queue: str, *, jobs: int) -> Overview:
    """All but the jobs may be a few seconds old: all viewers share it.

    Raises InvalidInput for the window, and QueueNotFound.
    """
    length = _length(window)
    survey = await services.survey.value()
    if queue and queue not in survey.queues:
        raise QueueNotFound(queue=queue[:100])
    today, failed = await services.ended.value()
    found = await services.activity.value(str(length), queue)
    open_groups: list[FailureGroupDocument] = []
    with suppress(Forbidden):  # a key for one user sees no groups
        access.require_whole_tenant(caller)
        open_groups = await services.worst_groups.value(caller.tenant)
    running, recent = await latest_jobs(services, caller, jobs)
    return Overview(
        survey,
        today,
        failed,
        [_point(point, found.step) for point in found.points],
        [_finding(each, services.store.now()) for each in await services.findings.value()],
        [each for each in open_groups if caller.sees_pipeline(each["pipeline"])],
        running,
        recent,
        found.figures.estimates,
    )


async def stats(
    services: Services, window: str, *, queue: str | None = None, pipeline: str | None = None
) -> schemas.StatsDocument:
    """Raises InvalidInput for the window, and QueueNotFound."""
    length = _length(window)
    survey = await queue_stats(services.store, services.settings.lease)
    if queue is not None and queue not in survey.queues:
        raise QueueNotFound(queue=queue[:100])
    counts, counted_at = await services.counts()
    today, failed = await count_ended(services.store)
    found = await series(services.store, length, queue=queue, pipeline=pipeline)
    return {
        "at": iso(survey.at),
        "jobs": {
            "total": counts.active + counts.completed + counts.failed + counts.cancelled,
            "active": counts.active,
            "completed": counts.completed,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
            "capped": list(counts.capped),
            "measured_at": iso(counted_at),
        },
        "running": survey.running,
        "waiting": survey.waiting,
        "waiting_capped": survey.is_capped,
        "oldest_wait_seconds": round(survey.oldest, 3),
        "workers": len(survey.live),
        "slots": sum(level.slots for level in survey.queues.values()),
        "processed_today": today,
        "failed_24h": failed,
        "window": {
            "seconds": length,
            "step_seconds": found.step,
            "queue": queue,
            "pipeline": pipeline,
            "outcomes": dict(found.figures.outcomes),
            "per_minute": _per_minute(found.figures, length),
            "wait_seconds": _percentiles(found.figures.wait),
            "run_seconds": _percentiles(found.figures.run),
        },
        "series": [_point(point, found.step) for point in found.points],
    }


def _length(window: str) -> float:
    try:
        length = seconds(window)
        if not MINUTE <= length <= READINGS_KEPT:
            raise ValueError("It must be between one minute and 72 hours")
    except ValueError as error:
        raise invalid("The query is not valid", [{"field": "window", "message": str(error)}]) from None
    return length


def _point(point: Point, step: int) -> schemas.PointDocument:
    return {
        "at": iso(point.at),
        "outcomes": dict(point.figures.outcomes),
        "per_minute": _per_minute(point.figures, step),
        "wait_seconds": _percentiles(point.figures.wait),
        "run_seconds": _percentiles(point.figures.run),
        # The peak, which is None if nobody measured; the last value could miss it.
        "ready": max((level.ready for level in point.levels), default=None),
        "oldest_seconds": max((level.oldest for level in point.levels), default=None),
        "running": max((level.running for level in point.levels), default=None),
        "workers": min(point.workers, default=None),
    }


def _per_minute(figures: Figures, length: float) -> float:
    return round(figures.outcomes.total() * MINUTE / length, 3)


def _percentiles(counts: Counter[int]) -> schemas.PercentilesDocument:
    found = [percentile(counts, share) for share in (0.50, 0.95, 0.99)]
    p50, p95, p99 = (None if value is None else round(value, 4) for value in found)
    return {"p50": p50, "p95": p95, "p99": p99}


# Queues


async def pause_queue(services: Services, caller: Caller, queue: str, reason: str) -> schemas.QueueDocument:
    """Start nothing more from this queue; running stages continue. Raises QueueNotFound and InvalidInput."""
    check_reason(reason)
    await _queue_named(services, queue)
    await put_pause(services.store, Pause(queue, services.store.now(), caller.key_id or LOCAL_USER, reason))
    services.fleet.forget()
    services.audit.tell("queue.paused", caller, queue=queue, reason=reason)
    return await _queue_named(services, queue)


async def resume_queue(services: Services, caller: Caller, queue: str) -> schemas.QueueDocument:
    """Raises QueueNotFound."""
    await _queue_named(services, queue)
    if await drop_pause(services.store, queue):
        services.fleet.forget()
        services.audit.tell("queue.resumed", caller, queue=queue)
    return await _queue_named(services, queue)


async def _queue_named(services: Services, queue: str) -> schemas.QueueDocument:
    """Raises QueueNotFound: a pause of a misspelt name would have no effect."""
    for each in await list_queues(services):
        if each["name"] == queue:
            return each
    raise QueueNotFound(queue=queue[:100])


async def list_queues(services: Services) -> list[schemas.QueueDocument]:
    survey = await queue_stats(services.store, services.settings.lease)
    pauses = await read_pauses(services.store)
    figures = await by_queue(services.store)
    return [
        _queue(queue, survey, figures.get(queue, Figures()), pauses.get(queue))
        for queue in sorted({*survey.queues, *pauses})
    ]


def _queue(name: str, survey: QueueStats, figures: Figures, pause: Pause | None) -> schemas.QueueDocument:
    level = survey.queues.get(name, Level())
    return {
        "name": name,
        "ready": level.ready,
        "oldest_seconds": round(level.oldest, 3),
        "running": level.running,
        "workers": sum(name in card.queues for card in survey.live),
        "slots": level.slots,
        "per_minute": _per_minute(figures, RECENT),
        "wait_seconds": _percentiles(figures.wait),
        "paused": None if pause is None else {"at": iso(pause.at), "by": pause.by, "reason": pause.reason},
    }


# Limits


async def list_limits(services: Services, caller: Caller) -> list[schemas.LimitDocument]:
    """The limits of all pipelines, and those that operators have set."""
    declared, changed = await _declared_limits(services), await limit_records.list_limits(services.store)
    return [
        await _limit(services, caller, name, declared.get(name, []), changed.get(name))
        for name in sorted({*declared, *changed})
    ]


async def limit(services: Services, caller: Caller, name: str) -> schemas.LimitDocument:
    """Raises LimitNotFound: a number for a misspelt name would have no effect."""
    declared, changed = await _declared_limits(services), await limit_records.list_limits(services.store)
    if name not in declared and name not in changed:
        raise LimitNotFound(name=name[:100])
    return await _limit(services, caller, name, declared.get(name, []), changed.get(name))


async def set_limit(
    services: Services, caller: Caller, name: str, most: int | None, reason: str = "", version: int | None = None
) -> schemas.LimitDocument:
    """Replace the number of a limit for all jobs; None: the numbers of the pipelines apply again.

    Raises LimitNotFound, InvalidInput, and Conflict if ``version`` is not the newest.
    """
    check_reason(reason)
    if most is not None and not 0 <= most <= MOST_AT_LIMIT:
        raise invalid(NOT_VALID, [{"field": "most", "message": f"It is a number from 0 to {MOST_AT_LIMIT}"}])
    before = await limit(services, caller, name)
    by = caller.key_id or LOCAL_USER
    await limit_records.put_limit(services.store, name, most, by=by, reason=reason, expected=version)
    event = "limit.reset" if most is None else "limit.set"
    was = None if before["set"] is None else before["set"]["most"]
    services.audit.tell(event, caller, limit=name, most=most, was=was, reason=reason)
    return await limit(services, caller, name)


async def _declared_limits(services: Services) -> dict[str, list[tuple[str, Limit]]]:
    """By name, the limits that pipelines have, with where they have them."""
    found: dict[str, list[tuple[str, Limit]]] = {}
    for pipeline, plan in workers.plans_of(await workers.list_definitions(services.store)).items():
        for stage in plan.stages:
            for each in stage.limits:
                found.setdefault(each.name, []).append((f"{pipeline}.{stage.name}", each))
    return found


async def _limit(
    services: Services,
    caller: Caller,
    name: str,
    declared: Sequence[tuple[str, Limit]],
    changed: limit_records.SetLimit | None,
) -> schemas.LimitDocument:
    store = services.store
    states = await store.limit_states(name=name, limit=KEYS_SHOWN)
    jobs = await get_readable(store, list({holder.job_id for each in states for holder in each.holders}))
    by = declared[0][1].by if declared else ""
    versions = [] if changed is None else [_limit_version(each) for each in changed.versions]
    return {
        "name": name,
        "by": by or "name",
        "window_seconds": window_of(name) or None,
        "declared": sorted({each.most for _, each in declared}),
        "pipelines": [where for where, _ in declared],
        "set": versions[0] if versions and versions[0]["most"] is not None else None,
        "version": versions[0]["version"] if versions else 0,
        "versions": versions,
        "used": sum(each.used for each in states),
        "parked": sum(each.parked for each in states),
        "keys": [_limit_key(each, by, caller, jobs) for each in states],
    }


def _limit_key(state: LimitState, by: str, caller: Caller, jobs: Mapping[str, Job | None]) -> schemas.LimitKeyDocument:
    """Without jobs and users of other tenants."""
    mine = [each for each in state.holders if (job := jobs.get(each.job_id)) and may_see(caller, job.tenant, job.user)]
    return {
        "value": visible_value(state.key, by, caller),
        "used": state.used,
        "parked": state.parked,
        "holders": [
            {
                "job_id": each.job_id,
                "stage": each.task.stage,
                "element": each.task.element,
                "worker": each.worker,
                "since": iso(each.since),
            }
            for each in mine
        ],
        "free_at": None if state.free_at is None else iso(state.free_at),
    }


def visible_value(key: str, by: str, caller: Caller) -> str | None:
    """Whom or what a key counts: a user of the caller's tenant, the tenant itself, or a parameter."""
    _, _, value = key.partition("=")
    tenant, _, user = (unquote(part) for part in value.partition("/"))
    if by in ("user", "tenant"):
        found = user if by == "user" else tenant
        return found if may_see(caller, tenant, user if by == "user" else caller.user or "") else None
    return unquote(value)


def _limit_version(version: limit_records.Version) -> schemas.LimitVersionDocument:
    return {
        "version": version.version,
        "most": version.most,
        "at": iso(version.at),
        "by": version.by,
        "reason": version.reason,
    }


# Workers


async def list_workers(services: Services) -> list[schemas.WorkerDocument]:
    """The workers that are there, and for a day those that were lost."""
    now, cards = services.store.now(), await workers.list_all(services.store)
    lost = {each.id: each for each in await workers.list_lost(services.store)}
    present = [_present_worker(card, lost.pop(card.id, None), now, services.settings.lease) for card in cards]
    jobs = await get_readable(services.store, list({work.job_id for each in lost.values() for work in each.work}))
    return [*present, *(_worker(each, "lost", _loss(each, jobs)) for each in lost.values())]


def _present_worker(card: WorkerCard, lost: Lost | None, now: float, lease: float) -> schemas.WorkerDocument:
    if is_live(card, now, lease):
        document = _worker(card, "draining" if card.is_draining else "alive")
    else:
        document = _worker(card, "silent") if lost is None else _worker(card, "lost", _loss(lost, {}))
    return {
        **document,
        "started_at": iso(card.started_at) if card.started_at else None,
        "queues": {queue: {"slots": slots, "busy": card.busy.get(queue, 0)} for queue, slots in card.queues.items()},
        "kinds": list(card.kinds),
        "work": [_work(work, None) for work in card.work],
        "machine": None if card.machine is None else _machine(card.machine, now),
    }


def _worker(
    of: WorkerCard | Lost, state: WorkerState, lost: schemas.LossDocument | None = None
) -> schemas.WorkerDocument:
    return {
        "worker_id": of.id,
        "state": state,
        "host": of.host,
        "pid": of.pid,
        "version": of.version,
        "started_at": None,
        "seen_at": iso(of.seen_at),
        "queues": {},
        "kinds": [],
        "work": [],
        "machine": None,
        "lost": lost,
    }


def _loss(lost: Lost, jobs: Mapping[str, Job | None]) -> schemas.LossDocument:
    return {
        "missed_at": iso(lost.missed_at),
        "noticed_by": lost.by,
        "tasks": lost.tasks,
        "work": [_work(work, jobs.get(work.job_id)) for work in lost.work],
    }


def _work(work: Work, job: Job | None) -> schemas.WorkDocument:
    return {
        "job_id": work.job_id,
        "stage": work.task.stage,
        "element": work.task.element,
        "since": iso(work.since),
        "status": None if job is None else job.status,
    }


def _machine(machine: Machine, now: float) -> schemas.MachineDocument:
    return {
        "measured_at": iso(machine.at),
        "is_fresh": now - machine.at <= MACHINE_FRESH,
        "cpu": round(machine.cpu, 3),
        "cores": machine.cores,
        "memory_bytes": machine.memory,
        "memory_total_bytes": machine.memory_total,
    }


# Self-check


async def findings(services: Services) -> schemas.FindingsDocument:
    found = await health.find_all(services.store, services.blobs, services.settings)
    now = services.store.now()
    shown = [_finding(each, now) for each in found]
    return {"status": "ok" if all(each["state"] == "ok" for each in shown) else "bad", "findings": shown}


def _finding(found: Finding, now: float) -> schemas.FindingDocument:
    return {
        "name": found.name,
        "part": found.part,
        "state": health.state(found, now),
        "value": found.value,
        "meaning": found.meaning,
        "measured_at": iso(now if found.measured_at is None else found.measured_at),
    }
