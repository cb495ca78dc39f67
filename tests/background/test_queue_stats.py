"""How the queues stand: asked at any time, and read down once a minute, however many workers there are."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from packhorse.background.stats import QueueSampler
from packhorse.core import json
from packhorse.core.plan import Definition, Plan
from packhorse.jobs.stats import queue_stats
from packhorse.store.base import Store
from packhorse.store.collections import workers
from packhorse.store.collections.queues import Level, list_readings
from packhorse.store.collections.workers import publish_definitions
from packhorse.store.sqlite import SqliteStore
from tests.contract.builders import LEASE, ONE, card, claim, plan, stage, submit
from tests.contract.stores import Clock
from tests.worker.faulty import Faults

TWO = replace(plan(stage("late", queue="gpu"), pipeline="train"), fingerprint="two")


def defined(of: Plan) -> Definition:
    return Definition("app", of.pipeline, json.encode(of), b"{}", of.fingerprint)


async def test_a_queue_is_surveyed_with_what_is_ready_runs_and_has_waited_longest(store: Store, clock: Clock) -> None:
    await publish_definitions(store, [defined(ONE), defined(TWO)])
    await submit(store, priority=-1)
    clock.forward(30.0)
    await submit(store)
    clock.forward(10.0)
    await workers.enroll(store, card("w1", queues={"default": 4}, busy={"default": 3}))
    await workers.enroll(store, card("w2", queues={"default": 2, "cpu": 1}))

    found = await queue_stats(store, LEASE)

    assert found.queues == {
        "cpu": Level(slots=1),
        "default": Level(ready=2, oldest=40.0, running=3, slots=6),
        "gpu": Level(),
    }
    assert (found.running, found.waiting, found.oldest, len(found.live)) == (3, 2, 40.0, 2)


async def test_a_definition_that_cannot_be_read_hides_no_queue(store: Store) -> None:
    await publish_definitions(store, [Definition("app", "torn", b"{", b"{}", "f"), defined(TWO)])

    assert list((await queue_stats(store, LEASE)).queues) == ["gpu"]


async def test_a_silent_worker_counts_for_nothing(store: Store, clock: Clock) -> None:
    await workers.enroll(store, card("w1", queues={"default": 4}, busy={"default": 3}))
    clock.forward(LEASE + 1)

    found = await queue_stats(store, LEASE)

    assert (found.live, found.running, dict(found.queues)) == ([], 0, {})


async def test_what_was_claimed_does_not_wait(store: Store) -> None:
    await publish_definitions(store, [defined(ONE)])
    await submit(store)
    await claim(store)

    assert (await queue_stats(store, LEASE)).queues["default"] == Level()


async def test_a_minute_is_read_once_by_three_workers(store: SqliteStore, clock: Clock, faults: Faults) -> None:
    await publish_definitions(store, [defined(ONE)])
    handles = [await SqliteStore.open(store.path, clock) for _ in range(3)]
    surveyors = [QueueSampler(handle, LEASE) for handle in handles]

    for _ in range(3):
        waits = await asyncio.gather(*(surveyor.tick() for surveyor in surveyors))
        assert all(0.0 <= wait <= 30.0 for wait in waits)  # after twice as long it would be reported as late
        clock.forward(60.0)
    found = await list_readings(store, 0.0)
    for handle in handles:
        await handle.close()

    assert len(found) == 3
    assert [each.at - found[0].at for each in found] == [0, 60, 120]


async def test_who_comes_later_in_a_minute_spares_itself_the_work(shaky: Store, store: Store, faults: Faults) -> None:
    await QueueSampler(store, LEASE).tick()

    await QueueSampler(shaky, LEASE).tick()

    assert faults.names() == ["scan reading"]
