"""Files on their way out: their headers, one file, or several as a zip that is made while it is sent."""

from __future__ import annotations

import io
import zipfile
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from typing import IO, Any, cast

from packhorse.api.streaming import Streamed
from packhorse.blob.base import Blobs
from packhorse.core.model import Artifact, Stored
from packhorse.define.files import disposition, sanitised
from packhorse.errors import BlobUnavailable

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


def headers(name: str, content_type: str) -> dict[str, str]:
    return {
        "Content-Type": content_type if content_type in SAFE_TYPES else "application/octet-stream",
        "Content-Disposition": disposition(name),
        "X-Content-Type-Options": "nosniff",
        "Content-Security-Policy": "sandbox; default-src 'none'",
        "Cache-Control": "private, no-cache",
        "Accept-Ranges": "none",
    }


def one(blobs: Blobs, file: Stored) -> Streamed:
    digest = b64encode(bytes.fromhex(file.sha256)).decode()
    return Streamed(
        _pieces(blobs, file),
        {
            **headers(file.name, file.content_type),
            "Content-Length": str(file.size),
            "Repr-Digest": f"sha-256=:{digest}:",
        },
    )


def several(blobs: Blobs, artifacts: Sequence[Artifact], name: str, at: float) -> Streamed:
    return Streamed(_zipped(blobs, artifacts, at), headers(name, "application/zip"))


async def _pieces(blobs: Blobs, file: Stored) -> AsyncGenerator[bytes]:
    """Never a byte more or less than the record says: the length has been promised."""
    left = file.size
    async for piece in blobs.read(file.key):
        left -= len(piece)
        if left < 0:
            break
        yield piece
    if left:
        raise BlobUnavailable(reason=f"{file.key} has not the size it was stored with")


async def _zipped(blobs: Blobs, artifacts: Sequence[Artifact], at: float) -> AsyncGenerator[bytes]:
    """Stored, not compressed: results mostly are already, and the server has better things to do."""
    out = _Out()
    with zipfile.ZipFile(cast(IO[bytes], out), "w", zipfile.ZIP_STORED) as archive:
        for artifact in artifacts:
            info = zipfile.ZipInfo(_inside(artifact.name), datetime.fromtimestamp(at, UTC).timetuple()[:6])
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as entry:
                async for piece in _pieces(blobs, artifact.file):
                    entry.write(piece)
                    yield out.taken()
            yield out.taken()
    yield out.taken()


def _inside(name: str) -> str:
    """The name in the archive, from which nobody's unzip can be led elsewhere."""
    return "/".join(sanitised(part) for part in name.split("/"))


class _Out(io.RawIOBase):
    """What the archive writes, until it is taken. It cannot be sought in, so sizes come after each file."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def taken(self) -> bytes:
        data, self._pieces = b"".join(self._pieces), []
        return data
