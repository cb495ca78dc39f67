"""Outages, lost answers, restarts and failovers: what was sent, what was made, and what goes on by itself."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest
import redis
from msgspec.structs import replace
from redis.asyncio.connection import AbstractConnection

from packhorse import crashpoints
from packhorse.core import lifecycle
from packhorse.core.changes import Change
from packhorse.core.models import Job
from packhorse.errors import Conflict, PackhorseError, StoreError, StoreUnavailable, UnknownOutcome
from packhorse.store.base import Filter, Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import get_bookmark
from packhorse.store.redis import RedisStore, session
from packhorse.store.redis.client import CONNECTIONS, Link
from tests.contract.builders import (
    CHAIN,
    SLOTTED,
    cancel,
    card,
    claim,
    claim_one,
    finish,
    finishing,
    held,
    ids,
    lease_of,
    line,
    report,
    split,
    started,
    starter,
    submission,
    submit,
    submit_many,
    sure,
    words,
)
from tests.servers import valkey
from tests.servers.ports import free_port
from tests.store.blocked import LIMIT, until
from tests.store.redis.inside import OpenRedis

HASTY = "&timeout=1.5"
"""For servers that are made to stand still."""


async def heard(store: Store, change: Change) -> PackhorseError | None:
    [error] = await asyncio.wait_for(store.commit([change]), LIMIT)
    return error


def waiting_clients(server: valkey.Valkey) -> int:
    with server.client() as client:
        return len(client.client_list()) - 1


# outages


READS: dict[str, Callable[[Store], Awaitable[object]]] = {
    "get": lambda store: store.get(["x"]),
    "find": lambda store: store.find(Filter()),
    "claim": lambda store: claim(store),
    "overdue": lambda store: store.overdue(1),
    "wait_for_change": lambda store: store.wait_for_change(None, 0),
    "changed_jobs": lambda store: store.changed_jobs(None),
    "check": lambda store: store.check(),
}


@pytest.mark.parametrize("ask", READS.values(), ids=READS)
async def test_a_question_during_an_outage_is_refused_and_the_next_one_after_it_is_answered(
    server: valkey.Valkey, open_redis: OpenRedis, ask: Callable[[Store], Awaitable[object]]
) -> None:
    store = await open_redis(server.url("p:"))
    await ask(store)
    server.kill()
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(ask(store), LIMIT)

    server.start()

    await ask(store)


async def test_a_commit_during_an_outage_was_not_made_and_says_so(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    store = await open_redis(server.url("p:"))
    await submit(store)
    server.kill()
    change = submission(now=1.0)

    error = await heard(store, change)

    assert type(error) is StoreUnavailable
    server.start()
    assert await store.existing_ids([change.after.id]) == set()
    assert await heard(store, change) is None


async def test_what_was_acknowledged_outlives_a_killed_server(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    store = await open_redis(server.url("p:"))
    jobs = await submit_many(store, 20, CHAIN)
    claimed = await claim_one(store)
    await store.log([line(claimed.job, "hello")], keep=100)

    server.kill()
    server.start()

    [first, *rest] = await store.get(ids(jobs))
    assert first == claimed.job
    assert rest == jobs[1:]
    assert [each.text for each in await store.lines(claimed.job.id)] == ["hello"]
    assert (await store.renew([lease_of(claimed)], 15.0)).lost == frozenset()
    assert (await finish(store, claimed)).version == claimed.job.version + 1


async def test_a_server_that_forgot_the_scripts_is_told_them_again(
    server: valkey.Valkey, open_redis: OpenRedis
) -> None:
    store = await open_redis(server.url("p:"))
    await submit(store)
    with server.client() as client:
        client.script_flush()

    await finish(store, await claim_one(store))

    assert len(await store.find(Filter())) == 1


async def test_a_server_that_is_not_there_cannot_be_opened(open_redis: OpenRedis) -> None:
    with pytest.raises(StoreUnavailable):
        await open_redis(f"redis://127.0.0.1:{free_port()}")


async def test_a_server_that_stands_still_keeps_nobody_waiting_for_ever(
    server: valkey.Valkey, open_redis: OpenRedis
) -> None:
    store = await open_redis(server.url("p:") + HASTY)
    await submit(store)
    server.freeze()

    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(store.find(Filter()), LIMIT)
    with pytest.raises(StoreUnavailable):
        await asyncio.wait_for(store.find(Filter()), LIMIT)  # on a new connection, which nobody greets

    server.thaw()
    assert len(await store.find(Filter())) == 1


async def test_all_who_wait_for_a_server_that_stands_still_are_told_together(
    server: valkey.Valkey, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not one round of connections after the other: the last of sixty would be told after fifty seconds."""
    store = await open_redis(server.url("p:") + HASTY)
    get, turns = Link._get, 0

    async def counted(self: Link) -> AbstractConnection:
        nonlocal turns
        turns += 1
        return await get(self)

    monkeypatch.setattr(Link, "_get", counted)
    server.freeze()

    errors = await asyncio.gather(*(store.get(["x"]) for _ in range(10 * CONNECTIONS)), return_exceptions=True)

    server.thaw()
    assert {type(error) for error in errors} == {StoreUnavailable}
    assert turns < 5 * CONNECTIONS
    assert await store.get(["x"]) == [None]


