"""The folder tree below a root: entered by descriptor, one part at a time and never through a symbolic link."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import stat
import threading
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager, suppress
from heapq import nsmallest
from itertools import islice
from mmap import mmap
from pathlib import Path

from packhorse import crashpoints
from packhorse.blobs.base import CHUNK, MAX_PIECE, is_key, open_file
from packhorse.errors import BlobNotFound, BlobUnavailable

PARTIAL = ".partial"

AHEAD = 10_000  # names of folders that are cached, of some 36 bytes each

FICLONE = 0x40049409  # from linux/fs.h, for file systems that can share bytes between files

ABSENT = frozenset({errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ELOOP})


def make_root(root: Path) -> None:
    missing = [path for path in (root, *root.parents) if not path.exists()]
    root.mkdir(mode=0o700, parents=True, exist_ok=True)
    for path in missing:
        with open_folder(path.parent) as above:
            os.fsync(above)


@contextmanager
def enter_folders(root: Path, folder: Sequence[str], *, make: bool = False) -> Iterator[list[int]]:
    """Descriptors of the root and of each folder on the way down, the last one last."""
    with ExitStack() as opened:
        try:
            folders = [opened.enter_context(open_folder(root))]
        except OSError as error:  # a root that is gone must not look like an object that is not there
            raise BlobUnavailable(reason=error.strerror) from error
        for part in folder:
            if make:
                with suppress(FileExistsError):
                    os.mkdir(part, 0o700, dir_fd=folders[-1])
            folders.append(opened.enter_context(open_folder(part, folders[-1])))
        yield folders


@contextmanager
def open_folder(folder: str | Path, at: int | None = None) -> Iterator[int]:
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW, dir_fd=at)
    try:
        yield fd
    finally:
        os.close(fd)


@contextmanager
def if_there() -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in ABSENT:
            raise


def open_object(root: Path, key: str, opened: ExitStack) -> int:
    *folder, name = key.split("/")
    with if_there(), enter_folders(root, folder) as folders:
        return open_file(name, opened, os.O_NOFOLLOW, dir_fd=folders[-1])
    raise BlobNotFound(key=key)


def size(root: Path, key: str) -> int | None:
    with suppress(BlobNotFound), ExitStack() as opened:
        return os.fstat(open_object(root, key, opened)).st_size
    return None


def fetch(root: Path, key: str, to: Path) -> None:
    with ExitStack() as opened:
        fd = open_object(root, key, opened)
        # For root a read-only file is writable: a stage could change the object through the link.
        if os.geteuid() == 0:
            return _copy(fd, to)
        try:
            os.link(root / key, to, follow_symlinks=False)
        except OSError:  # another device, too many links, deleted a moment ago: a copy serves, or says what is wrong
            _copy(fd, to)


def _copy(fd: int, to: Path) -> None:
    with open(fd, "rb", closefd=False) as source, open(to, "xb") as target:
        try:
            try:  # share the bytes until one of them is written to, where the file system can: as cheap as a link
                fcntl.ioctl(target, FICLONE, fd)
            except OSError:
                shutil.copyfileobj(source, target, CHUNK)
            os.fchmod(target.fileno(), 0o444)
        except BaseException:
            to.unlink()
            raise


def keys(root: Path, prefix: str, after: str, limit: int) -> list[str]:
    with (
        if_there(),
        enter_folders(root, prefix.split("/")) as folders,
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
            with if_there(), open_folder(name[:-1], fd) as folder:
                yield from _walk(folder, key, after)


class Folders:
    """Pages of the folders in a folder. Each page needs all of the folder, so many names are read ahead and cached.

    A caller that continues where the last page ended gets cached names that still exist; any other caller causes a new
    read. A sweep through 100,000 jobs reads the folder ten times instead of a thousand.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._at = ("", "")
        self._ahead: deque[str] = deque()

    def page(self, root: Path, prefix: str, after: str, limit: int) -> list[str]:
        found: list[str] = []
        with self._lock, if_there(), enter_folders(root, prefix.split("/")) as folders:
            if not after or self._at != (prefix, after):
                self._ahead.clear()
            while len(found) < limit:
                if not self._ahead:
                    with os.scandir(folders[-1]) as entries:
                        later = (entry.name for entry in entries if entry.name > after and _is_folder(entry))
                        self._ahead.extend(nsmallest(max(limit, AHEAD), later))
                if not self._ahead:
                    break
                after = self._ahead.popleft()
                if is_key(f"{prefix}/{after}") and _is_there(folders[-1], after):
                    found.append(after)
            self._at = (prefix, after)
        return found


