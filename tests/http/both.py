"""The asynchronous client as a plain one: what holds for one is asked of both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any, cast

from packhorse import AsyncClient, Client


class Blocking:
    """Each call runs in an event loop of its own thread, and is waited for."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever)
        self._thread.start()
        self._client: AsyncClient = self._run(self._made(*args, **kwargs))

    async def _made(self, *args: Any, **kwargs: Any) -> AsyncClient:
        return AsyncClient(*args, **kwargs)

    @property
    def url(self) -> str:
        return self._client.url

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            found = getattr(self._client, name)(*args, **kwargs)
            return self._run(found) if asyncio.iscoroutine(found) else self._each(found)

        return call

    def close(self) -> None:
        self._run(self._client.close())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def _each(self, found: AsyncIterator[Any]) -> Iterator[Any]:
        while (item := self._run(_next(found))) is not None:
            yield item


async def _next(found: AsyncIterator[Any]) -> Any:
    return await anext(found, None)


@contextmanager
def opened(kind: str, *args: Any, **kwargs: Any) -> Iterator[Client]:
    client = Client(*args, **kwargs) if kind == "plain" else cast(Client, Blocking(*args, **kwargs))
    try:
        yield client
    finally:
        client.close()


KINDS = ["plain", "async"]
