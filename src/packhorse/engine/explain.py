"""Why a job is not running now, in the order in which a person would look."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime

from msgspec import Struct

from packhorse.core.model import Job, Stage, StagePlan, Status
from packhorse.engine import host
from packhorse.store.base import WorkerCard

STUCK = frozenset({"NO_WORKER", "NO_CODE", "NO_PROCESS"})
"""Reasons that go away only if somebody does something."""


class Reason(Struct, frozen=True):
    code: str
    message: str


def reasons(job: Job, live: Sequence[WorkerCard], now: float) -> list[Reason]:
    """What each stage that could run waits for, given the workers that are alive. Empty: all of them run."""
    if job.status.is_terminal:
        return [Reason("ENDED", f"the job is {job.status.value}")]
    if job.stopping is not None:
        count = len(job.running())
        last = "stage that still runs" if count == 1 else f"{count} stages that still run"
        return [Reason("STOPPING", f"the job is being stopped, and ends with the {last}")]
    stages = zip(job.plan.stages, job.stages, strict=True)
    found = [reason for plan, stage in stages for reason in _of_stage(job, plan, stage, live, now)]
    return list(dict.fromkeys(found))


def is_live(card: WorkerCard, now: float, lease: float) -> bool:
    """Whether the worker has been heard of within a lease, and is not seen to be dead from here."""
    return now - card.seen_at <= lease and not host.is_seen_dead(card.boot, card.pid_space, card.pid, card.born)


def _of_stage(job: Job, plan: StagePlan, stage: Stage, live: Sequence[WorkerCard], now: float) -> Iterator[Reason]:
    due = [task.ready_at for task in stage.tasks or () if task.status is Status.PENDING and task.ready_at is not None]
    if not due:  # it runs, has ended, or waits for other stages of the job
        return
    is_early = min(due) > now
    if is_early:
        yield Reason("NOT_BEFORE", f"`{plan.name}` is not due before {_time(min(due))}")
    serving = [card for card in live if plan.queue in card.queues]
    able = [card for card in serving if plan.kind in card.kinds or not card.kinds]  # an older worker does not say
    if not serving:
        yield Reason("NO_WORKER", f"no worker that is alive serves queue `{plan.queue}`")
    elif not able:
        yield Reason(
            "NO_CODE",
            f"no live worker has stage `{plan.name}` of pipeline `{job.plan.pipeline}` as it was submitted",
        )
    elif not (slots := sum(card.queues[plan.queue] for card in able)):
        yield Reason("NO_PROCESS", f"no live worker can start a process for `{plan.name}` now; their logs say why")
    elif not is_early:
        some = "the only slot" if slots == 1 else f"one of {slots} slots"
        yield Reason("QUEUED", f"`{plan.name}` waits for {some} in queue `{plan.queue}`")


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
