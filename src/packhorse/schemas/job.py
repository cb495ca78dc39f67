"""How a job looks in JSON. It has one shape, wherever it is shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import Any, cast

from packhorse.core import json, publish_path, retention
from packhorse.core.models import Artifact, Failure, Job, Result, Spec, Stage, Stored, Task, TaskId
from packhorse.core.plan import Status
from packhorse.core.redaction import masked
from packhorse.define.files import keyed
from packhorse.define.values import decode_result
from packhorse.schemas.alias import alias
from packhorse.schemas.job_documents import (
    ArtifactDocument,
    ElementsDocument,
    ErrorDocument,
    InputDocument,
    JobDocument,
    PositionDocument,
    StageDocument,
    TimingDocument,
)
from packhorse.schemas.progress import current_stage, of_stage, whole
from packhorse.store.base import Progress, Store

Results = Mapping[TaskId, Result]
Reported = Mapping[TaskId, Progress]

WAITING: StageDocument = {
    "status": Status.PENDING,
    "progress": 0.0,
    "current": None,
    "total": None,
    "message": None,
    "attempt": 0,
    "started_at": None,
    "updated_at": None,
}
NEW = "new"
"""Where a plan keeps what its new jobs look like."""
NO_SPEC = Spec(parameters=b"{}")
EPOCH = datetime(1970, 1, 1)
EXACT = 2.0**20
"""From here on, what is behind the point has so few digits that a million times it is no longer than a float."""
LAST_TIME = 253_402_300_799.0
"""The end of the year 9999, past which there is no ISO time; a delay may be any number."""


async def looked_up(store: Store, jobs: Sequence[Job]) -> list[JobDocument]:
    """The jobs with all that is kept apart from them, except those that are being purged."""
    ids = [job.id for job in jobs]
    specs = await store.specs(ids)
    results = await store.results(ids)
    progress = await store.progress(ids)
    return [
        shown(job, specs.get(job.id), results.get(job.id, {}), progress.get(job.id, {}))
        for job in jobs
        if not job.is_purging
    ]


def shown(job: Job, spec: Spec | None, results: Results, progress: Reported) -> JobDocument:
    spec = spec or NO_SPEC
    inputs = [_input(each.parameter, each.file) for each in spec.inputs]
    keys = _object_keys(job, results)
    return {
        "job_id": job.id,
        "pipeline": job.plan.pipeline,
        "user_id": job.user,
        "tenant_id": job.tenant,
        "created_by_client_id": job.client,
        "origin": spec.origin,
        "schedule_id": None if job.firing is None else job.firing.schedule,
        "tick": None if job.firing is None else iso(job.firing.tick),
        "status": job.status,
        "stopping": job.stopping,
        **position(job, progress),
        "stages": stages(job, progress),
        "parameters": masked(_parameters(spec), job.plan.secrets),
        "inputs": inputs,
        "input": _first_input(job, spec),
        "source_filename": inputs[0]["filename"] if inputs else None,
        "result": result_of(job, results) if job.status is Status.COMPLETED else None,
        "result_object_keys": keys,
        "published_folder": _published(job, results),
        "promoted": bool(job.promoted),
        "promoted_object_keys": _promoted_keys(job, results),
        "error": _error(job.error),
        "error_count": job.error_count,
        "last_error": _error(job.last_error),
        "created_at": iso(job.created_at),
        "started_at": iso(job.started_at),
        "completed_at": iso(job.completed_at),
        "updated_at": iso(job.updated_at),
        "expires_at": iso(job.purge_at),
        "keep": retention.rule(job.plan),
        "deadline_at": iso(job.deadline_at),
        "not_before": iso(job.not_before) if job.not_before > job.created_at else None,
        "duration_ms": _duration(job.started_at, job.completed_at),
        "stage_timings": _timings(job),
        "run": job.run,
        "retry_count": job.retry_count,
        "priority": job.priority,
        "trace_id": job.trace_id,
        "metadata": spec.metadata,
        "version": job.version,
        "last_event": job.events,
        "alias": alias(job, keys),
    }


def shown_new(job: Job, spec: Spec) -> JobDocument:
    """As `shown`, of a job that was submitted a moment ago: most of it is that of every new job of its plan."""
    if spec.inputs or job.firing is not None:
        return shown(job, spec, {}, {})
    alike: JobDocument | None = job.plan.__dict__.get(NEW)
    if alike is None:
        alike = job.plan.__dict__[NEW] = shown(job, spec, {}, {})
    return {
        **alike,
        "job_id": job.id,
        "user_id": job.user,
        "tenant_id": job.tenant,
        "created_by_client_id": job.client,
        "origin": spec.origin,
        "parameters": masked(_parameters(spec), job.plan.secrets),
        "created_at": (created_at := iso(job.created_at)),
        "updated_at": created_at,
        "deadline_at": iso(job.deadline_at),
        "not_before": iso(job.not_before) if job.not_before > job.created_at else None,
        "priority": job.priority,
        "trace_id": job.trace_id,
        "metadata": spec.metadata,
    }


def position(job: Job, progress: Reported) -> PositionDocument:
    """How far the job is: the part of it that moves while nothing happens."""
    stage = current_stage(job)
    return {
        "stage": stage,
        "stage_progress": 100.0 if stage is None else of_stage(job, stage, progress),
        "progress": whole(job, progress),
    }


def stages(job: Job, progress: Reported) -> dict[str, StageDocument]:
    return {plan.name: _stage(job, plan.name, progress) for plan in job.plan.stages}


def result_of(job: Job, results: Results) -> Any:
    """The value of the only last stage, else an object by last stage. A file in it is named, sized and summed."""
    values = {plan.name: _value(job, plan.name, results) for plan in job.plan.sinks}
    return next(iter(values.values())) if len(values) == 1 else values


def result_files(job: Job, results: Results) -> list[Artifact]:
    """The files that the last stages returned."""
    return [made for plan in job.plan.sinks for one in of_stage_in_order(results, plan.name) for made in one.files]


def of_stage_in_order(results: Results, stage: str) -> list[Result]:
    return [results[at] for at in sorted(at for at in results if at.stage == stage)]


def artifact(made: Artifact) -> ArtifactDocument:
    return {
        "name": made.name,
        "filename": made.file.name,
        "size_bytes": made.file.size,
        "sha256": made.file.sha256,
        "content_type": made.file.content_type,
        "object_key": made.file.key,
    }


def iso(at: float | None) -> str | None:
    """UTC, cut to microseconds, never rounded up: who filters by the time a job shows finds that job."""
    if at is None:
        return None
    if EXACT <= at < LAST_TIME:
        seconds = int(at)
        rest = int((at - seconds) * 1_000_000)
    else:
        over, under = min(at, LAST_TIME).as_integer_ratio()
        seconds, rest = divmod(over * 1_000_000 // under, 1_000_000)
    return f"{_second(seconds)}.{rest:06}Z"


@lru_cache(maxsize=1024)
def _second(at: int) -> str:
    return (EPOCH + timedelta(seconds=at)).isoformat()


def _first_input(job: Job, spec: Spec) -> InputDocument | None:
    """The file that the job is about, and how many others came with it."""
    if not spec.inputs:
        return None
    first = spec.inputs[0]
    counts = Counter(each.parameter for each in spec.inputs)
    others = {f"{name}_count": counts[name] for name in job.plan.lists}
    return cast(InputDocument, _input(first.parameter, first.file) | others)


def _input(parameter: str, file: Stored) -> InputDocument:
    return {
        "parameter": parameter,
        "filename": file.name,
        "object_key": file.key,
        "size_bytes": file.size,
        "sha256": file.sha256,
    }


def _parameters(spec: Spec) -> dict[str, Any]:
    """As they were given, each file as its name. Only where files came in: ``$file`` elsewhere is the user's own."""
    found: dict[str, Any] = json.decode(spec.parameters)
    for name in {each.parameter for each in spec.inputs}:
        value = found[name]
        found[name] = [_named(spec, each) for each in value] if isinstance(value, list) else _named(spec, value)
    return found


