"""Records nobody can read, records that are gone, the feed that is trimmed, and how much is read for an answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis

from packhorse.core import json
from packhorse.core.models import Job
from packhorse.core.plan import DEFAULT_KEEP, Status
from packhorse.errors import CorruptRecord, SchemaTooNew
from packhorse.store.base import Filter, Store
from packhorse.store.redis import RedisStore, reads, watch
from tests.contract.builders import (
    CHAIN,
    HOUR,
    ONE,
    claim,
    claim_one,
    completed,
    failed,
    finish,
    finishing,
    ids,
    made,
    marked,
    started,
    submission,
    submit,
    submit_many,
)
from tests.contract.stores import Clock
from tests.servers import valkey
from tests.store.redis.inside import OpenRedis

GARBAGE = [b"", b"\x00\xff", b'[1,1,1,null,null,[[[["\xff"]]]]]', b'{"v":1}', b"[1,1,1,null,null,[]]"]


class Damage:
    """Changes a record behind the store's back."""

    def __init__(self, raw: redis.Redis, prefix: str) -> None:
        self._raw = raw
        self._prefix = prefix

    def spoil(self, job: Job, state: bytes = b"\x00", field: str = "state") -> None:
        self._raw.hset(f"{self._prefix}job:{job.id}", field, state)

    def replace(self, job: Job, old: str, new: str) -> None:
        key = f"{self._prefix}job:{job.id}"
        self._raw.hset(key, "state", str(self._raw.hget(key, "state")).replace(old, new, 1))

    def delete(self, name: str) -> None:
        self._raw.delete(f"{self._prefix}{name}")

    def set_field(self, name: str, field: str, value: bytes) -> None:
        self._raw.hset(f"{self._prefix}{name}", field, value)

    def drop_field(self, name: str, field: str) -> None:
        self._raw.hdel(f"{self._prefix}{name}", field)


@pytest.fixture
def damage(raw: redis.Redis, prefix: str) -> Damage:
    return Damage(raw, prefix)


# records nobody can read


@pytest.mark.parametrize("state", GARBAGE)
async def test_a_state_that_cannot_be_read_is_told_with_its_job(
    redis_store: RedisStore, damage: Damage, state: bytes
) -> None:
    job = await submit(redis_store)
    damage.spoil(job, state)

    with pytest.raises(CorruptRecord) as error:
        await redis_store.get([job.id])

    assert (error.value.facts["what"], error.value.facts["job_id"]) == ("state", job.id)


@pytest.mark.parametrize("field", ["created_at", "priority", "status", "user"])
async def test_a_field_that_cannot_be_read_is_told_with_its_job(
    redis_store: RedisStore, damage: Damage, field: str
) -> None:
    job = await submit(redis_store)
    damage.spoil(job, b"\xff", field)

    with pytest.raises(CorruptRecord) as error:
        await redis_store.get([job.id])

    assert error.value.facts["job_id"] == job.id


async def test_a_state_of_a_newer_packhorse_is_not_half_understood(redis_store: RedisStore, damage: Damage) -> None:
    job = await submit(redis_store)
    damage.replace(job, "[2,", "[9,")

    with pytest.raises(SchemaTooNew):
        await redis_store.get([job.id])


