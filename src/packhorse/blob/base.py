"""The contract of an object store: create-only objects under slash-separated keys.

Keys are made by packhorse, never by users: `jobs/{job}/input/...` and `jobs/{job}/output/{stage}/{token}/...`.
Every method may raise `BlobUnavailable`. A key that would leave the store, or is not a plain relative path, is refused
with `PathRefused` by every method, before anything is touched.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol

from msgspec import Struct

from packhorse.errors import PathRefused

CHUNK = 256 * 1024
"""Bytes read and written at a time: large enough to keep a disk busy, small enough to hold two thousand of."""


class Sum(Struct, frozen=True):
    """What was really written."""

    size: int
    sha256: str


class Blobs(Protocol):
    async def put(self, key: str, chunks: AsyncIterator[bytes], *, limit: int | None = None) -> Sum:
        """Write a new object. When this returns, the bytes are durable and the key is visible, whole.

        Raises `BlobExists` if the key is taken (decided when the object gets its name, so of two racing puts one
        wins), `TooLarge` past ``limit`` bytes. On any error, ``chunks``' own included, nothing is left behind.
        """

    async def put_file(self, key: str, path: Path) -> Sum:
        """The same from a local file."""

    def read(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        """Stream an object or a part of it; `BlobNotFound` on the first step."""

    async def size(self, key: str) -> int | None:
        """Bytes of the object, None if there is none."""

    async def fetch(self, key: str, to: Path) -> None:
        """Make the object readable at ``to``, whose folder exists. May be a link: the file must not be written to."""

    async def list(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        """Keys below the folder ``prefix`` in order, those greater than ``after``."""

    async def folders(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        """Names of the folders directly below ``prefix`` in order, those greater than ``after``."""

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is not there is no error."""

    async def delete_all(self, prefix: str) -> None:
        """Delete every object below the folder ``prefix``."""

    async def abandon(self, older_than: float) -> int:
        """Remove what unfinished puts of more than ``older_than`` seconds ago left behind; how many there were."""

    async def close(self) -> None: ...


def checked(key: str) -> str:
    """The key itself if it is a plain relative path; a name that could mean anything else is refused."""
    parts = key.split("/")
    if (
        not key
        or len(key) > 1024
        or any(part in ("", ".", "..") or part.startswith(".") for part in parts)
        or any(ord(c) < 32 or c in '\\:*?"<>|' or ord(c) == 127 for c in key)
    ):
        raise PathRefused(key=key)
    return key
