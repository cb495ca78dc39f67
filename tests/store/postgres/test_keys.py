"""What is left in the tables of a PostgreSQL store by keys, counters and deliveries, and what it costs to get there."""

from __future__ import annotations

import asyncio

import pytest

from packhorse.core import json
from packhorse.store.collections import keys
from packhorse.store.collections.webhooks import add_endpoint, list_deliveries, settle_delivery, take_deliveries
from packhorse.store.postgres import PostgresStore
from tests.contract.builders import completed, finish, marked, started
from tests.contract.keys import MINUTE, charge, endpoint, key, told
from tests.contract.stores import Clock
from tests.store.postgres.inside import Raw, recorded, somebody_waits_for


async def test_counters_are_dropped_when_their_window_is_over_and_not_before(
    timed: PostgresStore, raw: Raw, clock: Clock
) -> None:
    await timed.spend([charge(1, 5), charge(1, 5, name="quota:hour", window=3_600.0)])
    clock.forward(MINUTE + 0.5)
    await timed.trim()
    assert await raw.fetchval("SELECT count(*) FROM counters") == 2
    clock.forward(MINUTE)

    await timed.trim()

    assert await raw.fetchval("SELECT count(*) FROM counters") == 1


@pytest.mark.parametrize(
    "table", ["records WHERE kind = 'key'", "records WHERE kind = 'delivery'", "record_index WHERE kind = 'key'"]
)
async def test_nothing_of_an_erased_job_is_left(pg: PostgresStore, raw: Raw, table: str) -> None:
    job = await told(pg, "e1", "e2")
    await keys.add(pg, key(job_id=job.id))
    assert await raw.fetchval(f"SELECT count(*) FROM {table}") > 0

    await pg.erase((await marked(pg, job)).id)

    assert await raw.fetchval(f"SELECT count(*) FROM {table}") == 0


async def test_many_who_spend_at_once_share_transactions(pg: PostgresStore) -> None:
    await pg.spend([charge(1, 1_000)])
    async with recorded(pg) as recorder:
        await asyncio.gather(*(pg.spend([charge(1, 1_000), charge(1, 1_000, name="quota:b")]) for _ in range(100)))

    commits = [statement for statement, _ in recorder.statements if statement == "COMMIT"]
    assert 1 <= len(commits) <= 3


async def test_a_job_without_webhooks_says_nothing_about_deliveries(pg: PostgresStore) -> None:
    await add_endpoint(pg, endpoint())
    await completed(pg)
    async with recorded(pg) as recorder:
        await completed(pg)

    assert [statement for statement, _ in recorder.statements if "records" in statement] == []


async def test_who_spends_wakes_nobody(pg: PostgresStore) -> None:
    mark = await pg.wait_for_change(None, 0)

    await pg.spend([charge(1, 5)])

    assert await pg.wait_for_change(mark, 0) == mark
    assert pg._watch._telling is None


# Under locks


async def test_counters_are_locked_in_the_order_of_their_names(pg: PostgresStore, raw: Raw) -> None:
    a, b = charge(1, 5, name="quota:a"), charge(1, 5, name="quota:b")
    await pg.spend([a, b])
    async with raw.transaction():
        await raw.execute("SELECT 1 FROM counters WHERE name = 'quota:a' FOR UPDATE")
        spending = asyncio.create_task(pg.spend([b, a]))
        await somebody_waits_for(raw)

        free = await raw.fetchval("SELECT name FROM counters WHERE name = 'quota:b' FOR UPDATE SKIP LOCKED")

    assert free == "quota:b"
    assert (await spending).left == (3, 3)


async def test_who_ends_a_key_decides_on_what_the_one_before_has_left(pg: PostgresStore, raw: Raw) -> None:
    await keys.add(pg, key())
    earlier = key(ends_at=5.0, ended_by="earlier")
    async with raw.transaction():
        await raw.execute("SELECT 1 FROM records FOR UPDATE")
        ending = asyncio.create_task(keys.end(pg, key().id, 9.0, "later"))
        await somebody_waits_for(raw)
        await raw.execute("UPDATE records SET body = $1, stamp = stamp + 1", json.encode(earlier))

    assert await ending == earlier
    assert await keys.get(pg, [key().id]) == [earlier]


async def test_an_endpoint_that_is_just_ending_is_told_nothing(pg: PostgresStore, raw: Raw) -> None:
    await add_endpoint(pg, endpoint())
    claimed = await started(pg, webhooks=("e1",))
    async with raw.transaction():
        await raw.execute("DELETE FROM records WHERE kind = 'open_endpoint'")
        finishing = asyncio.create_task(finish(pg, claimed))
        await somebody_waits_for(raw)

    await finishing
    assert await list_deliveries(pg, "e1") == []


async def test_names_that_cannot_be_stored_are_unknown(pg: PostgresStore) -> None:
    assert await keys.get(pg, ["\0", "\ud800"]) == [None, None]
    assert await keys.end(pg, "\0", 1.0, "x") is None
    assert await keys.list_of_job(pg, "\0") == []


async def test_an_error_is_kept_as_it_is(pg: PostgresStore) -> None:
    await told(pg, "e1")
    [taken] = await take_deliveries(pg, 1, 60.0)

    await settle_delivery(pg, taken, next_at=0.0, error="a\0b")

    assert [each.error for each in await list_deliveries(pg, "e1")] == ["a\0b"]
