"""What was done: the audit."""

from __future__ import annotations

import asyncio

from msgspec.structs import replace

from packhorse.store.base import Entry, Store
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

    await store.audit([whole], keep=PLENTY)

    [found] = await other.audited()
    assert bare([found]) == [whole]
    assert found.n > 0


async def test_entries_come_newest_first_with_falling_numbers(store: Store) -> None:
    written = [entry(at=float(n)) for n in range(5)]
    await store.audit(written[:3], keep=PLENTY)
    await store.audit(written[3:], keep=PLENTY)

    found = await store.audited()

    assert bare(found) == written[::-1]
    assert [each.n for each in found] == sorted({each.n for each in found}, reverse=True)


async def test_an_empty_audit_has_nothing_and_nothing_is_added_to_it(store: Store) -> None:
    await store.audit([], keep=PLENTY)

    assert await store.audited() == await store.audited("acme") == []


async def test_a_tenant_sees_its_own_entries_only(store: Store) -> None:
    mine, foreign, nobodys = entry(tenant="a"), entry(tenant="a/b"), entry("key.refused")
    await store.audit([mine, foreign, nobodys], keep=PLENTY)

    assert bare(await store.audited("a")) == [mine]
    assert bare(await store.audited("a/b")) == [foreign]
    assert bare(await store.audited("")) == [nobodys]
    assert bare(await store.audited()) == [nobodys, foreign, mine]


async def test_reading_goes_on_behind_a_number(store: Store) -> None:
    written = [entry(at=float(n), tenant="ab"[n % 2]) for n in range(10)]
    await store.audit(written, keep=PLENTY)

    first = await store.audited(limit=4)
    second = await store.audited(before=first[-1].n, limit=4)
    of_tenant = await store.audited("a", before=first[-1].n, limit=2)

    assert bare(first + second) == written[:1:-1]
    assert bare(of_tenant) == [written[4], written[2]]


async def test_the_oldest_go_beyond_what_is_kept_of_whatever_tenant(store: Store) -> None:
    await store.audit([entry(at=float(n), tenant="quiet") for n in range(5)], keep=20)
    for first in range(5, 45, 10):
        await store.audit([entry(at=float(n), tenant="busy") for n in range(first, first + 10)], keep=20)

    found = await store.audited(limit=100)

    assert [each.at for each in found] == [float(n) for n in range(44, 24, -1)]
    assert await store.audited("quiet") == []
    assert len(await store.audited("busy", limit=100)) == 20


async def test_numbers_go_on_where_everything_was_dropped(store: Store, other: Store) -> None:
    await store.audit([entry()], keep=PLENTY)
    [first] = await store.audited()
    await store.audit([entry()], keep=0)
    assert await store.audited() == []

    await other.audit([entry()], keep=PLENTY)

    [found] = await store.audited()
    assert found.n > first.n + 1


async def test_nothing_is_lost_when_many_write_at_once(store: Store, other: Store) -> None:
    await asyncio.gather(*((store, other)[n % 2].audit([entry(at=float(n))] * 2, keep=PLENTY) for n in range(50)))

    found = await store.audited(limit=PLENTY)

    assert sorted(each.at for each in found) == sorted(float(n) for n in range(50) for _ in range(2))
    assert len({each.n for each in found}) == 100
