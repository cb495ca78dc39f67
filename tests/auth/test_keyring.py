"""Keys remembered for a moment, and their end noticed."""

from __future__ import annotations

import asyncio
from pathlib import Path

import apsw
import pytest

from packhorse.auth import keys
from packhorse.auth.keys import Keyring
from packhorse.core.records import Record
from packhorse.store.base import Store
from packhorse.store.collections.keys import Key


@pytest.fixture
async def key(store: Store) -> Key:
    key, _ = await keys.create(store, "acme", ["read"], by="cli")
    return key


async def test_a_key_is_found(store: Store, key: Key) -> None:
    assert await Keyring(store).get(key.id) == key


async def test_one_that_is_not_there_is_none_until_it_is(store: Store, key: Key) -> None:
    ring = Keyring(store)

    assert await ring.get("0" * 20) is None
    assert await ring.get(key.id) == key


async def test_many_requests_at_once_read_the_store_once(
    store: Store, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring, reads, read = Keyring(store), 0, store.fetch

    async def count_reads(kind: str, ids: list[str]) -> list[Record | None]:
        nonlocal reads
        reads += 1
        return await read(kind, ids)

    monkeypatch.setattr(store, "fetch", count_reads)
    await asyncio.gather(*(ring.get(key.id) for _ in range(50)))
    await ring.get(key.id)

    assert reads == 1


async def test_an_end_elsewhere_is_seen_when_the_moment_is_over(
    store: Store, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    ring = Keyring(store)
    await ring.get(key.id)
    await keys.revoke(store, key.id, by="cli")

    monkeypatch.setattr(keys, "FRESH", 0.0)
    found = await ring.get(key.id)

    assert found is not None
    assert not ring.is_live(found)


async def test_who_streams_is_told_of_the_end(store: Store, key: Key, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "FRESH", 0.01)
    ring = Keyring(store)
    ended, other = ring.end_of(key.id), ring.end_of((await keys.create(store, "acme", ["read"], by="cli"))[0].id)
    running = asyncio.create_task(ring.run())
    await keys.revoke(store, key.id, by="cli")

    await asyncio.wait_for(ended.wait(), 40)

    assert not other.is_set()
    running.cancel()


async def test_a_key_that_cannot_be_read_has_ended_and_no_other(
    store: Store, key: Key, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "FRESH", 0.01)
    other, _ = await keys.create(store, "acme", ["read"], by="cli")
    third, _ = await keys.create(store, "acme", ["read"], by="cli")
    ring = Keyring(store)
    damaged, revoked, kept = (ring.end_of(each.id) for each in (key, other, third))
    apsw.Connection(str(tmp_path / "packhorse.db")).execute("UPDATE records SET body = '{}' WHERE id = ?", (key.id,))
    running = asyncio.create_task(ring.run())
    await keys.revoke(store, other.id, by="cli")

    await asyncio.wait_for(asyncio.gather(damaged.wait(), revoked.wait()), 40)

    assert not kept.is_set()
    running.cancel()


async def test_an_end_that_nobody_waits_for_is_not_looked_after(store: Store, key: Key) -> None:
    ring = Keyring(store)
    ring.end_of(key.id)

    assert not ring._ends


async def test_no_more_keys_are_remembered_than_there_is_room(
    store: Store, key: Key, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keys, "MOST", 2)
    ring = Keyring(store)

    for each in [key, *[(await keys.create(store, "acme", ["read"], by="cli"))[0] for _ in range(3)]]:
        await ring.get(each.id)

    assert len(ring._known) == 2
