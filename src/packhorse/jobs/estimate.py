"""How much longer a job will run, told from how long its stages took before, and from how far it says it is.

An estimate is honest or not there: what has never been seen to end, and says nothing of itself, has none. How long a
stage waits for a worker is no part of it, that depends on others.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

from packhorse.core.models import Job, Stage
from packhorse.core.plan import StagePlan, Status
from packhorse.schemas.explain import Estimate, StageEstimate
from packhorse.schemas.progress import Reported, stage_percent
from packhorse.store.base import Store
from packhorse.store.counters import KEPT, QUARTER, duration_bucket, percentile

STAGES = "/stages"
"""Stored in place of a queue name, which cannot contain a slash: how long each stage took, of jobs that completed."""

ENOUGH = 10.0
"""Percent that a stage must have come to before its own pace says more than the runs before it."""

Past = Mapping[str, Counter[int]]
"""For each stage, how often it took how long."""


async def past(store: Store, pipeline: str) -> Past:
    """As far back as is kept: three days."""
    found: dict[str, Counter[int]] = {}
    for tally, count in await store.tallied(QUARTER, store.now() - KEPT[QUARTER], queue=STAGES, pipeline=pipeline):
        stage, _, number = tally.name.rpartition(":")
        found.setdefault(stage, Counter())[int(number)] += count
    return found


def estimate_job(job: Job, reported: Reported, past: Past, now: float) -> Estimate:
    """The longest way through what is left of the graph."""
    left = {plan.name: _left(job, plan, reported, past.get(plan.name, Counter()), now) for plan in job.plan.stages}
    runs = min((each.runs for each in left.values() if each.seconds), default=0)
    if job.status.is_terminal or job.stopping is not None:
        return Estimate(None, runs, left)
    ends: dict[str, float | None] = {}
    for plan, stage in zip(job.plan.stages, job.stages, strict=True):
        begun = job.status is not Status.PENDING  # until then it waits for its time, which is no part of what it takes
        needed = [ends[need.stage] for need in plan.needs]
        ends[plan.name] = _end(stage, needed, left[plan.name].seconds, now, waits=begun)
    last = _latest(list(ends.values()), now)
    return Estimate(None if last is None else last - now, runs, left)


def _left(job: Job, plan: StagePlan, reported: Reported, counts: Counter[int], now: float) -> StageEstimate:
    stage, runs = job.stage(plan.name), counts.total()
    usual = percentile(counts, 0.5)
    if stage.status is Status.COMPLETED:
        return StageEstimate(usual, 0.0, runs)
    if stage.status.is_terminal:
        return StageEstimate(usual, None, runs)
    began = min((task.started_at for task in stage.tasks or () if task.started_at is not None), default=None)
    if began is None or stage.status is Status.PENDING:
        return StageEstimate(usual, usual, runs)
    passed, share = max(0.0, now - began), stage_percent(job, plan.name, reported)
    by_pace = passed * (100.0 - share) / share if share > 0 else None
    by_past = _beyond(counts, passed)
    seconds = by_pace if share >= ENOUGH or by_past is None else by_past
    return StageEstimate(usual, seconds, runs)


def _beyond(counts: Counter[int], passed: float) -> float | None:
    """The median of those that took longer than it has taken so far. None if none did: it is the slowest yet."""
    longer = Counter({number: count for number, count in counts.items() if number >= duration_bucket(passed)})
    found = percentile(longer, 0.5)
    return None if found is None else max(0.0, found - passed)


def _end(
    stage: Stage, needed: Sequence[float | None], seconds: float | None, now: float, *, waits: bool
) -> float | None:
    begins = _latest(needed, now)
    if begins is None or seconds is None:
        return None
    if waits and stage.status is Status.PENDING:
        begins = max([begins, *(task.ready_at for task in stage.tasks or () if task.ready_at is not None)])
    return begins + seconds


def _latest(ends: Sequence[float | None], now: float) -> float | None:
    known = [each for each in ends if each is not None]
    return max([now, *known]) if len(known) == len(ends) else None
