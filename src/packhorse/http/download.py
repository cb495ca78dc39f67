"""What can be downloaded: a file or a part of it, a value, several files as a zip archive; and its headers."""

from __future__ import annotations

import io
import re
import zipfile
from base64 import b64encode
from collections.abc import AsyncGenerator, Callable, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import IO, Any, NamedTuple, cast

from msgspec import Struct

from packhorse.blobs.base import Blobs
from packhorse.core import json
from packhorse.core.models import Artifact, Stored
from packhorse.define.files import disposition, sanitize_name
from packhorse.errors import BlobUnavailable, RangeNotSatisfiable

SAFE_TYPES = frozenset(
    {
        *("application/json", "application/zip", "text/csv", "text/plain", "video/mp4", "video/webm"),
        *("audio/flac", "audio/mpeg", "audio/ogg", "audio/wav", "audio/x-wav"),
        *("image/gif", "image/jpeg", "image/png", "image/webp"),
    }
)
"""Media types that a browser may be told: none of them can carry a script."""

RANGE = re.compile(r"bytes=[ \t]*(?P<first>[0-9]{1,18})?-(?P<last>[0-9]{1,18})?[ \t]*", re.ASCII | re.IGNORECASE)
TAGS = re.compile(r'(?:W/)?("[^"]*")')

LOCAL, EXTRA, SIZES, CENTRAL, END, END64 = 30, 20, 24, 46, 22, 76
"""Bytes in a zip archive, without names: the header before each file, with the field for large sizes; after it; about
it in the directory at the end; the end itself, and what precedes that of a large archive."""


class Part(NamedTuple):
    start: int
    length: int


class Content(Struct, frozen=True):
    label: str
    """Its name in the audit log."""
    size: int
    sum: str
    """SHA-256 of the bytes, in hex; of an archive, of the list of its files."""
    content_type: str
    pieces: Callable[[Part | None], AsyncGenerator[bytes]]
    filename: str | None = None
    """None: it is not a file, and a browser shows it."""
    is_file: bool = True
    """It is stored as it is sent: a part of it can be sent too, and the sum is that of its bytes."""

    @property
    def etag(self) -> str:
        return f'"{self.sum}"'


def file_content(blobs: Blobs, file: Stored, *, label: str, filename: str) -> Content:
    return Content(
        label, file.size, file.sha256, file.content_type, lambda part: _pieces(blobs, file, part), filename=filename
    )


def json_content(data: bytes) -> Content:
    async def pieces(part: Part | None) -> AsyncGenerator[bytes]:
        yield data if part is None else data[part.start : part.start + part.length]

    return Content("result", len(data), sha256(data).hexdigest(), "application/json", pieces)


def zip_content(blobs: Blobs, artifacts: Sequence[Artifact], filename: str, at: float) -> Content:
    made_of = json.encode([at, [(each.name, each.file.sha256) for each in artifacts]])
    return Content(
        "result",
        zip_length(artifacts),
        sha256(made_of).hexdigest(),
        "application/zip",
        lambda _: zip_pieces(blobs, artifacts, at),
        filename=filename,
        is_file=False,
    )


def download_headers(content: Content, part: Part | None = None) -> dict[str, str]:
    """Of the whole, or of one part."""
    found = {
        "Content-Type": content.content_type if content.content_type in SAFE_TYPES else "application/octet-stream",
        "Content-Length": str(content.size if part is None else part.length),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Accept-Ranges": "bytes" if content.is_file else "none",
        **cache_headers(content.etag),
    }
    if content.filename is not None:
        found["Content-Disposition"] = disposition(content.filename)
    if content.is_file:
        found["Repr-Digest"] = f"sha-256=:{b64encode(bytes.fromhex(content.sum)).decode()}:"
    if part is not None:
        found["Content-Range"] = f"bytes {part.start}-{part.start + part.length - 1}/{content.size}"
    return found


def cache_headers(etag: str) -> dict[str, str]:
    """The client may keep it, and asks again before it uses it. Also sent with 304."""
    return {"ETag": etag, "Cache-Control": "private, no-cache"}


def matches_etag(if_none_match: str | None, etag: str) -> bool:
    """Whether the client has this already. The comparison is the weak one: a proxy that compresses marks tags so."""
    return if_none_match is not None and (if_none_match.strip() == "*" or etag in TAGS.findall(if_none_match))


def requested_part(range: str | None, if_range: str | None, etag: str, size: int) -> Part | None:
    """The part, None for the whole (RFC 9110, section 14). Raises RangeNotSatisfiable if the file has no such part.

    An If-Range that is not exactly this file's tag asks for the whole: half of this and half of another version is a
    file that never was. So do several parts, and a range that we do not know.
    """
    found = RANGE.fullmatch(range or "")
    if found is None or found["first"] is found["last"] is None or if_range not in (None, etag):
        return None
    if found["first"] is None:
        start, end = max(0, size - int(found["last"])), size
    else:
        start, end = int(found["first"]), size if found["last"] is None else int(found["last"]) + 1
        if found["last"] is not None and end <= start:
            return None
    end = min(end, size)
    if start >= end:
        raise RangeNotSatisfiable(size=size)
    return Part(start, end - start)


async def _pieces(blobs: Blobs, file: Stored, part: Part | None = None) -> AsyncGenerator[bytes]:
    """Never a byte more or less than the record says: the length has been promised."""
    start, left = part or Part(0, file.size)
    async for piece in blobs.read(file.key) if part is None else blobs.read(file.key, start=start, length=left):
        left -= len(piece)
        if left < 0:
            break
        yield piece
    if left:
        raise BlobUnavailable(reason=f"{file.key} has not the size it was stored with")


async def zip_pieces(blobs: Blobs, artifacts: Sequence[Artifact], at: float) -> AsyncGenerator[bytes]:
    """Built while it is sent. Stored, not compressed: results mostly are already."""
    out = _Out()
    with zipfile.ZipFile(cast(IO[bytes], out), "w", zipfile.ZIP_STORED) as archive:
        for artifact in artifacts:
            info = zipfile.ZipInfo(_name_in_zip(artifact.name), datetime.fromtimestamp(at, UTC).timetuple()[:6])
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as entry:
                async for piece in _pieces(blobs, artifact.file):
                    entry.write(piece)
                    yield out.take()
            yield out.take()
    yield out.take()


def zip_length(artifacts: Sequence[Artifact]) -> int:
    """Exactly the number of bytes that `zip_pieces` sends."""
    at = directory = 0
    for artifact in artifacts:
        name, size = len(_name_in_zip(artifact.name).encode()), artifact.file.size
        large = 2 * (size > zipfile.ZIP64_LIMIT) + (at > zipfile.ZIP64_LIMIT)
        directory += CENTRAL + name + (4 + 8 * large if large else 0)
        at += LOCAL + name + EXTRA + size + SIZES
    is_large = len(artifacts) > zipfile.ZIP_FILECOUNT_LIMIT or max(at, directory) > zipfile.ZIP64_LIMIT
    return at + directory + (END64 if is_large else 0) + END


def _name_in_zip(name: str) -> str:
    """Sanitized: no unzip program writes outside its folder."""
    return "/".join(sanitize_name(part) for part in name.split("/"))


class _Out(io.RawIOBase):
    """What the archive writes, until it is taken. It is not seekable, so sizes come after each file."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data, self._pieces = b"".join(self._pieces), []
        return data
