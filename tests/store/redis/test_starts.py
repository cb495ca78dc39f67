"""Starts that were prepared when the task was queued: the claim's script makes them as the lifecycle would."""

from __future__ import annotations

import itertools
import json
from collections.abc import Awaitable, Callable
from typing import Any

import pytest
import redis
from msgspec.structs import replace

from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Failure, Job
from packhorse.core.plan import Plan
from packhorse.store.base import Claim, Starter
from packhorse.store.redis import RedisStore
from packhorse.store.redis.claim import Claimer
from tests.contract.builders import (
    APART,
    BOOK,
    BROKEN,
    CHAIN,
    FAN,
    HOUR,
    KINDS,
    LEASE,
    ONE,
    ONLY,
    SLOTTED,
    finish,
    finishing,
    held,
    job_id,
    made,
    plan,
    settled,
    stage,
    starter,
    submit,
    submit_many,
    waiting,
)
from tests.contract.stores import Clock
from tests.servers import valkey
from tests.store.redis.inside import OpenRedis

RETRIED = plan(stage("only", retries=5))
BRIEF = plan(stage("only"), run_timeout=60.1)
LONG = plan(stage("only"), run_timeout=2 * HOUR)


class Side:
    """A store, and a worker whose tokens are the same in every store."""

    def __init__(self, store: RedisStore, clock: Clock, *, decides: bool) -> None:
        self.store = store
        self.clock = clock
        self._starter = Starter((f"token-{n}" for n in itertools.count()), "w", LEASE, store.now)
        self._decides = decides

    async def claim(self) -> list[Claim]:
        start = (lambda job, at: self._starter(job, at)) if self._decides else self._starter
        return await self.store.claim({"default": 10}, KINDS, start)

    async def submit(self, plan: Plan = ONE, **options: Any) -> Job:
        return await submit(self.store, plan, job_id=job_id(1), **options)

    async def end(self, *, width: int | None = None) -> None:
        [claimed] = await self.claim()
        await made(self.store, finishing(claimed, now=self.clock(), width=width))

    async def fail(self, error: Failure = BROKEN) -> None:
        [claimed] = await self.claim()
        job, at, token = claimed.job, claimed.task, claimed.token
        await made(self.store, lifecycle.fail(job, at, token=token, error=error, luck=0.0, now=self.clock()))


async def second_stage(side: Side) -> None:
    await side.submit(CHAIN)
    await side.end()


async def second_attempt(side: Side) -> None:
    await side.submit(RETRIED)
    await side.fail()
    side.clock.forward(HOUR / 2)


async def second_run(side: Side) -> None:
    await side.submit(ONE)
    await side.fail(replace(BROKEN, permanent=True))
    await settled(side.store, job_id(1), lambda job: lifecycle.retry(job, now=side.clock()))


async def only_element(side: Side) -> None:
    await side.submit(FAN)
    await side.end(width=1)


async def second_of_its_plan(side: Side) -> None:
    await submit(side.store, SLOTTED, user="first", job_id=job_id(2))
    await side.claim()
    side.clock.forward(60.0)
    await side.submit(SLOTTED, user='ü/"', tenant="a b/c", priority=-2, key="k")


async def delayed(side: Side) -> None:
    await side.submit(BRIEF, delay=60.0)
    side.clock.forward(61.0)


SITUATIONS: dict[str, Callable[[Side], Awaitable[object]]] = {
    "new": lambda side: side.submit(),
    "in a slot, of another tenant": lambda side: side.submit(SLOTTED, user="a/b", tenant="ü", priority=3),
    "second of its plan": second_of_its_plan,
    "with webhooks": lambda side: side.submit(webhooks=("hook",)),
    "with a quota": lambda side: side.submit(quotas=(5, 0)),
    "brief": lambda side: side.submit(BRIEF),
    "with a limit past the deadline": lambda side: side.submit(LONG),
    "delayed": delayed,
    "second stage": second_stage,
    "second attempt": second_attempt,
    "second run": second_run,
    "only element": only_element,
}


