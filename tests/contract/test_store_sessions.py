"""Who has logged in to the pages."""

from __future__ import annotations

from msgspec.structs import replace

from packhorse.store.base import Store
from packhorse.store.granting import REMEMBERED
from tests.contract.governing import session
from tests.journey.site import until


async def test_a_session_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    whole = session(ends_at=store.now() + 600.25)

    await store.add_session(whole)

    assert await other.session(whole.id) == whole


async def test_there_is_none_that_was_not_begun(store: Store) -> None:
    assert await store.session(session().id) is None
    assert await store.session("no\0body") is None


async def test_one_that_was_ended_is_gone_everywhere_and_no_other_is(store: Store, other: Store) -> None:
    left = session(1, ends_at=store.now() + 600)
    await store.add_session(left)
    await store.add_session(session(2, ends_at=store.now() + 600))

    await other.end_session(session(2).id)
    await other.end_session(session(2).id)

    assert await store.session(session(2).id) is None
    assert await store.session(left.id) == left


async def test_one_that_has_just_ended_is_known_as_one_though_others_begin(store: Store, other: Store) -> None:
    ended = session(1, ends_at=store.now() - REMEMBERED + 600)
    await store.add_session(ended)

    await store.add_session(session(2, ends_at=store.now() + 600))

    assert await other.session(ended.id) == ended


async def test_what_has_long_ended_is_dropped_when_another_begins(store: Store) -> None:
    now = store.now()
    await store.add_session(session(1, ends_at=now - REMEMBERED - 5))
    lasting = session(2, ends_at=now + 600)

    await store.add_session(lasting)
    await store.add_session(replace(lasting, id=session(3).id))

    assert await store.session(lasting.id) == lasting

    async def is_dropped() -> bool:
        return await store.session(session(1).id) is None

    await until(is_dropped, 30, lambda: "it is still known")  # a server that drops by itself does so within a moment
