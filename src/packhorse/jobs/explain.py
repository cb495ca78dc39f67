"""Why a job is not running now, in the order in which a person would look; and how much longer it will run.

An estimate comes from how long the stages took before, and from their progress. Without either, there is none. The time
that a stage waits for a worker is not part of it: that depends on other jobs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime

from msgspec import Struct, field

from packhorse import host
from packhorse.core.limits import LimitUse, uses_of
from packhorse.core.models import Job, Stage, TaskId
from packhorse.core.plan import StagePlan, Status, TaskStatus
from packhorse.schemas.job_details import Estimate, FullLimit, Reason, StageEstimate
from packhorse.schemas.progress import Reported, stage_percent
from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.base import get_readable
from packhorse.store.collections.queues import Pause, list_pauses
from packhorse.store.collections.workers import WorkerCard
from packhorse.store.counters import KEPT, QUARTER, duration_bucket, percentile
from packhorse.store.limits import Holder, LimitState

STUCK = frozenset({"PAUSED", "NO_WORKER", "NO_CODE", "NO_PROCESS"})
"""Reasons that go away only if somebody acts."""

UNITS = {1.0: "per second", 60.0: "per minute", 3600.0: "per hour"}

MOST_COUNTED = 1000
"""Tasks ahead of one that are counted at most."""

STAGES = "/stages"
"""Stored in place of a queue name, which cannot contain a slash: how long each stage took, of jobs that completed."""

ENOUGH = 10.0
"""Percent from which a stage's own pace is a better estimate than earlier runs."""

MOST = 0.9
"""The share of runs that take no longer than the longest time that an estimate names."""

SPREAD = 1.5
"""How much longer than at its present pace a stage may take, at most; and if no earlier run says so."""

Past = Mapping[str, Counter[int]]
"""For each stage, how often it took how long."""


class Fleet(Struct, frozen=True):
    """What all jobs have in common."""

    live: Sequence[WorkerCard] = ()
    """The workers that are alive."""
    pauses: Mapping[str, Pause] = field(default_factory=dict)
    """By queue."""


class Around(Struct, frozen=True):
    """What an explanation needs besides the job."""

    fleet: Fleet = Fleet()
    ahead: Mapping[str, int] = field(default_factory=dict)
    """By due stage: how many tasks are ahead of it, if that was counted."""
    holder: str | None = None
    """The active job that has the slot of this ended one."""
    full: Mapping[str, FullLimit] = field(default_factory=dict)
    """By due stage, the limit that has no room for it."""
    line: Sequence[str] = ()
    """The jobs before this one in the line of its slot: first the active one."""


_ENDED = {
    Status.COMPLETED: "the job has completed",
    Status.FAILED: "the job has failed",
    Status.CANCELLED: "the job was cancelled",
}


async def explain_job(store: Store, job: Job, fleet: Callable[[], Awaitable[Fleet]]) -> list[Reason]:
    now = store.now()
    if job.status.is_terminal:
        holder = None if job.slot is None else await store.holder(job.slot)
        return reasons(job, Around(holder=holder), now)
    if job.status is Status.PENDING and job.slot is not None and job.plan.on_conflict != "refuse":
        line = await store.line(job.slot, limit=MOST_COUNTED)
        before = line[: line.index(job.id)] if job.id in line else []
        if before:
            return reasons(job, Around(line=before), now)
    ahead = {at.stage: await store.ahead(job, at, limit=MOST_COUNTED) for at in _first_due(job, now)}
    return reasons(job, Around(await fleet(), ahead, full=await _full_limits(store, job, now)), now)


async def _full_limits(store: Store, job: Job, now: float) -> dict[str, FullLimit]:
    """By due stage, the first of its limits that has no room."""
    if not job.plan.is_regulated:
        return {}
    found: dict[str, FullLimit] = {}
    for at in _first_due(job, now):
        uses = uses_of(job, at)
        states = await store.limit_states([use.key for use in uses]) if uses else []
        for use, state in zip(uses, states, strict=True):
            most = use.most if state.most is None else state.most
            if most <= state.used:
                found[at.stage] = await _full_limit(store, job, use, state, most)
                break
    return found