def _named(spec: Spec, reference: Mapping[str, int]) -> str:
    return spec.inputs[reference["$file"]].file.name


def _value(job: Job, stage: str, results: Results) -> Any:
    values = [
        decode_result(result.value, Any, [artifact(made) for made in result.files])
        for result in of_stage_in_order(results, stage)
    ]
    if job.plan.stage(stage).over is not None:
        return values
    return values[0] if values else None


def _object_keys(job: Job, results: Results) -> dict[str, str | list[str]]:
    found: dict[str, str | list[str]] = {}
    for plan in job.plan.stages if results else ():
        mine = of_stage_in_order(results, plan.name)
        keys = [made.file.key for result in mine for made in result.files]
        if keys:
            found[plan.name] = keys[0] if len(keys) == 1 and plan.over is None else keys
    return found


def _published(job: Job, results: Results) -> str | None:
    """As long as no newer job has published there, and soon after it has completed."""
    has_files = any(result.artifacts for result in results.values())
    return publish_path.folder(job) if job.status is Status.COMPLETED and has_files else None


def _promoted_keys(job: Job, results: Results) -> list[str]:
    return [f"{to}/{keyed(made.name)}" for to in job.promoted for made in result_files(job, results)]


def _error(error: Failure | None) -> ErrorDocument | None:
    if error is None:
        return None
    shown: ErrorDocument = {"code": error.code, "message": error.message, "stage": error.stage, "detail": error.detail}
    return shown if error.element is None else {**shown, "element": error.element}


