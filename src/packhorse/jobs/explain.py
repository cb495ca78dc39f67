"""Why a job is not running now, in the order in which a person would look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct, field

from packhorse import host
from packhorse.core.models import Job, Stage, TaskId
from packhorse.core.plan import StagePlan, Status
from packhorse.schemas.explain import Reason
from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.queues import Pause, list_pauses
from packhorse.store.collections.workers import WorkerCard

STUCK = frozenset({"PAUSED", "NO_WORKER", "NO_CODE", "NO_PROCESS"})
"""Reasons that go away only if somebody does something."""

MOST_COUNTED = 1000
"""Tasks ahead of one that are counted: who waits for that many does not care for the rest."""


class Around(Struct, frozen=True):
    """What a job's record does not say."""

    live: Sequence[WorkerCard] = ()
    """The workers that are alive."""
    pauses: Mapping[str, Pause] = field(default_factory=dict)
    """By queue."""
    ahead: Mapping[str, int] = field(default_factory=dict)
    """For each stage that is due, how many go before it, if that was counted."""
    holder: str | None = None
    """The job that has the slot which an ended one would need again."""


async def explain_job(store: Store, job: Job, lease: float) -> list[Reason]:
    now = store.now()
    if job.status.is_terminal:
        holder = None if job.slot is None else await store.holder(job.slot)
        return reasons(job, Around(holder=holder), now)
    ahead = {at.stage: await store.ahead(job, at, limit=MOST_COUNTED) for at in _first_due(job, now)}
    return reasons(job, Around(await live_workers(store, lease), await read_pauses(store), ahead), now)


async def live_workers(store: Store, lease: float) -> list[WorkerCard]:
    now = store.now()
    return [card for card in await workers.list_all(store) if is_live(card, now, lease)]


async def read_pauses(store: Store) -> dict[str, Pause]:
    return {pause.queue: pause for pause in await list_pauses(store)}


def reasons(job: Job, around: Around, now: float) -> list[Reason]:
    """What each stage that could run waits for, or who runs it no more. Empty: all of them run."""
    if job.status.is_terminal:
        return list(_of_ended(job, around))
    if job.stopping is not None:
        count = len(job.running_tasks())
        last = "stage that still runs" if count == 1 else f"{count} stages that still run"
        found = [Reason("STOPPING", f"the job is being stopped, and ends with the {last}")]
        stages = zip(job.plan.stages, job.stages, strict=True)
        return found + [reason for plan, stage in stages for reason in _of_running(plan, stage, around)]
    found = []
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        found += [*_of_running(plan, stage, around), *_of_stage(job, plan, stage, around, now)]
    return list(dict.fromkeys(found))


def is_live(card: WorkerCard, now: float, lease: float) -> bool:
    """Whether the worker has been heard of within a lease, and is not seen to be dead from here."""
    return now - card.seen_at <= lease and not host.is_seen_dead(card.boot, card.pid_space, card.pid, card.born)


def _of_ended(job: Job, around: Around) -> Iterator[Reason]:
    """An active job has its slot from the start, so only one that has ended can be kept waiting for it."""
    yield Reason("ENDED", f"the job is {job.status.value}")
    if around.holder is not None:
        yield Reason("SLOT_TAKEN", f"it cannot be retried before job {around.holder}, which is active, has ended")


def _of_running(plan: StagePlan, stage: Stage, around: Around) -> Iterator[Reason]:
    """Its record says that it runs until somebody finds out that it does not: another worker, and there may be none."""
    is_running = any(task.status is Status.RUNNING for task in stage.tasks or ())
    if is_running and not any(plan.queue in card.queues for card in around.live):
        said = f"the worker that ran `{plan.name}` is not alive, nor any other that serves queue `{plan.queue}`"
        yield Reason("NO_WORKER", said)


def _of_stage(job: Job, plan: StagePlan, stage: Stage, around: Around, now: float) -> Iterator[Reason]:
    due = _due(stage)
    if not due:  # it runs, has ended, or waits for other stages of the job
        return
    is_early = min(due) > now
    pause = around.pauses.get(plan.queue)
    if is_early:
        yield Reason("NOT_BEFORE", f"`{plan.name}` is not due before {_time(min(due))}")
    if pause is not None:
        why = f": {pause.reason}" if pause.reason else ""
        yield Reason("PAUSED", f"queue `{plan.queue}` was paused by {pause.by} at {_time(pause.at)}{why}")
    serving = [card for card in around.live if plan.queue in card.queues]
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
    elif not is_early and pause is None:
        some = "the only slot" if slots == 1 else f"one of {slots} slots"
        ahead = around.ahead.get(plan.name)
        yield Reason("QUEUED", f"`{plan.name}` waits for {some} in queue `{plan.queue}`{_place(ahead)}", ahead)


def _due(stage: Stage) -> list[float]:
    """When what waits in the stage was or will be due."""
    return [task.ready_at for task in stage.tasks or () if task.status is Status.PENDING and task.ready_at is not None]


def _first_due(job: Job, now: float) -> Iterator[TaskId]:
    """Of each stage, the task that is claimed next."""
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        for element, task in enumerate(stage.tasks or ()):
            if task.status is Status.PENDING and task.ready_at is not None and task.ready_at <= now:
                yield TaskId(plan.name, element)
                break


def _place(ahead: int | None) -> str:
    if ahead is None:
        return ""
    more = " or more" if ahead >= MOST_COUNTED else ""
    return f", with {ahead}{more} ahead of it" if ahead else ", and is next"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
