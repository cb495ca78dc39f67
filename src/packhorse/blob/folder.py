"""Objects as files in a local folder, each written aside, synced, and then given its name in one step.

Folders are entered by descriptor, one part at a time and never through a symbolic link, so nothing that lies inside the
root can lead a read or a write outside. Deleting is not synced: what a power cut brings back is an orphan to the sweep.
"""

from __future__ import annotations

import asyncio
import errno
import fcntl
import os
import secrets
import shutil
import stat
import sys
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, aclosing, closing, contextmanager, suppress
from hashlib import sha256
from itertools import islice, pairwise
from pathlib import Path
from typing import ParamSpec, TypeVar

from packhorse import crashpoints
from packhorse.blob.base import CHUNK, Sum, checked
from packhorse.errors import BlobExists, BlobNotFound, BlobUnavailable, PathRefused, TooLarge

THREADS = 8
"""Enough to let syncs overlap, few enough that a stuck disk does not eat the process."""

TRIES = 100
"""A put whose folder is pruned under its hands makes it again. Each loss takes a delete in the same microseconds."""

PARTIAL = ".partial"

SETTLED = stat.S_ISVTX
"""The mark of a folder whose own name is synced. The put that made a folder may not have come to that yet, or have died
before: whoever finds no mark syncs, so no put returns that relies on a folder which a power cut can take away."""

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})
NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})

P = ParamSpec("P")
T = TypeVar("T")


