"""What an outside reader finds in Redis: names, readable fields, feeds, messages and lifetimes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from packhorse.core import lifecycle
from packhorse.core.models import Artifact, Result, Stored
from packhorse.core.plan import DEFAULT_KEEP, Status
from packhorse.store.collections import workers
from packhorse.store.collections.workers import put_bookmark
from packhorse.store.redis import RedisStore, keys
from packhorse.store.redis.commit import NET
from packhorse_converter.app import convert
from tests.contract.builders import (
    BROKEN,
    CHAIN,
    FAN,
    ONLY,
    SLOTTED,
    cancel,
    card,
    claim,
    claim_one,
    completed,
    fail,
    failed,
    finish,
    line,
    made,
    marked,
    page,
    plan,
    report,
    sample,
    settled,
    split,
    stage,
    started,
    starter,
    submission,
    submit,
    submit_many,
)
from tests.contract.stores import Clock
from tests.servers import valkey
from tests.store.redis.inside import OpenRedis

FILE = Stored("jobs/1/output/only/t/0", "m.nef", 5, "ab" * 32)


def found(raw: redis.Redis, prefix: str) -> set[str]:
    """The names of all keys under the prefix, without it."""
    return {key.removeprefix(prefix) for key in raw.scan_iter(f"{prefix}*", count=1000)}


def stream(raw: redis.Redis, key: str) -> list[dict[str, Any]]:
    """Its items: an entry has one or several."""
    entries: list[tuple[str, dict[str, str]]] = raw.xrange(key)  # type: ignore[assignment]
    return [item for _, fields in entries for item in json.loads(fields["items"])]


async def lived(store: RedisStore) -> str:
    """A job to which everything has happened that leaves a key."""
    claimed = await started(store, SLOTTED, key="k")
    await store.report([report(claimed, 50)])
    await store.log([line(claimed.job, "hello")], keep=100)
    await store.sample([sample(claimed.job, 1.0)], keep=10)
    result = Result(b'{"$file":0}', (Artifact("out", FILE),))
    job = await finish(store, claimed, result)
    await workers.enroll(store, card())
    await put_bookmark(store, "here", "now")
    return job.id


# names


async def test_every_key_is_behind_the_prefix(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    store = await open_redis(server.url("prod:"))

    await lived(store)
    await submit(store, delay=60.0)
    await started(store)

    with server.client(decode_responses=True) as client:
        names = list(client.scan_iter(count=1000))
    assert len(names) > 20
    assert [name for name in names if not name.startswith("prod:")] == []


async def test_two_prefixes_in_one_server_do_not_touch_each_other(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    prod, dev = await open_redis(server.url("prod:")), await open_redis(server.url("dev:"))
    job = await submit(prod, SLOTTED, key="k")

    same = await submit(dev, SLOTTED, key="k", job_id=job.id)

    assert await prod.get([job.id]) == [job]
    assert await cancel(dev, same.id) != job
    assert [claimed.job.id for claimed in await claim(prod)] == [job.id]


async def test_an_erased_job_has_left_no_key(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    job_id = await lived(redis_store)
    [job] = await redis_store.get([job_id])
    assert job is not None
    assert any(job_id in name for name in found(raw, prefix))
    await marked(redis_store, job)

    await redis_store.erase(job_id)

    assert [name for name in found(raw, prefix) if job_id in name or name.startswith("key:")] == []
    indexes = [name for name in found(raw, prefix) if raw.type(f"{prefix}{name}") == "zset"]
    assert [name for name in indexes if raw.zscore(f"{prefix}{name}", job_id) is not None] == []


async def test_an_erased_job_leaves_the_plan_that_other_jobs_share(redis_store: RedisStore) -> None:
    """A plan that is read for each erased job would stay, once for every job that is cached with it."""
    first = await finish(redis_store, await started(redis_store))
    [before] = await redis_store.get([(await submit(redis_store)).id])
    assert before is not None

    await redis_store.erase((await marked(redis_store, first)).id)

    [after] = await redis_store.get([before.id])
    assert after is not None
    assert after.plan is before.plan


def test_the_order_of_entries_is_the_order_of_elements() -> None:
    numbers = [0, 1, 2, 9, 10, 11, 99, 100, 1000, 12345]

    texts = [keys.entry("j", page(n)) for n in numbers] + ["j page-two", "j page2"]

    assert texts == sorted(texts)
    assert [keys.entry_from(text)[1].element for text in texts[:-2]] == numbers


# readable fields


async def test_a_job_is_readable_field_by_field(timed_redis: RedisStore, raw: redis.Redis, prefix: str) -> None:
    claimed = await started(timed_redis, SLOTTED, user="ann", priority=3)

    record: dict[str, str] = raw.hgetall(f"{prefix}job:{claimed.job.id}")  # type: ignore[assignment]

    expected = {"status": "running", "stage": "only", "user": "ann", "tenant": "default", "pipeline": "convert"}
    expected |= {"priority": "3", "version": "2", "current": "0", "total": "1", "created_at": "1800000000.0"}
    assert {name: record[name] for name in expected} == expected


async def test_the_last_error_stays_to_be_seen_and_errors_are_counted(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    eager = plan(stage("only", retries=5))
    job = await submit(redis_store, eager)
    for n in range(2):
        claimed = await claim_one(redis_store)
        error = lifecycle.fail(
            claimed.job, ONLY, token=claimed.token, error=BROKEN, luck=0.0, now=redis_store.now() - 600
        )
        await made(redis_store, error)
        assert raw.hget(f"{prefix}job:{job.id}", "error_count") == str(n + 1)

    await claim_one(redis_store)

    assert raw.hmget(f"{prefix}job:{job.id}", "last_error", "error_count") == ["It broke.", "2"]


async def test_an_ended_job_says_how_long_it_took(
    timed_redis: RedisStore, clock: Clock, raw: redis.Redis, prefix: str
) -> None:
    claimed = await started(timed_redis)
    clock.forward(2.5)

    await finish(timed_redis, claimed)

    assert raw.hget(f"{prefix}job:{claimed.job.id}", "duration_ms") == "2500"


async def test_a_stage_is_readable_field_by_field(timed_redis: RedisStore, raw: redis.Redis, prefix: str) -> None:
    claimed = await started(timed_redis, CHAIN)
    key = f"{prefix}job:{claimed.job.id}:stage:onnx"
    assert raw.hget(key, "status") == "running"

    await timed_redis.report([report(claimed, 3, 12, at=1.5)])

    expected = {"status": "running", "current": "3", "total": "12", "progress": "25", "updated_at": "1.5"}
    assert raw.hgetall(key) == expected | {"started_at": "1800000000.0"}
    await finish(timed_redis, claimed)
    assert raw.hmget(key, "status", "progress") == ["completed", "100"]


async def test_the_progress_of_a_stage_with_elements_is_how_many_are_done(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    job = await split(redis_store, 4)
    first, *_ = await claim(redis_store)
    await redis_store.report([report(first, 99)])

    await finish(redis_store, first)

    key = f"{prefix}job:{job.id}:stage:page"
    assert raw.hmget(key, "status", "current", "total", "progress") == ["running", "1", "4", "25"]


async def test_a_stage_that_never_started_says_why_until_it_waits_again(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    claimed = await started(redis_store, FAN)
    stages = [f"{prefix}job:{claimed.job.id}:stage:{name}" for name in ("page", "book")]

    await fail(redis_store, claimed)

    assert [raw.hmget(key, "status", "reason") for key in stages] == [["skipped", "stage split failed"]] * 2
    await settled(redis_store, claimed.job.id, lambda job: lifecycle.retry(job, now=redis_store.now()))
    assert raw.exists(*stages) == 0


async def test_a_stage_that_turns_out_to_have_no_elements_is_no_longer_skipped(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    claimed = await started(redis_store, FAN)
    page = f"{prefix}job:{claimed.job.id}:stage:page"
    await cancel(redis_store, claimed.job.id)
    skipped = raw.hget(page, "status")

    await finish(redis_store, claimed, width=0)

    assert skipped == "skipped"
    assert not raw.exists(page)


async def test_where_the_files_of_a_job_are_is_readable(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    job_id = await lived(redis_store)

    assert raw.hgetall(f"{prefix}output:{job_id}") == {"only": f'["{FILE.key}"]'}


async def test_a_users_jobs_and_slot_are_found_by_the_user(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    job = await submit(redis_store, SLOTTED, user="ann/b")

    assert raw.zrange(f"{prefix}user:default/ann%2Fb:jobs", 0, -1) == [job.id]
    assert raw.get(f"{prefix}user:default/ann%2Fb:active_job:convert") == job.id


async def test_the_indexes_of_jobs_are_exact(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    waiting, running = await submit(redis_store, delay=60.0), await started(redis_store)
    done, broken = await completed(redis_store), await failed(redis_store)

    indexes = {name: raw.zrange(f"{prefix}jobs:{name}", 0, -1) for name in (*keys.WHOLE, "running")}

    assert indexes == {
        "active": [waiting.id, running.job.id],
        "running": [running.job.id],
        "completed": [done.id],
        "failed": [broken.id],
        "cancelled": [],
    }


async def test_jobs_are_counted_for_all_time_and_for_the_day(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    await completed(redis_store)
    await failed(redis_store)

    expected = {"submitted": "2", "completed": "1", "failed": "1"}
    [day] = [name for name in found(raw, prefix) if name.startswith("stats:day:")]
    assert raw.hgetall(f"{prefix}stats:jobs") == expected
    assert raw.hgetall(f"{prefix}{day}") == expected


async def test_a_worker_is_healthy_for_a_minute_after_it_was_heard_of(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    await workers.enroll(redis_store, card("w"))

    assert 0 < int(raw.ttl(f"{prefix}health:w")) <= 60
    await workers.dismiss(redis_store, "w")
    assert raw.exists(f"{prefix}health:w") == 0


# feeds


async def test_streams_tell_what_became_ready_moved_and_done(
    timed_redis: RedisStore, clock: Clock, raw: redis.Redis, prefix: str
) -> None:
    job = await submit(timed_redis, CHAIN)
    await finish(timed_redis, await claim_one(timed_redis))
    later = await submit(timed_redis, CHAIN, delay=60.0)
    clock.forward(61.0)
    await claim(timed_redis)
    await cancel(timed_redis, (await submit(timed_redis)).id)

    ready = [(item["job_id"], item["stage"]) for item in stream(raw, f"{prefix}queue:default")]
    moved = [item["message"]["processor"] for item in stream(raw, f"{prefix}queue:progress")]
    done = [item["status"] for item in stream(raw, f"{prefix}queue:done")]
    assert ready[:3] == [(job.id, "onnx"), (job.id, "bie"), (later.id, "onnx")]
    assert moved[:2] == ["onnx", "onnx"]
    assert done == ["cancelled"]


async def test_trimming_every_stream_to_nothing_loses_no_work(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    """They are feeds, never the truth: whoever trims them, or deletes them, stops nothing."""
    jobs = await submit_many(redis_store, 5)
    raw.delete(*(f"{prefix}{name}" for name in found(raw, prefix) if raw.type(f"{prefix}{name}") == "stream"))

    claims = await claim(redis_store)

    assert [claimed.job.id for claimed in claims] == [job.id for job in jobs]
    assert (await finish(redis_store, claims[0])).status is Status.COMPLETED


async def test_a_stream_that_somebody_has_damaged_stops_nothing(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    for name in ("default", "progress", "done"):
        raw.set(f"{prefix}queue:{name}", "damaged")

    job = await completed(redis_store)

    assert (job.status, await redis_store.get([job.id])) == (Status.COMPLETED, [job])


async def test_streams_stay_short(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    await submit_many(redis_store, 3000)

    assert int(raw.xlen(f"{prefix}queue:default")) < 1500
    assert len(await claim(redis_store, 5000)) == 3000


@pytest.fixture
def heard(raw: redis.Redis, prefix: str) -> Any:
    """Subscribe to a job's channel; what has been published on it since."""
    subscriptions = []

    def subscribe(job_id: str) -> Any:
        channel = raw.pubsub(ignore_subscribe_messages=True)  # type: ignore[no-untyped-call]
        subscriptions.append(channel)
        channel.subscribe(f"{prefix}progress:{job_id}")
        channel.get_message(timeout=5)

        def messages() -> list[dict[str, Any]]:
            found = []
            while message := channel.get_message(timeout=1):
                found.append(json.loads(message["data"]))
            return found

        return messages

    yield subscribe
    for channel in subscriptions:
        channel.close()


