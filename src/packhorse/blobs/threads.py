"""Threads for blocking I/O, usable from any event loop."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import ParamSpec, TypeVar

from packhorse.blobs.base import CHUNK
from packhorse.blobs.local import tree

P = ParamSpec("P")
T = TypeVar("T")


class Threads:
    def __init__(self, count: int) -> None:
        self._pool = ThreadPoolExecutor(count, thread_name_prefix="packhorse-blob")

    def start(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        return self._pool.submit(work, *args, **kwargs)

    async def run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return await self.wait(self.start(work, *args, **kwargs))

    async def wait(self, started: Future[T]) -> T:
        """Wait for the thread, even when cancelled: it cannot be stopped, and still uses its arguments."""
        if started.done():
            return started.result()
        future = asyncio.wrap_future(started)
        cancelled = None
        while not future.done():
            try:
                await asyncio.wait([future])
            except asyncio.CancelledError as asked:
                cancelled = asked
        if cancelled:
            future.exception()  # looked at, or asyncio would report it as forgotten
            raise cancelled
        return future.result()

    async def pieces(self, path: Path) -> AsyncGenerator[bytes]:
        """The content of a local file. Raises OSError if it cannot be read."""
        with ExitStack() as opened:
            fd = await self.run(tree.open_file, path, opened)
            while piece := await self.run(os.read, fd, CHUNK):
                yield piece

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)
