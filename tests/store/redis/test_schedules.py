"""Schedules as a plain client of the server finds them."""

from __future__ import annotations

import redis

from packhorse.core import schedules
from packhorse.store.redis import RedisStore
from tests.contract.schedules import MIDNIGHT, again, claimed, created, fired
from tests.store.redis.test_keys import found


async def test_a_schedule_is_readable_field_by_field(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    made = await created(redis_store, tenant="acme", cron=MIDNIGHT, zone="Europe/Berlin")

    fields = raw.hgetall(f"{prefix}config:acme/nightly")

    assert isinstance(fields, dict)
    assert fields | {"body": "", "updated_at": "", "next_at": ""} == {
        "job_id": "nightly",
        "active": "1",
        "pipeline": "convert",
        "cron": MIDNIGHT,
        "zone": "Europe/Berlin",
        "params": '{ "platform": "520" }',
        "version": "1",
        "stamp": "1",
        "updated_at": "",
        "next_at": "",
        "body": "",
    }
    assert float(fields["next_at"]) == made.next_at
    assert raw.zrange(f"{prefix}config:next", 0, -1, withscores=True) == [("acme/nightly", made.next_at)]


async def test_the_keys_of_a_schedule_have_their_types_and_none_expires(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    _, run = await claimed(redis_store, await created(redis_store, now=99.5), 100.0)
    await fired(redis_store, run)
    await claimed(redis_store, (await redis_store.upcoming(1000.0, 1))[0], 101.0)

    types = {name: raw.type(f"{prefix}{name}") for name in found(raw, prefix) if name.startswith("config")}

    assert types == {
        "config": "zset",
        "config:next": "zset",
        "config:due": "zset",
        "config:default/nightly": "hash",
        "config:default/nightly:versions": "hash",
        "config:default/nightly:runs": "zset",
        "config:default/nightly:open": "zset",
        "config:default/nightly:run:100.0": "hash",
        "config:default/nightly:run:101.0": "hash",
    }
    assert {raw.ttl(f"{prefix}{name}") for name in types} == {-1}
    run_fields = raw.hgetall(f"{prefix}config:default/nightly:run:100.0")
    assert isinstance(run_fields, dict)
    assert (run_fields["status"], run_fields["version"]) == ("fired", "1")


async def test_a_dropped_schedule_has_left_no_key(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    schedule, run = await claimed(redis_store, await created(redis_store, now=99.5), 100.0)
    await redis_store.put_run(run, schedules.close_run(await again(redis_store, run), "skipped", "", 101.0))
    move = schedules.end(schedule, author="k", reason="", now=100.5)
    await redis_store.move(move)

    await redis_store.trim_runs("default", "nightly", older_than=1000.0, keep=10)
    await redis_store.drop_schedule(move.after)

    assert [name for name in found(raw, prefix) if name.startswith("config")] == []