async def test_progress_is_published_live(redis_store: RedisStore, heard: Any) -> None:
    claimed = await started(redis_store)
    messages = heard(claimed.job.id)

    await redis_store.report([report(claimed, 3, 12, at=7.5, message="page 3")])

    data = {"message": "page 3", "current": 3.0, "total": 12.0}
    assert messages() == [{"type": "progress", "processor": "only", "timestamp": 7.5, "data": data}]


async def test_the_course_of_a_job_is_published_live(redis_store: RedisStore, heard: Any) -> None:
    job = await submit(redis_store)
    messages = heard(job.id)

    await fail(redis_store, await claim_one(redis_store))

    found = messages()
    assert [(message["type"], message["processor"]) for message in found] == [
        ("info", "only"),
        ("error", "only"),
        ("error", "only"),
    ]
    assert found[1]["data"]["message"] == "It can never work."
    assert all(message.keys() == {"type", "processor", "timestamp", "data"} for message in found)


# lifetimes


def lifetimes(raw: redis.Redis, prefix: str, job_id: str) -> dict[str, int]:
    """Seconds left per key of the job; -1 for ever."""
    of_job = [name for name in found(raw, prefix) if job_id in name or name == "key:k"]
    return {name: int(raw.ttl(f"{prefix}{name}")) for name in of_job if not name.startswith("metrics:")}


