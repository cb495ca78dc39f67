"""Several files as a zip archive, built while it is sent, with a length known in advance."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncGenerator, Sequence
from datetime import UTC, datetime
from hashlib import sha256
from typing import IO, Any, cast

from packhorse.blobs.base import Blobs
from packhorse.core import json
from packhorse.core.models import Artifact
from packhorse.define.files import sanitize_name
from packhorse.http.responses.download import Content, pieces

LOCAL, EXTRA, SIZES, CENTRAL, END, END64 = 30, 20, 24, 46, 22, 76
"""Bytes, without names: what stands before each file, with the field for large sizes; after it; about it in the
directory at the end; the end itself, and what precedes that of a large archive."""


def several(blobs: Blobs, artifacts: Sequence[Artifact], filename: str, at: float) -> Content:
    made_of = json.encode([at, [(each.name, each.file.sha256) for each in artifacts]])
    return Content(
        "result",
        length(artifacts),
        sha256(made_of).hexdigest(),
        "application/zip",
        lambda _: zip_pieces(blobs, artifacts, at),
        filename=filename,
        is_file=False,
    )


async def zip_pieces(blobs: Blobs, artifacts: Sequence[Artifact], at: float) -> AsyncGenerator[bytes]:
    """Stored, not compressed: results mostly are already, and the server has better things to do."""
    out = _Out()
    with zipfile.ZipFile(cast(IO[bytes], out), "w", zipfile.ZIP_STORED) as archive:
        for artifact in artifacts:
            info = zipfile.ZipInfo(_inside(artifact.name), datetime.fromtimestamp(at, UTC).timetuple()[:6])
            info.external_attr = 0o644 << 16
            with archive.open(info, "w", force_zip64=True) as entry:
                async for piece in pieces(blobs, artifact.file):
                    entry.write(piece)
                    yield out.take()
            yield out.take()
    yield out.take()


def length(artifacts: Sequence[Artifact]) -> int:
    """Bytes of the archive, to the last one: what `zipped` sends."""
    at = directory = 0
    for artifact in artifacts:
        name, size = len(_inside(artifact.name).encode()), artifact.file.size
        large = 2 * (size > zipfile.ZIP64_LIMIT) + (at > zipfile.ZIP64_LIMIT)
        directory += CENTRAL + name + (4 + 8 * large if large else 0)
        at += LOCAL + name + EXTRA + size + SIZES
    is_large = len(artifacts) > zipfile.ZIP_FILECOUNT_LIMIT or max(at, directory) > zipfile.ZIP64_LIMIT
    return at + directory + (END64 if is_large else 0) + END


def _inside(name: str) -> str:
    """The name in the archive, from which nobody's unzip can be led elsewhere."""
    return "/".join(sanitize_name(part) for part in name.split("/"))


class _Out(io.RawIOBase):
    """What the archive writes, until it is taken. It cannot be sought in, so sizes come after each file."""

    def __init__(self) -> None:
        self._pieces: list[bytes] = []

    def write(self, data: Any) -> int:
        self._pieces.append(bytes(data))
        return len(data)

    def take(self) -> bytes:
        data, self._pieces = b"".join(self._pieces), []
        return data
