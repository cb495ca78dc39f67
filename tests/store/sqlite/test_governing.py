"""What is left in the tables of a SQLite store by keys, counters and deliveries."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.store.sqlite import SqliteStore
from packhorse.store.sqlite.connection import connect, migrate, migrations
from tests.contract.builders import completed, marked
from tests.contract.governing import MINUTE, charge, key, told
from tests.contract.stores import Clock


async def count(store: SqliteStore, table: str) -> int:
    [(found,)] = await store._read(lambda db: db.execute(f"SELECT count(*) FROM {table}").fetchall())
    assert isinstance(found, int)
    return found


async def test_a_database_of_the_first_schema_gets_what_it_lacks(path: Path) -> None:
    db = connect(path)
    migrate(db, [next(iter(migrations()))])
    db.close()

    store = await SqliteStore.open(path)

    await store.add_key(key())
    assert await store.keys([key().id]) == [key()]
    await store.close()


async def test_counters_are_dropped_when_their_window_is_over_and_not_before(store: SqliteStore, clock: Clock) -> None:
    await store.spend([charge(1, 5), charge(1, 5, name="quota:hour", window=3_600.0)])
    clock.forward(MINUTE)
    await store.trim()
    assert await count(store, "counters") == 2
    clock.forward(1.0)

    await store.trim()

    assert await count(store, "counters") == 1


async def test_a_look_and_a_refusal_write_nothing(store: SqliteStore) -> None:
    await store.spend([charge(0, 5)])
    await store.spend([charge(6, 5)])

    assert await count(store, "counters") == 0


async def test_buckets_that_no_longer_count_are_not_kept(store: SqliteStore, clock: Clock) -> None:
    for _ in range(200):
        await store.spend([charge(1, 1_000)])
        clock.forward(1.0)

    [(size,)] = await store._read(lambda db: db.execute("SELECT length(buckets) FROM counters").fetchall())
    assert isinstance(size, int)
    assert size < 61 * len('"1800000000":1,') + 2


@pytest.mark.parametrize("table", ["keys", "deliveries"])
async def test_nothing_of_an_erased_job_is_left(store: SqliteStore, table: str) -> None:
    job = await told(store, "e1", "e2")
    await store.add_key(key(job_id=job.id))
    assert await count(store, table) > 0

    await store.erase((await marked(store, job)).id)

    assert await count(store, table) == 0


async def test_a_job_without_webhooks_leaves_no_delivery(store: SqliteStore) -> None:
    await told(store, "e1")

    await completed(store)

    assert await count(store, "deliveries") == 1
