"""Who is well: what was found of each part, and workers that were lost."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.core.models import TaskId
from packhorse.store.base import Finding, Store
from packhorse.store.collections import workers
from packhorse.store.collections.workers import LOST_KEPT, Lost, Machine, Work, list_findings, save_findings
from tests.contract.builders import card
from tests.contract.stores import Clock, OpenStore

STORE = Finding("store", True, "answers in 2 ms", "jobs are remembered here", "store", 1_800_000_000.25)
FILES = Finding("files", False, "away", "ä · it took too long", "files", 1_800_000_001.0)


# note


async def test_what_was_found_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    await save_findings(store, [STORE, FILES])

    assert await list_findings(other) == [FILES, STORE]


async def test_what_is_found_later_replaces_what_was_found_of_the_same_part(store: Store, other: Store) -> None:
    await save_findings(store, [STORE, FILES])
    well = replace(FILES, is_ok=True, value="ok", measured_at=1_800_000_020.0)

    await save_findings(other, [well])

    assert await list_findings(store) == [well, STORE]


async def test_nothing_was_found_before_anybody_looked(store: Store) -> None:
    await save_findings(store, [])

    assert await list_findings(store) == []


# workers


async def test_a_card_says_what_a_worker_does_and_how_its_host_is(timed: Store, clock: Clock, other: Store) -> None:
    busy = card(
        started_at=1.5,
        is_draining=True,
        busy={"default": 2},
        work=(Work("j", TaskId("page", 3), 7.25),),
        duties={"reaper": 9.5},
        machine=Machine(8.0, 0.25, 4, 1 << 30, 1 << 33),
    )

    await workers.enroll(timed, busy)

    assert await workers.list_all(other) == [replace(busy, seen_at=clock())]


# miss


def lost(id: str = "w", **options: Any) -> Lost:
    facts: dict[str, Any] = {"host": "h", "pid": 7, "version": "0", "seen_at": 10.0, "missed_at": 30.0, "by": "me"}
    return Lost(id, **{**facts, **options})


async def test_a_lost_worker_is_read_back_whole_from_another_handle(
    timed: Store, clock: Clock, open_store: OpenStore
) -> None:
    gone = lost(missed_at=clock(), tasks=2, work=(Work("j1", TaskId("only"), 5.0), Work("j2", TaskId("page", 4), 6.0)))

    await workers.report_lost(timed, gone)

    assert await workers.list_lost(await open_store(clock=clock)) == [gone]


async def test_of_several_who_notice_one_silence_the_first_is_kept(timed: Store, clock: Clock) -> None:
    first = lost(missed_at=clock(), by="first")
    await workers.report_lost(timed, first)

    await asyncio.gather(
        *(workers.report_lost(timed, lost(missed_at=clock() + n, by=f"other {n}")) for n in range(1, 6))
    )

    assert await workers.list_lost(timed) == [first]


async def test_a_worker_that_came_back_can_be_lost_again(timed: Store, clock: Clock) -> None:
    await workers.report_lost(timed, lost(seen_at=clock() - 5.0, missed_at=clock()))
    clock.forward(100.0)
    again = lost(seen_at=clock() - 5.0, missed_at=clock(), by="other")

    await workers.report_lost(timed, again)

    assert await workers.list_lost(timed) == [again]


async def test_of_too_many_lost_workers_the_latest_are_listed(
    timed: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "MOST_LOST", 2)
    for id in ("w1", "w2", "w3"):
        await workers.report_lost(timed, lost(id, missed_at=clock()))
        clock.forward(1.0)

    assert [each.id for each in await workers.list_lost(timed)] == ["w3", "w2"]


async def test_a_lost_worker_is_listed_for_a_day_the_latest_first(timed: Store, clock: Clock) -> None:
    for id in ("w1", "w2", "w3"):
        await workers.report_lost(timed, lost(id, missed_at=clock()))
        clock.forward(LOST_KEPT / 4)
    all_of_them = [each.id for each in await workers.list_lost(timed)]

    clock.forward(LOST_KEPT / 4)
    await timed.trim()

    assert all_of_them == ["w3", "w2", "w1"]
    assert [each.id for each in await workers.list_lost(timed)] == ["w3", "w2"]
