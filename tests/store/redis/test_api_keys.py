"""What keys, counters and deliveries leave in Redis, and what is done when somebody has damaged it."""

from __future__ import annotations

import asyncio

import pytest
import redis

from packhorse.errors import StoreError
from packhorse.store.collections import audit, keys
from packhorse.store.collections.webhooks import (
    add_endpoint,
    list_deliveries,
    settle_delivery,
    take_deliveries,
)
from packhorse.store.redis import RedisStore
from tests.contract.builders import completed, marked, plan, stage, submit
from tests.contract.keys import MINUTE, charge, endpoint, entry, key, told
from tests.contract.stores import Clock
from tests.servers import valkey
from tests.store.redis.inside import OpenRedis
from tests.store.redis.test_keys import found


async def test_every_key_is_behind_the_prefix(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    store = await open_redis(server.url("prod:"))

    job = await told(store, "e1")
    await keys.add(store, key(1))
    await keys.add(store, key(2, job_id=job.id))
    await audit.append(store, [entry(tenant="a")], keep=10)
    await store.spend([charge(1, 5)])

    with server.client(decode_responses=True) as client:
        names = list(client.scan_iter(count=1000))
    assert {
        f"prod:record:key:{key(1).id}",
        "prod:audit",
        "prod:due:delivery:",
        "prod:record:endpoint:e1",
        "prod:ratelimit:a",
    } <= set(names)
    assert [name for name in names if not name.startswith("prod:")] == []


async def test_a_counter_lasts_a_little_longer_than_its_window(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    await redis_store.spend([charge(1, 5), charge(1, 5, window=3_600.0), charge(1, 5, name="quota:a", window=10.0)])
    await redis_store.spend([charge(1, 5)])

    assert 3_600_000 < raw.pttl(f"{prefix}ratelimit:a") <= 3_600_000 * 62 // 60 + 1  # the end is rounded up
    assert 10_000 < raw.pttl(f"{prefix}quota:a") <= 10_000 * 62 // 60 + 1


async def test_buckets_that_no_longer_count_are_not_kept(
    timed_redis: RedisStore, raw: redis.Redis, prefix: str, clock: Clock
) -> None:
    for _ in range(100):
        await timed_redis.spend([charge(1, 1_000)])
        clock.forward(1.0)

    assert raw.hlen(f"{prefix}ratelimit:a") == 61


async def test_a_look_and_a_refusal_write_nothing(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    await redis_store.spend([charge(0, 5)])
    await redis_store.spend([charge(6, 5)])

    assert found(raw, prefix) == set()


async def test_a_damaged_counter_is_told_to_who_uses_it_and_to_nobody_else(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    raw.set(f"{prefix}quota:broken", "x")

    broken, whole = await asyncio.gather(
        redis_store.spend([charge(1, 5, name="quota:whole"), charge(1, 5, name="quota:broken")]),
        redis_store.spend([charge(1, 5)]),
        return_exceptions=True,
    )

    assert isinstance(broken, StoreError)
    assert not isinstance(whole, BaseException)
    assert whole.refused is None
    assert found(raw, prefix) == {"quota:broken", "ratelimit:a"}


async def test_who_spends_wakes_nobody(redis_store: RedisStore) -> None:
    mark = await redis_store.wait_for_change(None, 0)

    await redis_store.spend([charge(1, 5)])
    await audit.append(redis_store, [entry()], keep=10)

    assert await redis_store.wait_for_change(mark, 0) == mark


async def test_an_erased_job_has_left_no_key_behind(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    job = await told(redis_store, "e1", "e2")
    await keys.add(redis_store, key(job_id=job.id))
    assert {f"job:{job.id}:records", "due:delivery:", f"record:key:{key().id}"} <= found(raw, prefix)

    await redis_store.erase((await marked(redis_store, job)).id)

    left = found(raw, prefix)
    assert [name for name in left if job.id in name or "delivery" in name] == []
    assert [name for name in left if name.startswith(("record:key:", "index:key:"))] == []


async def test_what_a_job_leaves_that_the_server_has_dropped_by_itself_is_trimmed(
    timed_redis: RedisStore, raw: redis.Redis, prefix: str, clock: Clock
) -> None:
    job = await told(timed_redis, "e1")
    await keys.add(timed_redis, key(job_id=job.id))
    assert job.purge_at is not None
    clock.now = job.purge_at
    raw.delete(f"{prefix}job:{job.id}")

    await timed_redis.trim()

    assert await keys.get(timed_redis, [key().id]) == [None]
    assert await list_deliveries(timed_redis, "e1") == await take_deliveries(timed_redis, 10, MINUTE) == []
    assert f"job:{job.id}:records" not in found(raw, prefix)


async def test_what_is_done_with_leaves_no_key(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    job = await told(redis_store, "e1")
    [taken] = await take_deliveries(redis_store, 1, MINUTE)

    await settle_delivery(redis_store, taken, next_at=None)

    names = found(raw, prefix)
    assert [name for name in names if "delivery" in name] == []
    assert f"job:{job.id}:records" not in names


async def test_a_job_without_webhooks_leaves_no_delivery(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    await add_endpoint(redis_store, endpoint())

    await completed(redis_store)

    assert [name for name in found(raw, prefix) if "deliver" in name] == []


async def test_the_audit_goes_on_when_its_last_number_was_lost(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    await audit.append(redis_store, [entry(), entry()], keep=10)
    raw.delete(f"{prefix}audit:last")

    await audit.append(redis_store, [entry("later")], keep=10)

    assert [(each.n, each.event) for each in await audit.tail(redis_store, limit=2)] == [
        (3, "later"),
        (2, "key.accepted"),
    ]


async def test_what_the_audit_has_dropped_has_left_the_index_of_its_tenant(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    await audit.append(redis_store, [entry(tenant="a/b")] * 5, keep=10)

    await audit.append(redis_store, [entry(tenant="c")] * 10, keep=4)

    assert found(raw, prefix) == {"audit", "audit:last", "audit:of:a%2Fb", "audit:of:c"}
    assert (raw.zcard(f"{prefix}audit:of:c"), raw.xlen(f"{prefix}audit")) == (4, 9)

    await audit.append(redis_store, [entry(at=redis_store.now(), tenant="d")], keep=4, age=500.0)

    assert found(raw, prefix) == {"audit", "audit:last", "audit:of:d"}
    assert raw.xlen(f"{prefix}audit") == 1


@pytest.mark.parametrize("name", ["default", "gpu"])
async def test_the_kinds_of_a_queue_are_known_from_the_first_job_on(
    redis_store: RedisStore, raw: redis.Redis, prefix: str, name: str
) -> None:
    await submit(redis_store, plan(stage("only", queue=name), stage("more", queue=name)))

    assert raw.smembers(f"{prefix}kinds:{name}") == {"only", "more"}
