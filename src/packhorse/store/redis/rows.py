"""Between a job and its keys: its hash, with fields that people read, and what they are shown and told beside it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from operator import attrgetter
from typing import Any

from packhorse.core import json
from packhorse.core.lifecycle import slot_key
from packhorse.core.limits import LimitUse, uses_of
from packhorse.core.models import Event, Job, TaskId
from packhorse.core.plan import Plan, StagePlan, Status, TaskStatus
from packhorse.errors import CorruptRecord, PackhorseError
from packhorse.store.redis import keys
from packhorse.store.rows import Plans

FIELDS = (
    "status", "pipeline", "created_at", "version", "tenant",  # the five that find looks at
    "user", "client", "plan", "priority", "trace_id", "slot", "not_before", "started_at", "completed_at",
    "updated_at", "deadline_at", "purge_at", "is_purging", "has_litter", "state",
)  # fmt: skip

TIMES = ("not_before", "started_at", "completed_at", "deadline_at", "purge_at")
COUNTED = ("stage", "current", "total", "error_count")

_times = attrgetter(*TIMES)

Row = Sequence[Any]
Found = tuple[str, Job | PackhorseError]
"""A job's id, and the job or why it cannot be read."""


def fields(job: Job) -> list[str]:
    """The whole hash of a new job: names and values in turn."""
    found = {
        "tenant": job.tenant, "user": job.user, "client": job.client, "pipeline": job.plan.pipeline,
        "plan": job.plan.fingerprint, "priority": job.priority, "created_at": job.created_at, "trace_id": job.trace_id,
        "version": job.version, "lineage": job.lineage, "updated_at": job.updated_at,
        "status": job.status.value,
        **dict(zip(TIMES, _times(job), strict=True)), **dict(zip(COUNTED, _counted(job), strict=True)),
        **{name: value or None for name, value in _marks(job).items()}, "duration_ms": duration(job),
    }  # fmt: skip
    if job.not_before == job.created_at:
        del found["not_before"]
    if job.priority == 0:
        del found["priority"]
    if job.slot != _slot(job.plan, job.tenant, job.user):
        found["slot"] = job.slot
    if job.plan.is_regulated:
        found["limits"] = json.encode(_limits(job)).decode()
    flat = [text for name, value in found.items() if value is not None for text in (name, str(value))]
    return [*flat, "state", json.state_of(job).decode()]


def _limits(job: Job) -> dict[str, tuple[LimitUse, ...]]:
    """What its tasks are counted under, by stage: the same as long as the job exists."""
    return {stage.name: uses_of(job, TaskId(stage.name)) for stage in job.plan.stages if stage.limits}


def changed_fields(before: Job, after: Job) -> tuple[list[str], list[str]]:
    """The new version, lineage, time and state, then names and values in turn of what else is new; and what is gone."""
    at = after.updated_at
    now = str(at)
    new, gone = [str(after.version), str(after.lineage), now, json.state_of(after).decode()], []
    if before.status is not after.status:
        new += ("status", after.status.value)
        if after.status.is_terminal:
            gone.append("start")
    was_at, is_at = _times(before), _times(after)
    if was_at != is_at:
        for name, old, time in zip(TIMES, was_at, is_at, strict=True):
            if old != time:
                if time is None:
                    gone.append(name)
                else:
                    new += (name, now if time == at else str(time))
        if before.completed_at != after.completed_at:
            if (took := duration(after)) is None:
                gone.append("duration_ms")
            else:
                new += ("duration_ms", str(took))
    if before.stages is not after.stages:
        counted, count = _counted(before), _counted(after)
        if counted != count:
            for name, old, value in zip(COUNTED, counted, count, strict=True):
                if old != value:
                    if value is None:
                        gone.append(name)
                    else:
                        new += (name, str(value))
    if _is_marked(before) or _is_marked(after):
        for name, value in _marks(after).items():
            if value:
                new += (name, value)
            else:
                gone.append(name)
    error = after.last_error
    if error is not None and ((shown := before.last_error) is None or shown.message != error.message):
        new += ("last_error", error.message)  # it stays until the next one
    return new, gone


