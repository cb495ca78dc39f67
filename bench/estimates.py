"""How often jobs end within the longer time of their estimate, as nine of ten should. A simulation, no store."""

from __future__ import annotations

import math
import random
from collections import Counter, deque
from collections.abc import Mapping
from pathlib import Path

from msgspec.structs import replace

from bench import jobs
from bench.book import Book
from bench.sizes import Sizes
from packhorse.core.models import Job, Stage, Task
from packhorse.core.plan import Need, Plan, Status, TaskStatus
from packhorse.jobs.explain import promised_seconds
from packhorse.store.counters import duration_bucket

SECTION = "estimates"
JOBS = 3000
EARLIER = 500
"""Runs of which the times are known, at most: three days of a pipeline that runs every few minutes."""
SKIPPED = 20
"""Runs before the first one that counts: with fewer, nobody can tell a ninth of ten."""
SPREAD = 0.5
"""Standard deviation of the logarithm of a stage's time: one of twenty takes more than twice the median."""
USUAL = {"a": 4.0, "b": 30.0, "c": 12.0}  # seconds of each stage
CHAIN: Mapping[str, tuple[str, ...]] = {"a": (), "b": ("a",), "c": ("b",)}
APART: Mapping[str, tuple[str, ...]] = {"a": (), "b": (), "c": ()}


class EstimatesSection:
    def __init__(self, folder: Path, sizes: Sizes) -> None:  # noqa: ARG002  as of all sections
        self._rounds = 0

    async def round(self, book: Book) -> None:
        self._rounds += 1
        luck = random.Random(self._rounds)
        shapes = {"one stage": {"b": ()}, "three stages, one after another": CHAIN, "three stages side by side": APART}
        for name, needs in shapes.items():
            book.note(SECTION, f"{name}: ended in time", 100.0 * kept(needs, luck), "%")
        book.note(
            SECTION, "one stage, times that double meanwhile: ended in time", 100.0 * kept({"b": ()}, luck, 2.0), "%"
        )

    async def close(self) -> None:
        pass


def kept(needs: Mapping[str, tuple[str, ...]], luck: random.Random, growth: float = 1.0) -> float:
    """The share of jobs that ended within the longer time; each knows the runs before it."""
    plan = _plan(needs)
    runs: deque[dict[str, float]] = deque(maxlen=EARLIER)
    seen = {name: Counter[int]() for name in needs}
    inside = counted = 0
    for number in range(JOBS):
        slower = growth ** (number / JOBS)
        times = {name: USUAL[name] * slower * math.exp(luck.gauss(0.0, SPREAD)) for name in needs}
        if number >= SKIPPED:
            most = promised_seconds(_job(plan), seen, 0.0)
            assert most is not None
            counted += 1
            inside += duration_bucket(_took(needs, times)) <= duration_bucket(most)
        if len(runs) == EARLIER:
            for name, seconds in runs[0].items():
                seen[name][duration_bucket(seconds)] -= 1
        runs.append(times)
        for name, seconds in times.items():
            seen[name][duration_bucket(seconds)] += 1
    return inside / counted


def _plan(needs: Mapping[str, tuple[str, ...]]) -> Plan:
    [stage] = jobs.plan().stages
    stages = [
        replace(stage, name=name, needs=tuple(Need(each, each, "needs") for each in before))
        for name, before in needs.items()
    ]
    return replace(jobs.plan(), stages=tuple(stages))


def _job(plan: Plan) -> Job:
    task = Task(TaskStatus.COMPLETED, started_at=1.0, ended_at=2.0)
    job = jobs.submit(jobs.plan(), 0.0).after
    return replace(
        job, plan=plan, status=Status.COMPLETED, started_at=1.0, stages=tuple(Stage((task,)) for _ in plan.stages)
    )


def _took(needs: Mapping[str, tuple[str, ...]], times: Mapping[str, float]) -> float:
    ends: dict[str, float] = {}
    for name, before in needs.items():
        ends[name] = max((ends[each] for each in before), default=0.0) + times[name]
    return max(ends.values())
