"""Objects as files in a local folder: written to a temporary file, synced, and then named in one step.

Folders are entered by descriptor, one part at a time and never through a symbolic link, so nothing inside the root can
lead a read or a write outside. Deleting is not synced: the sweep finds what a power cut brings back.
"""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, aclosing, contextmanager
from pathlib import Path
from typing import ParamSpec, TypeVar

from packhorse import crashpoints
from packhorse.blobs.base import CHUNK, MAX_PIECE, Sum, Threads, check_key
from packhorse.blobs.local import tree
from packhorse.blobs.local.put import FLUSH, Put, link_object
from packhorse.errors import BlobUnavailable

THREADS = 8  # enough to let syncs overlap, few enough that a stuck disk does not block the process
FLUSHES = 2  # threads that only flush, so that nothing else waits behind them

BURST = 12
"""Pieces in a row that a reader may take without waiting, before others have their turn. A server whose client has
vanished never waits: it takes everything, and reports the disconnect a moment later."""
BREATH, PAUSE = 0.0002, 0.003
"""Seconds after the first burst, and after each that follows: a quick client must not be held up, while for one that
has vanished every read is wasted."""
SOON = 0.01  # a reader that takes a piece within so many seconds gets larger ones

P = ParamSpec("P")
T = TypeVar("T")


class Folder:
    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._made = False
        self._threads = Threads(THREADS)
        self._flushes = Threads(FLUSHES)
        self._folders = tree.Folders()

    async def put(self, key: str, chunks: AsyncIterator[bytes], *, limit: int | None = None) -> Sum:
        put = Put(self._root, check_key(key), limit)
        writing, flushing, flushed = _finished_future(), _finished_future(), 0
        crashpoints.reach("blob.put.before")
        try:
            await self._run(put.open)
            async for chunk in chunks:
                if put.take(chunk):
                    await self._wait(writing)
                    writing = self._threads.start(put.write, put.pending())
                    if put.size - flushed >= FLUSH and flushing.done():
                        await self._wait(flushing)
                        flushed = put.size
                        flushing = self._flushes.start(put.flush)
            await self._wait(writing)
            if not flushing.cancel():  # one that has not begun is of no use any more
                await self._wait(flushing)
            await self._run(put.publish, put.pending())
        except BaseException:  # cancellation too: whatever ended it, nothing is left behind
            await self._threads.run(put.discard, [writing, flushing])
            raise
        crashpoints.reach("blob.put.after")
        return put.sum()

    async def _wait(self, work: Future[None]) -> None:
        with _translate_errors():
            await self._threads.wait(work)

    async def put_file(self, key: str, path: Path) -> Sum:
        async with aclosing(self._threads.pieces(path)) as pieces:
            return await self.put(key, pieces)

    async def copy(self, source: str, key: str) -> None:
        check_key(source)
        crashpoints.reach("blob.put.before")
        if not await self._run(link_object, self._root, source, check_key(key)):
            async with aclosing(self.read(source)) as pieces:
                await self.put(key, pieces)
        crashpoints.reach("blob.put.after")

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        end = sys.maxsize if length is None else min(start + length, sys.maxsize)
        loop, unwaited, size = asyncio.get_running_loop(), 0, CHUNK
        with ExitStack() as opened:
            fd = await self._run(tree.open_object, self._root, check_key(key), opened)
            while start < end and (piece := await self._piece(fd, min(size, end - start), start)):
                start += len(piece)
                turn = loop.create_future()
                loop.call_soon(turn.set_result, None)
                given = time.monotonic()
                yield piece
                unwaited = 0 if turn.done() else unwaited + 1
                size = MAX_PIECE if unwaited < BURST and time.monotonic() - given < SOON else CHUNK
                if unwaited % BURST:
                    await asyncio.sleep(0)
                elif unwaited == BURST:
                    await asyncio.to_thread(time.sleep, BREATH)  # shorter than what the loop can tell
                elif unwaited:
                    await asyncio.sleep(PAUSE)

    async def _piece(self, fd: int, size: int, start: int) -> bytes:
        piece = tree.read_cached(fd, size, start)
        return await self._run(os.pread, fd, size, start) if piece is None else piece

    async def size(self, key: str) -> int | None:
        return await self._run(tree.size, self._root, check_key(key))

    async def fetch(self, key: str, to: Path) -> None:
        await self._run(tree.fetch, self._root, check_key(key), to)

    async def keys(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return await self._run(tree.keys, self._root, check_key(prefix), after or "", limit)

    async def folders(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return await self._run(self._folders.page, self._root, check_key(prefix), after or "", limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run(tree.delete, self._root, [check_key(key) for key in keys])

    async def delete_all(self, prefix: str) -> None:
        await self._run(tree.delete_all, self._root, check_key(prefix))

    async def abandon(self, older_than: float, *, everywhere: bool = False) -> int:  # noqa: ARG002 (they have a folder)
        return await self._run(tree.abandon, self._root, time.time() - older_than)

    async def presign(self, key: str, *, seconds: int, filename: str, content_type: str) -> str | None:  # noqa: ARG002
        check_key(key)
        return None

    async def close(self) -> None:
        await self._threads.close()
        await self._flushes.close()

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        with _translate_errors():
            if not self._made:
                await self._threads.run(tree.make_root, self._root)
                self._made = True
            return await self._threads.run(work, *args, **kwargs)


def _finished_future() -> Future[None]:
    done: Future[None] = Future()
    done.set_result(None)
    return done


@contextmanager
def _translate_errors() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise BlobUnavailable(reason=error.strerror or str(error)) from error
