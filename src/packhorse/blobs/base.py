"""The contract of an object store: create-only objects under slash-separated keys.

Keys are made by packhorse, never by users: `jobs/{job}/input/...` and `jobs/{job}/output/{stage}/{token}/...`.
Every method may raise `BlobUnavailable`. A key that would leave the store, or is not a plain relative path, is refused
with `PathRefused` by every method, before anything is touched. A prefix is the name of a folder, without a slash at its
end, and obeys the same rules. No key may be a folder of another: `a` and `a/b` do not go together.

Order is that of the strings, which is also that of their bytes in UTF-8. Only where a name is the beginning of another
beside it, as `a/x` and `a-b`, is it the store's own (some compare whole keys, some folder by folder). It is always the
same, so pages that go on after the last key of the one before hold every key once.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Sequence
from pathlib import Path
from typing import Protocol
from unicodedata import is_normalized

from msgspec import Struct

from packhorse.errors import PathRefused

CHUNK = 256 * 1024
"""Bytes read and written at a time: large enough to keep a disk busy, small enough to hold two thousand of."""
MAX_PIECE = 2 * CHUNK
"""Bytes read at a time for fast readers, to halve the cost per piece."""

MAX_KEY = 896
"""Bytes of UTF-8. S3 takes 1024, of which up to 128 are the prefix of a deployment."""

MAX_PART = 255
"""Bytes of UTF-8, the limit of nearly every file system."""

MAX_PARTS = 32
"""A folder store holds a file descriptor per part; our own keys have six and the slashes of an artifact's name."""


class Sum(Struct, frozen=True):
    """Size and checksum of a written object."""

    size: int
    sha256: str


class Blobs(Protocol):
    async def put(self, key: str, chunks: AsyncIterator[bytes], *, limit: int | None = None) -> Sum:
        """Write a new object. When this returns, the bytes are durable and the key is visible, whole.

        Raises `BlobExists` if the key is taken (decided when the object gets its name, so of two racing puts one
        wins), `TooLarge` past ``limit`` bytes. On any error, ``chunks``' own included, nothing is left behind.
        """

    async def put_file(self, key: str, path: Path) -> Sum:
        """The same from a local file. What goes wrong with reading it is raised as it is, an `OSError`."""

    async def copy(self, source: str, key: str) -> None:
        """Write a new object with the bytes of another, which do not pass through us if the store can help it.

        As durable, as whole and as careful not to overwrite as `put`. Raises `BlobNotFound` if there is no ``source``.
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
        """Keys below the folder ``prefix`` in order, those that come after the key ``after``."""

    async def folders(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        """Names of the folders directly below ``prefix`` in order, those that come after ``after``.

        One that is made while a caller goes from page to page may be left out.
        """

    async def delete(self, keys: Sequence[str]) -> None:
        """Delete objects; one that is not there is no error."""

    async def delete_all(self, prefix: str) -> None:
        """Delete every object below the folder ``prefix``."""

    async def abandon(self, older_than: float) -> int:
        """Remove what unfinished puts of more than ``older_than`` seconds ago left behind; how many there were."""

    async def presign(self, key: str, *, seconds: int, filename: str, content_type: str) -> str | None:
        """An address from which anybody can download the object for so long, under that name; None if there is none.

        Whether there is such an object is not asked.
        """

    async def close(self) -> None: ...


def check_key(key: str) -> str:
    """The key, if it is a plain relative path. Raises PathRefused."""
    if not is_key(key):
        raise PathRefused(key=key)
    return key


def is_key(key: str) -> bool:
    """Whether it is a valid object key."""
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
"""Control characters and line ends; what some file system or shell reads as more than a letter; what XML, the language
of S3 listings, cannot carry."""
