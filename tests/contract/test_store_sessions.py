"""Who has logged in to the pages."""

from __future__ import annotations

from msgspec.structs import replace

from packhorse.store.base import Store
from packhorse.store.collections.keys import REMEMBERED, add_session, end_session, get_session
from tests.contract.keys import session
from tests.journey.site import until


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
