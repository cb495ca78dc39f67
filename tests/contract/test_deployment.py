"""One id in store and object store: only the store that the files belong to may delete them. On every store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest

from packhorse.background.janitor import Janitor
from packhorse.blobs.base import Blobs
from packhorse.core import json
from packhorse.core.records import Drop, Put
from packhorse.errors import BlobUnavailable, WrongDeployment
from packhorse.jobs.deployment import ID, KIND, MARK, adopt, check, claim, get_id, read_mark
from packhorse.jobs.transact import Transactor
from packhorse.store.base import Store
from packhorse.store.sqlite import SqliteStore
from tests.contract import blob_fixtures
from tests.contract.blob_fixtures import stream
from tests.contract.stores import OpenStore
from tests.worker.builders import id_at
from tests.worker.faulty import Faults, wrapped

url, another, blobs = blob_fixtures.url, blob_fixtures.another, blob_fixtures.blobs

OLD = f"jobs/{id_at(1_000_000_000.0)}/input/text.0"
"""A file so old that a sweep deletes it unless its job is known."""


@pytest.fixture
async def owner(folder: Path) -> AsyncIterator[Store]:
    """The store of another deployment."""
    store = await SqliteStore.open(folder / "owner.db")
    yield store
    await store.close()


def janitor(store: Store, blobs: Blobs) -> Janitor:
    return Janitor(store, blobs, Transactor(store), orphan_after=600.0, period=5.0)


async def test_the_first_start_marks_both_and_later_ones_agree(store: Store, other: Store, blobs: Blobs) -> None:
    await claim(store, blobs, "here")
    await claim(other, blobs, "there")

    mark = await read_mark(blobs)
    assert mark is not None
    assert (mark.id, mark.store) == (await get_id(other), "here")
    await check(other, blobs)


async def test_an_empty_store_does_not_start_beside_files_of_another_and_deletes_none(
    store: Store, owner: Store, blobs: Blobs
) -> None:
    await claim(owner, blobs, "sqlite:///owner.db")
    await blobs.put(OLD, stream(b"theirs"))

    with pytest.raises(WrongDeployment, match=r"sqlite:///owner.db.* deployment new") as refused:
        await claim(store, blobs, "")
    with pytest.raises(WrongDeployment):
        await janitor(store, blobs).tick()

    assert "packhorse adopt" in refused.value.hint
    assert await get_id(store) is None
    assert await blobs.size(OLD) == 6


async def test_two_deployments_with_one_object_store_delete_nothing_of_each_other(
    store: Store, owner: Store, blobs: Blobs
) -> None:
    await claim(owner, blobs, "")
    await blobs.put(OLD, stream(b"theirs"))
    await store.put([Put(KIND, ID, json.encode("staging"))])

    with pytest.raises(WrongDeployment):
        await claim(store, blobs, "")
    with pytest.raises(WrongDeployment):
        await janitor(store, blobs).tick()

    assert await blobs.size(OLD) == 6


async def test_of_two_deployments_that_start_at_once_one_gets_the_object_store(
    store: Store, owner: Store, blobs: Blobs
) -> None:
    ended = await asyncio.gather(*(claim(each, blobs, "") for each in (store, owner)), return_exceptions=True)

    [refused] = [each for each in ended if each is not None]
    assert isinstance(refused, WrongDeployment)
    mark = await read_mark(blobs)
    assert mark is not None
    assert mark.id == await get_id(owner if ended[0] else store)


async def test_all_processes_of_a_deployment_may_start_at_once(open_store: OpenStore, blobs: Blobs) -> None:
    stores = [await open_store() for _ in range(4)]

    await asyncio.gather(*(claim(each, blobs, "") for each in stores))

    assert len({await get_id(each) for each in stores}) == 1


async def test_a_sweep_deletes_what_only_its_own_store_does_not_know(store: Store, blobs: Blobs) -> None:
    await claim(store, blobs, "")
    await blobs.put(OLD, stream(b"ours"))

    await janitor(store, blobs).tick()

    assert await blobs.size(OLD) is None


async def test_a_store_that_is_emptied_in_the_middle_of_a_sweep_deletes_nothing(store: Store, blobs: Blobs) -> None:
    await claim(store, blobs, "")
    await blobs.put(OLD, stream(b"ours"))
    faults = Faults()
    faults.after("existing_ids", lambda: store.put([Drop(KIND, ID)]))

    with pytest.raises(WrongDeployment):
        await janitor(wrapped(store, faults), blobs).tick()

    assert await blobs.size(OLD) == 4


async def test_a_new_store_does_not_take_files_that_nobody_has_marked(store: Store, blobs: Blobs) -> None:
    await blobs.put(OLD, stream(b"whose"))

    with pytest.raises(WrongDeployment, match="no mark"):
        await claim(store, blobs, "")

    assert (await get_id(store), await blobs.size(MARK)) == (None, None)


async def test_files_without_a_mark_may_be_anothers_and_are_kept_until_somebody_adopts_them(
    store: Store, blobs: Blobs
) -> None:
    await claim(store, blobs, "")
    await blobs.put(OLD, stream(b"whose"))
    await blobs.delete([MARK])

    await claim(store, blobs, "")  # the deployment goes on
    with pytest.raises(WrongDeployment, match="no mark"):
        await janitor(store, blobs).tick()
    assert (await blobs.size(OLD), await blobs.size(MARK)) == (5, None)

    await adopt(store, blobs, "")
    await janitor(store, blobs).tick()
    assert await blobs.size(OLD) is None


async def test_an_empty_object_store_is_marked_at_the_next_start(store: Store, blobs: Blobs) -> None:
    await claim(store, blobs, "")
    await blobs.delete([MARK])

    await claim(store, blobs, "")

    await check(store, blobs)


async def test_who_adopts_while_the_owner_starts_gets_an_id_of_its_own(
    store: Store, owner: Store, blobs: Blobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    await claim(owner, blobs, "")
    theirs = await get_id(owner)
    delete, deletes = blobs.delete, 0

    async def delete_and_start(keys: Sequence[str]) -> None:
        nonlocal deletes
        deletes += 1
        await delete(keys)
        if deletes == 1:
            await claim(owner, blobs, "")

    monkeypatch.setattr(blobs, "delete", delete_and_start)

    ours = await adopt(store, blobs, "")

    assert (ours, await get_id(owner)) == (await get_id(store), theirs)
    assert ours != theirs
    await check(store, blobs)
    with pytest.raises(WrongDeployment):
        await check(owner, blobs)


async def test_an_unreadable_mark_is_nobodys_to_replace(store: Store, blobs: Blobs) -> None:
    await blobs.put(MARK, stream(b"{"))

    with pytest.raises(WrongDeployment, match="unreadable"):
        await claim(store, blobs, "")


async def test_who_adopts_sweeps_and_the_owner_before_deletes_nothing_more(
    store: Store, owner: Store, blobs: Blobs
) -> None:
    await claim(owner, blobs, "")
    before = await get_id(owner)

    new = await adopt(store, blobs, "restored")
    await blobs.put(OLD, stream(b"theirs"))
    with pytest.raises(WrongDeployment, match="restored"):
        await janitor(owner, blobs).tick()
    kept = await blobs.size(OLD)
    await claim(store, blobs, "")
    await janitor(store, blobs).tick()

    assert new not in (before, None)
    assert kept == 6
    assert await blobs.size(OLD) is None


async def test_an_object_store_that_is_away_stops_only_the_first_start(store: Store, blobs: Blobs) -> None:
    away = Faults()

    away.refuse("put", lambda: BlobUnavailable(reason="away"))
    with pytest.raises(BlobUnavailable):
        await claim(store, wrapped(blobs, away), "")
    await claim(store, blobs, "")
    away.refuse("size", lambda: BlobUnavailable(reason="away"))
    await claim(store, wrapped(blobs, away), "")

    assert [call.name for call in away.calls].count("size") == 1