def content(raw: redis.Redis, prefix: str) -> dict[str, Any]:
    """Everything in the store but what serves watchers, and the start itself."""
    read: dict[str, Callable[[str], Any]] = {
        "hash": raw.hgetall,
        "string": raw.get,
        "zset": lambda key: raw.zrange(key, 0, -1, withscores=True),
        "list": lambda key: raw.lrange(key, 0, -1),
        "set": raw.smembers,
        "stream": lambda key: [fields for _, fields in raw.xrange(key)],  # type: ignore[union-attr]
    }
    names = {key.removeprefix(prefix): key for key in raw.scan_iter(f"{prefix}*", count=1000)}
    found = {name: read[str(raw.type(key))](key) for name, key in names.items() if not name.startswith("feed")}
    for name, value in found.items():
        if isinstance(value, dict):
            found[name] = {field: text for field, text in value.items() if field != "start"}
    return found


def forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    async def decide(*_: Any) -> Any:
        raise AssertionError("the claim was decided by the caller")

    monkeypatch.setattr(Claimer, "_round", decide)


@pytest.mark.parametrize("situation", SITUATIONS.values(), ids=SITUATIONS)
async def test_a_prepared_start_leaves_what_the_lifecycle_would_have_left(
    open_redis: OpenRedis,
    raw: redis.Redis,
    monkeypatch: pytest.MonkeyPatch,
    situation: Callable[[Side], Awaitable[Any]],
) -> None:
    claims, contents = [], []
    for decides in (True, False):
        clock, prefix = Clock(1_800_000_000.5), valkey.fresh_prefix()
        side = Side(await open_redis(valkey.shared().url(prefix), clock), clock, decides=decides)
        await situation(side)
        with monkeypatch.context() as patch:
            if not decides:
                forbid(patch)
            claims.append(await side.claim())
        contents.append(content(raw, prefix))

    assert len(claims[0]) == 1
    assert claims[1] == claims[0]
    assert contents[1] == contents[0]


