"""An empty Redis store for each test, behind a prefix of its own."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

import pytest
import redis

from packhorse.store.redis import RedisStore
from tests.contract.stores import Clock
from tests.servers import valkey
from tests.store.redis.inside import OpenRedis


@pytest.fixture
def prefix() -> str:
    return valkey.fresh_prefix()


@pytest.fixture
async def open_redis(prefix: str) -> AsyncIterator[OpenRedis]:
    """Handles on one empty Redis store, in the server that all tests share unless another is named."""
    opened: list[RedisStore] = []

    async def open(url: str | None = None, clock: Clock | None = None) -> RedisStore:
        opened.append(await RedisStore.open(url or valkey.shared().url(prefix), clock=clock))
        return opened[-1]

    yield open
    for each in opened:
        await each.close()


@pytest.fixture
async def redis_store(open_redis: OpenRedis) -> RedisStore:
    return await open_redis()


@pytest.fixture
async def timed_redis(open_redis: OpenRedis, clock: Clock) -> RedisStore:
    return await open_redis(clock=clock)


@pytest.fixture
def raw() -> Iterator[redis.Redis]:
    """Behind the back of the store, with answers as text."""
    with valkey.shared().client(decode_responses=True) as client:
        yield client


@pytest.fixture
def server() -> Iterator[valkey.Valkey]:
    """A server of the test's own, to be killed and started again."""
    found = valkey.Valkey().start()
    yield found
    found.remove()
