"""What can be downloaded, and the headers it goes out with."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import AsyncGenerator, Callable
from hashlib import sha256

from msgspec import Struct

from packhorse.blobs.base import Blobs
from packhorse.core.models import Stored
from packhorse.define.files import disposition
from packhorse.errors import BlobUnavailable
from packhorse.http.responses.ranges import Part

SAFE_TYPES = frozenset(
    {
        "application/json",
        "application/zip",
        "audio/flac",
        "audio/mpeg",
        "audio/ogg",
        "audio/wav",
        "audio/x-wav",
        "image/gif",
        "image/jpeg",
        "image/png",
        "image/webp",
        "text/csv",
        "text/plain",
        "video/mp4",
        "video/webm",
    }
)
"""What a browser may know the kind of: nothing that can carry a script."""


class Content(Struct, frozen=True):
    label: str
    """What the audit calls it."""
    size: int
    sum: str
    """SHA-256 of the bytes, in hex; of an archive, of all it is made from."""
    content_type: str
    pieces: Callable[[Part | None], AsyncGenerator[bytes]]
    filename: str | None = None
    """None: it is no file, and shown as it is."""
    is_file: bool = True
    """It lies there as it is sent: a part of it can be sent too, and the sum is that of its bytes."""

    @property
    def etag(self) -> str:
        return f'"{self.sum}"'


def one(blobs: Blobs, file: Stored, *, label: str, filename: str) -> Content:
    return Content(
        label, file.size, file.sha256, file.content_type, lambda part: pieces(blobs, file, part), filename=filename
    )


def value(data: bytes) -> Content:
    async def whole(part: Part | None) -> AsyncGenerator[bytes]:
        yield data if part is None else data[part.start : part.start + part.length]

    return Content("result", len(data), sha256(data).hexdigest(), "application/json", whole)


def headers(content: Content, part: Part | None = None) -> dict[str, str]:
    """Of the whole, or of one part."""
    found = {
        "Content-Type": content.content_type if content.content_type in SAFE_TYPES else "application/octet-stream",
        "Content-Length": str(content.size if part is None else part.length),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Accept-Ranges": "bytes" if content.is_file else "none",
        **unchanged(content),
    }
    if content.filename is not None:
        found["Content-Disposition"] = disposition(content.filename)
    if content.is_file:
        found["Repr-Digest"] = f"sha-256=:{b64encode(bytes.fromhex(content.sum)).decode()}:"
    if part is not None:
        found["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{content.size}"
    return found


def unchanged(content: Content) -> dict[str, str]:
    """What is said even to somebody who has it already."""
    return {"ETag": content.etag, "Cache-Control": "private, no-cache"}


async def pieces(blobs: Blobs, file: Stored, part: Part | None = None) -> AsyncGenerator[bytes]:
    """Never a byte more or less than the record says: the length has been promised."""
    start, left = part or Part(0, file.size)
    async for piece in blobs.read(file.key) if part is None else blobs.read(file.key, start=start, length=left):
        left -= len(piece)
        if left < 0:
            break
        yield piece
    if left:
        raise BlobUnavailable(reason=f"{file.key} has not the size it was stored with")
