"""How Redis stores are opened by their own tests."""

from __future__ import annotations

from typing import Protocol

from packhorse.store.redis import RedisStore
from tests.contract.stores import Clock


class OpenRedis(Protocol):
    async def __call__(self, url: str | None = None, clock: Clock | None = None) -> RedisStore: ...
