"""How far a job and its stages are: times, percentages, and the documents that show them.

No `from __future__ import annotations` here and in the other schemas: it would lose `NotRequired` in a TypedDict.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from functools import lru_cache
from typing import NotRequired, TypedDict

from packhorse.core.models import Job, Stage, Task, TaskId
from packhorse.core.plan import StagePlan, Status, TaskStatus
from packhorse.store.base import Progress

Reported = Mapping[TaskId, Progress]

SHORT = 99.99  # highest percentage of anything that has not completed: a stage may report its end and still fail

EPOCH = datetime(1970, 1, 1)

EXACT = 2.0**20  # from here on, the fraction has so few digits that multiplying it by a million is exact

LAST_TIME = 253_402_300_799.0  # the end of the year 9999, the last ISO time; a delay may be any number

ENDED_SHORT = (TaskStatus.FAILED, TaskStatus.CANCELLED)

LEFT_OUT = (TaskStatus.FAILED, TaskStatus.SKIPPED)

LAST_FIRST = {status: rank for rank, status in enumerate(ENDED_SHORT)}  # which stage of an ended job says most


class ElementsDocument(TypedDict):
    """The elements of a stage, by status. Those whose result is being stored are running, and use no slot any more."""

    total: int
    completed: int
    failed: int
    running: int
    skipped: int


class StageDocument(TypedDict):
    """The state of a stage, with the times of the current run. ``elements`` is only there for a stage that runs once
    per element, ``reason`` only if the stage was skipped, or some of its elements never started, and says why. The
    progress of a stage that was skipped on purpose is 100, of one that never started because the job ended 0.
    """

    status: TaskStatus
    progress: float
    current: float | None
    total: float | None
    message: str | None
    attempt: int
    started_at: str | None
    completed_at: str | None
    updated_at: str | None
    reason: NotRequired[str]
    elements: NotRequired[ElementsDocument]


class TimingDocument(TypedDict):
    started_at: str | None
    completed_at: str | None
    duration_ms: int | None


class PositionDocument(TypedDict):
    """How far a job is; progress is 0 to 100."""

    stage: str | None
    stage_progress: float
    progress: float


WAITING: StageDocument = {
    "status": TaskStatus.PENDING,
    "progress": 0.0,
    "current": None,
    "total": None,
    "message": None,
    "attempt": 0,
    "started_at": None,
    "completed_at": None,
    "updated_at": None,
}


def position_to_json(job: Job, progress: Reported) -> PositionDocument:
    """The part of a job's document that changes without an event."""
    stage = current_stage(job)
    return {
        "stage": stage,
        "stage_progress": 100.0 if stage is None else stage_percent(job, stage, progress),
        "progress": job_percent(job, progress),
    }


def stages_to_json(job: Job, progress: Reported, names: Iterable[str] | None = None) -> dict[str, StageDocument]:
    """Of these stages, or of all."""
    return {name: _stage(job, name, progress) for name in (job.plan.index if names is None else names)}


def timings_to_json(job: Job) -> dict[str, TimingDocument | None]:
    """By stage; None for a stage that has not started."""
    timings: dict[str, TimingDocument | None] = dict.fromkeys(job.plan.index)
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        if _is_untouched(stage.tasks or ()):
            continue
        started, ended = _times(job, plan.name)
        if started is not None:
            timings[plan.name] = {
                "started_at": iso(started),
                "completed_at": iso(ended),
                "duration_ms": duration_ms(started, ended),
            }
    return timings


def job_percent(job: Job, reported: Reported) -> float:
    """0 to 100 over all stages by weight, 100 only once the job has completed.

    Uses the highest progress that each task has reported, so it never decreases within a run.
    """
    if job.status is Status.COMPLETED:
        return 100.0
    total = done = 0.0
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        total += plan.weight
        done += plan.weight * stage_peak(job, plan, stage, reported)
    return min(SHORT, round(100.0 * done / total, 2))


def stage_percent(job: Job, name: str, reported: Reported) -> float:
    """0 to 100 for one stage, as its attempts report it; below 100 for one that failed or was cancelled."""
    stage = job.stage(name)
    tasks = stage.tasks
    if stage.reason is not None:
        return 100.0
    if tasks is None:
        return 0.0
    if not tasks:
        return 100.0
    done: float = _count_done(stage, tasks)
    for element, report in _reports(job, name, tasks, reported).items():
        if not _is_done(stage, tasks[element]) and tasks[element].status is not TaskStatus.PENDING:
            done += report_share(report)
    percent = round(100.0 * done / len(tasks), 2)
    return min(SHORT, percent) if stage.status in ENDED_SHORT else percent


def current_stage(job: Job) -> str | None:
    """The earliest unfinished stage in graph order; of a job that ended, one that failed or was stopped comes first."""
    left = [name for name in job.plan.index if not job.stage(name).is_done]
    if job.status.is_terminal and left:
        return min(left, key=lambda name: LAST_FIRST.get(job.stage_status(name), len(LAST_FIRST)))
    return left[0] if left else None


