"""Who has logged in to the pages."""

from __future__ import annotations

from typing import Any

from msgspec.structs import replace

from packhorse.core.records import IndexEntry, Put
from packhorse.store.base import Store
from packhorse.store.collections.keys import (
    REMEMBERED,
    Session,
    add_session,
    end_session,
    get_sessions,
    list_sessions,
    touch_session,
)
from tests.contract.keys import session
from tests.journey.site import until


async def get_session(store: Store, session_id: str) -> Session | None:
    [found] = await get_sessions(store, [session_id])
    return found


async def test_a_session_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    whole = session(ends_at=store.now() + 600.25)

    await add_session(store, whole)

    assert await get_session(other, whole.id) == whole


async def test_there_is_none_that_was_not_begun(store: Store) -> None:
    assert await get_session(store, session().id) is None
    assert await get_session(store, "no\0body") is None


async def test_one_that_was_ended_has_ended_everywhere_and_no_other_has(store: Store, other: Store) -> None:
    left, ended = (session(n, ends_at=store.now() + 600) for n in (1, 2))
    for each in (left, ended):
        await add_session(store, each)

    before = other.now()
    await end_session(other, ended.id)
    after = other.now()
    await end_session(other, ended.id)

    found = await get_session(store, ended.id)
    assert found is not None, "whoever comes with it was let in once"
    assert before <= found.ends_at <= after
    assert found == replace(ended, ends_at=found.ends_at, is_ended=True)
    assert await get_session(store, left.id) == left


async def test_ending_what_has_ended_or_is_unknown_changes_nothing(store: Store, other: Store) -> None:
    ended = session(1, ends_at=store.now() - 5)
    await add_session(store, ended)

    for id in (ended.id, session(2).id, "no\0body"):
        await end_session(other, id)

    assert await get_session(store, ended.id) == ended
    assert await get_session(store, session(2).id) is None


async def test_one_that_has_just_ended_is_known_as_one_though_others_begin(store: Store, other: Store) -> None:
    ended = session(1, ends_at=store.now() - REMEMBERED + 600)
    await add_session(store, ended)

    await add_session(store, session(2, ends_at=store.now() + 600))

    assert await get_session(other, ended.id) == ended


async def test_what_has_long_ended_is_dropped_when_another_begins(store: Store) -> None:
    now = store.now()
    await add_session(store, session(1, ends_at=now - REMEMBERED - 5))
    lasting = session(2, ends_at=now + 600)

    await add_session(store, lasting)
    await add_session(store, replace(lasting, id=session(3).id))

    assert await get_session(store, lasting.id) == lasting

    async def is_dropped() -> bool:
        return await get_session(store, session(1).id) is None

    await until(is_dropped, 30, lambda: "it is still known")  # a server that drops by itself does so within a moment


async def test_a_key_has_so_many_sessions_and_the_oldest_go_first(store: Store, other: Store) -> None:
    now = store.now()
    foreign = replace(session(99, ends_at=now + 600), key_id="another")
    await add_session(store, foreign, most=3)
    for n in range(1, 8):
        await add_session(store, session(n, ends_at=now + 600), most=3)

    found = await get_sessions(other, [session(n).id for n in range(1, 8)])

    assert [each is not None for each in found] == [False] * 4 + [True] * 3
    assert await get_session(other, foreign.id) == foreign


async def test_an_ended_session_makes_room_before_one_that_is_used(store: Store) -> None:
    now = store.now()
    for n in range(1, 4):
        await add_session(store, session(n, ends_at=now + 600), most=3)
    await end_session(store, session(2).id)

    await add_session(store, session(4, ends_at=now + 600), most=3)

    found = await get_sessions(store, [session(n).id for n in range(1, 5)])
    assert [each is not None for each in found] == [True, False, True, True]


async def test_one_that_cannot_be_read_keeps_nobody_from_logging_in_and_goes(store: Store) -> None:
    broken, new = session(1, ends_at=store.now() + 600), session(2, ends_at=store.now() + 600)
    index = (IndexEntry(f"key/{broken.key_id}", broken.id),)
    await store.put([Put("session", broken.id, b"{", index=index)])

    await add_session(store, new, most=3)

    assert await get_session(store, new.id) == new
    assert await store.fetch("session", [broken.id]) == [None]


async def test_sessions_are_listed_by_key_and_by_tenant_newest_first(store: Store) -> None:
    facts = [("acme", "k1"), ("acme", "k2"), ("beta", "k3"), ("acme", "k1")]
    for n, (tenant, key_id) in enumerate(facts, 1):
        await add_session(store, replace(session(n, ends_at=store.now() + 600), tenant=tenant, key_id=key_id))

    async def listed(**which: Any) -> list[int]:
        return [int(each.id, 16) for each in await list_sessions(store, **which)]

    assert await listed(tenant="acme") == [4, 2, 1]
    assert await listed(tenant="acme", key_id="k1") == [4, 1]
    assert await listed(tenant="beta", key_id="k1") == []
    assert await listed(tenant="acme", before=session(4).id) == [2, 1]
    assert await listed(tenant="nobody") == []


async def test_using_a_session_is_noted_and_wakes_none_that_has_ended(store: Store, other: Store) -> None:
    now = store.now()
    used, ended = session(1, ends_at=now + 600), session(2, ends_at=now + 600)
    for each in (used, ended):
        await add_session(store, each)
    await end_session(store, ended.id)

    for id in (used.id, ended.id, session(3).id):
        await touch_session(other, id)

    found, left, none = await get_sessions(store, [used.id, ended.id, session(3).id])
    assert found is not None
    assert found.seen_at >= now
    assert left is not None
    assert left.is_ended
    assert none is None
    assert not found.is_over(now + 10, 0.0)
    assert not found.is_over(now + 10, 60.0)
    assert found.is_over(found.seen_at + 60, 60.0)
