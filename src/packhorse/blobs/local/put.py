"""Writes one object to a folder: to a temporary file, synced, then renamed in one step."""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import stat
from collections.abc import Iterable, Sequence
from concurrent.futures import Future
from contextlib import ExitStack, suppress
from itertools import pairwise
from pathlib import Path

from packhorse import crashpoints
from packhorse.blobs.base import Incoming
from packhorse.blobs.local import tree
from packhorse.blobs.local.tree import PARTIAL
from packhorse.errors import BlobExists, BlobUnavailable, PathRefused

TRIES = 100
"""Tries of a put whose folder is pruned by a concurrent delete. Each loss takes a delete in the same microseconds."""

SETTLED = stat.S_ISVTX
"""Marks a folder whose own name is synced. The put that created it may have died before that. A put that finds no mark
syncs, so that no put returns while a power cut could remove one of its folders."""

BLOCK = 512 * 1024
"""Bytes that go to a thread at a time. A put holds two such blocks: one is written while the next comes in."""
MAX_PENDING = 32  # pieces of a block that are not worth joining
FLUSH = 32 * 1024 * 1024
"""Bytes after which writing to the disk is forced. Otherwise a system with much memory writes everything in the sync at
the end, and nothing else runs meanwhile."""

NO_LINKS = frozenset({errno.EPERM, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS})


class Put(Incoming):
    """One object on its way. All but `take`, `pending` and `sum` run in a thread, one after the other.

    Except for `flush`, which may run beside `write`.
    """

    def __init__(self, root: Path, key: str, limit: int | None) -> None:
        super().__init__(key, limit, BLOCK)
        self._root = root
        *self._folder, self._name = key.split("/")
        self._partial = f"{os.getpid()}-{secrets.token_hex(8)}"
        self._fd: int | None = None
        self._published = False

    def open(self) -> None:
        with tree.enter_folders(self._root, [PARTIAL], make=True) as (_, partials):
            self._fd = os.open(self._partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o400, dir_fd=partials)
        os.fchmod(self._fd, 0o444)  # not above, where the mask of the process has a say

    def write(self, pieces: Sequence[bytes]) -> None:
        """Without joining large pieces first, which would copy every byte once more."""
        assert self._fd is not None
        for data in pieces if len(pieces) <= MAX_PENDING else [b"".join(pieces)]:
            self._sha256.update(data)
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(self._fd, rest) :]

    def flush(self) -> None:
        """An error here fails the put: the system reports a failed write only once."""
        assert self._fd is not None
        os.fsync(self._fd)

    def publish(self, pieces: Sequence[bytes]) -> None:
        assert self._fd is not None
        self.write(pieces)
        os.fsync(self._fd)
        crashpoints.reach("blob.put.written")
        for tries_left in reversed(range(TRIES)):
            try:
                self._give_name()
                break
            except FileNotFoundError:  # a delete has pruned the folder since it was made
                if not tries_left:
                    raise
            except NotADirectoryError:  # a folder of the path is an object or a symbolic link
                raise PathRefused(key=self.key) from None
        self._forget_partial()

    def discard(self, under_way: Iterable[Future[None]]) -> None:
        for each in under_way:
            if not each.cancel():
                each.exception()  # the file must not be closed under it
        with suppress(OSError, BlobUnavailable):  # the sweep removes an orphan; raise what ended the put
            if self._published:  # cancelled, or the name could not be synced: no caller refers to the object
                tree.delete(self._root, [self.key])
            tree.prune(self._root, self._folder)
        self._forget_partial()

    def _give_name(self) -> None:
        with (
            tree.enter_folders(self._root, [PARTIAL]) as (root, partials),
            tree.enter_folders(self._root, self._folder, make=True) as folders,
        ):
            try:
                _move(self._partial, partials, self._name, folders[-1], lock=root)
            except FileExistsError:
                taken = stat.S_ISREG(os.stat(self._name, dir_fd=folders[-1], follow_symlinks=False).st_mode)
                raise (BlobExists if taken else PathRefused)(key=self.key) from None
            self._published = True
            _settle(folders)

    def _forget_partial(self) -> None:
        """Never raises: `abandon` removes what is left."""
        fd, self._fd = self._fd, None
        if fd is not None:
            with suppress(OSError):
                os.close(fd)
            with suppress(OSError, BlobUnavailable), tree.enter_folders(self._root, [PARTIAL]) as (_, partials):
                os.unlink(self._partial, dir_fd=partials)


def link_object(root: Path, source: str, key: str) -> bool:
    """Hard-link an object, which never changes; False if the file system has no links, or no more for this file."""
    *above, old = source.split("/")
    *folder, new = key.split("/")
    for tries_left in reversed(range(TRIES)):
        with ExitStack() as opened:
            tree.open_object(root, source, opened)  # raises if there is none
            try:
                sources = opened.enter_context(tree.enter_folders(root, above))
                folders = opened.enter_context(tree.enter_folders(root, folder, make=True))
                os.link(old, new, src_dir_fd=sources[-1], dst_dir_fd=folders[-1], follow_symlinks=False)
            except FileNotFoundError:  # a delete has pruned the folder since it was made, or taken the object
                if not tries_left:
                    raise
            except FileExistsError:
                raise BlobExists(key=key) from None
            except NotADirectoryError:  # a folder of the path is an object
                raise PathRefused(key=key) from None
            except OSError as error:
                if error.errno in NO_LINKS | {errno.EMLINK}:
                    return False
                raise
            else:
                _settle(folders)
                return True
    return False


def _move(name: str, at: int, to: str, folder: int, *, lock: int) -> None:
    """Give the file its new name, unless that is taken: by a link, which then fails, or under a lock."""
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
