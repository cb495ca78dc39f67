"""An object store in memory that is simple enough to be read as a specification."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Sequence
from hashlib import sha256
from pathlib import Path

from packhorse.blobs.base import CHUNK, Incoming, Sum, check_key
from packhorse.errors import BlobExists, BlobNotFound, BlobUnavailable


class Objects:
    """The server: every method is one atomic operation."""

    def __init__(self) -> None:
        self.kept: dict[str, bytes] = {}
        self.deleted: Callable[[str], None] = lambda _key: None
        """Is told of every object that is deleted."""

    def put(self, key: str, data: bytes) -> Sum:
        check_key(key)
        if key in self.kept:
            raise BlobExists(key=key)
        parts = key.split("/")
        folders = {"/".join(parts[:n]) for n in range(1, len(parts))}
        if folders & self.kept.keys() or any(other.startswith(f"{key}/") for other in self.kept):
            raise BlobUnavailable(reason="a key cannot be the folder of another")
        self.kept[key] = data
        return Sum(size=len(data), sha256=sha256(data).hexdigest())

    def copy(self, source: str, key: str) -> None:
        check_key(key)
        self.put(key, self.get(source))

    def get(self, key: str) -> bytes:
        if check_key(key) not in self.kept:
            raise BlobNotFound(key=key)
        return self.kept[key]

    def size(self, key: str) -> int | None:
        found = self.kept.get(check_key(key))
        return None if found is None else len(found)

    def keys(self, prefix: str, after: str | None = None, limit: int = 1000) -> list[str]:
        check_key(prefix)
        found = (key for key in self.kept if key.startswith(f"{prefix}/") and (after is None or key > after))
        return sorted(found)[:limit]

    def folders(self, prefix: str, after: str | None = None, limit: int = 1000) -> list[str]:
        check_key(prefix)
        below = (key.removeprefix(f"{prefix}/") for key in self.kept if key.startswith(f"{prefix}/"))
        names = {name.partition("/")[0] for name in below if "/" in name}
        return sorted(name for name in names if after is None or name > after)[:limit]

    def delete(self, keys: Sequence[str]) -> None:
        for key in [check_key(key) for key in keys]:
            if self.kept.pop(key, None) is not None:
                self.deleted(key)

    def delete_all(self, prefix: str) -> None:
        check_key(prefix)
        self.delete([key for key in self.kept if key.startswith(f"{prefix}/")])


class ModelBlobs:
    """A handle on the objects without a network in between."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects

    async def put(self, key: str, chunks: AsyncIterator[bytes], *, limit: int | None = None) -> Sum:
        check_key(key)
        return self._objects.put(key, await collect(key, chunks, limit))

    async def put_file(self, key: str, path: Path) -> Sum:
        check_key(key)
        return self._objects.put(key, path.read_bytes())

    async def copy(self, source: str, key: str) -> None:
        self._objects.copy(source, key)

    async def read(self, key: str, *, start: int = 0, length: int | None = None) -> AsyncIterator[bytes]:
        data = self._objects.get(key)
        end = len(data) if length is None else min(len(data), start + length)
        for at in range(start, end, CHUNK):
            yield data[at : min(end, at + CHUNK)]

    async def size(self, key: str) -> int | None:
        return self._objects.size(key)

    async def fetch(self, key: str, to: Path) -> None:
        data = self._objects.get(key)
        with to.open("xb") as file:
            file.write(data)

    async def keys(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return self._objects.keys(prefix, after, limit)

    async def folders(self, prefix: str, *, after: str | None = None, limit: int = 1000) -> list[str]:
        return self._objects.folders(prefix, after, limit)

    async def delete(self, keys: Sequence[str]) -> None:
        self._objects.delete(keys)

    async def delete_all(self, prefix: str) -> None:
        self._objects.delete_all(prefix)

    async def abandon(self, older_than: float, *, everywhere: bool = False) -> int:  # noqa: ARG002 (a put is never unfinished)
        return 0

    async def presign(self, key: str, *, seconds: int, filename: str, content_type: str) -> str | None:  # noqa: ARG002
        check_key(key)
        return None

    async def close(self) -> None: ...


async def collect(key: str, chunks: AsyncIterator[bytes], limit: int | None = None) -> bytes:
    """All of it. Raises `TooLarge` past the limit."""
    incoming = Incoming(key, limit, 1 << 62)
    async for chunk in chunks:
        incoming.take(chunk)
    return b"".join(incoming.pending())
