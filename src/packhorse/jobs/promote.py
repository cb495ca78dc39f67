"""Results copied to a place where they stay: each file once, whole and summed, under a name that is always the same."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from hashlib import sha256
from typing import Protocol

from packhorse.blobs.base import Blobs
from packhorse.core.models import Artifact, Stored
from packhorse.define.files import artifact_key
from packhorse.errors import BlobExists, PathRefused, PromoteFailed
from packhorse.jobs.artifacts import few_at_a_time

Pieces = Callable[[], AsyncIterator[bytes]]
"""The bytes of a file, from the start each time it is called."""


class Destination(Protocol):
    """A permanent place. What it cannot do raises `PromoteFailed` or `BlobUnavailable`."""

    address: str
    """As it may be shown, without a slash at its end."""

    async def has(self, key: str, file: Stored, *, is_known: bool) -> bool:
        """Whether the file is there. ``is_known``: it once was, so that its size will do for a proof."""

    async def put(self, key: str, file: Stored, pieces: Pieces) -> None:
        """Write it, instead of whatever else may lie there."""

    async def close(self) -> None: ...


def folder_of(destination: Destination, job_id: str) -> str:
    return f"{destination.address}/{job_id}"


async def promote(
    blobs: Blobs, destination: Destination, job_id: str, files: Sequence[Artifact], *, is_known: bool
) -> None:
    """Copy what is not there yet. Whoever is killed meanwhile, or calls twice, leaves nothing behind but copies."""

    async def copy(made: Artifact) -> None:
        key = f"{job_id}/{artifact_key(made.name)}"
        if not await destination.has(key, made.file, is_known=is_known):
            await destination.put(key, made.file, lambda: read_verified(blobs, made.file))

    await few_at_a_time(copy, files)


async def read_verified(blobs: Blobs, file: Stored) -> AsyncGenerator[bytes]:
    """The bytes of the file. The last piece comes only if they are those it was stored with."""
    summed, last = sha256(), b""
    async for piece in blobs.read(file.key):
        summed.update(piece)
        if last:
            yield last
        last = piece
    if summed.hexdigest() != file.sha256:
        raise PromoteFailed(reason=f"{file.key} is not what it was stored as")
    if last:
        yield last


class InBlobs:
    """Another bucket or folder, or another part of the same."""

    def __init__(self, blobs: Blobs, address: str) -> None:
        self._blobs = blobs
        self.address = address

    async def has(self, key: str, file: Stored, *, is_known: bool) -> bool:
        if await self._blobs.size(key) != file.size:
            return False
        return is_known or await self._sum(key) == file.sha256

    async def put(self, key: str, file: Stored, pieces: Pieces) -> None:
        try:
            if await self._blobs.size(key) is not None:  # of an earlier run: objects are never overwritten
                await self._blobs.delete([key])
            await self._blobs.put(key, pieces())
        except BlobExists:
            if not await self.has(key, file, is_known=False):
                raise PromoteFailed(reason=f"somebody else is writing {key}") from None
        except PathRefused as error:
            raise PromoteFailed(reason=str(error)) from error

    async def close(self) -> None:
        await self._blobs.close()

    async def _sum(self, key: str) -> str:
        summed = sha256()
        async for piece in self._blobs.read(key):
            summed.update(piece)
        return summed.hexdigest()
