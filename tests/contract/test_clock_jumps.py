"""The store's clock is the one that counts, and while it jumps nobody loses anything by it.

The clock is set on the server's side, as an operator or a time daemon would set it: this process is told nothing.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from packhorse.background.reaper import Reaper
from packhorse.background.steady_clock import DOUBT
from packhorse.core import lifecycle
from packhorse.core.plan import Backoff
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store
from packhorse.store.redis import client
from tests.contract.builders import BROKEN, HOUR, LEASE, ONLY, claim, held, lease_of, made, plan, stage, started, submit
from tests.contract.stores import STORES, Clock, open_at
from tests.store.postgres.inside import connected
from tests.worker.faulty import Faults, wrapped

TICK = LEASE / 10
CLOCK = "CREATE OR REPLACE FUNCTION now() RETURNS float8 LANGUAGE sql AS '{body}'"
LASTING = plan(stage("only"), deadline=90 * 24 * HOUR)
PATIENT = 2.0
"""Seconds by which a test may be late."""


class Server:
    """Where a store is, and a way to set the clock that it goes by."""

    def __init__(self, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
        self.address = address
        self.ahead = 0.0
        self._monkeypatch = monkeypatch

    def now(self) -> float:
        return time.time() + self.ahead

    async def set_ahead(self, seconds: float) -> None:
        self.ahead = seconds
        if self.address.startswith("postgresql"):
            async with connected(self.address) as raw:
                body = f"SELECT extract(epoch FROM clock_timestamp())::float8 + {seconds}"
                await raw.execute(CLOCK.format(body=body))
        elif self.address.startswith("redis"):
            self._monkeypatch.setattr(client, "script", self._skewed)

    def _skewed(self, name: str) -> client.Script:
        found = ORIGINAL(name)
        body = found.body.replace("tonumber(t[1]) +", f"tonumber(t[1]) + {self.ahead} +")
        assert body != found.body
        return client.Script(body, hashlib.sha1(body.encode(), usedforsecurity=False).hexdigest(), found.is_write)


ORIGINAL = client.script


@pytest.fixture(params=STORES)
def server(request: pytest.FixtureRequest, folder: Path, monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(STORES[request.param].fresh(folder), monkeypatch)


@pytest.fixture
async def store(server: Server) -> AsyncIterator[Store]:
    opened = await open_at(
        server.address, time.time if server.address.startswith(("postgresql", "redis")) else server.now
    )
    yield opened
    await opened.close()


class Watch:
    """A reaper that is called as often as it wishes to be. Only its own clock moves."""

    def __init__(self, store: Store) -> None:
        self.steady = Clock(1_000.0)
        self.reaper = Reaper(store, Transactor(store), LEASE, self.steady)

    async def over(self, seconds: float) -> None:
        for _ in range(round(seconds / TICK)):
            self.steady.forward(TICK)
            await self.reaper.tick()


async def test_a_lease_ends_and_is_renewed_by_the_clock_of_the_store(server: Server, store: Store) -> None:
    await server.set_ahead(HOUR)
    claimed = await started(store, lease=10 * HOUR)
    before = (await store.overdue(10)).tasks
    await server.set_ahead(12 * HOUR)
    then = (await store.overdue(10)).tasks
    await store.renew([lease_of(claimed)], HOUR)
    after = (await store.overdue(10)).tasks

    assert before == after == []
    assert then == [(claimed.job, ONLY)]


async def test_whoever_asks_for_overdue_leases_is_told_the_time_they_were_judged_by(
    server: Server, store: Store
) -> None:
    for ahead in (0.0, HOUR, -HOUR):
        await server.set_ahead(ahead)
        before = server.now()

        told = (await store.overdue(10)).now

        assert before - PATIENT < told < server.now() + PATIENT
        assert abs(store.now() - server.now()) < PATIENT


@pytest.mark.parametrize("ahead", [HOUR, 8 * 24 * HOUR])
async def test_a_clock_that_is_set_ahead_costs_nobody_an_attempt(server: Server, store: Store, ahead: float) -> None:
    watch = Watch(store)
    await watch.over(2 * LEASE)
    claimed = await started(store, LASTING)

    await server.set_ahead(ahead)
    await watch.over(LEASE - TICK)
    before = await held(store, claimed.job.id)
    await store.renew([lease_of(claimed)], 2 * HOUR)
    await watch.over(LEASE)

    assert before == claimed.job
    assert await held(store, claimed.job.id) == claimed.job


async def test_a_clock_that_is_wrong_for_a_moment_costs_nobody_an_attempt(server: Server, store: Store) -> None:
    watch = Watch(store)
    await watch.over(2 * LEASE)
    claimed = await started(store, LASTING)

    for ahead in (HOUR, 0.0, HOUR, 0.0):
        await server.set_ahead(ahead)
        await watch.over(TICK)

    assert await held(store, claimed.job.id) == claimed.job


async def test_a_job_waits_on_while_the_clock_is_wrong_and_fails_when_its_time_is_really_over(
    server: Server, store: Store
) -> None:
    watch = Watch(store)
    await watch.over(2 * LEASE)
    claimed = await started(store, lease=30 * 24 * HOUR)  # its deadline is an hour

    await server.set_ahead(8 * 24 * HOUR)
    await watch.over(DOUBT * LEASE)
    before = await held(store, claimed.job.id)
    await watch.over(TICK)

    assert before == claimed.job
    assert (await held(store, claimed.job.id)).stopping == "expire"


async def test_a_retry_that_began_while_the_clock_was_days_ahead_waits_for_its_backoff_only(
    server: Server, store: Store
) -> None:
    watch = Watch(store)
    claimed = await started(store, plan(stage("only", backoff=Backoff(60.0)), deadline=90 * 24 * HOUR))

    await server.set_ahead(8 * 24 * HOUR)
    await watch.over(TICK)
    failed = lifecycle.fail(claimed.job, ONLY, token=claimed.token, error=BROKEN, luck=0.0, now=server.now())
    await made(store, failed)
    await server.set_ahead(0.0)
    await watch.over(DOUBT * LEASE)
    before = await claim(store)
    await watch.over(2 * LEASE)
    await server.set_ahead(120.0)

    assert before == []
    assert [(each.job.id, each.task) for each in await claim(store)] == [(claimed.job.id, ONLY)]
    assert (await store.overdue(10, queued_after=0.0)).tasks == []


async def test_a_lease_that_was_granted_while_the_clock_was_days_ahead_ends_with_its_worker(
    server: Server, store: Store
) -> None:
    watch = Watch(store)
    await server.set_ahead(8 * 24 * HOUR)
    claimed = await started(store, plan(stage("only"), deadline=90 * 24 * HOUR))
    await server.set_ahead(0.0)

    await watch.over((DOUBT + 4) * LEASE)
    await server.set_ahead(2 * LEASE)

    assert [job.id for job, _ in (await store.overdue(10)).tasks] == [claimed.job.id]


async def test_a_delay_of_hours_does_not_end_early_because_the_clock_was_behind_for_a_while(
    server: Server, store: Store
) -> None:
    watch = Watch(store)
    job = await submit(store, LASTING, delay=6 * HOUR, now=server.now() - HOUR)

    await server.set_ahead(-12 * HOUR)
    await watch.over((DOUBT + 3) * LEASE)
    await server.set_ahead(0.0)

    assert await held(store, job.id) == job
    assert await claim(store) == []


async def test_a_clock_that_is_set_ahead_while_the_reaper_looks_costs_nobody_an_attempt(
    server: Server, store: Store
) -> None:
    faults = Faults()
    watch = Watch(wrapped(store, faults))
    await watch.over(2 * LEASE)
    claimed = await started(store, LASTING)

    faults.before("overdue", lambda: server.set_ahead(HOUR))
    await watch.over(LEASE - TICK)

    assert await held(store, claimed.job.id) == claimed.job