def _is_marked(job: Job) -> bool:
    return job.is_purging or job.has_litter or job.stopping is not None


def _marks(job: Job) -> dict[str, str]:
    return {
        "is_purging": "1" if job.is_purging else "",
        "stopping": job.stopping or "",
        "has_litter": "1" if job.has_litter else "",
    }


def is_indexed_alike(before: Job, after: Job) -> bool:
    """Whether a job is in the same indexes as before, at the same scores."""
    return (
        before.status is after.status
        and before.deadline_at == after.deadline_at
        and before.stopping == after.stopping
        and before.purge_at == after.purge_at
        and before.is_purging == after.is_purging
        and before.has_litter == after.has_litter
        and before.completed_at == after.completed_at
    )


INDEXES = ("deadlines", "purge", "purging", "litter")
"""Those that do not go by status."""
NOWHERE = (None, None, None, None)


def places(job: Job) -> tuple[float | None, ...]:
    """The score that a job has in each of these indexes; None where it is in none."""
    is_kept = not job.is_purging
    return (
        job.deadline_at if job.stopping is None else None,
        job.purge_at if is_kept else None,
        None if is_kept else 0,
        0 if is_kept and job.has_litter and job.completed_at is not None else None,
    )


async def jobs_from(
    found: Sequence[tuple[str, Row]], plans: Plans, ask: Callable[[list[list[str]]], Awaitable[list[Any]]]
) -> list[Found]:
    """The jobs of rows that are there. One that cannot be read is an error for its own reader, and hides no other."""
    there = [(job_id, row) for job_id, row in found if row[3] is not None]
    missing = list({row[7].decode() for _, row in there if row[7] is not None} - plans.known.keys())
    if missing:
        [bodies] = await ask([["HMGET", "plans", *missing]])
        for fingerprint, body in zip(missing, bodies, strict=True):
            if body is not None:  # one that is missing may still come
                plans.add(fingerprint, body)
    return list(_read(there, plans))


def _read(there: Sequence[tuple[str, Row]], plans: Plans) -> Iterator[Found]:
    for job_id, row in there:
        try:
            yield job_id, _job_from(job_id, row, plans)
        except PackhorseError as error:
            yield job_id, error


def _job_from(id: str, row: Row, plans: Plans) -> Job:
    (status, _pipeline, created_at, version, tenant, user, client, plan, priority, trace_id, slot, not_before,
     started_at, completed_at, updated_at, deadline_at, purge_at, is_purging, has_litter, body) = row  # fmt: skip
    state = json.state_from(body or b"", id)
    try:
        graph = plans.get(plan.decode(), id)
        if len(state.stages) != len(graph.stages):
            raise CorruptRecord(what="state", job_id=id, reason="it does not have the stages of its plan")
        return Job(
            id=id, plan=graph, user=user.decode(), tenant=tenant.decode(), client=_text(client),
            priority=int(priority or 0), created_at=float(created_at), not_before=float(not_before or created_at),
            trace_id=trace_id.decode(), slot=_text(slot) or _slot(graph, tenant.decode(), user.decode()),
            status=Status(status.decode()), run=state.run,
            version=int(version), events=state.events, started_at=_time(started_at), completed_at=_time(completed_at),
            updated_at=float(updated_at), deadline_at=_time(deadline_at), purge_at=_time(purge_at),
            is_purging=bool(is_purging), stopping=state.stopping, has_litter=bool(has_litter),
            error=state.error, stages=state.stages, webhooks=state.webhooks, promoted=state.promoted,
            firing=state.firing, revived=state.revived, lineage=state.lineage,
            counted=state.counted, limit_values=state.limit_values,
        )  # fmt: skip
    except (ValueError, AttributeError, TypeError) as error:  # a field that is missing, or is not what it should be
        raise CorruptRecord(what="record", job_id=id, reason=str(error)) from error