async def test_nothing_of_a_job_that_is_not_over_expires(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    claimed = await started(redis_store, SLOTTED, key="k")
    await redis_store.report([report(claimed, 50)])
    await redis_store.log([line(claimed.job, "hello")], keep=100)

    assert set(lifetimes(raw, prefix, claimed.job.id).values()) == {-1}


async def test_everything_of_an_ended_job_expires_a_week_after_its_purge_time(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    job_id = await lived(redis_store)
    await redis_store.log([line((await redis_store.get([job_id]))[0], "late")], keep=100)  # type: ignore[arg-type]

    found = lifetimes(raw, prefix, job_id)

    assert len(found) == 8
    assert {
        name: left for name, left in found.items() if not DEFAULT_KEEP + NET - 60 < left <= DEFAULT_KEEP + NET
    } == {}


async def test_a_retried_job_does_not_expire(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    job = await failed(redis_store, SLOTTED, key="k")

    await made(redis_store, lifecycle.retry(job, now=redis_store.now()))

    assert set(lifetimes(raw, prefix, job.id).values()) == {-1}


async def test_samples_are_gone_an_hour_after_the_last(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    job_id = await lived(redis_store)

    assert {0 < int(raw.ttl(f"{prefix}metrics:{job_id}:{what}")) <= 3600 for what in ("cpu", "memory")} == {True}


# memory


async def converted(store: RedisStore, users: int) -> None:
    """A job of the converter for each user, all stages completed."""
    graph, now = convert.plan(), store.now()
    options: dict[str, Any] = {"client": "visionA-service", "trace_id": "ab" * 16, "now": now}
    jobs = [submission(graph, user=f"visionA-user-{n}", **options) for n in range(users)]
    assert set(await store.commit(jobs)) == {None}
    for each in graph.stages:
        claims = await store.claim({each.queue: users}, [each.kind], starter(store))
        endings = [lifecycle.finish(c.job, c.task, token=c.token, result=Result(b'"done"'), now=now) for c in claims]
        assert set(await store.commit(endings)) == {None}


def kept(client: redis.Redis) -> int:
    """Bytes that the server uses, without the buffers of its clients."""
    memory = client.info("memory")
    return int(memory["used_memory"] - memory["mem_clients_normal"])


@pytest.mark.release
async def test_ten_thousand_jobs_take_no_more_than_forty_megabytes(
    server: valkey.Valkey, open_redis: OpenRedis
) -> None:
    """As the source counts: a thousand users with ten jobs each."""
    store = await open_redis(server.url("packhorse:"))
    with server.client() as client:
        before = kept(client)

        for _ in range(10):
            await converted(store, 1000)

        assert client.zcard("packhorse:jobs:completed") == 10_000
        used = kept(client) - before
    assert used <= 40 * 1024 * 1024


async def test_a_job_takes_its_part_of_forty_megabytes_for_ten_thousand(
    server: valkey.Valkey, open_redis: OpenRedis
) -> None:
    """Of what the feeds leave, which take 2.5 MB and no more. Asked by key: the sum has buffers of clients in it."""
    store = await open_redis(server.url("packhorse:"))

    def used() -> int:
        client.delete("packhorse:feed", *client.scan_iter("packhorse:queue:*"))
        pipeline = client.pipeline(transaction=False)
        for key in client.scan_iter():
            pipeline.memory_usage(key, samples=0)
        tables = client.memory_stats()["db.0"]
        return int(sum(pipeline.execute()) + tables["overhead.hashtable.main"] + tables["overhead.hashtable.expires"])

    with server.client() as client:
        await converted(store, 100)
        before = used()

        for _ in range(9):
            await converted(store, 100)

        each = (used() - before) / 900
    assert each <= 37.5 * 1024 * 1024 / 10_000


async def test_events_of_an_earlier_version_are_read(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    """They were objects with their number; they have become lists without it."""
    job = await submit(redis_store)
    [told] = await redis_store.events(job.id)
    old = {"n": 1, "type": told.type, "at": told.at, "data": told.data, "change": "c"}
    raw.lset(f"{prefix}events:{job.id}", 0, json.dumps(old))

    assert await redis_store.events(job.id) == [told]
    assert await redis_store.has_change(job.id, "c")
    assert not await redis_store.has_change(job.id, "d")


async def test_the_duration_is_gone_a_day_after_the_end(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    job = await completed(redis_store)

    assert 86_340 < int(raw.ttl(f"{prefix}metrics:{job.id}:duration")) <= 86_400
