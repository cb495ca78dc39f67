"""Limits and turns on Redis: what is counted while a task is being claimed, what it costs, and what it leaves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import redis

from packhorse.core.limits import Fair
from packhorse.store.base import Starter
from packhorse.store.redis import RedisStore, keys
from packhorse.store.redis.claim import RESERVED, Ask, Claimer
from tests.contract.builders import KINDS, LEASE, ONE, SLOT, cancel, claim, finish, plan, stage, submit, submit_many
from tests.contract.limited import at_once, fair, limited, per_minute, submit_for, users_of
from tests.contract.stores import Clock
from tests.contract.test_store_slot_lines import QUEUE
from tests.servers import valkey
from tests.store.redis.inside import OpenRedis

ONCE = limited(at_once(1))
USER = "convert.user=default/ann"


async def reserve(store: RedisStore, limit: int = 10) -> int:
    """What a claim begins with, by somebody who may never come to its end."""
    [found] = await store._claim._reserve([Ask("dead", {"default": limit}, KINDS)])
    return len(found.entries)


@pytest.mark.parametrize("limit", [at_once(1), per_minute(1)], ids=["at once", "rate"])
async def test_a_task_that_is_being_claimed_counts(timed_redis: RedisStore, limit: Any) -> None:
    await submit_many(timed_redis, 3, limited(limit))

    assert await reserve(timed_redis) == 1

    assert await claim(timed_redis) == []


@pytest.mark.parametrize("limit", [at_once(1), per_minute(1)], ids=["at once", "rate"])
async def test_what_a_dead_claimer_held_is_free_again(timed_redis: RedisStore, clock: Clock, limit: Any) -> None:
    jobs = await submit_many(timed_redis, 3, limited(limit))
    await reserve(timed_redis)
    clock.forward(RESERVED)

    found = await claim(timed_redis)

    assert [each.job.id for each in found] == [jobs[0].id]
    assert (await timed_redis.limit_states())[0].used == 1


async def test_a_dead_claimer_costs_its_share_no_turn(timed_redis: RedisStore, clock: Clock) -> None:
    await submit_for(timed_redis, fair(), ["ann"] * 3 + ["bob"] * 3)
    for _ in range(3):
        assert await reserve(timed_redis, 1) == 1
        clock.forward(RESERVED)

    assert users_of(await claim(timed_redis, 4)) == "ann bob ann bob"


async def test_a_limit_that_is_lowered_during_a_claim_holds(
    timed_redis: RedisStore, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    await submit_many(timed_redis, 3, limited(at_once(3)))
    learn = Claimer._learn_upstream

    async def slow(self: Claimer, *args: Any) -> None:
        await learn(self, *args)
        await timed_redis.set_limit("convert.user", 0)

    with monkeypatch.context() as patch:
        patch.setattr(Claimer, "_learn_upstream", slow)
        assert await claim(timed_redis) == []

    await timed_redis.set_limit("convert.user", 2)
    assert len(await claim(timed_redis)) == 2


async def test_a_job_that_cannot_be_read_does_not_keep_the_room(
    timed_redis: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    jobs = await submit_many(timed_redis, 2, ONCE)
    raw.delete(f"{prefix}job:{jobs[0].id}")

    assert [each.job.id for each in await claim(timed_redis)] == [jobs[1].id]


async def test_a_task_without_limits_leaves_no_key_of_theirs(
    timed_redis: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    await submit_many(timed_redis, 3)
    for claimed in await claim(timed_redis):
        await finish(timed_redis, claimed)

    names = [str(key).removeprefix(prefix) for key in raw.scan_iter(f"{prefix}*", count=1000)]
    assert [name for name in names if name.startswith(("limits", "waiting", "parked", "turns", "due:shared"))] == []


async def test_nothing_of_limits_and_turns_is_left_when_all_is_done(
    timed_redis: RedisStore, clock: Clock, raw: redis.Redis, prefix: str
) -> None:
    both = limited(at_once(2), per_minute(3), fair=Fair("user"))
    await submit_for(timed_redis, both, ["ann", "bob", "ann", "ann", "ann"])
    await submit(timed_redis, both, user="eve", delay=5.0)
    for _ in range(4):
        for claimed in await claim(timed_redis):
            await finish(timed_redis, claimed)
        clock.forward(61.0)
    clock.forward(7_200.0)
    await timed_redis.trim()

    names = {str(key).removeprefix(prefix) for key in raw.scan_iter(f"{prefix}*", count=1000)}
    left = {name for name in names if name.startswith(("limits", "waiting", "parked", "turns", "due:shared"))}
    assert left <= {"turns:default:time", "turns:default:passes:default"}


def commands(server: valkey.Valkey) -> int:
    with server.client() as client:
        return sum(each["calls"] for name, each in client.info("commandstats").items() if "config" not in name)


async def test_a_claim_looks_at_no_parked_task(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    store = await open_redis(server.url("p:"))
    costs = []
    for count in (5, 300):
        await submit_many(store, count, ONCE)
        while not await store.limit_states([USER]) or (await store.limit_states([USER]))[0].parked < count - 1:
            await claim(store)
        with server.client() as client:
            client.config_resetstat()
        assert await claim(store) == []
        costs.append(commands(server))

    assert costs[1] == costs[0]


async def test_limits_cost_other_tasks_two_questions_per_claim(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    """And one field of each job, which it has not."""
    store = await open_redis(server.url("p:"))
    start: Callable[[], Starter] = lambda: Starter((f"t{n}" for n in range(99)), "w", LEASE, store.now)  # noqa: E731
    await submit_many(store, 1)
    await claim(store)
    await submit_many(store, 50, ONE)
    with server.client() as client:
        client.config_resetstat()
        assert len(await store.claim({"default": 50}, KINDS, start())) == 50

        stats = client.info("commandstats")

    assert stats["cmdstat_exists"]["calls"] == 3  # of them one asks whether any kind has tasks
    assert stats["cmdstat_hmget"]["calls"] == 50


async def test_turns_survive_delays_and_other_stages(timed_redis: RedisStore, clock: Clock) -> None:
    chain = plan(stage("left", fair=Fair("user")), stage("right", fair=Fair("user")))
    for user in ("ann", "ann", "bob"):
        await submit(timed_redis, chain, user=user, delay=10.0)
    clock.forward(11.0)

    assert sorted(users_of(await claim(timed_redis, 4)).split()) == ["ann", "ann", "bob", "bob"]


async def test_what_a_task_itself_has_left_behind_does_not_park_it(
    timed_redis: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    """As an older worker leaves it, which undoes a reservation without knowing limits."""
    job = await submit(timed_redis, ONCE)
    await reserve(timed_redis)
    [member] = raw.zrange(f"{prefix}limits:holds:{USER}", 0, -1)
    entry, place, queue, kind = str(member), *str(raw.hget(f"{prefix}reservations", str(member))).split("\t")[1:]
    raw.zrem(f"{prefix}reserved", entry)
    raw.hdel(f"{prefix}reservations", entry)
    raw.hdel(f"{prefix}limits:reserved", entry)
    raw.zadd(f"{prefix}ready:{queue}:{kind}", {entry: place})

    assert [each.job.id for each in await claim(timed_redis)] == [job.id]


async def test_limits_that_cannot_be_read_stop_no_other_job(
    timed_redis: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    whole, damaged = (
        await submit(timed_redis, fair()),
        await submit(timed_redis, limited(at_once(1), fair=Fair("user"))),
    )
    raw.hset(f"{prefix}job:{damaged.id}", "limits", "{")

    assert whole.id in [each.job.id for each in await claim(timed_redis)]


async def test_a_line_goes_on_behind_a_job_whose_words_cannot_be_read(
    timed_redis: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    first, broken, last = [await submit(timed_redis, QUEUE) for _ in range(3)]
    raw.hset(f"{prefix}{keys.slot(SLOT)}:due", broken.id, "{")

    [begun] = await claim(timed_redis)
    await finish(timed_redis, begun)

    assert (begun.job.id, await timed_redis.holder(SLOT)) == (first.id, broken.id)
    await cancel(timed_redis, broken.id)
    assert [each.job.id for each in await claim(timed_redis)] == [last.id]