async def test_a_version_that_would_misread_a_job_leaves_it_to_a_newer_one(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Version 1 expects fields that are left out now: it would drop the job from its queue."""
    job = await submit(redis_store)

    with monkeypatch.context() as earlier:
        earlier.setattr(json, "VERSION", 1)
        with pytest.raises(SchemaTooNew):
            await redis_store.get([job.id])
        assert await claim(redis_store) == []

    assert [each.job.id for each in await claim(redis_store)] == [job.id]


async def test_a_job_of_version_1_is_read_and_claimed(redis_store: RedisStore, damage: Damage) -> None:
    job = await submit(redis_store)
    damage.replace(job, "[2,", "[1,")
    damage.spoil(job, b"0", "priority")
    damage.spoil(job, str(job.created_at).encode(), "not_before")

    assert await redis_store.get([job.id]) == [job]
    assert [each.job.id for each in await claim(redis_store)] == [job.id]


async def test_jobs_of_a_newer_packhorse_are_left_in_their_queue_and_hide_nobody(
    redis_store: RedisStore, damage: Damage
) -> None:
    first, second, third, fourth = await submit_many(redis_store, 4)
    for job in (first, third):
        damage.replace(job, "[2,", "[9,")

    claims = [await claim(redis_store, 1), await claim(redis_store, 1), await claim(redis_store, 1)]

    assert [[claimed.job.id for claimed in found] for found in claims] == [[second.id], [fourth.id], []]
    for job in (first, third):
        damage.replace(job, "[9,", "[2,")
    assert [claimed.job.id for claimed in await claim(redis_store)] == [first.id, third.id]


SPOILING: dict[str, Callable[[Damage, Job], None]] = {
    "state": lambda damage, job: damage.spoil(job),
    "plan": lambda damage, job: damage.set_field("plans", job.plan.fingerprint, b"\x00"),
    "missing plan": lambda damage, job: damage.drop_field("plans", job.plan.fingerprint),
    "missing record": lambda damage, job: damage.delete(f"job:{job.id}"),
}


@pytest.mark.parametrize("spoiling", SPOILING.values(), ids=SPOILING)
async def test_a_job_that_cannot_be_read_does_not_stop_those_behind_it(
    open_redis: OpenRedis, damage: Damage, spoiling: Callable[[Damage, Job], None]
) -> None:
    store = await open_redis()
    await submit(store, CHAIN, priority=9)
    spoiled = await finish(store, await claim_one(store))
    job = await submit(store)
    spoiling(damage, spoiled)
    elsewhere = await open_redis()  # one that has not read the plan before

    claims = await claim(elsewhere)

    assert [claimed.job.id for claimed in claims] == [job.id]
    assert await store.held_by("w", limit=10) == [(claims[0].job, claims[0].task)]


LACKING: dict[str, Callable[[Damage, Job], None]] = {
    "spec": lambda damage, job: damage.spoil(job, b"\x00", "spec"),
    "spec of": lambda damage, job: damage.drop_field(f"job:{job.id}", "spec"),
    "result": lambda damage, job: damage.set_field(f"result:{job.id}", "onnx", b"\x00"),
}


@pytest.mark.parametrize(("what", "spoiling"), LACKING.items(), ids=LACKING)
async def test_a_task_that_lacks_what_it_needs_is_handed_out_with_its_trouble(
    redis_store: RedisStore, damage: Damage, what: str, spoiling: Callable[[Damage, Job], None]
) -> None:
    await submit(redis_store, CHAIN, priority=9)
    spoiled = await finish(redis_store, await claim_one(redis_store))
    job = await submit(redis_store)
    spoiling(damage, spoiled)

    claims = await claim(redis_store)

    assert [claimed.job.id for claimed in claims] == [spoiled.id, job.id]
    assert what in str(claims[0].trouble)
    assert claims[1].trouble is None


async def test_a_list_leaves_out_what_cannot_be_read_and_goes_on_behind_it(
    redis_store: RedisStore, damage: Damage
) -> None:
    first, second, third, fourth = await submit_many(redis_store, 4)
    for job in (second, fourth):
        damage.spoil(job)

    assert [job.id for job in await redis_store.find(Filter(), limit=2)] == [third.id, first.id]


async def test_sweeps_go_round_a_job_that_cannot_be_read(timed_redis: RedisStore, damage: Damage, clock: Clock) -> None:
    first = [await started(timed_redis) for _ in range(3)]
    last = await started(timed_redis)
    for claimed in first:
        damage.spoil(claimed.job)

    clock.forward(HOUR)

    assert (await timed_redis.overdue(limit=1)).tasks == [(last.job, last.task)]
    assert await timed_redis.held_by("w", limit=1) == [(last.job, last.task)]
    assert await timed_redis.expired(limit=1) == [last.job]


async def test_upkeep_goes_round_a_job_that_cannot_be_read(
    timed_redis: RedisStore, damage: Damage, clock: Clock
) -> None:
    spoiled, last = await failed(timed_redis), await failed(timed_redis)
    damage.spoil(spoiled)

    clock.forward(DEFAULT_KEEP)

    assert await timed_redis.purgeable(limit=1) == [last]
    assert await timed_redis.jobs_with_litter(limit=1) == [last]


async def test_a_marked_job_that_cannot_be_read_can_be_erased(redis_store: RedisStore, damage: Damage) -> None:
    job = await marked(redis_store, await completed(redis_store))
    damage.spoil(job)

    await redis_store.erase(job.id)

    assert await redis_store.existing_ids([job.id]) == set()
    assert await redis_store.find(Filter()) == []


# records the server has dropped by itself


async def test_a_job_that_expired_leaves_the_lists_when_it_is_looked_for(
    redis_store: RedisStore, damage: Damage, raw: redis.Redis, prefix: str
) -> None:
    there, gone = await completed(redis_store), await completed(redis_store)
    damage.delete(f"job:{gone.id}")

    found = [ids(await redis_store.find(filter, limit=1)) for filter in FILTERS for _ in range(2)]

    assert found == [[there.id]] * len(found)
    for index in ("jobs:completed", "jobs:completed:default/convert", "user:default/ann:jobs"):
        assert raw.zrange(f"{prefix}{index}", 0, -1) == [there.id]


async def test_a_job_that_expired_leaves_the_sweeps(
    timed_redis: RedisStore, clock: Clock, damage: Damage, raw: redis.Redis, prefix: str
) -> None:
    gone, there = await failed(timed_redis), await failed(timed_redis)
    damage.delete(f"job:{gone.id}")
    clock.forward(DEFAULT_KEEP)
    assert await timed_redis.purgeable(limit=1) == [there]

    await timed_redis.trim()

    assert {tuple(raw.zrange(f"{prefix}{index}", 0, -1)) for index in ("purge", "litter", "jobs:failed")} == {
        (there.id,)
    }


# the feed


async def test_a_watcher_behind_what_was_trimmed_is_told_to_look_at_everything(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    jobs = [await submit(redis_store) for _ in range(20)]
    raw.xtrim(f"{prefix}feed", maxlen=5, approximate=False)

    found = {since: await redis_store.changed_jobs(since) for since in (0, 14, 15, 20, 21)}

    assert found == {0: (20, None), 14: (20, None), 15: (20, set(ids(jobs[15:]))), 20: (20, set()), 21: (20, None)}


async def test_a_watcher_far_behind_is_told_to_look_at_everything(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "MANY", 5)
    for _ in range(20):
        await submit(redis_store)

    assert await redis_store.changed_jobs(14) == (20, None)
    assert (await redis_store.changed_jobs(15))[1] is not None


async def test_the_feed_names_every_job_of_a_large_commit(redis_store: RedisStore) -> None:
    cursor, _ = await redis_store.changed_jobs(None)
    changes = [submission(now=1.0) for _ in range(100)]

    await redis_store.commit(changes)

    _, found = await redis_store.changed_jobs(cursor)
    assert found == {change.after.id for change in changes}


async def test_a_feed_that_somebody_deleted_stops_no_commit(redis_store: RedisStore, damage: Damage) -> None:
    await submit_many(redis_store, 40)
    damage.delete("feed:last")

    job = await submit(redis_store)

    assert await redis_store.existing_ids([job.id]) == {job.id}
    assert (await redis_store.changed_jobs(40))[1] is None


async def test_the_feed_stays_short(redis_store: RedisStore, raw: redis.Redis, prefix: str) -> None:
    raw.eval("for n = 1, 20000 do redis.call('XADD', KEYS[1], n .. '-0', 'jobs', 'x') end", 1, f"{prefix}feed")
    raw.set(f"{prefix}feed:last", 20_000)

    await redis_store.trim()

    assert int(raw.xlen(f"{prefix}feed")) < 5200


# how much is read

FILTERS = [
    Filter(),
    Filter("default"),
    Filter("default", "ann"),
    Filter(user="ann"),
    Filter(status=Status.COMPLETED),
    Filter("default", status=Status.COMPLETED, pipeline="convert"),
    Filter(pipeline="convert"),
]


QUESTIONS: dict[str, Callable[[Store], Awaitable[Any]]] = {
    **{f"find {filter}": lambda store, filter=filter: store.find(filter, limit=5) for filter in FILTERS},  # type: ignore[misc]
    "find by time": lambda store: store.find(Filter(created_from=100.0, created_until=110.0), limit=5),
    "find a user's by time": lambda store: store.find(Filter("default", "ann", created_until=110.0), limit=5),
    "find the running": lambda store: store.find(Filter("default", status=Status.RUNNING), limit=5),
    "expired": lambda store: store.expired(5),
    "purgeable": lambda store: store.purgeable(5),
    "littered": lambda store: store.jobs_with_litter(5),
    "overdue": lambda store: store.overdue(5),
}


async def test_a_small_answer_from_a_big_store_costs_what_it_costs_from_a_small_one(
    server: valkey.Valkey, open_redis: OpenRedis
) -> None:
    """Counted in commands that the server carries out. A time is found by halving: one or two more per doubling."""
    store = await open_redis(server.url("p:"))
    await filled(store, 60)
    small = {name: await cost(server, store, ask) for name, ask in QUESTIONS.items()}

    await filled(store, 900)

    big = {name: await cost(server, store, ask) for name, ask in QUESTIONS.items()}
    assert {name: (small[name], big[name]) for name in big if big[name] > small[name] + 20} == {}


async def filled(store: Store, count: int) -> None:
    """Jobs a long time apart, half of them completed."""
    changes = [submission(ONE, now=10_000.0 * n) for n in range(count)]
    assert set(await store.commit(changes)) == {None}
    for claimed in await claim(store, count // 2):
        await made(store, finishing(claimed, now=claimed.job.created_at + 1))


async def cost(server: valkey.Valkey, store: Store, ask: Callable[[Store], Awaitable[Any]]) -> int:
    with server.client() as client:
        before = client.info("commandstats")
        await ask(store)
        after = client.info("commandstats")
    return sum(each["calls"] - before.get(name, {"calls": 0})["calls"] for name, each in after.items())


async def test_a_filter_that_hardly_anything_matches_is_answered_in_short_steps(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "BUDGET", 50)
    rare = await failed(redis_store)
    await submit_many(redis_store, 400)

    found = await redis_store.find(Filter("default", "ann", status=Status.FAILED), limit=5)

    assert ids(found) == [rare.id]
