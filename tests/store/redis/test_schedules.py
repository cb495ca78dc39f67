"""Schedules as a plain client of the server finds them."""

from __future__ import annotations

import redis

from packhorse.core import schedules
from packhorse.store.collections import schedules as schedule_records
from packhorse.store.redis import RedisStore
from tests.contract.schedules import MIDNIGHT, again, claimed, created
from tests.store.redis.test_keys import found


async def test_a_schedule_is_readable_field_by_field(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    made = await created(redis_store, tenant="acme", cron=MIDNIGHT, zone="Europe/Berlin")

    fields = raw.hgetall(f"{prefix}config:acme/nightly")

    assert isinstance(fields, dict)
    assert fields | {"updated_at": "", "next_at": ""} == {
        "job_id": "nightly",
        "active": "1",
        "pipeline": "convert",
        "cron": MIDNIGHT,
        "zone": "Europe/Berlin",
        "params": '{ "platform": "520" }',
        "version": "1",
        "updated_at": "",
        "next_at": "",
    }
    assert float(fields["next_at"]) == made.next_at


async def test_a_dropped_schedule_has_left_no_key(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    schedule, run = await claimed(redis_store, await created(redis_store, now=99.5), 100.0)
    await schedule_records.put_run(
        redis_store, run, schedules.close_run(await again(redis_store, run), "skipped", "", 101.0)
    )
    move = schedules.end(schedule, author="k", reason="", now=100.5)
    await schedule_records.move(redis_store, move)

    await schedule_records.trim_runs(redis_store, move.after, older_than=1000.0, keep=10)
    await schedule_records.drop(redis_store, move.after)

    assert [name for name in found(raw, prefix) if name.startswith(("config", "record", "index", "due"))] == []
