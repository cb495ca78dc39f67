"""Input files that callers name by path instead of sending them: where the server may read, and how it opens them.

Only the operator says where (`PACKHORSE_INPUT_FOLDERS`). A path counts after symbolic links are resolved, and is opened
folder by folder without following any, so that nobody can swap a folder or file for a link after the check. What lies
outside is refused in the same words whether it exists or not, and a path that does not even begin with one of the
folders is refused without a look at the disk.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import ExitStack, aclosing
from pathlib import Path

from msgspec import Struct

from packhorse.blobs.base import CHUNK, Blobs, Threads, open_file
from packhorse.define.files import Accepts, sanitize_name
from packhorse.define.signatures import HEAD
from packhorse.define.validation import NOT_VALID, invalid
from packhorse.errors import BlobNotFound, InvalidInput, PathRefused, TooLarge
from packhorse.jobs.submit import NewJob
from packhorse.settings import S3_SCHEME

THREADS = 4  # files that are read at the same time; more of them take turns
FOLDER = os.O_DIRECTORY | os.O_NOFOLLOW | getattr(os, "O_PATH", os.O_RDONLY)  # to enter it, not to list it

OUTSIDE = "The server may not read this path. It must be a file below a folder or prefix in PACKHORSE_INPUT_FOLDERS"
ABSENT = "There is no file at this path that the server can read"
UNSET = "This server reads no files by path (PACKHORSE_INPUT_FOLDERS is not set). Send the file as a part of a form"


class Outside(Exception):
    """A path that leads to no place that may be read."""


class InputBucket(Struct, frozen=True):
    name: str
    prefix: str  # of the keys that may be read, with a slash at its end; or nothing
    own: str | None  # prefix of packhorse's own objects, if they are in the same bucket
    blobs: Blobs  # reads below the prefix

    def key(self, text: str) -> str | None:
        """The key below the prefix; None if the text names something else."""
        name, _, key = text.removeprefix(S3_SCHEME).partition("/")
        if name != self.name or not key.startswith(self.prefix) or (self.own and key.startswith(self.own)):
            return None
        return key.removeprefix(self.prefix)


class InputPaths:
    def __init__(
        self, folders: Sequence[Path] = (), buckets: Sequence[InputBucket] = (), own: Sequence[Path] = ()
    ) -> None:
        """``own``: packhorse's own files and folders, which nobody may read by path."""
        self._folders = folders
        self._buckets = buckets
        self._own = [Path(os.path.realpath(each)) for each in own]
        self._threads = Threads(THREADS)

    def mistake(self, text: str) -> str | None:
        """Why this text cannot name an input file, as far as that can be said without reading; None if it can."""
        if not (self._folders or self._buckets):
            return UNSET
        if text.startswith(S3_SCHEME):
            return None if any(each.key(text) is not None for each in self._buckets) else OUTSIDE
        path = os.path.normpath(text)
        roots = {each for folder in self._folders for each in (str(folder), os.path.realpath(folder))}
        return None if any(path.startswith(f"{root}/") for root in roots) else OUTSIDE

    async def take(self, new_job: NewJob, parameter: str, text: str, accepts: Accepts, limit: int) -> dict[str, int]:
        """Copy the file into the object store, checked like an upload; return what stands for it in the parameters."""
        name, limit = sanitize_name(text), accepts.limit(limit)
        accepts.check(parameter, name)
        try:
            async with aclosing(self._read(parameter, text, limit)) as pieces:
                first = await anext(pieces, b"")
                while len(first) < HEAD and (more := await anext(pieces, b"")):
                    first += more
                accepts.check_content(parameter, name, "", first[:HEAD])
                return await new_job.upload(parameter, name, _chain(first, pieces), accepts)
        except TooLarge as error:  # the object store names it by its key
            raise TooLarge(field=parameter, limit=limit) from error

    async def close(self) -> None:
        await self._threads.close()
        for bucket in self._buckets:
            await bucket.blobs.close()

    async def _read(self, parameter: str, text: str, limit: int) -> AsyncGenerator[bytes]:
        try:
            async with aclosing(self._object(text) if text.startswith(S3_SCHEME) else self._file(text, limit)) as found:
                async for piece in found:
                    yield piece
        except Outside as error:
            raise _refusal(parameter, OUTSIDE) from error
        except (OSError, ValueError, BlobNotFound, PathRefused) as error:
            raise _refusal(parameter, ABSENT) from error

    async def _object(self, text: str) -> AsyncGenerator[bytes]:
        for bucket in self._buckets:
            if (key := bucket.key(text)) is not None:
                async with aclosing(bucket.blobs.read(key)) as pieces:  # type: ignore[type-var]
                    async for piece in pieces:
                        yield piece
                return
        raise Outside

    async def _file(self, text: str, limit: int) -> AsyncGenerator[bytes]:
        with ExitStack() as opened:
            fd = await self._threads.run(self._open, text, opened)
            if os.fstat(fd).st_size > limit:
                raise TooLarge(limit=limit)
            while piece := await self._threads.run(os.read, fd, CHUNK):
                yield piece

    def _open(self, text: str, opened: ExitStack) -> int:
        if self.mistake(text) is not None:
            raise Outside
        path = Path(os.path.realpath(text))
        for folder in self._folders:
            root = Path(os.path.realpath(folder))
            if not self._is_below(path, root):
                continue
            *parts, name = path.relative_to(root).parts
            at = _enter(root, None, opened)
            for part in parts:
                at = _enter(part, at, opened)
            fd = open_file(name, opened, os.O_NOFOLLOW, dir_fd=at)
            if not self._is_below(_place(fd, path), root):  # a folder on the way was moved since
                break
            return fd
        raise Outside

    def _is_below(self, path: Path, root: Path) -> bool:
        """Neither packhorse's own files nor hidden ones, such as `.env`, are below any folder."""
        if path == root or not path.is_relative_to(root):
            return False
        is_hidden = any(part.startswith(".") for part in path.relative_to(root).parts)
        return not is_hidden and not any(_is_of(path, each) for each in self._own)


def is_path(text: str) -> bool:
    return text.startswith(("/", S3_SCHEME))


def _is_of(path: Path, own: Path) -> bool:
    """Also a file beside it whose name begins the same: `jobs.db-wal` belongs to `jobs.db`."""
    return path.is_relative_to(own) or (path.parent == own.parent and path.name.startswith(f"{own.name}-"))


def _enter(folder: str | Path, at: int | None, opened: ExitStack) -> int:
    fd = os.open(folder, FOLDER, dir_fd=at)
    opened.callback(os.close, fd)
    return fd


def _place(fd: int, path: Path) -> Path:
    """Where the opened file is now, as far as the system says so."""
    try:
        return Path(os.readlink(f"/proc/self/fd/{fd}"))
    except OSError:  # no Linux
        return path


async def _chain(first: bytes, rest: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    yield first
    async for piece in rest:
        yield piece


def _refusal(parameter: str, message: str) -> InvalidInput:
    return invalid(NOT_VALID, [{"field": parameter, "message": message}])