# lost answers


async def test_a_commit_whose_answer_is_lost_has_an_unknown_outcome_and_is_made_once(
    server: valkey.Valkey, open_redis: OpenRedis
) -> None:
    store = await open_redis(server.url("p:") + HASTY)
    await submit(store)
    change = replace(submission(SLOTTED, now=1.0), id="c")
    server.freeze()

    error = await heard(store, change)

    server.thaw()
    assert type(error) is UnknownOutcome
    await until_true(lambda: store.has_change(change.after.id, "c"))
    assert await words(store, change.after.id) == ["submitted"]
    assert len(await claim(store)) == 2


async def until_true(question: Callable[[], Awaitable[bool]]) -> None:
    deadline = asyncio.get_running_loop().time() + LIMIT
    while not await question():
        assert asyncio.get_running_loop().time() < deadline
        await asyncio.sleep(0.01)


async def test_a_report_whose_answer_is_lost_has_an_unknown_outcome(
    server: valkey.Valkey, open_redis: OpenRedis
) -> None:
    store = await open_redis(server.url("p:") + HASTY)
    claimed = await started(store)
    await store.report([report(claimed, 1)])
    server.freeze()

    with pytest.raises(UnknownOutcome):
        await asyncio.wait_for(store.report([report(claimed, 2)]), LIMIT)

    server.thaw()


