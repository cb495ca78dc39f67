"""How it goes: what is counted adds up, a minute is read once, and what is past its time is gone."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from packhorse.core.models import TaskId
from packhorse.store.base import Store
from packhorse.store.collections.queues import READINGS_KEPT, Level, Reading, add_reading, list_readings
from packhorse.store.counters import KEPT, MINUTE, QUARTER, Counts, Head, Tally
from tests.contract.builders import CHAIN, cancelled, claim, completed, failed, plan, stage, started, submit
from tests.contract.second_process import between_processes, second
from tests.contract.stores import Clock


def minute(at: float, name: str = "finish", *, pipeline: str = "convert", queue: str = "onnx") -> Tally:
    return Tally(MINUTE, int(at // MINUTE) * MINUTE, pipeline, queue, name)


def quarter(at: float, name: str = "finish") -> Tally:
    return Tally(QUARTER, int(at // QUARTER) * QUARTER, "convert", "onnx", name)


# tally


async def test_counts_are_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    now = store.now()
    counts = {minute(now): 3, minute(now, "wait:7"): 5, minute(now, "completed", queue=""): 2, quarter(now): 3}

    await store.tally(counts)

    assert dict(await other.list_tallies(MINUTE, now)) == {each: n for each, n in counts.items() if each.step == MINUTE}
    assert dict(await other.list_tallies(QUARTER, now)) == {quarter(now): 3}


async def test_what_is_counted_again_is_added(store: Store, other: Store) -> None:
    now = store.now()
    await store.tally({minute(now): 3, minute(now, "fail"): 1})

    await other.tally({minute(now): 4})

    assert dict(await store.list_tallies(MINUTE, now)) == {minute(now): 7, minute(now, "fail"): 1}


@between_processes
async def test_the_counts_of_two_processes_add_up(store: Store, address: str) -> None:
    at = int(store.now() // QUARTER) * QUARTER
    async with second(address, "tally", at, 50) as process:
        ours = asyncio.gather(*(store.tally({quarter(at): 1, quarter(at, "fail"): 2}) for _ in range(50)))
        theirs = await process.answer()
        await ours

    assert theirs == 50
    assert dict(await store.list_tallies(QUARTER, at)) == {quarter(at): 100, quarter(at, "fail"): 200}


async def test_nothing_to_add_is_nothing(store: Store) -> None:
    await store.tally({})

    assert await store.list_tallies(MINUTE, 0.0) == []


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ({}, {"a/x", "a/y", "b/x", "a/"}),
        ({"queue": "x"}, {"a/x", "b/x"}),
        ({"queue": ""}, {"a/"}),
        ({"pipeline": "a"}, {"a/x", "a/y", "a/"}),
        ({"pipeline": "a", "queue": "y"}, {"a/y"}),
        ({"pipeline": "c"}, set()),
    ],
    ids=["all", "queue", "jobs", "pipeline", "both", "nothing"],
)
async def test_counts_of_one_queue_or_pipeline_can_be_asked_for(
    store: Store, asked: dict[str, str], found: set[str]
) -> None:
    now = store.now()
    pairs = [("a", "x"), ("a", "y"), ("b", "x"), ("a", "")]
    await store.tally({minute(now, pipeline=pipeline, queue=queue): 1 for pipeline, queue in pairs})

    tallied = await store.list_tallies(MINUTE, now, **asked)

    assert {f"{each.pipeline}/{each.queue}" for each, _ in tallied} == found


async def test_only_stretches_that_end_later_are_told_oldest_first(timed: Store, clock: Clock) -> None:
    start = clock()
    for _ in range(4):
        await timed.tally({minute(clock()): 1})
        clock.forward(60.0)

    found = await timed.list_tallies(MINUTE, start + 100.0)

    first = int((start + 60.0) // 60) * 60
    assert [each.at for each, _ in found] == [first, first + 60, first + 120]


@pytest.mark.parametrize("step", [MINUTE, QUARTER])
async def test_counts_are_gone_when_their_time_is_over_by_the_clock_of_the_store(
    timed: Store, clock: Clock, address: str, step: int
) -> None:
    old = Tally(step, int(clock() // step) * step, "convert", "onnx", "finish")
    await timed.tally({old: 1})
    clock.forward(KEPT[step] - step)
    await timed.trim()
    kept = await timed.list_tallies(step, 0.0)

    clock.forward(3 * step)
    before = await timed.list_tallies(step, 0.0)
    await timed.trim()
    clock.forward(-2 * step)

    assert kept == [(old, 1)]
    assert before == []
    is_the_servers_to_drop = address.startswith("redis")  # by its own clock, which nobody has moved
    assert await timed.list_tallies(step, 0.0) == ([(old, 1)] if is_the_servers_to_drop else [])


async def test_statistics_are_kept_for_72_hours() -> None:
    assert KEPT[QUARTER] == READINGS_KEPT == 72 * 3600


# readings


def reading(at: float, **options: Any) -> Reading:
    return Reading(int(at // MINUTE) * MINUTE, **options)


async def test_a_reading_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    whole = reading(store.now(), workers=3, queues={"onnx": Level(7, 1.25, 2, 4), "bie": Level()})

    assert await add_reading(store, whole)

    assert await list_readings(other, store.now()) == [whole]


async def test_the_first_of_a_minute_is_kept_and_the_others_are_told(store: Store, other: Store) -> None:
    now = store.now()

    kept = await asyncio.gather(
        *(add_reading(handle, reading(now, workers=n)) for n, handle in enumerate([store, other] * 5))
    )

    [found] = await list_readings(store, now)
    assert kept.count(True) == 1
    assert found.workers == kept.index(True)


async def test_readings_are_kept_for_72_hours_and_come_oldest_first(timed: Store, clock: Clock) -> None:
    for hours in (0, 30, 30):
        clock.forward(hours * 3600)
        await add_reading(timed, reading(clock()))
        await timed.trim()
    all_of_them = [each.at for each in await list_readings(timed, 0.0)]

    clock.forward(13 * 3600)
    await timed.trim()

    assert all_of_them == sorted(all_of_them)
    assert len(all_of_them) == 3
    assert [each.at for each in await list_readings(timed, 0.0)] == all_of_them[1:]
    assert [each.at for each in await list_readings(timed, all_of_them[2] + 30.0)] == all_of_them[2:]


# heads


async def test_the_head_of_each_queue_kind_and_priority_is_that_of_the_oldest_job(store: Store) -> None:
    old, low = await submit(store), await submit(store, priority=-5)
    for _ in range(3):
        await submit(store)
        await submit(store, priority=-5)
    chain = await submit(store, CHAIN)

    heads = await store.heads({"default": ["only", "onnx", "never"], "empty": []})

    assert set(heads) == {
        Head("default", old.id, TaskId("only")),
        Head("default", low.id, TaskId("only")),
        Head("default", chain.id, TaskId("onnx")),
    }


async def test_what_was_claimed_or_is_not_due_is_no_head(store: Store) -> None:
    await submit(store, delay=3600.0)
    await started(store)

    assert await store.heads({"default": ["only"]}) == []
    assert await store.heads({}) == []


# counted


async def test_jobs_are_counted_by_what_has_become_of_them(store: Store, other: Store) -> None:
    await completed(store)
    await completed(store, tenant="acme")
    await failed(store)
    await cancelled(store)
    await started(store)
    await submit(store, plan(stage("other"), pipeline="train"))

    assert await other.count_by_status(most=100) == Counts(active=2, completed=2, failed=1, cancelled=1)


async def test_nothing_is_counted_in_an_empty_store(store: Store) -> None:
    assert await store.count_by_status(most=10) == Counts()


async def test_what_is_not_counted_to_the_end_says_so(store: Store, address: str) -> None:
    for tenant in ("a", "b"):
        for _ in range(3):
            await submit(store, tenant=tenant)
    await cancelled(store)

    found = await store.count_by_status(most=4)

    exact = Counts(active=6, cancelled=1)
    assert found == (exact if address.startswith("redis") else Counts(active=4, cancelled=1, capped=("active",)))


async def test_the_count_follows_a_job_through_its_life(store: Store) -> None:
    await submit(store)
    before = await store.count_by_status(most=10)
    [claimed] = await claim(store)

    assert before == await store.count_by_status(most=10) == Counts(active=1)
    assert claimed.job.id
