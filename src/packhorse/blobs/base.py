"""The contract of an object store: create-only objects under slash-separated keys. Also what both stores share.

packhorse makes the keys, never a user: `jobs/{job}/input/...` and `jobs/{job}/output/{stage}/{token}/...`.
Every method may raise `BlobUnavailable`, and raises `PathRefused`, before it touches anything, for a key that is not a
plain relative path. A prefix names a folder, without a slash at its end, and obeys the same rules. No key may be a
folder of another: `a` and `a/b` cannot both exist.

Keys are ordered as strings, which is also the order of their UTF-8 bytes. Only where one name is the beginning of a
sibling, as in `a/x` and `a-b`, the order depends on the store (whole keys, or folder by folder). It never changes, so
pages that continue after the last key of the page before contain every key once.
"""

from __future__ import annotations

import asyncio
import errno
import os
import re
import stat
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from hashlib import sha256
from pathlib import Path
from typing import ParamSpec, Protocol, TypeVar
from unicodedata import is_normalized

from msgspec import Struct

from packhorse.errors import PathRefused, TooLarge

P = ParamSpec("P")
T = TypeVar("T")

CHUNK = 256 * 1024
"""Bytes read and written at a time: enough to keep a disk busy, and two thousand of them fit into memory."""
MAX_PIECE = 2 * CHUNK  # bytes read at a time for fast readers, to halve the cost per piece

FOLDERS = frozenset({"jobs", "published", "publishing"})
"""Where jobs have their files. Others may use the rest of a bucket or folder."""

MAX_KEY = 896  # Bytes of UTF-8. S3 takes 1024, of which up to 128 are the prefix of a deployment.

MAX_PART = 255  # bytes of UTF-8, the limit of nearly every file system

MAX_PARTS = 32
"""A folder store needs a file descriptor per part. Our own keys have six, plus the slashes in an artifact's name."""


class Sum(Struct, frozen=True):
    """Size and checksum of a written object."""

    size: int
    sha256: str


class Blobs(Protocol):
    async def put(self, key: str, chunks: AsyncIterator[bytes], *, limit: int | None = None) -> Sum:
        """Write a new object. On return its bytes are durable, and the whole object is visible.

        Raises `BlobExists` if the key is taken (decided when the object gets its name: of two racing puts one wins)
        and `TooLarge` past ``limit`` bytes. After any error, also one of ``chunks``, nothing is left behind.
        """

    async def put_file(self, key: str, path: Path) -> Sum:
        """The same from a local file. Raises `OSError` if that cannot be read."""

    async def copy(self, source: str, key: str) -> None:
        """Write a new object with the bytes of another, inside the store if possible.

        With the guarantees of `put`. Raises `BlobNotFound` if there is no ``source``.
        """

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream an object or a part of it, in pieces of at most `MAX_PIECE`; `BlobNotFound` on the first step."""

    async def size(self, key: str) -> int | None:
        """Bytes of the object, None if there is none."""

    async def fetch(self, key: str, to: Path) -> None:
        """Make the object readable at ``to``, a new name in a folder that exists.

        May be a link: the file must not be written to. It stays whole when the object is deleted.
        """

    async def keys(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        """Keys below the folder ``prefix`` in order, from behind the key ``after``."""

    async def folders(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        """Names of the folders directly below ``prefix`` in order, from behind ``after``.

        May omit a folder that is created while a caller goes from page to page.
        """

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; missing ones are no error."""

    async def delete_all(self, prefix: str) -> None:
        """Delete every object below the folder ``prefix``."""

    async def abandon(self, older_than: float, *, everywhere: bool = False) -> int:
        """Remove what puts that began more than ``older_than`` seconds ago left unfinished; return how many.

        In a bucket, only below `FOLDERS`: the rest may be another's, unless we have it ``everywhere``.
        """

    async def presign(self, key: str, *, seconds: int, filename: str, content_type: str) -> str | None:
        """A URL from which anybody can download the object for ``seconds``; None if the store has no such URLs.

        It does not check that the object exists.
        """

    async def close(self) -> None: ...


def check_key(key: str) -> str:
    """The key, if it is a plain relative path. Raises PathRefused."""
    if not is_key(key):
        raise PathRefused(key=key)
    return key


def is_key(key: str) -> bool:
    parts = key.split("/")
    return not (
        len(key) > MAX_KEY  # before anything that looks at every character
        or _ODD.search(key)  # before encoding: half a surrogate pair has no bytes
        or not is_normalized("NFC", key)
        or len(key.encode()) > MAX_KEY
        or len(parts) > MAX_PARTS
        or any(not part or part.startswith(".") or len(part.encode()) > MAX_PART for part in parts)
    )


_ODD = re.compile(r'[\x00-\x1f\x7f-\x9f\\:*?"<>|\u2028\u2029\ud800-\udfff\ufffe\uffff]')
"""Control characters, line ends, characters with a meaning in file systems or shells, and what XML (S3's listings)
cannot contain."""


# For the implementations.


class Incoming:
    """An object that is being put: pieces that wait until there are enough of them to be written, size and checksum."""

    def __init__(self, key: str, limit: int | None, enough: int) -> None:
        self.key = key
        self.size = 0
        self._limit = limit
        self._enough = enough
        self._waiting: list[bytes] = []
        self._held = 0
        self._sha256 = sha256()

    def take(self, chunk: bytes) -> bool:
        """Whether enough is waiting now to be written."""
        self.size += len(chunk)
        if self._limit is not None and self.size > self._limit:
            raise TooLarge(field=self.key.rpartition("/")[2], limit=self._limit)
        self._held += len(chunk)
        self._waiting.append(chunk)
        return self._held >= self._enough

    def pending(self) -> list[bytes]:
        """What is waiting. It must be written next."""
        pieces, self._waiting, self._held = self._waiting, [], 0
        return pieces

    def sum(self) -> Sum:
        return Sum(size=self.size, sha256=self._sha256.hexdigest())


def open_file(path: str | Path, opened: ExitStack, flags: int = 0, *, dir_fd: int | None = None) -> int:
    """Open a regular file and nothing else: a pipe would hold the thread for ever, a device need not end.

    It is closed with ``opened``, which the caller holds even if it is cancelled before it gets the answer.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags, dir_fd=dir_fd)
    opened.callback(os.close, fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise FileNotFoundError(errno.ENOENT, "Not a regular file", str(path))
    return fd


async def wait_to_end(request: Awaitable[T]) -> T:
    """Wait for what cannot be stopped, even when cancelled, so that its outcome is known before a clean-up."""
    future = asyncio.ensure_future(request)
    cancelled = None
    while not future.done():
        try:
            await asyncio.wait([future])
        except asyncio.CancelledError as error:
            cancelled = error
    if cancelled:
        future.exception()  # looked at, or asyncio would report it as forgotten
        raise cancelled
    return future.result()


class Threads:
    """Threads for blocking I/O, usable from any event loop."""

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
        return await wait_to_end(asyncio.wrap_future(started))

    async def pieces(self, path: Path) -> AsyncGenerator[bytes]:
        """The content of a local file. Raises OSError if it cannot be read."""
        with ExitStack() as opened:
            fd = await self.run(open_file, path, opened)
            while piece := await self.run(os.read, fd, CHUNK):
                yield piece

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)