def _counted(job: Job) -> tuple[str | None, int, int, int | None]:
    """The stage it is at, tasks that are done, all of them, and attempts that failed."""
    stage, current, total, errors = None, 0, 0, 0
    for plan, each in zip(job.plan.stages, job.stages, strict=True):
        tasks = each.tasks or ()
        done = 0
        for task in tasks:
            done += task.status is TaskStatus.COMPLETED
            errors += task.errors
        if done < len(tasks):
            done = each.done
        current += done
        total += len(tasks)
        if stage is None and each.reason is None and (each.tasks is None or done < len(tasks)):
            stage = plan.name
    return stage, current, total, errors or None


def _slot(plan: Plan, tenant: str, user: str) -> str | None:
    """The slot that a job of the plan takes: it is kept only where it is another one."""
    return None if plan.slot is None else slot_key(tenant, user, plan.slot)


def duration(job: Job) -> int | None:
    if job.started_at is None or job.completed_at is None:
        return None
    return round(1000 * (job.completed_at - job.started_at))


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode()


def _time(value: bytes | None) -> float | None:
    return float(value) if value else None


def by_task(flat: Sequence[bytes]) -> dict[TaskId, bytes]:
    """A hash of tasks: names and values in turn."""
    return {keys.task_from(flat[i].decode()): flat[i + 1] for i in range(0, len(flat), 2)}


# What people are shown and told of a job


ANNOUNCED = {
    "stage_started": "info", "stage_skipped": "info", "retrying": "info", "cancelling": "info", "cancelled": "info",
    "stage_completed": "complete", "completed": "complete", "stage_failed": "error", "failed": "error",
}  # fmt: skip
"""Events that live watchers of Pub/Sub hear of, and as what."""


def announcement(sort: str, processor: str, at: float, message: str, current: float | None, total: float | None) -> str:
    """What is published on ``progress:{id}``."""
    data = {"message": message, "current": current, "total": total}
    return json.encode({"type": sort, "processor": processor, "timestamp": at, "data": data}).decode()


def event_message(sort: str, event: Event, job: Job) -> str:
    said = event.data.get("message") or event.type.replace("_", " ")
    stage = str(event.data.get("stage", ""))
    return announcement(sort, stage, event.at, str(said), *_done(job, stage))


def _done(job: Job, stage: str) -> tuple[int, int]:
    """Tasks of the stage that are finished, and all; of the whole job where it is about no stage in particular."""
    done = total = 0
    for each in (job.stage(stage),) if stage in job.plan.index else job.stages:
        for task in each.tasks or ():
            done += task.status is TaskStatus.COMPLETED
            total += 1
    return done, total


def stage_fields(job: Job, plan: StagePlan) -> list[str]:
    """The fields of its hash: names and values in turn."""
    tasks, status = job.stage(plan.name).tasks or (), job.stage_status(plan.name)
    found = ["status", status.value, "updated_at", str(job.updated_at)]
    if status is TaskStatus.SKIPPED:
        found += ("reason", job.stage(plan.name).reason or job.skip_reason)
    started = [task.started_at for task in tasks if task.started_at is not None]
    if started:
        found += ("started_at", str(min(started)))
    if plan.over is not None and tasks:
        done = sum(task.status is TaskStatus.COMPLETED for task in tasks)
        found += ("elements", str(len(tasks)), "current", str(done), "total", str(len(tasks)))
        found += ("progress", f"{100 * done / len(tasks):.0f}")
    elif status is TaskStatus.COMPLETED:
        found += ("progress", "100")
    return found


def has_result(job: Job) -> bool:
    """Whether a task has completed, so that there is a result to read."""
    for stage in job.stages:
        for task in stage.tasks or ():
            if task.status is TaskStatus.COMPLETED:
                return True
    return False
