"""Who has logged in to the pages."""

from __future__ import annotations

from msgspec.structs import replace

from packhorse.store.base import Store
from packhorse.store.collections import sessions
from packhorse.store.collections.sessions import REMEMBERED
from tests.contract.keys import session
from tests.journey.site import until


async def test_a_session_is_read_back_whole_from_another_handle(store: Store, other: Store) -> None:
    whole = session(ends_at=store.now() + 600.25)

    await sessions.add(store, whole)

    assert await sessions.get(other, whole.id) == whole


async def test_there_is_none_that_was_not_begun(store: Store) -> None:
    assert await sessions.get(store, session().id) is None
    assert await sessions.get(store, "no\0body") is None


async def test_one_that_was_ended_has_ended_everywhere_and_no_other_has(store: Store, other: Store) -> None:
    left, ended = (session(n, ends_at=store.now() + 600) for n in (1, 2))
    for each in (left, ended):
        await sessions.add(store, each)

    before = other.now()
    await sessions.end(other, ended.id)
    after = other.now()
    await sessions.end(other, ended.id)

    found = await sessions.get(store, ended.id)
    assert found is not None, "whoever comes with it was let in once"
    assert before <= found.ends_at <= after
    assert found == replace(ended, ends_at=found.ends_at, is_ended=True)
    assert await sessions.get(store, left.id) == left


async def test_ending_what_has_ended_or_is_unknown_changes_nothing(store: Store, other: Store) -> None:
    ended = session(1, ends_at=store.now() - 5)
    await sessions.add(store, ended)

    for id in (ended.id, session(2).id, "no\0body"):
        await sessions.end(other, id)

    assert await sessions.get(store, ended.id) == ended
    assert await sessions.get(store, session(2).id) is None


async def test_one_that_has_just_ended_is_known_as_one_though_others_begin(store: Store, other: Store) -> None:
    ended = session(1, ends_at=store.now() - REMEMBERED + 600)
    await sessions.add(store, ended)

    await sessions.add(store, session(2, ends_at=store.now() + 600))

    assert await sessions.get(other, ended.id) == ended


async def test_what_has_long_ended_is_dropped_when_another_begins(store: Store) -> None:
    now = store.now()
    await sessions.add(store, session(1, ends_at=now - REMEMBERED - 5))
    lasting = session(2, ends_at=now + 600)

    await sessions.add(store, lasting)
    await sessions.add(store, replace(lasting, id=session(3).id))

    assert await sessions.get(store, lasting.id) == lasting

    async def is_dropped() -> bool:
        return await sessions.get(store, session(1).id) is None

    await until(is_dropped, 30, lambda: "it is still known")  # a server that drops by itself does so within a moment