def _is_there(fd: int, name: str) -> bool:
    with if_there():
        return stat.S_ISDIR(os.stat(name, dir_fd=fd, follow_symlinks=False).st_mode)
    return False


def _is_folder(entry: os.DirEntry[str]) -> bool:
    return entry.is_dir(follow_symlinks=False)


def _is_ours(entry: os.DirEntry[str], at: str) -> bool:
    """Whether it is a file or a folder with a valid key."""
    return is_key(at + entry.name) and (_is_folder(entry) or entry.is_file(follow_symlinks=False))


def delete(root: Path, keys: Sequence[str]) -> None:
    for key in keys:
        *folder, name = key.split("/")
        with if_there(), enter_folders(root, folder) as folders:
            os.unlink(name, dir_fd=folders[-1])
            crashpoints.reach("blob.delete.after")
        prune(root, folder)


def delete_all(root: Path, prefix: str) -> None:
    folder = prefix.split("/")
    with if_there(), enter_folders(root, folder) as folders:
        _empty(folders[-1])
    prune(root, folder)


def _empty(fd: int) -> None:
    """Remove everything in the folder, also files of others: what is purged must be gone."""
    with os.scandir(fd) as entries:
        found = [(entry.name, _is_folder(entry)) for entry in entries]
    for name, is_folder in found:
        with if_there():
            if is_folder:
                with open_folder(name, fd) as folder:
                    _empty(folder)
                with suppress(OSError):  # not empty again: somebody is putting
                    os.rmdir(name, dir_fd=fd)
            else:
                os.unlink(name, dir_fd=fd)
                crashpoints.reach("blob.delete.after")


def prune(root: Path, folder: Sequence[str]) -> None:
    """Remove the folder and those above it while they are empty."""
    for depth in range(len(folder), 0, -1):
        try:
            with enter_folders(root, folder[: depth - 1]) as folders:
                os.rmdir(folder[depth - 1], dir_fd=folders[-1])
        except FileNotFoundError:
            continue
        except OSError:
            return


def abandon(root: Path, before: float) -> int:
    """By age alone: the pid in the name may belong to another container."""
    gone = 0
    with if_there(), enter_folders(root, [PARTIAL]) as (_, partials), os.scandir(partials) as entries:
        for entry in entries:
            with if_there():
                if entry.stat(follow_symlinks=False).st_mtime <= before:
                    os.unlink(entry.name, dir_fd=partials)
                    gone += 1
    return gone


# Bytes that are in memory already, read without a thread.


NOWAIT: int | None = getattr(os, "RWF_NOWAIT", None)  # only Linux has it


class _Pages(threading.local):
    def __init__(self) -> None:
        self.buffer = mmap(-1, MAX_PIECE)


_pages = _Pages()  # whole pages, reused: copying from the cache to any other address takes up to twice as long


def read_cached(fd: int, size: int, start: int) -> bytes | None:
    """Up to ``size`` bytes; None if that would have to wait for the disk, or at the end of the file.

    The caller then reads in a thread, which reports other errors, and the end: Linux 5.9 and 5.10 may return nothing
    where there are bytes left.
    """
    if NOWAIT is None:
        return None
    buffer = _pages.buffer
    try:
        return buffer[: os.preadv(fd, [memoryview(buffer)[:size]], start, NOWAIT)] or None
    except OSError:
        return None
