"""Waiting for what others commit, with the feed, without it, and after its connection was cut."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from packhorse.errors import StoreUnavailable
from packhorse.store.redis import RedisStore, watch
from packhorse.store.redis.watch import WatchStore
from tests.contract.builders import submit
from tests.servers import valkey
from tests.store.blocked import LIMIT, until
from tests.store.redis.inside import OpenRedis

LONG = 2 * LIMIT


async def waiting(store: RedisStore, server: valkey.Valkey) -> tuple[int, asyncio.Task[int]]:
    """Somebody who waits, once the server knows of it."""
    mark = await store.wait_for_change(None, 0)
    task = asyncio.create_task(store.wait_for_change(mark, LONG))
    await until(lambda: len(readers(server)) == 1)
    return mark, task


def readers(server: valkey.Valkey) -> list[str]:
    with server.client() as client:
        clients: list[dict[str, str]] = client.client_list()
        return [each["id"] for each in clients if each["cmd"] == "xread"]


async def test_who_waits_is_woken_by_the_feed_and_not_only_by_looking(
    server: valkey.Valkey, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK", LONG)
    store, other = await open_redis(server.url("p:")), await open_redis(server.url("p:"))
    mark, woken = await waiting(store, server)

    await submit(other)

    assert await asyncio.wait_for(woken, LIMIT) != mark


async def test_who_waits_is_woken_by_looking_when_the_feed_says_nothing(
    open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def deaf(_self: WatchStore, _since: int) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(WatchStore, "_read", deaf)
    monkeypatch.setattr(watch, "LOOK", 0.05)
    store, other = await open_redis(), await open_redis()
    mark = await store.wait_for_change(None, 0)
    woken = asyncio.create_task(store.wait_for_change(mark, LONG))
    await asyncio.sleep(0)

    await submit(other)

    assert await asyncio.wait_for(woken, LIMIT) != mark


async def test_a_cut_feed_is_listened_to_again(
    server: valkey.Valkey, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK", LONG)
    store, other = await open_redis(server.url("p:")), await open_redis(server.url("p:"))
    mark, woken = await waiting(store, server)
    [reader] = readers(server)
    with server.client() as client:
        client.client_kill_filter(_id=reader)
    await until(lambda: readers(server) not in ([], [reader]))

    await submit(other)

    assert await asyncio.wait_for(woken, LIMIT) != mark


async def test_what_was_committed_while_the_feed_was_cut_is_not_missed(
    server: valkey.Valkey, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK", LONG)
    store, other = await open_redis(server.url("p:")), await open_redis(server.url("p:"))
    mark, woken = await waiting(store, server)
    with server.client() as client:
        client.client_kill_filter(_id=readers(server)[0])

    await submit(other)

    assert await asyncio.wait_for(woken, LIMIT) != mark


async def test_who_waits_through_a_restart_is_woken_after_it(
    server: valkey.Valkey, open_redis: OpenRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch, "LOOK", LONG)
    store, other = await open_redis(server.url("p:")), await open_redis(server.url("p:"))
    mark, woken = await waiting(store, server)
    server.kill()
    server.start()
    await until(lambda: len(readers(server)) == 1)

    await submit(other)

    assert await asyncio.wait_for(woken, LIMIT) != mark


async def test_a_mark_from_before_a_loss_of_data_is_another_one(server: valkey.Valkey, open_redis: OpenRedis) -> None:
    """A failover may lose what was not replicated: who holds a higher mark than there is must not wait for it."""
    store = await open_redis(server.url("p:"))
    for _ in range(3):
        await submit(store)
    mark = await store.wait_for_change(None, 0)
    with server.client() as client:
        client.flushall()

    found = await asyncio.wait_for(store.wait_for_change(mark, LONG), LIMIT)

    assert found != mark


async def test_closing_lets_who_waits_go(open_redis: OpenRedis) -> None:
    store = await open_redis()
    woken: asyncio.Task[Any] = asyncio.create_task(store.wait_for_change(await store.wait_for_change(None, 0), LONG))
    await asyncio.sleep(0.05)

    await store.close()

    [outcome] = await asyncio.wait_for(asyncio.gather(woken, return_exceptions=True), LIMIT)
    assert isinstance(outcome, StoreUnavailable)