async def _full_limit(store: Store, job: Job, use: LimitUse, state: LimitState, most: int) -> FullLimit:
    jobs = await get_readable(store, list(dict.fromkeys(holder.job_id for holder in state.holders)))
    known = [(holder, other) for holder in state.holders if (other := jobs.get(holder.job_id)) is not None]
    free_at = state.free_at if use.window else await _next_end(store, known)
    mine = tuple(dict.fromkeys(each.id for _, each in known if (each.tenant, each.user) == (job.tenant, job.user)))
    return FullLimit(use.name, most, use.window, state.used, state.parked, mine, free_at)


async def _next_end(store: Store, holders: Sequence[tuple[Holder, Job]]) -> float | None:
    """When the first of them is expected to end, going by the median of earlier runs of its stage."""
    now = store.now()
    pasts = {name: await past_durations(store, name) for name in {job.plan.pipeline for _, job in holders}}
    ends = []
    for holder, job in holders:
        usual = percentile(pasts[job.plan.pipeline].get(holder.task.stage, Counter()), 0.5)
        if usual is not None:
            ends.append(max(now, holder.since + usual))
    return min(ends, default=None)


async def read_fleet(store: Store, lease: float) -> Fleet:
    return Fleet(await live_workers(store, lease), await read_pauses(store))


async def live_workers(store: Store, lease: float) -> list[WorkerCard]:
    now = store.now()
    return [card for card in await workers.list_all(store) if is_live(card, now, lease)]


async def read_pauses(store: Store) -> dict[str, Pause]:
    return {pause.queue: pause for pause in await list_pauses(store)}


def reasons(job: Job, around: Around, now: float) -> list[Reason]:
    """What each stage that could run waits for, and stages whose worker is gone. Empty if all of them run."""
    if job.status.is_terminal:  # only an ended job can lack its slot: an active one has it from the start
        found = [Reason("ENDED", _ENDED[job.status])]
        if around.holder is not None and job.plan.on_conflict != "queue":
            blocked = f"it can be retried when the active job {around.holder} has ended"
            found.append(Reason("SLOT_TAKEN", blocked))
        return found
    if around.line:
        return [_in_line(around.line)]
    if job.stopping is not None:
        count = len(job.running_tasks())
        last = "stage has" if count == 1 else f"{count} stages have"
        found = [Reason("STOPPING", f"the job is stopping: it ends when the last running {last} stopped")]
        stages = zip(job.plan.stages, job.stages, strict=True)
        return found + [reason for plan, stage in stages for reason in _of_running(plan, stage, around)]
    found = []
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        found += [*_of_running(plan, stage, around), *_of_stage(job, plan, stage, around, now)]
    return list(dict.fromkeys(found))


def _in_line(before: Sequence[str]) -> Reason:
    others = len(before) - 1
    more = f", and {others} more of the user's jobs {'is' if others == 1 else 'are'} ahead of it" if others else ""
    return Reason("SLOT_TAKEN", f"it waits until the user's active job {before[0]} has ended{more}", len(before))


def is_live(card: WorkerCard, now: float, lease: float) -> bool:
    """Whether the worker had a heartbeat within a lease, and is not seen to be dead from this host."""
    return now - card.seen_at <= lease and not host.is_seen_dead(card.boot, card.pid_space, card.pid, card.born)


def _of_running(plan: StagePlan, stage: Stage, around: Around) -> Iterator[Reason]:
    """Running according to its record, which another worker would correct; but there is none."""
    is_running = any(task.status is TaskStatus.RUNNING for task in stage.tasks or ())
    if is_running and not any(plan.queue in card.queues for card in around.fleet.live):
        said = f"the worker that ran `{plan.name}` is gone, and no other worker serves queue `{plan.queue}`"
        yield Reason("NO_WORKER", said)


