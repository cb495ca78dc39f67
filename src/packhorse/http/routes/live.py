"""``/live``: that something has changed among what the caller may see, for pages that then look again."""

from __future__ import annotations

from collections.abc import AsyncGenerator

from litestar import get
from litestar.di import NamedDependency
from litestar.types import ASGIApp

from packhorse.auth.caller import Caller
from packhorse.http.responses.stream import Streamed
from packhorse.http.routes.events import HEADERS
from packhorse.http.services import Tools

STEADY = 5.0
"""Seconds after which it is said all the same: workers, queues and schedules change without a job that does."""


@get("/live", scope="read", include_in_schema=False)
async def live(tools: NamedDependency[Tools], caller: NamedDependency[Caller]) -> ASGIApp:
    """Server-sent events of the type ``changed``, without end."""
    tools.streams.check(caller)
    hints = tools.streams.counted(caller, _hints(tools, caller))
    return Streamed(hints, HEADERS, ended=tools.ended(caller))


async def _hints(tools: Tools, caller: Caller) -> AsyncGenerator[bytes]:
    yield b"retry: 1000\n\n"
    with tools.feed.hints(caller.tenant, caller.user) as hints:
        while await hints.next(STEADY):
            yield b"event: changed\ndata: {}\n\n"
