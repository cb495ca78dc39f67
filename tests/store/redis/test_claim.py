"""Reservations: what lies between picking an entry and starting it, and who may step in there."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job, TaskId
from packhorse.errors import StoreUnavailable
from packhorse.store.base import Claim, Store
from packhorse.store.redis import RedisStore
from packhorse.store.redis import claim as claiming
from packhorse.store.redis.claim import RESERVED, Ask, Claimer, Reserved
from tests.contract.builders import (
    APART,
    KINDS,
    LEASE,
    LEFT,
    ONE,
    ONLY,
    RIGHT,
    attempt_of,
    cancel,
    finish,
    held,
    ids,
    made,
    plan,
    settled,
    split,
    stage,
    starter,
    submit,
    submit_many,
    tasks,
    waiting,
)
from tests.contract.stores import Clock
from tests.store.redis.inside import OpenRedis


async def claim(store: Store, limit: int = 1000, *, kinds: Collection[str] = KINDS, worker: str = "w") -> list[Claim]:
    """What is claimed by somebody who decides about each start himself, so that all of it is reserved first."""
    start = starter(store, worker=worker)
    return await store.claim({"default": limit}, kinds, lambda job, at: start(job, at))


async def claim_one(store: Store) -> Claim:
    [claimed] = await claim(store, 1)
    return claimed


FOREIGN = plan(stage("only", kind="foreign"))


async def reserve(store: RedisStore, token: str, limit: int = 10) -> Reserved:
    """What a claim begins with, by somebody who may never come to its end."""
    [found] = await store._claim._reserve([Ask(token, {"default": limit}, KINDS)])
    return found


@pytest.fixture
def between(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], Any]], None]:
    """Do something once, after entries were reserved and read and before they are decided on."""

    def arranged(act: Callable[[], Any]) -> None:
        learn = Claimer._learn_upstream
        todo = [act]

        async def slow(self: Claimer, *args: Any) -> None:
            await learn(self, *args)
            if todo:
                await todo.pop()()

        monkeypatch.setattr(Claimer, "_learn_upstream", slow)

    return arranged


# nobody else has it, and nobody loses it


async def test_what_one_has_reserved_another_does_not_get(timed_redis: RedisStore) -> None:
    jobs = await submit_many(timed_redis, 5)
    await reserve(timed_redis, "dead", 3)

    claims = await claim(timed_redis)

    assert [claimed.job.id for claimed in claims] == ids(jobs)[3:]


async def test_a_reservation_nobody_came_back_for_goes_back_uncounted(timed_redis: RedisStore, clock: Clock) -> None:
    jobs = await submit_many(timed_redis, 5, priority=3)
    await reserve(timed_redis, "dead", 3)
    clock.forward(RESERVED - 0.5)
    assert len(await claim(timed_redis)) == 2

    clock.forward(0.5)

    claims = await claim(timed_redis)
    assert [claimed.job.id for claimed in claims] == ids(jobs)[:3]
    assert {attempt_of(claimed.job) for claimed in claims} == {1}


async def test_more_stale_reservations_than_one_script_undoes_all_go_back(
    timed_redis: RedisStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = await submit_many(timed_redis, 10)
    await reserve(timed_redis, "dead")
    clock.forward(RESERVED)
    monkeypatch.setattr(claiming, "BATCH", 3)

    found = [await claim(timed_redis) for _ in range(4)]

    assert sorted(claimed.job.id for claims in found for claimed in claims) == ids(jobs)


async def test_an_entry_goes_back_to_the_place_it_had(timed_redis: RedisStore, clock: Clock) -> None:
    low, high = await submit(timed_redis, priority=-1), await submit(timed_redis, priority=1)
    await reserve(timed_redis, "dead")
    middle = await submit(timed_redis)

    clock.forward(RESERVED)

    assert await waiting(timed_redis) == [(high.id, ONLY), (middle.id, ONLY), (low.id, ONLY)]


async def test_who_comes_back_too_late_starts_nothing(
    open_redis: OpenRedis, clock: Clock, between: Callable[[Callable[[], Any]], None]
) -> None:
    store, other = await open_redis(clock=clock), await open_redis(clock=clock)
    job = await submit(store)
    theirs: list[Any] = []

    async def overtaken() -> None:
        clock.forward(RESERVED)
        theirs.extend(await claim(other, worker="w2"))

    between(overtaken)

    claims = await claim(store)

    assert claims == []
    assert [claimed.job.id for claimed in theirs] == [job.id]
    assert await held(store, job.id) == theirs[0].job
    assert await store.held_by("w", limit=10) == []


async def test_who_comes_back_too_late_leaves_the_next_reservation_alone(timed_redis: RedisStore, clock: Clock) -> None:
    job = await submit(timed_redis)
    entries, *_ = await reserve(timed_redis, "late")
    clock.forward(RESERVED)
    await reserve(timed_redis, "next")

    await timed_redis._claim._give_back(entries, "late")

    assert await claim(timed_redis) == []
    clock.forward(RESERVED)
    assert await waiting(timed_redis) == [(job.id, ONLY)]


async def test_a_claim_that_fails_gives_back_at_once(timed_redis: RedisStore) -> None:
    job = await submit(timed_redis)

    def mistaken(_job: Job, _at: TaskId) -> Change:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        await timed_redis.claim({"default": 1}, KINDS, mistaken)

    assert await waiting(timed_redis) == [(job.id, ONLY)]


async def test_a_claim_that_is_cancelled_gives_back_at_once(
    timed_redis: RedisStore, between: Callable[[Callable[[], Any]], None]
) -> None:
    job = await submit(timed_redis)
    begun, never = asyncio.Event(), asyncio.Event()

    async def stand_still() -> None:
        begun.set()
        await never.wait()

    between(stand_still)
    claiming = asyncio.create_task(claim(timed_redis))
    await begun.wait()

    claiming.cancel()
    with pytest.raises(asyncio.CancelledError):
        await claiming

    assert await waiting(timed_redis) == [(job.id, ONLY)]


# what happens in between


async def test_a_job_cancelled_while_it_was_reserved_is_not_started(
    open_redis: OpenRedis, between: Callable[[Callable[[], Any]], None]
) -> None:
    store, other = await open_redis(), await open_redis()
    job = await submit(store)
    between(lambda: cancel(other, job.id))

    claims = await claim(store)

    assert claims == []
    assert (await held(store, job.id)).status == "cancelled"
    assert await claim(other) == []


async def test_a_cancel_takes_the_entry_from_a_claimer_that_died(timed_redis: RedisStore, clock: Clock) -> None:
    """Else it would come back later, and start the next run before the time that one has asked for."""
    job = await submit(timed_redis)
    await reserve(timed_redis, "dead")
    job = await cancel(timed_redis, job.id)
    await made(timed_redis, lifecycle.retry(job, now=clock()))
    claimed = await claim_one(timed_redis)
    await made(timed_redis, lifecycle.later(claimed.job, ONLY, token=claimed.token, seconds=600.0, now=clock()))

    clock.forward(RESERVED)

    assert await claim(timed_redis) == []


async def test_a_job_that_moved_meanwhile_is_decided_again_as_it_is_then(
    open_redis: OpenRedis, between: Callable[[Callable[[], Any]], None]
) -> None:
    store, other = await open_redis(), await open_redis()
    job = await submit(store, APART)
    [left] = await claim(other, kinds=["left"], worker="w2")
    between(lambda: finish(other, left))

    claims = await claim(store)

    found = await held(store, job.id)
    assert tasks(claims) == [(job.id, RIGHT)]
    assert claims[0].job == found
    assert found.version == job.version + 3
    assert found.stage("left").status == "completed"


async def test_elements_behind_a_refused_one_are_decided_again_too(
    open_redis: OpenRedis, between: Callable[[Callable[[], Any]], None]
) -> None:
    store, other = await open_redis(), await open_redis()
    job = await split(store, 5)
    [first] = await claim(other, 1, worker="w2")
    between(lambda: finish(other, first))

    claims = await claim(store)

    assert [claimed.task.element for claimed in claims] == [1, 2, 3, 4]
    assert {claimed.job.version for claimed in claims} == {(await held(store, job.id)).version}
    assert len({claimed.token for claimed in claims}) == 4


async def test_a_job_that_never_stands_still_is_left_for_the_next_claim(
    open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    store, other = await open_redis(), await open_redis()
    job = await submit(store, APART)
    learn = Claimer._learn_upstream

    async def restless(self: Claimer, *args: Any) -> None:
        await learn(self, *args)
        await settled(other, job.id, lambda job: Change(job, replace(job, version=job.version + 1)))

    with monkeypatch.context() as patch:
        patch.setattr(Claimer, "_learn_upstream", restless)
        assert await claim(store) == []

    assert tasks(await claim(store)) == [(job.id, LEFT), (job.id, RIGHT)]


async def test_an_entry_whose_job_is_gone_is_removed_and_stops_nobody(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    gone, job = await submit(redis_store, priority=9), await submit(redis_store)
    raw.delete(f"{prefix}job:{gone.id}")

    claims = await claim(redis_store)

    assert [claimed.job.id for claimed in claims] == [job.id]
    assert raw.exists(f"{prefix}ready:default:only", f"{prefix}reserved", f"{prefix}reservations") == 0


async def test_a_stale_reservation_of_a_job_that_is_gone_stops_nobody(
    timed_redis: RedisStore, clock: Clock, raw: redis.Redis, prefix: str
) -> None:
    gone = await submit(timed_redis)
    await reserve(timed_redis, "dead")
    raw.delete(f"{prefix}job:{gone.id}")
    job = await submit(timed_redis)
    clock.forward(RESERVED)

    claims = await claim(timed_redis)

    assert [claimed.job.id for claimed in claims] == [job.id]


async def test_a_stale_reservation_that_somebody_deleted_stops_nobody(
    timed_redis: RedisStore, clock: Clock, raw: redis.Redis, prefix: str
) -> None:
    await submit(timed_redis)
    await reserve(timed_redis, "dead")
    raw.delete(f"{prefix}reservations")
    job = await submit(timed_redis)
    clock.forward(RESERVED)

    claims = await claim(timed_redis)

    assert [claimed.job.id for claimed in claims] == [job.id]
    assert raw.exists(f"{prefix}reserved") == 0


async def test_claims_that_travel_together_get_different_entries(redis_store: RedisStore) -> None:
    jobs = await submit_many(redis_store, 40)

    claims = await asyncio.gather(*(claim(redis_store, 1, worker=f"w{n}") for n in range(50)))

    assert sorted(claimed.job.id for found in claims for claimed in found) == ids(jobs)
    assert sorted(len(found) for found in claims) == [0] * 10 + [1] * 40


async def test_a_claim_of_more_than_one_script_reserves_comes_in_order(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(claiming, "MOST", 3)
    jobs = await submit_many(redis_store, 10)

    claims = await claim(redis_store, 8)

    assert [claimed.job.id for claimed in claims] == ids(jobs)[:8]


async def test_a_worker_that_died_in_the_middle_of_a_claim_holds_nothing(timed_redis: RedisStore, clock: Clock) -> None:
    await submit_many(timed_redis, 3)
    await reserve(timed_redis, "dead")

    clock.forward(10 * LEASE)

    assert (await timed_redis.overdue(limit=10)).tasks == []


async def test_an_outage_in_the_middle_of_a_claim_is_told(
    redis_store: RedisStore, between: Callable[[Callable[[], Any]], None]
) -> None:
    await submit(redis_store)
    between(redis_store._link.close)

    with pytest.raises(StoreUnavailable):
        await claim(redis_store)


# what it costs


def commands(raw: redis.Redis) -> int:
    stats: dict[str, dict[str, int]] = raw.info("commandstats")
    return sum(each["calls"] for each in stats.values())


async def cost(store: Store, raw: redis.Redis) -> int:
    """Commands that the server carries out, scripts and all, for one claim of one task."""
    before = commands(raw)
    assert len(await store.claim({"default": 1}, ["only"], starter(store))) == 1
    return commands(raw) - before


async def test_a_claim_costs_the_same_however_much_of_whatever_kind_is_waiting(
    open_redis: OpenRedis, server: Any
) -> None:
    store = await open_redis(server.url("p:"))
    await submit_many(store, 5)
    with server.client() as raw:
        await cost(store, raw)
        small = await cost(store, raw)

        await submit_many(store, 2000, FOREIGN, priority=9)
        await submit_many(store, 500, ONE)
        await submit_many(store, 500, ONE, delay=600.0, priority=9)

        assert await cost(store, raw) == small
