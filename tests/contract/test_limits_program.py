"""Random programs of submits, claims, ends, kills and changed limits: a store never starts too much, nor too little."""

from __future__ import annotations

import asyncio
import contextlib
from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.limits import Fair, Limit, LimitUse, uses_of
from packhorse.core.models import Job, TaskId
from packhorse.core.plan import Plan, fingerprint
from packhorse.errors import PackhorseError
from packhorse.store.base import Claim, Store
from tests.contract.builders import BROKEN, KINDS, LEASE, RESULT, id_at, lease_of, plan, stage, starter
from tests.contract.conftest import EPOCH
from tests.contract.limited import LIMITED, at_once, of_site, per_minute
from tests.contract.stores import STORES, Clock, lent, quick_folder
from tests.tiers import examples

pytestmark = pytest.mark.cluster

T = TypeVar("T")

USERS = ("ann", "bob", "eve")
SITES = ("x", "y")
NAMES = ("convert.user", "convert.params.site", "gpu", "convert.tenant.per_minute")
MOST_JOBS = 25
ENDS: dict[str, Callable[..., Change]] = {
    "finish": lambda job, at, token, now: lifecycle.finish(job, at, token=token, result=RESULT, now=now),
    "fail": lambda job, at, token, now: lifecycle.fail(job, at, token=token, error=BROKEN, luck=0.0, now=now),
    "later": lambda job, at, token, now: lifecycle.later(job, at, token=token, seconds=20.0, now=now),
    "hand back": lambda job, at, token, now: lifecycle.hand_back(job, at, token=token, now=now),
}

LIMITS = st.lists(
    st.one_of(
        st.builds(at_once, st.integers(1, 3), st.sampled_from(["user", "params.site"])),
        st.builds(at_once, st.integers(1, 4), st.just(""), st.just("gpu")),
        st.builds(per_minute, st.integers(1, 4), st.just("tenant")),
    ),
    min_size=1,
    max_size=3,
    unique_by=lambda limit: limit.name,
)
FAIR = st.sampled_from([None, None, Fair("user"), Fair("user", {"ann": 3.0}), Fair("tenant", {}, 60.0)])


def made_plan(limits: Sequence[Limit], fair: Fair | None, kind: str) -> Plan:
    bare = plan(stage("only", kind=kind, limits=tuple(limits), fair=fair), stage("left", kind="left"))
    return replace(bare, fingerprint=fingerprint(bare))


