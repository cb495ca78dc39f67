"""Random sequences of everything that can happen to failures: every group's counts are what a recount comes to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from packhorse.core import lifecycle
from packhorse.core.failures import failure_id
from packhorse.core.models import FailedRun, FailureStatus, Job, Settled
from packhorse.core.plan import Status
from packhorse.store.base import FailureFilter, Store
from packhorse.store.collections.failures import dismiss_group
from tests.contract.builders import cancel, claim, fail, finish, marked, submit
from tests.contract.failures import assert_counted, wrong
from tests.contract.stores import STORES, Clock, quick_folder

EPOCH = 1_800_000_000.0
WAYS = ("It broke.", "It broke again and again.", "It took {} s.")
USERS = ("ann", "bob", "cid", "dan")
TENANTS = ("default", "acme")
STEPS = (
    "fail",
    "fail",
    "fail",
    "retry",
    "retry and complete",
    "retry and cancel",
    "dismiss",
    "dismiss group",
    "purge",
    "forget",
)


class World:
    """A store, and beside it what it must hold, written down as plainly as can be."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.jobs: list[Job] = []
        self.expected: dict[str, tuple[str, FailureStatus]] = {}
        """By id of the failure, its user and status."""

    async def step(self, name: str, n: int) -> None:
        self.clock.forward(1.0)
        failed = [job for job in self.jobs if job.status is Status.FAILED]
        if name == "fail":
            await self.fail(n)
        elif name == "forget":
            await self.forget(n)
        elif name == "dismiss group":
            await self.dismiss_group(n)
        elif failed:
            does: dict[str, Callable[[Job], Awaitable[None]]] = {
                "retry": self.retry_and_fail,
                "retry and complete": self.complete,
                "retry and cancel": self.cancel,
                "dismiss": self.dismiss,
                "purge": self.purge,
            }
            await does[name](failed[n % len(failed)])

    async def fail(self, n: int) -> None:
        tenant, user = TENANTS[n % 5 == 0], USERS[n % len(USERS)]
        await submit(self.store, user=user, tenant=tenant)
        await self.fail_claimed(n)

    async def fail_claimed(self, n: int) -> None:
        [claimed] = await claim(self.store, 1)
        job = await fail(self.store, claimed, wrong(WAYS[n % len(WAYS)].format(n)))
        self.jobs = [*(each for each in self.jobs if each.id != job.id), job]
        self.expected[failure_id(self.clock.now, job.id, job.run)] = job.user, FailureStatus.OPEN

    async def retry(self, job: Job) -> None:
        change = lifecycle.retry(job, now=self.clock.now, by="ann")
        assert change is not None
        assert await self.store.commit([change]) == [None]
        self.jobs.remove(job)
        self.move(job, FailureStatus.OPEN, FailureStatus.RETRIED)

    async def retry_and_fail(self, job: Job) -> None:
        await self.retry(job)
        self.clock.forward(1.0)
        await self.fail_claimed(len(self.expected))

    async def complete(self, job: Job) -> None:
        await self.retry(job)
        [claimed] = await claim(self.store, 1)
        await finish(self.store, claimed)
        self.move(job, FailureStatus.RETRIED, FailureStatus.RESOLVED)

    async def cancel(self, job: Job) -> None:
        await self.retry(job)
        await cancel(self.store, job.id)

    async def dismiss(self, job: Job) -> None:
        ids = [id for id in self.expected if job.id in id]
        await self.store.dismiss_failures(ids, Settled(self.clock.now, "ann", "known"))
        self.move(job, FailureStatus.OPEN, FailureStatus.DISMISSED)

    async def dismiss_group(self, n: int) -> None:
        groups = await self.store.failure_groups("default")
        if groups:
            group = groups[n % len(groups)]
            await dismiss_group(self.store, "default", group.fingerprint, Settled(self.clock.now, "ann", "known"))

    async def purge(self, job: Job) -> None:
        await self.store.erase((await marked(self.store, job)).id)
        self.jobs.remove(job)

    async def forget(self, n: int) -> None:
        """The oldest half, in steps of a few."""
        until = EPOCH + (self.clock.now - EPOCH) * (n % 3) / 2
        while await self.store.forget_failures(until, 3):
            pass
        first = f"{int(until * 1000):012x}-"
        self.expected = {id: kept for id, kept in self.expected.items() if id >= first}

    def move(self, job: Job, was: FailureStatus, now: FailureStatus) -> None:
        for id, (user, status) in self.expected.items():
            if job.id in id and status is was:
                self.expected[id] = user, now

    async def check(self) -> None:
        found: list[FailedRun] = []
        for tenant in TENANTS:
            await assert_counted(self.store, tenant)
            found += await self.store.failures(FailureFilter(tenant), limit=1000)
        assert {each.id: (each.user, each.status) for each in found} == self.expected


async def played(name: str, program: list[tuple[str, int]]) -> None:
    clock = Clock(EPOCH)
    with quick_folder() as folder:
        store = await STORES[name].open(STORES[name].fresh(folder), clock)
        try:
            world = World(store, clock)
            for step, n in program:
                await world.step(step, n)
            await world.check()
        finally:
            await store.close()


@pytest.mark.parametrize("name", STORES)
@settings(max_examples=15, deadline=None, suppress_health_check=list(HealthCheck))
@given(program=st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 60)), min_size=5, max_size=40))
def test_every_count_is_what_a_recount_comes_to(name: str, program: list[tuple[str, int]]) -> None:
    asyncio.run(played(name, program))
