"""What was done: the audit."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from packhorse.store.base import Store
from packhorse.store.collections import audit
from packhorse.store.collections.audit import Entry
from tests.contract.keys import entry

PLENTY = 1_000


def bare(entries: list[Entry]) -> list[Entry]:
    """Without the numbers that the store gave."""
    return [replace(each, n=0) for each in entries]


async def test_an_entry_is_read_back_whole_with_a_number_from_another_handle(store: Store, other: Store) -> None:
    whole = entry(
        "download.completed", 1_800_000_000.125, tenant="acme", actor="k1", address="::1", job_id="j", trace_id="t",
        count=3, details={"bytes": 5, "name": "ä.pdf", "parts": [1, None]},
    )  # fmt: skip

    await audit.append(store, [whole], keep=PLENTY)

    [found] = await audit.tail(other)
    assert bare([found]) == [whole]
    assert found.n > 0


async def test_entries_come_newest_first_with_falling_numbers(store: Store) -> None:
    written = [entry(at=float(n)) for n in range(5)]
    await audit.append(store, written[:3], keep=PLENTY)
    await audit.append(store, written[3:], keep=PLENTY)

    found = await audit.tail(store)

    assert bare(found) == written[::-1]
    assert [each.n for each in found] == sorted({each.n for each in found}, reverse=True)


async def test_an_empty_audit_has_nothing_and_nothing_is_added_to_it(store: Store) -> None:
    await audit.append(store, [], keep=PLENTY)

    assert await audit.tail(store) == await audit.tail(store, "acme") == []


async def test_a_tenant_sees_its_own_entries_only(store: Store) -> None:
    mine, foreign, nobodys = entry(tenant="a"), entry(tenant="a/b"), entry("key.refused")
    await audit.append(store, [mine, foreign, nobodys], keep=PLENTY)

    assert bare(await audit.tail(store, "a")) == [mine]
    assert bare(await audit.tail(store, "a/b")) == [foreign]
    assert bare(await audit.tail(store, "")) == [nobodys]
    assert bare(await audit.tail(store)) == [nobodys, foreign, mine]


async def test_reading_goes_on_behind_a_number(store: Store) -> None:
    written = [entry(at=float(n), tenant="ab"[n % 2]) for n in range(10)]
    await audit.append(store, written, keep=PLENTY)

    first = await audit.tail(store, limit=4)
    second = await audit.tail(store, before=first[-1].n, limit=4)
    of_tenant = await audit.tail(store, "a", before=first[-1].n, limit=2)

    assert bare(first + second) == written[:1:-1]
    assert bare(of_tenant) == [written[4], written[2]]


async def test_the_oldest_of_a_tenant_go_beyond_what_is_kept_and_none_of_another(store: Store) -> None:
    await audit.append(store, [entry(at=float(n), tenant="quiet") for n in range(5)], keep=20)
    for first in range(5, 405, 10):
        await audit.append(store, [entry(at=float(n), tenant="busy") for n in range(first, first + 10)], keep=20)

    assert [each.at for each in await audit.tail(store, "quiet")] == [4.0, 3.0, 2.0, 1.0, 0.0]
    assert [each.at for each in await audit.tail(store, "busy", limit=100)] == [float(n) for n in range(404, 384, -1)]
    assert len(await audit.tail(store, limit=100)) == 25


async def test_entries_of_several_tenants_in_one_call_are_kept_apart(store: Store) -> None:
    mixed = [entry(at=float(n), tenant="ab"[n % 2]) for n in range(50)]

    await audit.append(store, mixed, keep=3)

    assert [each.at for each in await audit.tail(store, "a")] == [48.0, 46.0, 44.0]
    assert [each.at for each in await audit.tail(store, "b")] == [49.0, 47.0, 45.0]
    assert bare(await audit.tail(store, "a", "b")) == mixed[-1:-7:-1]
    assert bare(await audit.tail(store, "a", "b", limit=2)) == mixed[-1:-3:-1]


async def test_what_is_too_old_goes_whosever_it_is(store: Store) -> None:
    now = store.now()
    await audit.append(store, [entry(at=now - 1000, tenant="quiet"), entry(at=now - 10, tenant="quiet")], keep=PLENTY)
    await audit.append(store, [entry(at=now - 900, tenant="busy")], keep=PLENTY)

    await audit.append(store, [entry(at=now, tenant="busy")], keep=PLENTY, age=500.0)

    assert [each.at for each in await audit.tail(store)] == [now, now - 10]
    assert [each.at for each in await audit.tail(store, "quiet")] == [now - 10]
    assert [each.at for each in await audit.tail(store, "busy")] == [now]


async def test_a_clock_that_is_wrong_for_once_drops_few(store: Store) -> None:
    await audit.append(store, [entry(at=float(n), tenant="a") for n in range(400)], keep=PLENTY)

    await audit.append(store, [entry(at=1e12, tenant="a")], keep=PLENTY, age=1.0)

    assert len(await audit.tail(store, limit=PLENTY)) >= 290


async def test_numbers_go_on_where_everything_was_dropped(store: Store, other: Store) -> None:
    await audit.append(store, [entry()], keep=PLENTY)
    [first] = await audit.tail(store)
    await audit.append(store, [entry()], keep=0)
    assert await audit.tail(store) == []

    await audit.append(other, [entry()], keep=PLENTY)

    [found] = await audit.tail(store)
    assert found.n > first.n + 1


async def test_nothing_is_lost_when_many_write_at_once(store: Store, other: Store) -> None:
    await asyncio.gather(
        *(audit.append((store, other)[n % 2], [entry(at=float(n))] * 2, keep=PLENTY) for n in range(50))
    )

    found = await audit.tail(store, limit=PLENTY)

    assert sorted(each.at for each in found) == sorted(float(n) for n in range(50) for _ in range(2))
    assert len({each.n for each in found}) == 100
