"""How far a job is, as a number a person can watch."""

from __future__ import annotations

from collections.abc import Mapping

from packhorse.core.models import Job, Stage, Task, TaskId
from packhorse.core.plan import StagePlan, Status
from packhorse.store.base import Progress

SHORT = 99.99
"""Percent of what has told of its end and has not completed: what fails was not at its end, whatever it said."""
ENDED_SHORT = (Status.FAILED, Status.CANCELLED)


def whole(job: Job, reported: Mapping[TaskId, Progress]) -> float:
    """0 to 100 over all stages by weight, 100 only once it has completed.

    Built from the furthest each task has been, so it never goes backwards.
    """
    if job.status is Status.COMPLETED:
        return 100.0
    total = done = 0.0
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        total += plan.weight
        done += plan.weight * _peak(job, plan, stage, reported)
    return min(SHORT, round(100.0 * done / total, 2))


def of_stage(job: Job, name: str, reported: Mapping[TaskId, Progress]) -> float:
    """0 to 100 of one stage, as its attempts report it; of one that was ended, how far it had got, which is not 100."""
    stage = job.stage(name)
    tasks = stage.tasks
    if tasks is None:
        return 0.0
    if not tasks:
        return 100.0
    done = 0.0
    for i, task in enumerate(tasks):
        done += _now(job, task, reported.get(TaskId(name, i)))
    percent = round(100.0 * done / len(tasks), 2)
    return min(SHORT, percent) if stage.status in ENDED_SHORT else percent


def current_stage(job: Job) -> str | None:
    """The earliest unfinished stage in graph order."""
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        if stage.status is not Status.COMPLETED:
            return plan.name
    return None


def _peak(job: Job, plan: StagePlan, stage: Stage, reported: Mapping[TaskId, Progress]) -> float:
    if stage.tasks is None:
        return 0.0
    if not stage.tasks:
        return 1.0
    done = 0.0
    for i, task in enumerate(stage.tasks):
        report = reported.get(TaskId(plan.name, i))
        if task.status is Status.COMPLETED:
            done += 1.0
        elif report is not None and report.run == job.run:
            done += min(report.peak, 1.0)
    return done / len(stage.tasks)


def _now(job: Job, task: Task, report: Progress | None) -> float:
    if task.status is Status.COMPLETED:
        return 1.0
    if report is None or report.run != job.run or not report.total or task.status is Status.PENDING:
        return 0.0
    return min(1.0, max(0.0, report.current / report.total))
