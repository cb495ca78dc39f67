"""Long random lives of a few jobs: what the store remembers is what was decided, and nothing else."""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change, DropStages, KeepResult
from packhorse.core.models import Event, Job, Result, TaskId
from packhorse.core.plan import TaskStatus
from packhorse.errors import PackhorseError
from packhorse.store.base import Store
from tests.contract.builders import APART, BROKEN, CHAIN, FAN, HOPELESS, SLOTTED, claim, submission, token_of
from tests.contract.stores import Clock

STEPS = 250
USERS = ("ann", "bob")

Decision = Callable[[], Change | None]


class Life:
    """What should be in the store, kept by applying the same changes to plain values."""

    def __init__(self, store: Store, clock: Clock, seed: int) -> None:
        self.store = store
        self.clock = clock
        self.chance = random.Random(seed)
        self.jobs: dict[str, Job] = {}
        self.events: dict[str, list[Event]] = {}
        self.results: dict[str, dict[TaskId, Result]] = {}
        self.past: list[Job] = []
        self.refused = 0

    async def step(self) -> None:
        await self.chance.choice([self.submit, self.claim, self.attempt, self.attempt, self.attempt, self.move])()

    async def submit(self) -> None:
        plan = self.chance.choice([SLOTTED, CHAIN, APART, FAN])
        delay, priority = self.chance.choice([0.0, 0.0, 2.0]), self.chance.randrange(3)
        user = self.chance.choice(USERS)
        await self.commit(lambda: submission(plan, user=user, delay=delay, priority=priority, now=self.clock()))

    async def claim(self) -> None:
        for claimed in await claim(self.store, self.chance.randrange(1, 6), lease=1e9):
            fresh = await self.store.events(claimed.job.id, after=len(self.events[claimed.job.id]))
            self.jobs[claimed.job.id] = claimed.job
            self.events[claimed.job.id] += fresh

    async def attempt(self) -> None:
        """End some attempt somehow."""
        running = [(job, at) for job in self.jobs.values() for at in job.running_tasks()]
        if not running:
            return
        job, at = self.chance.choice(running)
        token, now = token_of(job, at), self.clock()
        width = self.chance.randrange(4) if at.stage == "split" else None
        result = Result(b"%d" % self.chance.randrange(100))
        endings: list[Decision] = [
            lambda: lifecycle.finish(job, at, token=token, result=result, width=width, now=now),
            lambda: lifecycle.finish(job, at, token=token, result=result, width=width, now=now),
            lambda: lifecycle.fail(job, at, token=token, error=BROKEN, luck=0.5, now=now),
            lambda: lifecycle.fail(job, at, token=token, error=HOPELESS, luck=0.5, now=now),
            lambda: lifecycle.hand_back(job, at, token=token, now=now),
            lambda: lifecycle.later(job, at, token=token, seconds=3.0, now=now),
            lambda: lifecycle.lose(job, at, token=token, now=now, witnessed=True),
        ]
        await self.commit(self.chance.choice(endings))

    async def move(self) -> None:
        """Something from outside, now and then decided on a job as it was long ago."""
        self.clock.forward(self.chance.random() * 2)
        if not self.past:
            return
        old = self.chance.choice(self.past)
        job = self.chance.choice([old, self.jobs[old.id]])
        now = self.clock()
        verbs: list[Decision] = [
            lambda: lifecycle.cancel(job, now=now),
            lambda: lifecycle.retry(job, now=now),
            lambda: lifecycle.retry(job, stage="*", now=now),
            lambda: lifecycle.tidy(job, now=now),
            lambda: lifecycle.expire(replace(job, deadline_at=now), now=now),
        ]
        await self.commit(self.chance.choice(verbs))

    async def commit(self, decide: Decision) -> None:
        try:
            change = decide()
        except PackhorseError:
            return
        if change is None:
            return
        [error] = await self.store.commit([change])
        if error is not None:
            self.refused += 1
            return
        job = change.after
        self.jobs[job.id] = job
        self.past.append(job)
        self.events.setdefault(job.id, []).extend(change.events)
        kept = self.results.setdefault(job.id, {})
        for effect in change.effects:
            if isinstance(effect, KeepResult):
                kept[effect.task] = effect.result
            elif isinstance(effect, DropStages):
                self.results[job.id] = kept = {at: r for at, r in kept.items() if at.stage not in effect.stages}

    def due(self) -> set[tuple[str, TaskId]]:
        return {
            (job.id, TaskId(plan.name, n))
            for job in self.jobs.values()
            for plan, stage in zip(job.plan.stages, job.stages, strict=True)
            for n, task in enumerate(stage.tasks or ())
            if task.status is TaskStatus.PENDING and task.ready_at is not None
        }


@pytest.mark.parametrize("seed", range(4))
async def test_after_a_long_random_life_the_store_holds_exactly_what_was_decided(
    timed: Store, clock: Clock, seed: int
) -> None:
    life = Life(timed, clock, seed)

    for _ in range(STEPS):
        await life.step()

    known = list(life.jobs)
    slots = {job.slot for job in life.jobs.values() if job.slot}
    active = {job.slot: job.id for job in life.jobs.values() if job.slot and not job.status.is_terminal}
    assert await timed.get(known) == list(life.jobs.values())
    assert {id: await timed.events(id) for id in known} == life.events
    assert await timed.results(known) == {id: kept for id, kept in life.results.items() if kept}
    assert {slot: await timed.holder(slot) for slot in slots} == {slot: active.get(slot) for slot in slots}
    assert {(job.id, at) for job, at in await timed.held_by("w", limit=10_000)} == {
        (job.id, at) for job in life.jobs.values() for at in job.running_tasks()
    }
    assert life.refused > 0
    clock.forward(1000.0)
    assert {(claimed.job.id, claimed.task) for claimed in await claim(timed)} == life.due()


@pytest.mark.parametrize("seed", range(2))
async def test_event_numbers_have_no_gap_and_each_run_ends_once(timed: Store, clock: Clock, seed: int) -> None:
    life = Life(timed, clock, 100 + seed)

    for _ in range(STEPS):
        await life.step()

    for id in life.jobs:
        events = await timed.events(id)
        ends = [event.data["run"] for event in events if event.type in ("completed", "failed", "cancelled")]
        assert [event.n for event in events] == list(range(1, len(events) + 1))
        assert ends == sorted(set(ends))