async def test_what_was_behind_a_lost_answer_was_never_sent(
    server: valkey.Valkey, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MEMBERS", 2)
    store = await open_redis(server.url("p:") + HASTY)
    await submit(store)
    changes = [submission(now=1.0) for _ in range(5)]
    server.freeze()

    errors = await asyncio.wait_for(store.commit(changes), LIMIT)

    server.thaw()
    assert [type(error) for error in errors] == [UnknownOutcome] * 2 + [StoreUnavailable] * 3
    await until_true(lambda: is_known(store, changes[0].after.id))
    assert await store.existing_ids([change.after.id for change in changes[2:]]) == set()


async def is_known(store: Store, job_id: str) -> bool:
    return await store.existing_ids([job_id]) == {job_id}


async def test_a_caller_that_gives_up_leaves_no_answer_for_the_next(redis_store: RedisStore) -> None:
    job = await submit(redis_store)
    for _ in range(20):
        question = asyncio.create_task(redis_store.get([job.id]))
        await asyncio.sleep(0)
        question.cancel()

    answers = await asyncio.gather(*(get_bookmark(redis_store, "none") for _ in range(20)))

    assert answers == [None] * 20
    assert await held(redis_store, job.id) == job


async def test_cut_connections_are_replaced(redis_store: RedisStore, raw: redis.Redis) -> None:
    job = await submit(redis_store)
    raw.client_kill_filter(_type="normal", skipme=True)

    found = await held(redis_store, job.id)

    assert found == job


# whole or not at all


async def test_a_server_out_of_memory_makes_nothing_of_anything(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    store = await open_redis(server.url("p:"))
    job = await submit(store, SLOTTED)
    with server.client() as client:
        client.config_set("maxmemory", "1mb")
        before = client.dbsize()

        errors = await store.commit([cancelling(store, job), submission(now=1.0)])

        assert [type(error) for error in errors] == [StoreUnavailable] * 2
        assert client.dbsize() == before
        client.config_set("maxmemory", "0")
    assert await held(store, job.id) == job
    assert (await cancel(store, job.id)).status == "cancelled"


def cancelling(store: Store, job: Job) -> Change:
    return sure(lifecycle.cancel(job, now=store.now()))


async def test_a_replica_makes_nothing_and_is_left(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    store = await open_redis(server.url("p:"))
    job = await submit(store)
    change = submission(now=1.0)
    with server.client() as client:
        client.execute_command("REPLICAOF", "127.0.0.1", free_port())
        client.config_set("replica-serve-stale-data", "yes")

        error = await heard(store, change)

        client.execute_command("REPLICAOF", "NO", "ONE")
    assert type(error) is StoreUnavailable
    assert await store.existing_ids([job.id, change.after.id]) == {job.id}
    assert await heard(store, change) is None


async def test_a_damaged_key_harms_only_the_job_it_belongs_to(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    job, neighbour = await submit_many(redis_store, 2)
    raw.delete(f"{prefix}job:{job.id}")
    raw.set(f"{prefix}job:{job.id}", "not a hash")

    errors = await redis_store.commit([cancelling(redis_store, job), cancelling(redis_store, neighbour)])

    assert isinstance(errors[0], PackhorseError)
    assert errors[1] is None
    assert (await held(redis_store, neighbour.id)).status == "cancelled"


@pytest.mark.parametrize("damaged", ["purge", "jobs:completed", "deadlines"])
async def test_a_damaged_key_that_jobs_share_is_told_and_keeps_nothing_else_from_being_written(
    redis_store: RedisStore, raw: redis.Redis, prefix: str, damaged: str
) -> None:
    claims = [await started(redis_store), await started(redis_store)]
    raw.delete(f"{prefix}{damaged}")
    raw.set(f"{prefix}{damaged}", "damaged")

    errors = await redis_store.commit([finishing(claimed, now=1.0) for claimed in claims])

    assert [type(error) for error in errors] == [StoreError, StoreError]
    assert "in part" in str(errors[0])
    found = await redis_store.get([claimed.job.id for claimed in claims])
    assert [job.status for job in found if job is not None] == ["completed", "completed"]
    assert (raw.exists(f"{prefix}leases", f"{prefix}holders"), raw.zcard(f"{prefix}jobs:active")) == (0, 0)


async def test_a_server_that_lost_the_plans_is_told_them_again(
    redis_store: RedisStore, raw: redis.Redis, prefix: str
) -> None:
    """As after a power cut under everysec: what this process knows to have put there may be gone."""
    await submit(redis_store, CHAIN)
    raw.delete(f"{prefix}plans")

    job = await submit(redis_store, CHAIN)

    elsewhere = await RedisStore.open(valkey.shared().url(prefix))
    assert await held(elsewhere, job.id) == job
    await elsewhere.close()


async def test_more_than_one_script_takes_keeps_its_order_and_its_refusals(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "MEMBERS", 2)
    first = submission(SLOTTED, now=1.0)
    taken = submission(SLOTTED, now=1.0)
    behind = cancelling(redis_store, taken.after)
    others = [submission(now=1.0) for _ in range(3)]

    errors = await redis_store.commit([first, taken, *others, behind])

    assert [None if error is None else error.type() for error in errors] == [
        None, "slot-taken", None, None, None, "conflict",
    ]  # fmt: skip


async def test_what_is_behind_a_refused_change_is_refused_in_the_next_script_too(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although the version it was decided on is by now somebody else's."""
    monkeypatch.setattr(session, "MEMBERS", 1)
    job = await split(redis_store, 3)
    first, second, third = await claim(redis_store, limit=3)
    stale = await held(redis_store, job.id)
    fresh = await finish(redis_store, third)
    one = finishing(replace(first, job=stale), now=1.0)
    two = finishing(replace(second, job=one.after), now=1.0)

    errors = await redis_store.commit([one, two])

    assert fresh.version == one.after.version
    assert [type(error) for error in errors] == [Conflict, Conflict]
    assert await held(redis_store, job.id) == fresh


async def test_a_write_larger_than_a_script_should_be_travels_alone(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "BYTES", 1)

    jobs = await submit_many(redis_store, 5)

    assert await redis_store.existing_ids(ids(jobs)) == set(ids(jobs))


# connections and crash points


async def test_a_busy_handle_has_few_connections(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    store = await open_redis(server.url("p:"))
    waiting = [
        asyncio.create_task(store.wait_for_change(await store.wait_for_change(None, 0), LIMIT)) for _ in range(20)
    ]

    await asyncio.gather(
        *(store.commit([submission(now=1.0)]) for _ in range(200)), *(store.find(Filter()) for _ in range(200))
    )

    assert waiting_clients(server) <= CONNECTIONS + 1
    await asyncio.gather(*waiting)


async def test_a_closed_handle_has_no_connections(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    store = await open_redis(server.url("p:"))
    await store.wait_for_change(await store.wait_for_change(None, 0), 0.1)
    await asyncio.gather(*(store.find(Filter()) for _ in range(20)))

    await store.close()

    await until(lambda: waiting_clients(server) == 0)


async def test_a_write_passes_the_points_before_in_and_after_it(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []
    change = submission(now=1.0)
    await redis_store.commit([submission(now=1.0)])  # the server has the script: it is sent once
    monkeypatch.setattr(crashpoints, "hook", lambda point, _by: passed.append(point))

    await redis_store.commit([change])
    await redis_store.get([change.after.id])

    assert passed == ["store.write.before", "store.write.open", "store.write.after"]


async def test_a_crash_before_the_write_leaves_nothing_and_one_after_it_everything(
    redis_store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    changes = {point: submission(now=1.0) for point in ("store.write.before", "store.write.after")}
    for point, change in changes.items():

        def die(at: str, _by: object, point: str = point) -> None:
            if at == point:
                raise RuntimeError(point)

        monkeypatch.setattr(crashpoints, "hook", die)
        with pytest.raises(RuntimeError):
            await redis_store.commit([change])
    monkeypatch.setattr(crashpoints, "hook", None)

    found = await redis_store.existing_ids([change.after.id for change in changes.values()])

    assert found == {changes["store.write.after"].after.id}


async def test_a_worker_goes_on_where_it_was_when_the_server_comes_back(
    server: valkey.Valkey, open_redis: OpenRedis
) -> None:
    store = await open_redis(server.url("p:"))
    jobs = await submit_many(store, 10)
    first = await claim(store, 3)
    server.kill()
    with pytest.raises(StoreUnavailable):
        await store.claim({"default": 3}, ["only"], starter(store))
    await store_is_away(store)
    server.start()

    rest = await claim(store, 100)

    assert sorted(claimed.job.id for claimed in (*first, *rest)) == ids(jobs)
    for claimed in first:
        assert (await finish(store, claimed)).status == "completed"


async def store_is_away(store: Store) -> None:
    with pytest.raises(StoreUnavailable):
        await workers.enroll(store, card())