def _of_stage(job: Job, plan: StagePlan, stage: Stage, around: Around, now: float) -> Iterator[Reason]:
    due = _due(stage)
    if not due:  # it runs, has ended, or waits for other stages of the job
        return
    is_early = min(due) > now
    pause = around.fleet.pauses.get(plan.queue)
    if is_early:
        yield Reason("NOT_BEFORE", f"`{plan.name}` is not due before {_time(min(due))}")
    if pause is not None:
        why = f": {pause.reason}" if pause.reason else ""
        yield Reason("PAUSED", f"queue `{plan.queue}` was paused by {pause.by} at {_time(pause.at)}{why}")
    serving = [card for card in around.fleet.live if plan.queue in card.queues]
    able = [card for card in serving if plan.kind in card.kinds or not card.kinds]  # older workers have none
    if not serving:
        yield Reason("NO_WORKER", f"no live worker serves queue `{plan.queue}`")
    elif not able:
        yield Reason(
            "NO_CODE", f"no live worker has stage `{plan.name}` of pipeline `{job.plan.pipeline}` as it was submitted"
        )
    elif not (slots := sum(card.queues[plan.queue] for card in able)):
        yield Reason("NO_PROCESS", f"no live worker can start a process for `{plan.name}` now; their logs say why")
    elif not is_early and pause is None and (full := around.full.get(plan.name)) is not None:
        yield Reason("LIMITED", _limit_text(plan.name, full, now), limit=full)
    elif not is_early and pause is None and plan.fair is not None:
        whom = f"{plan.fair.by}s take turns" if plan.fair.by else "tasks that waited longer go first"
        yield Reason("QUEUED", f"`{plan.name}` waits for its turn in queue `{plan.queue}`, where {whom}")
    elif not is_early and pause is None:
        some = "the only slot" if slots == 1 else f"one of {slots} slots"
        ahead = around.ahead.get(plan.name)
        yield Reason("QUEUED", f"`{plan.name}` waits for {some} in queue `{plan.queue}`{_place(ahead)}", ahead)


def _limit_text(stage: str, full: FullLimit, now: float) -> str:
    unit = UNITS.get(full.window, f"in {full.window:g} s") if full.window else "at once"
    said = f"`{stage}` waits for limit `{full.name}`: {full.used} of {full.most} {unit} are used"
    if full.most == 0:
        return f"`{stage}` waits for limit `{full.name}`, which an operator has set to 0"
    if full.jobs:
        others = full.used - len(full.jobs)
        said += f", by {', '.join(f'job {id}' for id in full.jobs)}{f' and {others} more' if others > 0 else ''}"
    if full.free_at is not None:
        seconds = max(0.0, full.free_at - now)
        said += (
            f"; there is room again in {_duration(seconds)}" if full.window
            else f"; the next is expected to finish in about {_duration(seconds)}"
        )  # fmt: skip
    return said


def _duration(seconds: float) -> str:
    return (
        f"{seconds:.0f} s"
        if seconds < 120
        else f"{seconds / 60:.0f} min"
        if seconds < 7200
        else f"{seconds / 3600:.0f} h"
    )


def _due(stage: Stage) -> list[float]:
    """When the waiting tasks of the stage were or will be due."""
    return [
        task.ready_at for task in stage.tasks or () if task.status is TaskStatus.PENDING and task.ready_at is not None
    ]


def _first_due(job: Job, now: float) -> Iterator[TaskId]:
    """Of each stage, the task that is claimed next."""
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        for element, task in enumerate(stage.tasks or ()):
            if task.status is TaskStatus.PENDING and task.ready_at is not None and task.ready_at <= now:
                yield TaskId(plan.name, element)
                break


def _place(ahead: int | None) -> str:
    if ahead is None:
        return ""
    more = " or more" if ahead >= MOST_COUNTED else ""
    return f", with {ahead}{more} ahead of it" if ahead else ", and is next"