def _stage(job: Job, name: str, progress: Reported) -> StageDocument:
    stage = job.stage(name)
    tasks = stage.tasks or ()
    if not progress and _is_untouched(tasks) and job.plan.stage(name).over is None:
        return WAITING.copy()
    moved = [found for i in range(len(tasks)) if (found := _report(job, TaskId(name, i), progress))]
    shape: StageDocument = {
        "status": stage.status,
        "progress": of_stage(job, name, progress),
        "current": moved[0].current if moved else None,
        "total": moved[0].total if moved else None,
        "message": max(moved, key=lambda report: report.at).message if moved else None,
        "attempt": max((task.attempt for task in tasks), default=0),
        "started_at": iso(_first(tasks)),
        "updated_at": iso(max((report.at for report in moved), default=None)),
    }
    if job.plan.stage(name).over is None:
        return shape
    elements = _elements(stage)  # of a stage with elements the count says more than any one report
    total = None if stage.tasks is None else elements["total"]
    return {**shape, "current": elements["completed"], "total": total, "elements": elements}


def _is_untouched(tasks: Sequence[Task]) -> bool:
    """As every stage of every job is that was just submitted."""
    return len(tasks) == 1 and tasks[0].status is Status.PENDING and tasks[0].attempt == 0 and not tasks[0].started_at


def _elements(stage: Stage) -> ElementsDocument:
    seen = [task.status for task in stage.tasks or ()]
    return {
        "total": len(seen),
        "completed": seen.count(Status.COMPLETED),
        "failed": seen.count(Status.FAILED),
        "running": seen.count(Status.RUNNING),
    }


def _report(job: Job, at: TaskId, progress: Reported) -> Progress | None:
    """A report of an earlier run says nothing about this one."""
    found = progress.get(at)
    return found if found is not None and found.run == job.run else None


def _timings(job: Job) -> dict[str, TimingDocument]:
    found: dict[str, TimingDocument] = {}
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        tasks = stage.tasks or ()
        if _is_untouched(tasks):
            continue
        started, ended = _first(tasks), None
        if tasks and all(task.status.is_terminal for task in tasks):
            ended = max((task.ended_at for task in tasks if task.ended_at is not None), default=None)
        if started is not None:
            found[plan.name] = {
                "started_at": iso(started),
                "completed_at": iso(ended),
                "duration_ms": _duration(started, ended),
            }
    return found


def _first(tasks: Iterable[Task]) -> float | None:
    return min((task.started_at for task in tasks if task.started_at is not None), default=None)


def _duration(start: float | None, end: float | None) -> int | None:
    return None if start is None or end is None else round(1000 * (end - start))
