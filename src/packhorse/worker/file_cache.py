"""Keeps files of a remote object store on the worker's disk, so that the stages of a job load each file once.

The copies have no name: no stage can open them, and they are gone when the worker ends, however it ends. A stage gets a
copy of its own.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import stat
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryFile
from typing import IO, Protocol

from msgspec import Struct

from packhorse.blobs.base import CHUNK, Sum, wait_to_end
from packhorse.errors import BlobUnavailable

SECONDS = 600.0
"""How long a file is kept after its last use. Objects that were deleted meanwhile must not stay for long."""
MAX_FILES = 256  # each is an open file of the process
SPARE = 4  # times the size of a file that must be free on the disk before it is kept


class Files(Protocol):
    """What an attempt needs of an object store: see `packhorse.blobs.base.Blobs`."""

    async def fetch(self, key: str, to: Path) -> None: ...

    async def put_file(self, key: str, path: Path) -> Sum: ...


class _Kept(Struct):
    file: IO[bytes]
    size: int
    used_at: float


class FileCache:
    def __init__(self, blobs: Files, folder: Path, limit: int) -> None:
        """Keep at most ``limit`` bytes, on the disk of ``folder``."""
        self._blobs = blobs
        self._folder = folder
        self._limit = limit
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        """The file that was used last stands last."""
        self._size = 0
        self._loading: dict[str, asyncio.Future[bool]] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def fetch(self, key: str, to: Path) -> None:
        """Of several callers at once, the first loads the file and the others wait for it."""
        while (loading := self._loading.get(key)) is not None:
            await asyncio.wait([loading])
            if not loading.result():  # there is no room for it: waiting would not spare a load
                return await self._blobs.fetch(key, to)
        if await self._copy_out(key, to):
            return None
        loading = self._loading[key] = asyncio.get_running_loop().create_future()
        has_room = True
        try:
            await self._blobs.fetch(key, to)
            if (copied := await self._copy_in(to)) is not None:
                self._add(key, copied)
            else:
                has_room = False
        finally:
            del self._loading[key]
            loading.set_result(has_room)

    async def put_file(self, key: str, path: Path) -> Sum:
        """Uploads the copy, so that both have the same bytes even if the stage still writes to its file."""
        copied = await self._copy_in(path)
        if copied is None:
            return await self._blobs.put_file(key, path)
        try:
            summed = await self._blobs.put_file(key, Path(f"/proc/self/fd/{copied.fileno()}"))
        except BaseException:
            copied.close()
            raise
        self._add(key, copied)
        return summed

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        for kept in self._kept.values():
            kept.file.close()
        self._kept.clear()

    async def _copy_out(self, key: str, to: Path) -> bool:
        """Whether the file was there."""
        kept = self._kept.get(key)
        if kept is None:
            return False
        kept.used_at = asyncio.get_running_loop().time()
        self._kept.move_to_end(key)
        opened = os.dup(kept.file.fileno())  # it may be dropped before the thread has read it
        try:
            await wait_to_end(asyncio.to_thread(_write_copy, opened, to))
        except OSError as error:
            raise BlobUnavailable(reason=error.strerror or str(error)) from error
        return True

    async def _copy_in(self, path: Path) -> IO[bytes] | None:
        """None if there is no room for it."""
        copying = asyncio.ensure_future(asyncio.to_thread(_read_copy, path, self._folder, self._limit))
        try:
            with suppress(OSError):
                return await wait_to_end(copying)
        except asyncio.CancelledError:
            if copying.exception() is None and (copied := copying.result()) is not None:
                copied.close()
            raise
        return None

    def _add(self, key: str, file: IO[bytes]) -> None:
        now = asyncio.get_running_loop().time()
        self._drop(key)
        self._kept[key] = kept = _Kept(file, os.fstat(file.fileno()).st_size, now)
        self._size += kept.size
        while self._size > self._limit or len(self._kept) > MAX_FILES:
            self._drop(next(iter(self._kept)))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(SECONDS, self._expire)

    def _expire(self) -> None:
        loop = asyncio.get_running_loop()
        self._timer = None
        while self._kept:
            key, oldest = next(iter(self._kept.items()))
            if oldest.used_at + SECONDS > loop.time():
                self._timer = loop.call_at(oldest.used_at + SECONDS, self._expire)
                return
            self._drop(key)

    def _drop(self, key: str) -> None:
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._size -= kept.size
            kept.file.close()


def _read_copy(path: Path, folder: Path, limit: int) -> IO[bytes] | None:
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as source:
        if not stat.S_ISREG(os.fstat(source.fileno()).st_mode):  # a pipe would hold the thread for ever
            return None
        size = os.fstat(source.fileno()).st_size
        disk = os.statvfs(folder)
        if size > limit or SPARE * size > disk.f_bavail * disk.f_frsize:
            return None
        copied = TemporaryFile(dir=folder)  # noqa: SIM115 (the cache closes it)
        try:
            shutil.copyfileobj(source, copied, CHUNK)
            copied.flush()
        except BaseException:
            copied.close()
            raise
        return copied


def _write_copy(opened: int, to: Path) -> None:
    with os.fdopen(opened, "rb") as source, to.open("xb") as target:
        at, size = 0, os.fstat(source.fileno()).st_size
        while at < size:  # by position: several copies of one file may be made at the same time
            at += os.sendfile(target.fileno(), source.fileno(), at, size - at)
        os.fchmod(target.fileno(), 0o444)
