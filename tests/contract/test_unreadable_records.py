"""One record that cannot be read is left out of its list and logged; it hides none of the others. On every store."""

from __future__ import annotations

import pytest

from packhorse.core.failures import ACTION
from packhorse.core.records import IndexEntry, LogEntry, Put, time_place
from packhorse.core.webhooks import DELIVERY
from packhorse.errors import CorruptRecord
from packhorse.store.base import Finding, Store
from packhorse.store.collections import audit, keys, schedules, workers
from packhorse.store.collections.base import log_unreadable
from packhorse.store.collections.failures import add_action, list_orders
from packhorse.store.collections.queues import (
    PAUSE,
    READING,
    Pause,
    Reading,
    add_reading,
    drop_pause,
    list_pauses,
    list_readings,
    put_pause,
)
from packhorse.store.collections.webhooks import ENDPOINT, add_endpoint, list_deliveries, list_endpoints
from packhorse.store.collections.workers import Lost, list_findings, list_lost, report_lost, save_findings
from tests.contract.builders import card
from tests.contract.failures import action
from tests.contract.keys import endpoint, entry, key, told
from tests.contract.schedules import created


async def spoil(store: Store, kind: str, id: str, *index: IndexEntry) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("packhorse.store.redis.records.RECORD_VIEWS", {})  # copies for people, of what can be read
        await store.put([Put(kind, id, b"{", index=index)])


async def test_webhooks(store: Store, caplog: pytest.LogCaptureFixture) -> None:
    log_unreadable.cache_clear()
    for name in ("all", "open", "all/default", "open/default"):
        await spoil(store, ENDPOINT, "bad", IndexEntry(name, time_place(0.5, "bad")))
        await add_endpoint(store, endpoint(f"e-{len(name)}"))

        assert "bad" not in [each.id for each in await list_endpoints(store)]
        assert len(await list_endpoints(store, "default", only_open=True)) == len(await list_endpoints(store))
    assert "endpoint bad cannot be read" in caplog.text  # once in a process


async def test_deliveries(store: Store) -> None:
    await told(store, "e1")
    await spoil(store, DELIVERY, "bad", IndexEntry("endpoint/e1", AFTER))

    assert len(await list_deliveries(store, "e1", limit=1)) == 1


AFTER = "\U0010fffe"
"""The place of a record that is the newest of its index."""


async def test_keys_and_tokens(store: Store) -> None:
    for n in range(1, 4):
        await keys.add(store, key(n))
    for id in ("a", "b", "c"):
        await spoil(store, keys.KEY, id, IndexEntry("all", f"{AFTER}{id}"), IndexEntry("job/j", id))

    page = await keys.list_newest(store, None, limit=2)
    rest = await keys.list_newest(store, None, before=page[-1].id, limit=2)

    assert [each.created_at for each in (*page, *rest)] == [3.0, 2.0, 1.0]
    assert await keys.list_of_job(store, "j") == []


async def test_workers_lost_ones_and_findings(store: Store) -> None:
    now = store.now()
    await workers.enroll(store, card("w1"))
    await report_lost(store, Lost("w2", "here", 1, "1", now - 5, now, "w1"))
    await save_findings(store, [Finding("files", True, "fine", "", "files", now)])
    await spoil(store, workers.WORKER, "bad", IndexEntry("all", "bad"))
    await spoil(store, workers.LOST, "bad", IndexEntry("time", time_place(now, "bad")))
    await spoil(store, workers.FINDING, "bad", IndexEntry("all", "bad"))

    assert [each.id for each in await workers.list_all(store)] == ["w1"]
    assert [each.id for each in await list_lost(store)] == ["w2"]
    assert [each.part for each in await list_findings(store)] == ["files"]


async def test_a_pause_that_cannot_be_read_still_pauses_until_it_is_resumed(store: Store) -> None:
    await put_pause(store, Pause("cpu", 1.0, "ann"))
    await spoil(store, PAUSE, "gpu", IndexEntry("all", "gpu"))

    paused = [(each.queue, "cannot be read" in each.reason) for each in await list_pauses(store)]
    resumed = await drop_pause(store, "gpu")

    assert (paused, resumed) == ([("cpu", False), ("gpu", True)], True)
    assert [each.queue for each in await list_pauses(store)] == ["cpu"]


async def test_readings_of_the_queues(store: Store) -> None:
    at = int(store.now() // 60) * 60
    await add_reading(store, Reading(at))
    await spoil(store, READING, "bad", IndexEntry("time", time_place(at + 1, "bad")))

    assert [each.at for each in await list_readings(store, at - 60)] == [at]


async def test_versions_of_a_schedule(store: Store) -> None:
    schedule = await created(store)
    await spoil(store, schedules.REVISION, "bad", IndexEntry("default/nightly", time_place(2.0)))

    assert [each.version for each in await schedules.revisions(store, "default", schedule.id, limit=1)] == [1]


async def test_orders(store: Store) -> None:
    await add_action(store, action(1))
    await spoil(store, ACTION, "bad", IndexEntry("tenant/default", AFTER))

    assert [each.id for each in await list_orders(store, "default", limit=1)] == ["0001"]


async def test_audit_entries(store: Store) -> None:
    await audit.append(store, [entry(at=1.0), entry(at=2.0)], keep=100)
    await store.append(audit.LOG, [LogEntry(b"{"), LogEntry(b"{")], keep=100)

    assert [each.at for each in await audit.tail(store, limit=2)] == [2.0, 1.0]


async def test_who_asks_for_that_record_is_told(store: Store) -> None:
    await spoil(store, keys.KEY, "bad")

    with pytest.raises(CorruptRecord):
        await keys.get(store, ["bad"])