class Folder:
    def __init__(self, root: Path) -> None:
        self._root = root.resolve()
        self._made = False
        self._pool = ThreadPoolExecutor(THREADS, thread_name_prefix="packhorse-blob")

    async def put(self, key: str, chunks: AsyncIterator[bytes], *, limit: int | None = None) -> Sum:
        put = _Put(self._root, checked(key), limit)
        crashpoints.passing("blob.put.before")
        try:
            await self._run(put.open)
            async for chunk in chunks:
                if put.take(chunk):
                    await self._run(put.write)
            await self._run(put.publish)
        except BaseException:  # cancellation too: whatever ended it, nothing is left behind
            await self._thread(put.discard)
            raise
        crashpoints.passing("blob.put.after")
        return put.sum()

    async def put_file(self, key: str, path: Path) -> Sum:
        async with aclosing(self._pieces(path)) as pieces:
            return await self.put(key, pieces)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncGenerator[bytes]:
        end = sys.maxsize if length is None else min(start + length, sys.maxsize)
        with ExitStack() as opened:
            fd = await self._run(_open_object, self._root, checked(key), opened)
            while start < end and (piece := await self._run(os.pread, fd, min(CHUNK, end - start), start)):
                start += len(piece)
                yield piece

    async def size(self, key: str) -> int | None:
        return await self._run(_size, self._root, checked(key))

    async def fetch(self, key: str, to: Path) -> None:
        await self._run(_fetch, self._root, checked(key), to)

    async def keys(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return await self._run(_keys, self._root, checked(prefix), after or "", limit)

    async def folders(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return await self._run(_folders, self._root, checked(prefix), after or "", limit)

    async def delete(self, keys: Sequence[str]) -> None:
        await self._run(_delete, self._root, [checked(key) for key in keys])

    async def delete_all(self, prefix: str) -> None:
        await self._run(_delete_all, self._root, checked(prefix))

    async def abandon(self, older_than: float) -> int:
        return await self._run(_abandon, self._root, time.time() - older_than)

    async def close(self) -> None:
        await asyncio.to_thread(self._pool.shutdown)

    async def _pieces(self, path: Path) -> AsyncGenerator[bytes]:
        with ExitStack() as opened:
            fd = await self._thread(_open_file, path, opened)
            while piece := await self._thread(os.read, fd, CHUNK):
                yield piece

    async def _run(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        try:
            if not self._made:
                await self._thread(_make_root, self._root)
                self._made = True
            return await self._thread(work, *args, **kwargs)
        except OSError as error:
            raise BlobUnavailable(reason=error.strerror or str(error)) from error

    async def _thread(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Work in a thread, which cannot be stopped: who is cancelled waits, while it uses the file and descriptors."""
        future = asyncio.wrap_future(self._pool.submit(work, *args, **kwargs))
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


class _Put:
    """One object on its way. All but `take` and `sum` run in a thread, one after the other."""

    def __init__(self, root: Path, key: str, limit: int | None) -> None:
        self._root, self._key, self._limit = root, key, limit
        *self._folder, self._name = key.split("/")
        self._partial = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._fd: int | None = None
        self._waiting: list[bytes] = []
        self._held = self._size = 0
        self._sha256 = sha256()
        self._published = False

    def take(self, chunk: bytes) -> bool:
        """Whether enough is waiting now to be worth the way to a thread."""
        self._size += len(chunk)
        if self._limit is not None and self._size > self._limit:
            raise TooLarge(field=self._name, limit=self._limit)
        self._held += len(chunk)
        self._waiting.append(chunk)
        return self._held >= CHUNK

    def sum(self) -> Sum:
        return Sum(size=self._size, sha256=self._sha256.hexdigest())

    def open(self) -> None:
        with _entered(self._root, [PARTIAL], make=True) as (_, partials):
            self._fd = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400, dir_fd=partials)
        os.fchmod(self._fd, 0o444)  # not above, where the mask of the process has a say

    def write(self) -> None:
        assert self._fd is not None
        data = b"".join(self._waiting)
        self._waiting, self._held = [], 0
        self._sha256.update(data)
        rest = memoryview(data)
        while rest:
            rest = rest[os.write(self._fd, rest) :]

    def publish(self) -> None:
        assert self._fd is not None
        self.write()
        os.fsync(self._fd)
        crashpoints.passing("blob.put.written")
        for tries_left in reversed(range(TRIES)):
            try:
                self._give_name()
                break
            except FileNotFoundError:  # a delete has pruned the folder since it was made
                if not tries_left:
                    raise
            except NotADirectoryError:  # an object lies on the way, or a symbolic link
                raise PathRefused(key=self._key) from None
        self._forget_partial()

    def discard(self) -> None:
        with suppress(OSError, BlobUnavailable):  # what ended the put is the news; an orphan is for the sweep
            if self._published:  # cancelled, or the name could not be synced: nobody has been told of the object
                _delete(self._root, [self._key])
            _prune(self._root, self._folder)
        self._forget_partial()

    def _give_name(self) -> None:
        with (
            _entered(self._root, [PARTIAL]) as (root, partials),
            _entered(self._root, self._folder, make=True) as folders,
        ):
            try:
                _move(self._partial, partials, self._name, folders[-1], lock=root)
            except FileExistsError:
                taken = stat.S_ISREG(os.stat(self._name, dir_fd=folders[-1], follow_symlinks=False).st_mode)
                raise (BlobExists if taken else PathRefused)(key=self._key) from None
            self._published = True
            _settle(folders)

    def _forget_partial(self) -> None:
        """Never an error: the object is what counts, and `abandon` comes by later."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)
            with suppress(OSError, BlobUnavailable), _entered(self._root, [PARTIAL]) as (_, partials):
                os.unlink(self._partial, dir_fd=partials)


def _move(name: str, at: int, to: str, folder: int, *, lock: int) -> None:
    """Give the file its new name, unless that is taken: a link is refused then, and where there are none we look."""
    try:
        os.link(name, to, src_dir_fd=at, dst_dir_fd=folder, follow_symlinks=False)
    except OSError as error:
        if error.errno not in NO_LINKS:
            raise
        # Rename overwrites, so one looks and renames at a time. The lock ends with its descriptor, and so with us.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if to in os.listdir(folder):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), to) from None
        os.rename(name, to, src_dir_fd=at, dst_dir_fd=folder)


def _settle(folders: Sequence[int]) -> None:
    os.fsync(folders[-1])
    for above, folder in pairwise(folders):
        mode = os.fstat(folder).st_mode
        if not mode & SETTLED:
            os.fsync(above)
            with suppress(PermissionError):  # another user's: without the mark it is synced every time
                os.fchmod(folder, stat.S_IMODE(mode) | SETTLED)


def _make_root(root: Path) -> None:
    missing = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in missing:
        with _opened(path.parent) as above:
            os.fsync(above)


@contextmanager
def _entered(root: Path, folder: Sequence[str], *, make: bool = False) -> Iterator[list[int]]:
    """Descriptors of the root and of each folder on the way down, the last one last."""
    with ExitStack() as opened:
        try:
            folders = [opened.enter_context(_opened(root))]
        except OSError as error:  # a root that is gone must not look like an object that is not there
            raise BlobUnavailable(reason=error.strerror) from error
        for part in folder:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=folders[-1])
            folders.append(opened.enter_context(_opened(part, folders[-1])))
        yield folders


@contextmanager
def _opened(folder: str | Path, at: int | None = None) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def _if_there() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in ABSENT:
            raise


def _open_object(root: Path, key: str, opened: ExitStack) -> int:
    *folder, name = key.split("/")
    with _if_there(), _entered(root, folder) as folders:
        return _open_file(name, opened, os.O_NOFOLLOW, dir_fd=folders[-1])
    raise BlobNotFound(key=key)


def _open_file(path: str | Path, opened: ExitStack, flags: int = 0, *, dir_fd: int | None = None) -> int:
    """Open a regular file and nothing else: a pipe would hold the thread for ever, a device need not end.

    It is closed with ``opened``, which the caller has in hand even if it is cancelled before it gets the answer.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | flags, dir_fd=dir_fd)
    opened.callback(os.close, fd)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        raise FileNotFoundError(errno.ENOENT, "Not a regular file", str(path))
    return fd


def _size(root: Path, key: str) -> int | None:
    with suppress(BlobNotFound), ExitStack() as opened:
        return os.fstat(_open_object(root, key, opened)).st_size
    return None


def _fetch(root: Path, key: str, to: Path) -> None:
    with ExitStack() as opened:
        fd = _open_object(root, key, opened)
        try:
            os.link(root / key, to, follow_symlinks=False)
        except OSError:  # another device, too many links, deleted a moment ago: a copy serves, or says what is wrong
            _copy(fd, to)


def _copy(fd: int, to: Path) -> None:
    with open(fd, "rb", closefd=False) as source, open(to, "xb") as target:
        try:
            shutil.copyfileobj(source, target, CHUNK)
            os.fchmod(target.fileno(), 0o444)
        except BaseException:
            to.unlink()
            raise


def _keys(root: Path, prefix: str, after: str, limit: int) -> list[str]:
    with (
        _if_there(),
        _entered(root, prefix.split("/")) as folders,
        closing(_walk(folders[-1], prefix + "/", after)) as found,
    ):
        return list(islice(found, limit))
    return []


def _walk(fd: int, at: str, after: str) -> Generator[str]:
    """Keys in order. A folder sorts with its slash: `a-b` comes before `a/b`, though `a` is less than `a-b`."""
    with os.scandir(fd) as entries:
        names = sorted(entry.name + "/" * _is_folder(entry) for entry in entries if _is_ours(entry, at))
    for name in names:
        key = at + name
        if not name.endswith("/"):
            if key > after:
                yield key
        elif key > after or after.startswith(key):  # else everything below it comes before
            with _if_there(), _opened(name[:-1], fd) as folder:
                yield from _walk(folder, key, after)


def _folders(root: Path, prefix: str, after: str, limit: int) -> list[str]:
    with _if_there(), _entered(root, prefix.split("/")) as folders, os.scandir(folders[-1]) as entries:
        names = [entry.name for entry in entries if _is_folder(entry) and _is_ours(entry, prefix + "/")]
        return sorted(name for name in names if name > after)[:limit]
    return []


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _is_ours(entry: os.DirEntry[str], at: str) -> bool:
    """Whether it is a file, or a folder of files, that can be asked for."""
    with suppress(PathRefused):
        checked(at + entry.name)
        return _is_folder(entry) or entry.is_file(follow_symlinks=False)
    return False


def _delete(root: Path, keys: Sequence[str]) -> None:
    for key in keys:
        *folder, name = key.split("/")
        with _if_there(), _entered(root, folder) as folders:
            os.unlink(name, dir_fd=folders[-1])
            crashpoints.passing("blob.delete.after")
        _prune(root, folder)


def _delete_all(root: Path, prefix: str) -> None:
    folder = prefix.split("/")
    with _if_there(), _entered(root, folder) as folders:
        _empty(folders[-1])
    _prune(root, folder)


def _empty(fd: int) -> None:
    """Remove whatever lies in the folder, a stranger's file too: what is purged must be gone."""
    with os.scandir(fd) as entries:
        found = [(entry.name, _is_folder(entry)) for entry in entries]
    for name, is_folder in found:
        with _if_there():
            if is_folder:
                with _opened(name, fd) as folder:
                    _empty(folder)
                with suppress(OSError):  # not empty again: somebody is putting
                    os.rmdir(name, dir_fd=fd)
            else:
                os.unlink(name, dir_fd=fd)
                crashpoints.passing("blob.delete.after")


def _prune(root: Path, folder: Sequence[str]) -> None:
    """Remove the folder and those above it as far as they are empty; one that stays hurts nobody."""
    for depth in range(len(folder), 0, -1):
        try:
            with _entered(root, folder[: depth - 1]) as folders:
                os.rmdir(folder[depth - 1], dir_fd=folders[-1])
        except FileNotFoundError:
            continue
        except OSError:
            return


def _abandon(root: Path, before: float) -> int:
    """By age alone: whether a process lives cannot be told from its number, which another container may have given."""
    gone = 0
    with _if_there(), _entered(root, [PARTIAL]) as (_, partials), os.scandir(partials) as entries:
        for entry in entries:
            with _if_there():
                if entry.stat(follow_symlinks=False).st_mtime <= before:
                    os.unlink(entry.name, dir_fd=partials)
                    gone += 1
    return gone
