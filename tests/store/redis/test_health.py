"""What a plain client of Redis finds of how it goes and who is well: each key with its type, end and content."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
import redis

from packhorse.core.models import Artifact, Result, Stored
from packhorse.store.base import Finding
from packhorse.store.collections import workers
from packhorse.store.collections.queues import Level, Reading, add_reading
from packhorse.store.collections.workers import Lost, Machine, save_findings
from packhorse.store.counters import MINUTE, QUARTER, Tally
from packhorse.store.redis import RedisStore
from tests.contract.builders import card, completed, fail, failed, finish, line, report, sample, started, submit

HOUR, DAY = 3600, 86_400
FILE = Stored("jobs/1/output/only/t/0", "m.nef", 5, "ab" * 32)


class Plain:
    """The keys behind the prefix, as anybody can look at them."""

    def __init__(self, raw: redis.Redis, prefix: str) -> None:
        self._raw = raw
        self._prefix = prefix

    def __call__(self, command: str, key: str, *words: object) -> Any:
        return self._raw.execute_command(command, f"{self._prefix}{key}", *words)  # type: ignore[no-untyped-call]

    def kind(self, key: str) -> str:
        return str(self("TYPE", key))

    def lasts(self, key: str) -> int:
        return int(self("TTL", key))


@pytest.fixture
def plain(raw: redis.Redis, prefix: str) -> Plain:
    assert prefix
    return Plain(raw, prefix)


# All together (C4)


async def test_health_is_there_for_a_minute(redis_store: RedisStore, plain: Plain) -> None:
    store = Finding("store", True, "answers in 1 ms", "jobs are remembered here", "store", 100.0)
    files = Finding("files", False, "do not answer", "it took too long", "files", 101.0)

    await save_findings(redis_store, [store, files])

    services = {part: json.loads(body) for part, body in plain("HGETALL", "health:services").items()}
    assert (plain.kind("health:current"), plain.kind("health:services")) == ("string", "hash")
    assert all(0 < plain.lasts(key) <= 60 for key in ("health:current", "health:services"))
    assert json.loads(plain("GET", "health:current")) == {"status": "bad", "part": "files", "measured_at": 101.0}
    assert {part: (each["is_ok"], each["value"]) for part, each in services.items()} == {
        "store": (True, "answers in 1 ms"),
        "files": (False, "do not answer"),
    }


async def test_a_worker_is_there_for_a_minute_and_what_its_host_uses_for_ten_seconds(
    redis_store: RedisStore, plain: Plain
) -> None:
    await workers.enroll(redis_store, card("w", machine=Machine(1.0, 0.123, 4, 5_000_000, 8_000_000)))

    assert {plain.kind(key) for key in ("health:w", "stats:cpu:current", "stats:memory:current")} == {"string"}
    assert 50 < plain.lasts("health:w") <= 60
    assert 0 < plain.lasts("stats:cpu:current") <= 10
    assert 0 < plain.lasts("stats:memory:current") <= 10
    assert plain("GET", "stats:cpu:current") == "12.3"
    assert plain("GET", "stats:memory:current") == "5000000"
    assert json.loads(plain("GET", "health:w"))["machine"]["cpu"] == 0.123


async def test_jobs_are_counted_in_all_and_by_day_and_named_by_what_has_become_of_them(
    redis_store: RedisStore, plain: Plain, raw: redis.Redis, prefix: str
) -> None:
    done, broken, active = await completed(redis_store), await failed(redis_store), await submit(redis_store)

    [day] = [key.removeprefix(prefix) for key in raw.scan_iter(f"{prefix}stats:day:*")]
    counts = {"submitted": "3", "completed": "1", "failed": "1"}
    assert (plain.kind("stats:jobs"), plain.lasts("stats:jobs"), plain("HGETALL", "stats:jobs")) == ("hash", -1, counts)
    assert (plain.kind(day), plain("HGETALL", day)) == ("hash", counts)
    assert DAY < plain.lasts(day) <= 8 * DAY
    for name, job in (("active", active), ("completed", done), ("failed", broken)):
        assert (plain.kind(f"jobs:{name}"), plain.lasts(f"jobs:{name}")) == ("zset", -1)
        assert plain("ZRANGE", f"jobs:{name}", 0, -1) == [job.id]


async def test_counts_and_readings_last_as_long_as_they_are_kept(redis_store: RedisStore, plain: Plain) -> None:
    at = int(redis_store.now() // QUARTER) * QUARTER
    await redis_store.tally({Tally(step, at, "convert", "onnx", "wait:7"): 3 for step in (MINUTE, QUARTER)})
    await add_reading(redis_store, Reading(at, 2, {"onnx": Level(5, 1.5)}))

    readings = f"stats:readings:{time.strftime('%Y-%m-%d', time.gmtime(at))}"
    assert {plain.kind(key) for key in (f"stats:minute:{at}", f"stats:quarter:{at}", readings)} == {"hash"}
    assert (
        plain("HGETALL", f"stats:minute:{at}")
        == plain("HGETALL", f"stats:quarter:{at}")
        == {"convert onnx wait:7": "3"}
    )
    assert 6 * HOUR <= plain.lasts(f"stats:minute:{at}") <= 6 * HOUR + 120
    assert 72 * HOUR <= plain.lasts(f"stats:quarter:{at}") <= 72 * HOUR + 1800
    assert 72 * HOUR < plain.lasts(readings) <= 96 * HOUR
    assert json.loads(plain("HGET", readings, str(at)))["queues"] == {"onnx": {"ready": 5, "oldest": 1.5}}


async def test_a_lost_worker_is_there_for_a_day(redis_store: RedisStore, plain: Plain) -> None:
    await workers.report_lost(redis_store, Lost("w", "h", 7, "0", 1.0, redis_store.now(), "me", 2))

    assert plain.kind("workers:lost") == "hash"
    assert DAY - 60 < plain.lasts("workers:lost") <= DAY
    assert json.loads(plain("HGET", "workers:lost", "w"))["tasks"] == 2


# Of one job (C5)


async def test_everything_of_a_job_is_there_with_its_end(redis_store: RedisStore, plain: Plain) -> None:
    claimed = await started(redis_store)
    id = claimed.job.id
    await redis_store.report([report(claimed, 50)])
    await redis_store.log([line(claimed.job, "hello")], keep=100)
    await redis_store.sample([sample(claimed.job, float(n)) for n in range(150)], keep=100)
    assert plain.lasts(f"job:{id}") == plain.lasts(f"log:{id}") == -1  # nothing of it ends before it has
    job = await finish(redis_store, claimed, Result(b'{"$file":0}', (Artifact("out", FILE),)))

    kinds = {
        f"job:{id}": "hash", f"job:{id}:stage:only": "hash", f"result:{id}": "hash", f"output:{id}": "hash",
        f"log:{id}": "list", f"metrics:{id}:cpu": "zset", f"metrics:{id}:memory": "zset",
        f"metrics:{id}:duration": "string",
    }  # fmt: skip
    assert {key: plain.kind(key) for key in kinds} == kinds
    assert job.purge_at is not None
    assert job.completed_at is not None
    kept = job.purge_at - job.completed_at
    for key in kinds:
        if key.startswith("metrics:"):
            assert 0 < plain.lasts(key) <= (DAY if key.endswith(":duration") else HOUR)
        else:
            assert kept <= plain.lasts(key) <= kept + 8 * DAY
    assert plain("ZCARD", f"metrics:{id}:cpu") == plain("ZCARD", f"metrics:{id}:memory") == 100
    assert json.loads(plain("HGET", f"output:{id}", "only")) == [FILE.key]
    assert "hello" in plain("LINDEX", f"log:{id}", -1)
    assert int(plain("GET", f"metrics:{id}:duration")) == int(plain("HGET", f"job:{id}", "duration_ms"))


async def test_a_failed_job_says_how_often_and_why_last(redis_store: RedisStore, plain: Plain) -> None:
    job = await fail(redis_store, await started(redis_store))

    assert plain("HMGET", f"job:{job.id}", "status", "error_count", "last_error") == [
        "failed",
        "1",
        "It can never work.",
    ]