class Program(RuleBasedStateMachine):
    """The plain model: which tasks of which jobs wait or run, as the changes say that were made."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.clock = Clock(EPOCH)
        self.open = contextlib.ExitStack()
        self.loop = self.open.enter_context(asyncio.Runner())
        address = self.open.enter_context(lent(name, self.open.enter_context(quick_folder())))
        self.store: Store = self.wait(STORES[name].open(address, self.clock))
        self.jobs: dict[str, Job] = {}
        self.running: dict[tuple[str, TaskId], Claim] = {}
        self.starts: dict[str, list[float]] = defaultdict(list)
        self.values: dict[str, int] = {}

    def teardown(self) -> None:
        with self.open:
            self.wait(self.store.close())

    def wait(self, something: Awaitable[T]) -> T:
        async def waited() -> T:
            return await something

        return self.loop.run(waited())

    def used(self, use: LimitUse) -> int:
        if use.window:
            return sum(at >= self.clock.now - use.window for at in self.starts[use.key])
        return sum(use.key in {each.key for each in self.uses(*at)} for at in self.running)

    def uses(self, job_id: str, at: TaskId) -> tuple[LimitUse, ...]:
        return uses_of(self.jobs[job_id], at)

    def is_full(self, use: LimitUse) -> bool:
        return self.used(use) >= self.values.get(use.name, use.most)

    def make(self, change: Change | None) -> None:
        if change is None:
            return
        assert self.wait(self.store.commit([change])) == [None]
        self.jobs[change.after.id] = change.after
        for key in [key for key in self.running if key[0] == change.after.id]:
            task = change.after.task(key[1])
            if task is None or task.token is None:
                del self.running[key]

    # The program

    @initialize(limits=LIMITS, fair=FAIR)
    def begin(self, limits: list[Limit], fair: Fair | None) -> None:
        for user in USERS:
            self.submit(limits, fair, "only", user, "x", 0, 0.0, 3)
        self.claim(3)

    @precondition(lambda self: len(self.jobs) < MOST_JOBS)
    @rule(
        limits=LIMITS,
        fair=FAIR,
        kind=st.sampled_from(["only", "right"]),
        user=st.sampled_from(USERS),
        site=st.sampled_from(SITES),
        priority=st.integers(-1, 1),
        delay=st.sampled_from([0.0, 0.0, 0.0, 30.0]),
        count=st.integers(1, 4),
    )
    def submit(
        self, limits: list[Limit], fair: Fair | None, kind: str, user: str, site: str, priority: int, delay: float,
        count: int,
    ) -> None:  # fmt: skip
        for _ in range(count):
            self.make(
                lifecycle.submit(
                    made_plan(limits, fair, kind), of_site(site), job_id=id_at(self.clock.now), user=user,
                    priority=priority, delay=delay, now=self.clock.now,
                )
            )  # fmt: skip

    @precondition(lambda self: self.jobs)
    @rule(limit=st.integers(1, 4))
    def claim(self, limit: int) -> None:
        for started in self.wait(self.store.claim({"default": limit}, KINDS, starter(self.store))):
            uses = uses_of(started.job, started.task)
            assert not [use for use in uses if self.is_full(use)], "it was started over its limit"
            self.jobs[started.job.id] = started.job
            self.running[started.job.id, started.task] = started
            for use in uses:
                self.starts[use.key].append(self.clock.now)

    @precondition(lambda self: self.jobs)
    @rule()
    def claim_all(self) -> None:
        """Then whatever waits has a limit that is full."""
        before = -1
        while before < len(self.running):
            before = len(self.running)
            self.claim(100)
        for job in self.jobs.values():
            for at in (TaskId("only"), TaskId("left")):
                task = job.task(at)
                if task is not None and task.ready_at is not None and task.token is None and not job.stopping:
                    is_due = task.ready_at <= self.clock.now and task.status.value == "pending"
                    assert not is_due or any(map(self.is_full, uses_of(job, at))), "it waits although there is room"

    @precondition(lambda self: self.running)
    @rule(nth=st.integers(0, 100), how=st.sampled_from([*ENDS, "finish", "finish"]), looks=st.booleans())
    def end(self, nth: int, how: str, looks: bool) -> None:
        (job_id, at), claimed = sorted(self.running.items(), key=lambda each: each[0])[nth % len(self.running)]
        self.make(ENDS[how](self.jobs[job_id], at, claimed.token, self.clock.now))
        if looks:
            self.claim_all()

    @precondition(lambda self: self.running)
    @rule(survivors=st.integers(0, 3))
    def kill(self, survivors: int) -> None:
        """The workers of all tasks but some are gone, and the reaper finds out."""
        kept = list(self.running.values())[:survivors]
        self.clock.forward(LEASE - 1)
        self.wait(self.store.renew([lease_of(each) for each in kept], LEASE))
        self.clock.forward(2.0)
        for job, at in self.wait(self.store.overdue(100)).tasks:
            current = self.jobs[job.id]
            token = self.running[job.id, at].token
            self.make(lifecycle.lose(current, at, token=token, now=self.clock.now))

    @precondition(lambda self: self.jobs)
    @rule(nth=st.integers(0, 100))
    def cancel(self, nth: int) -> None:
        job = list(self.jobs.values())[nth % len(self.jobs)]
        with contextlib.suppress(PackhorseError):
            self.make(lifecycle.cancel(job, now=self.clock.now))

    @rule(name=st.sampled_from(NAMES), most=st.sampled_from([None, 0, 1, 2, 5]))
    def set_limit(self, name: str, most: int | None) -> None:
        self.wait(self.store.set_limit(name, most))
        if most is None:
            self.values.pop(name, None)
        else:
            self.values[name] = most

    @rule(seconds=st.sampled_from([1.0, 25.0, 35.5, 60.0, 60.5]))
    def pass_time(self, seconds: float) -> None:
        self.wait(self.store.renew([lease_of(each) for each in self.running.values()], LEASE + seconds))
        self.clock.forward(seconds)

    @invariant()
    def what_operators_see_is_what_is_counted(self) -> None:
        uses = {use.key: use for job_id, at in self.running for use in self.uses(job_id, at)}
        for state in self.wait(self.store.limit_states([*uses])):
            assert state.used == self.used(uses[state.key])
            assert state.most == self.values.get(uses[state.key].name)
        held = [key for key, use in uses.items() if not use.window]
        seen = {state.key for state in self.wait(self.store.limit_states(limit=1000)) if state.holders}
        assert seen == {*held}


@pytest.mark.parametrize("name", LIMITED)
def test_a_store_keeps_every_limit_and_leaves_no_room_unused(name: str) -> None:
    run_state_machine_as_test(
        lambda: Program(name),  # type: ignore[arg-type] # it only has to be callable
        settings=settings(
            max_examples=examples(40 if name == "postgresql" else 150),  # a schema for each takes long there
            stateful_step_count=40,
            deadline=None,
            suppress_health_check=list(HealthCheck),
        ),
    )