async def test_a_batch_is_claimed_and_started_by_one_script(
    server: valkey.Valkey, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await open_redis(server.url("p:"))
    jobs = await submit_many(store, 20)
    with server.client() as client:
        await Side(store, Clock(1_800_000_000.5), decides=False).claim()
        more = await submit_many(store, 20)
        forbid(monkeypatch)
        client.config_resetstat()

        claims = await Side(store, Clock(1_800_000_000.5), decides=False).claim()

        assert client.info("commandstats")["cmdstat_evalsha"]["calls"] == 1
    assert [claimed.job.id for claimed in claims] == [job.id for job in [*jobs, *more][10:20]]
    assert await store.get([claims[0].job.id]) == [claims[0].job]


async def test_a_job_that_has_changed_since_is_decided_as_it_is(timed_redis: RedisStore, clock: Clock) -> None:
    job = await submit(timed_redis, APART)
    await settled(timed_redis, job.id, lambda job: Change(job, replace(job, version=job.version + 1, revived=7)))

    claims = await Side(timed_redis, clock, decides=False).claim()

    assert [claimed.task.stage for claimed in claims] == ["left", "right"]
    assert claims[0].job == await held(timed_redis, job.id)
    assert claims[0].job.revived == 7


async def test_a_cancelled_job_is_not_started(timed_redis: RedisStore, clock: Clock) -> None:
    job = await submit(timed_redis)
    await settled(timed_redis, job.id, lambda job: lifecycle.cancel(job, now=clock()))

    assert await Side(timed_redis, clock, decides=False).claim() == []


async def test_a_prepared_start_of_a_state_that_was_damaged_is_not_made(
    timed_redis: RedisStore, clock: Clock, raw: redis.Redis, prefix: str
) -> None:
    job = await submit(timed_redis)
    state = raw.hget(f"{prefix}job:{job.id}", "state")
    raw.hset(f"{prefix}job:{job.id}", "state", str(state).replace("[2,", "[9,"))

    assert await Side(timed_redis, clock, decides=False).claim() == []

    raw.hset(f"{prefix}job:{job.id}", "state", str(state))
    assert await waiting(timed_redis) == [(job.id, ONLY)]


@pytest.mark.parametrize("text", [str(lifecycle.NOW), lifecycle.TOKEN, str(lifecycle.LINEAGE), lifecycle.WORKER])
async def test_an_error_that_reads_like_a_place_to_fill_in_is_kept_as_it_is(
    timed_redis: RedisStore, clock: Clock, text: str
) -> None:
    side = Side(timed_redis, clock, decides=False)
    await side.submit(RETRIED)
    await side.fail(replace(BROKEN, message=text))
    clock.forward(HOUR / 2)

    [claimed] = await side.claim()

    task = claimed.job.task(ONLY)
    assert task is not None
    assert task.error is not None
    assert task.error.message == text


async def test_an_ended_job_keeps_no_start(
    timed_redis: RedisStore, clock: Clock, raw: redis.Redis, prefix: str
) -> None:
    side = Side(timed_redis, clock, decides=False)
    job = await side.submit()
    name = str(raw.hget(f"{prefix}job:{job.id}", "start")).split()[0]
    assert json.loads(str(raw.hget(f"{prefix}starts", name)))

    await side.end()

    assert not raw.hexists(f"{prefix}job:{job.id}", "start")


async def test_a_token_that_was_not_used_is_used_next_time(timed_redis: RedisStore, clock: Clock) -> None:
    side = Side(timed_redis, clock, decides=False)
    tokens = []
    for n in range(3):
        await submit(timed_redis, job_id=job_id(n + 1))
        tokens += [claimed.token for claimed in await side.claim()]

    assert sorted(tokens) == ["token-0", "token-1", "token-2"]


async def test_a_job_of_which_only_one_task_was_prepared_is_claimed_as_it_is_after_both(
    timed_redis: RedisStore, clock: Clock
) -> None:
    """The script starts the second task, whose place was prepared last, before the caller decides about the first."""
    side = Side(timed_redis, clock, decides=False)
    job = await side.submit(APART)
    for claimed in await side.claim():
        late = lifecycle.later(
            await held(timed_redis, job.id), claimed.task, token=claimed.token, seconds=1, now=clock()
        )
        await made(timed_redis, late)
    clock.forward(1.0)

    claims = await side.claim()

    assert [claimed.task.stage for claimed in claims] == ["left", "right"]
    assert {claimed.job.version for claimed in claims} == {(await held(timed_redis, job.id)).version}


async def test_a_job_whose_key_is_of_another_type_stops_no_other_job(
    timed_redis: RedisStore, clock: Clock, raw: redis.Redis, prefix: str
) -> None:
    damaged, sound = [await submit(timed_redis, job_id=job_id(n)) for n in (1, 2)]
    raw.delete(f"{prefix}job:{damaged.id}")
    raw.set(f"{prefix}job:{damaged.id}", "damaged")

    claims = await Side(timed_redis, clock, decides=False).claim()

    assert [claimed.job.id for claimed in claims] == [sound.id]
    assert await waiting(timed_redis) == []


async def test_a_worker_may_be_called_anything(timed_redis: RedisStore, clock: Clock) -> None:
    await submit(timed_redis)
    name = 'host"\\\n\0token'
    start = Starter((f"token-{n}" for n in itertools.count()), name, LEASE, timed_redis.now)

    [claimed] = await timed_redis.claim({"default": 1}, KINDS, start)

    events = await timed_redis.events(claimed.job.id)
    assert [event.data.get("worker") for event in events] == [None, None, name]
    assert len(await timed_redis.held_by(name, 10)) == 1


async def test_a_start_with_an_effect_of_a_newer_packhorse_is_decided_by_the_caller(
    timed_redis: RedisStore, clock: Clock, raw: redis.Redis, prefix: str
) -> None:
    job = await submit(timed_redis)
    name = str(raw.hget(f"{prefix}job:{job.id}", "start")).split()[0]
    start = json.loads(str(raw.hget(f"{prefix}starts", name)))
    raw.hset(f"{prefix}starts", name, json.dumps([*start[:5], 2, "of tomorrow", "x", *start[5:]]))

    [claimed] = await Side(timed_redis, clock, decides=False).claim()

    assert [event.type for event in await timed_redis.events(job.id)] == ["submitted", "started", "stage_started"]
    assert claimed.job == await held(timed_redis, job.id)


async def test_the_start_of_a_job_with_much_state_is_not_prepared(
    timed_redis: RedisStore, clock: Clock, raw: redis.Redis, prefix: str
) -> None:
    """It would hold the state a second time, and keep the server busy with reading it."""
    side = Side(timed_redis, clock, decides=False)
    await side.submit(FAN)
    await side.end(width=300)
    for claimed in await timed_redis.claim({"default": 300}, KINDS, starter(timed_redis)):
        await finish(timed_redis, claimed)

    assert len(str(raw.hget(f"{prefix}job:{job_id(1)}", "start"))) < 200
    assert [claimed.task for claimed in await side.claim()] == [BOOK]
