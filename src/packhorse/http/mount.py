"""The HTTP API mounted in another ASGI application (FastAPI, Starlette, Litestar), under any path.

Parents differ in what they tell a mounted application. Few run its lifespan, so it opens with the first request of each
event loop and closes with that loop. Some leave the whole path in the scope and some only what is below the mount.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncGenerator, Callable
from typing import Any
from urllib.parse import unquote

from litestar import Litestar

from packhorse.errors import PackhorseError
from packhorse.http import problems
from packhorse.http.app import close_services, open_services
from packhorse.settings import Settings

OURS = frozenset(
    {"type", "asgi", "http_version", "method", "scheme", "query_string", "raw_path", "headers", "client", "server"}
)
"""Keys of a scope that we read. The parent's others, such as its route, would be mistaken for ours."""


class Mounted:
    """An ASGI application. Its store and objects are opened once per event loop."""

    def __init__(self, settings: Settings, build: Callable[[Settings], Litestar]) -> None:
        self._settings = settings
        self._build = build
        self._lock = threading.Lock()
        self._opening: dict[asyncio.AbstractEventLoop, asyncio.Lock] = {}
        self._apps: dict[asyncio.AbstractEventLoop, Litestar] = {}
        self._keeping: dict[asyncio.AbstractEventLoop, AsyncGenerator[None, None]] = {}

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await self._live(receive, send)
            return
        try:
            app = await self._here()
        except PackhorseError as error:  # the next request opens it again
            await problems.refusal(error)(scope, receive, send)
            return
        await app(mounted_scope(scope), receive, send)

    async def _live(self, receive: Any, send: Any) -> None:
        await receive()
        try:
            await self._here()
        except PackhorseError as error:
            await send({"type": "lifespan.startup.failed", "message": error.message})
            return
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await self._keeping[asyncio.get_running_loop()].aclose()
        await send({"type": "lifespan.shutdown.complete"})

    async def _here(self) -> Litestar:
        loop = asyncio.get_running_loop()
        if loop not in self._apps:
            with self._lock:
                opening = self._opening.setdefault(loop, asyncio.Lock())
            async with opening:
                if loop not in self._apps:
                    keeping = self._keep_open(loop)
                    await anext(keeping)
                    self._keeping[loop] = keeping
        return self._apps[loop]

    async def _keep_open(self, loop: asyncio.AbstractEventLoop) -> AsyncGenerator[None, None]:
        """Open until it is closed. `asyncio.run` closes every such generator before it ends its loop.

        All of them at once: so no other generator, such as a context manager's, may be part of this one.
        """
        app = self._build(self._settings)
        await open_services(app)
        self._apps[loop] = app
        try:
            yield
        finally:
            for registered in (self._apps, self._keeping, self._opening):
                registered.pop(loop, None)
            await close_services(app)


def mounted_scope(scope: Any) -> Any:
    """The scope with the mount in ``root_path``, and in ``path`` the mount and what is below it."""
    path, root = scope["path"], scope.get("root_path", "").rstrip("/")
    if not (root and f"{path}/".startswith(f"{root}/")):
        root, path = _whole(scope, path, root)
    ours = {name: value for name, value in scope.items() if name in OURS}
    return ours | {"root_path": root, "path": path, "state": {}}


def _whole(scope: Any, below: str, root: str) -> tuple[str, str]:
    """Where the path is only what is below the mount. A Litestar that mounts does not tell where, but it can be seen
    from the path of the request."""
    asked = unquote((scope.get("raw_path") or b"").partition(b"?")[0].decode("latin-1"))
    above = asked.rstrip("/").removesuffix(below.rstrip("/"))
    if f"{asked}/".startswith(f"{above}{below.rstrip('/')}/") and len(above) > len(root):
        return above, asked
    return root, root + below
