"""What is left in the tables of a SQLite store by keys, counters and deliveries."""

from __future__ import annotations

from pathlib import Path

import pytest

from packhorse.errors import StoreUnavailable
from packhorse.store.collections import keys
from packhorse.store.sqlite import SqliteStore
from tests.contract.builders import completed, marked
from tests.contract.keys import MINUTE, charge, key, told
from tests.contract.stores import Clock
from tests.store.sqlite.inside import stopped


async def counters(store: SqliteStore) -> list[tuple[str, int]]:
    """Names, and how long what is kept of each is."""
    query = "SELECT name, length(buckets) FROM counters ORDER BY name"
    writer = await store._counters.writer()
    return await writer.run(lambda db: [(str(name), int(str(size))) for name, size in db.execute(query)])


async def count(store: SqliteStore, table: str) -> int:
    [(found,)] = await store._read(lambda db: db.execute(f"SELECT count(*) FROM {table}").fetchall())
    assert isinstance(found, int)
    return found


async def test_counters_are_dropped_when_their_window_is_over_and_not_before(store: SqliteStore, clock: Clock) -> None:
    await store.spend([charge(1, 5), charge(1, 5, name="quota:hour", window=3_600.0)])
    clock.forward(MINUTE + 0.5)
    await store.trim()
    assert [name for name, _ in await counters(store)] == ["quota:hour", "ratelimit:a"]
    clock.forward(MINUTE)

    await store.trim()

    assert [name for name, _ in await counters(store)] == ["quota:hour"]


async def test_a_look_and_a_refusal_write_nothing(store: SqliteStore) -> None:
    await store.spend([charge(0, 5)])
    await store.spend([charge(6, 5)])

    assert await counters(store) == []


async def test_buckets_that_no_longer_count_are_not_kept(store: SqliteStore, clock: Clock) -> None:
    for _ in range(200):
        await store.spend([charge(1, 1_000)])
        clock.forward(1.0)

    [(_, size)] = await counters(store)
    assert size < 61 * len('"1800000000":1,') + 2


async def test_who_spends_wakes_nobody_and_waits_for_no_job(store: SqliteStore) -> None:
    mark = await store.wait_for_change(None, 0)

    async with stopped(store):
        await store.spend([charge(1, 5)])

    assert await store.wait_for_change(mark, 0) == mark


async def test_a_store_that_counts_nothing_has_one_file(store: SqliteStore, path: Path) -> None:
    await completed(store)
    await store.trim()

    assert {each.name for each in path.parent.iterdir()} <= {"store.db", "store.db-wal", "store.db-shm"}


async def test_a_closed_store_counts_no_more(path: Path) -> None:
    counted, fresh = await SqliteStore.open(path), await SqliteStore.open(path)
    await counted.spend([charge(1, 5)])
    for store in (counted, fresh):
        await store.close()

        with pytest.raises(StoreUnavailable):
            await store.spend([charge(1, 5)])


async def test_counters_that_cannot_be_opened_are_an_outage(store: SqliteStore, path: Path) -> None:
    path.with_name("store.db-counters").mkdir()

    with pytest.raises(StoreUnavailable):
        await store.spend([charge(1, 5)])


@pytest.mark.parametrize("table", ["records", "record_index"])
@pytest.mark.parametrize("kind", ["key", "delivery"])
async def test_nothing_of_an_erased_job_is_left(store: SqliteStore, table: str, kind: str) -> None:
    job = await told(store, "e1", "e2")
    await keys.add(store, key(job_id=job.id))
    assert await count(store, f"{table} WHERE kind = '{kind}'") > 0

    await store.erase((await marked(store, job)).id)

    assert await count(store, f"{table} WHERE kind = '{kind}'") == 0


async def test_a_job_without_webhooks_leaves_no_delivery(store: SqliteStore) -> None:
    await told(store, "e1")

    await completed(store)

    assert await count(store, "records WHERE kind = 'delivery'") == 1