def _time(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


# How much longer it will run.


async def past_durations(store: Store, pipeline: str) -> Past:
    """Of the last three days."""
    found: dict[str, Counter[int]] = {}
    for tally, count in await store.list_tallies(QUARTER, store.now() - KEPT[QUARTER], queue=STAGES, pipeline=pipeline):
        stage, _, number = tally.name.rpartition(":")
        found.setdefault(stage, Counter())[int(number)] += count
    return found


class Standing(Struct, frozen=True):
    """How a stage stands, as far as an estimate needs it."""

    status: TaskStatus
    is_done: bool
    percent: float
    began: float | None = None
    """When its first task of this run started."""
    ready_at: float | None = None
    """When the last of its waiting tasks is or was due."""


def standing(job: Job, name: str, reported: Reported) -> Standing:
    stage = job.stage(name)
    ready = [task.ready_at for task in stage.tasks or () if task.ready_at is not None]
    return Standing(
        job.stage_status(name),
        stage.is_done,
        stage_percent(job, name, reported),
        min((task.started_at for task in job.tasks_of_run(name) if task.started_at), default=None),
        max(ready) if ready and stage.status is TaskStatus.PENDING else None,
    )


def estimate_job(job: Job, reported: Reported, past: Past, now: float) -> Estimate:
    """The longest way through what is left of the graph."""
    return estimate_stages(job, {name: standing(job, name, reported) for name in job.plan.index}, past, now)


def estimate_stages(job: Job, stages: Mapping[str, Standing], past: Past, now: float) -> Estimate:
    """Takes time by the number of stages, not of elements."""
    left = {name: _left(each, past.get(name, Counter()), now) for name, each in stages.items()}
    runs = min((each.runs for each in left.values() if each.seconds), default=0)
    if job.status.is_terminal or job.stopping is not None:
        return Estimate(None, None, runs, left)
    seconds = _longest_way(job, stages, {name: each.seconds for name, each in left.items()}, now)
    most = _longest_way(job, stages, {name: each.most for name, each in left.items()}, now)
    return Estimate(seconds, most, runs, left)


def promised_seconds(job: Job, past: Past, now: float) -> float | None:
    """The longer time of the estimate for this run as it started; None if there was none."""
    ran = {name: any(task.started_at for task in job.tasks_of_run(name)) for name in job.plan.index}
    stages = {name: Standing(TaskStatus.PENDING, not is_needed, 0.0) for name, is_needed in ran.items()}
    left = {name: _left(each, past.get(name, Counter()), now).most for name, each in stages.items()}
    return _longest_way(job, stages, left, now)


def _longest_way(
    job: Job, stages: Mapping[str, Standing], left: Mapping[str, float | None], now: float
) -> float | None:
    """Seconds until the last stage ends, if each takes so long; None if that is unknown for one."""
    ends: dict[str, float | None] = {}
    for plan in job.plan.stages:
        begun = job.status is not Status.PENDING  # before, the wait for its time does not count
        needed = [ends[need.stage] for need in plan.needs]
        ends[plan.name] = _end(stages[plan.name], needed, left[plan.name], now, waits=begun)
    last = _latest(list(ends.values()), now)
    return None if last is None else last - now


def _left(stage: Standing, counts: Counter[int], now: float) -> StageEstimate:
    runs = counts.total()
    usual, slow = (percentile(counts, 0.5), percentile(counts, MOST)) if runs else (None, None)
    if stage.is_done:
        return StageEstimate(usual, 0.0, runs, 0.0)
    if stage.status.is_terminal:
        return StageEstimate(usual, None, runs)
    if stage.began is None or stage.status is TaskStatus.PENDING:
        return StageEstimate(usual, usual, runs, slow)
    passed, share = max(0.0, now - stage.began), stage.percent
    by_pace = passed * (100.0 - share) / share if share > 0 else None
    longer = Counter({number: count for number, count in counts.items() if number >= duration_bucket(passed)})
    median = percentile(longer, 0.5)  # of the runs that took longer; None if this is the slowest yet
    if share >= ENOUGH or median is None:  # earlier runs say how much it may vary
        spread = min(SPREAD, slow / usual) if slow and usual else SPREAD
        return StageEstimate(usual, by_pace, runs, None if by_pace is None else by_pace * spread)
    most = percentile(longer, MOST) or median
    return StageEstimate(usual, max(0.0, median - passed), runs, max(0.0, most - passed))


def _end(
    stage: Standing, needed: Sequence[float | None], seconds: float | None, now: float, *, waits: bool
) -> float | None:
    begins = _latest(needed, now)
    if begins is None or seconds is None:
        return None
    if waits and stage.ready_at is not None:
        begins = max(begins, stage.ready_at)
    return begins + seconds


def _latest(ends: Sequence[float | None], now: float) -> float | None:
    known = [each for each in ends if each is not None]
    return max([now, *known]) if len(known) == len(ends) else None
