"""Pauses, and how much goes before a task."""

from __future__ import annotations

from packhorse.store.base import Store
from packhorse.store.collections.queues import Pause, drop_pause, list_pauses, put_pause
from tests.contract.builders import (
    APART,
    CHAIN,
    LEFT,
    ONE,
    ONLY,
    ONNX,
    RIGHT,
    claim,
    claim_one,
    plan,
    stage,
    submit,
    submit_many,
)
from tests.contract.stores import Clock

# pauses


async def test_a_pause_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    pause = Pause("gpu", 1_800_000_000.5, "k1", "the driver · neu")

    await put_pause(store, pause)

    assert await list_pauses(other) == [pause]


async def test_a_pause_said_again_replaces_and_others_stay(store: Store) -> None:
    await put_pause(store, Pause("gpu", 1.0, "k1", "first"))
    await put_pause(store, Pause("default", 2.0, "k1"))

    await put_pause(store, Pause("gpu", 3.0, "k2"))

    assert await list_pauses(store) == [Pause("default", 2.0, "k1"), Pause("gpu", 3.0, "k2")]


async def test_a_queue_is_resumed_once(store: Store, other: Store) -> None:
    await put_pause(store, Pause("gpu", 1.0, "k1"))
    await put_pause(store, Pause("default", 1.0, "k1"))

    assert await drop_pause(other, "gpu") is True
    assert await drop_pause(store, "gpu") is False
    assert await list_pauses(store) == [Pause("default", 1.0, "k1")]


async def test_nothing_is_paused_in_an_empty_store(store: Store) -> None:
    assert await list_pauses(store) == []
    assert await drop_pause(store, "default") is False


# ahead


async def test_the_older_go_before_the_younger(store: Store) -> None:
    jobs = await submit_many(store, 3)

    assert [await store.ahead(job, ONLY) for job in jobs] == [0, 1, 2]


async def test_the_urgent_go_before_the_older(store: Store) -> None:
    old = await submit(store)
    urgent = await submit(store, priority=5)
    meek = await submit(store, priority=-5)

    assert [await store.ahead(job, ONLY) for job in (urgent, old, meek)] == [0, 1, 2]


async def test_every_kind_of_the_queue_counts_and_no_other_queue(store: Store) -> None:
    first = await submit(store, CHAIN)
    await submit_many(store, 2, plan(stage("only", queue="gpu")))
    second = await submit(store, APART)
    last = await submit(store, ONE)

    assert await store.ahead(first, ONNX) == 0
    assert await store.ahead(second, LEFT) == 1
    assert await store.ahead(second, RIGHT) == 2
    assert await store.ahead(last, ONLY) == 3


async def test_what_has_been_claimed_goes_before_nobody(store: Store) -> None:
    jobs = await submit_many(store, 3)

    await claim_one(store)

    assert await store.ahead(jobs[2], ONLY) == 1


async def test_what_is_delayed_counts_when_its_time_has_come(timed: Store, clock: Clock) -> None:
    await submit(timed, delay=10.0, priority=1)
    await submit(timed, delay=10.0, priority=-1)
    job = await submit(timed)
    assert await timed.ahead(job, ONLY) == 0

    clock.forward(10.0)

    assert await timed.ahead(job, ONLY) == 1


async def test_counting_goes_no_further_than_the_limit(store: Store) -> None:
    await submit_many(store, 10, CHAIN)
    await submit_many(store, 5)
    job = await submit(store)

    assert await store.ahead(job, ONLY, limit=4) == 4
    assert await store.ahead(job, ONLY, limit=0) == 0


async def test_a_task_that_waits_for_others_is_told_what_would_go_before_it(store: Store) -> None:
    jobs = await submit_many(store, 2)
    job = await submit(store, CHAIN)
    await claim(store, 1)

    assert await store.ahead(job, ONNX) == 1
    assert await store.ahead(jobs[0], ONLY) == 0