def stage_peak(job: Job, plan: StagePlan, stage: Stage, reported: Reported) -> float:
    """0 to 1: by the highest progress that each task has reported."""
    if stage.reason is not None:
        return 1.0
    if stage.tasks is None:
        return 0.0
    if not stage.tasks:
        return 1.0
    done: float = _count_done(stage, stage.tasks)
    for element, report in _reports(job, plan.name, stage.tasks, reported).items():
        if not _is_done(stage, stage.tasks[element]):
            done += min(report.peak, 1.0)
    return done / len(stage.tasks)


def _count_done(stage: Stage, tasks: Sequence[Task]) -> int:
    """Tasks that have completed or were left out. A page of a job with 10,000 elements counts them several times."""
    seen = [task.status for task in tasks]
    completed = seen.count(TaskStatus.COMPLETED)
    if all(status not in seen for status in LEFT_OUT):
        return completed
    return completed + sum(is_left_out(stage, task) for task in tasks)


def _is_done(stage: Stage, task: Task) -> bool:
    return task.status is TaskStatus.COMPLETED or is_left_out(stage, task)


def _reports(job: Job, name: str, tasks: Sequence[Task], reported: Reported) -> dict[int, Progress]:
    """By element: most elements of a long list have reported nothing. One of an earlier run says nothing about this."""
    return {
        at.element: report
        for at, report in reported.items()
        if at.stage == name and at.element < len(tasks) and report.run == job.run
    }


def is_left_out(stage: Stage, task: Task) -> bool:
    """It was skipped on purpose, or failed where some may fail: nobody waits for it any more."""
    return task.status in LEFT_OUT and (task.is_settled or (stage.tolerates > 0 and task.status is TaskStatus.FAILED))


def report_share(report: Progress) -> float:
    """0 to 1: how far an attempt says that it is."""
    return min(1.0, max(0.0, report.current / report.total)) if report.total else 0.0


def _stage(job: Job, name: str, progress: Reported) -> StageDocument:
    stage = job.stage(name)
    tasks = stage.tasks or ()
    if not progress and _is_untouched(tasks) and job.plan.stage(name).over is None:
        return WAITING.copy()
    started, ended = _times(job, name)
    found = _reports(job, name, tasks, progress)
    reports = [found[element] for element in sorted(found)]
    document: StageDocument = {
        "status": job.stage_status(name),
        "progress": stage_percent(job, name, progress),
        "current": reports[0].current if reports else None,
        "total": reports[0].total if reports else None,
        "message": max(reports, key=lambda report: report.at).message if reports else None,
        "attempt": max((task.attempt for task in tasks), default=0),
        "started_at": iso(started),
        "completed_at": iso(ended),
        "updated_at": iso(max((report.at for report in reports), default=None)),
    }
    if stage.reason is not None:
        document["reason"] = stage.reason
    elif job.is_stopped and (stage.tasks is None or any(task.is_skipped and not task.is_settled for task in tasks)):
        document["reason"] = job.skip_reason
    if job.plan.stage(name).over is None:
        return document
    elements = _elements(stage)  # their count says more than the report of any one element
    total = None if stage.tasks is None else elements["total"]
    return {**document, "current": stage.done, "total": total, "elements": elements}


def _is_untouched(tasks: Sequence[Task]) -> bool:
    """Every stage of a new job is; this spares the work for most stages of most jobs."""
    return (
        len(tasks) == 1 and tasks[0].status is TaskStatus.PENDING and tasks[0].attempt == 0 and not tasks[0].started_at
    )


def _elements(stage: Stage) -> ElementsDocument:
    seen = [task.status for task in stage.tasks or ()]
    return {
        "total": len(seen),
        "completed": seen.count(TaskStatus.COMPLETED),
        "failed": seen.count(TaskStatus.FAILED),
        "running": seen.count(TaskStatus.RUNNING),
        "skipped": seen.count(TaskStatus.SKIPPED),
    }


def _times(job: Job, name: str) -> tuple[float | None, float | None]:
    """First start and last end of a stage in the current run: a retry keeps elements that completed before."""
    tasks = job.tasks_of_run(name)
    started = min((task.started_at for task in tasks if task.started_at is not None), default=None)
    if not tasks or not all(task.status.is_terminal for task in job.stage(name).tasks or ()):
        return started, None
    return started, max((task.ended_at for task in tasks if task.ended_at is not None), default=None)


def iso(at: float | None) -> str | None:
    """UTC, cut to microseconds, never rounded up: a filter with the time that a job shows must find that job."""
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


def duration_ms(start: float | None, end: float | None) -> int | None:
    return None if start is None or end is None else round(1000 * (end - start))
