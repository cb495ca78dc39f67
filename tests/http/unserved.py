"""The application without sockets, asked in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from typing import Any

from litestar import Litestar
from litestar.testing import AsyncTestClient

from packhorse.http.app import prepare
from packhorse.settings import Settings
from packhorse.web.app import build

Http = AsyncTestClient[Any]

_idle: list[Litestar] = []
"""Put together by an earlier test: that takes longer than most of what is asked afterwards."""


@cache
def blueprint() -> Litestar:
    """The application, to be looked at: which routes it has, and what its OpenAPI file says."""
    return build(Settings())


@asynccontextmanager
async def unserved(settings: Settings, base: str = "http://127.0.0.1/api/v1/") -> AsyncIterator[Http]:
    app = _idle.pop() if _idle else build(settings)
    prepare(app, settings)
    async with AsyncTestClient(app, base_url=base) as http:
        yield http
    _idle.append(app)
