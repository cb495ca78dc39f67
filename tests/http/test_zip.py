"""An archive is exactly as long as was said before the first of its bytes was there."""

from __future__ import annotations

import io
import zipfile
from collections.abc import AsyncIterator
from typing import Any

import pytest

from packhorse.core.models import Artifact, Stored
from packhorse.http import download

AT = 1_800_000_000.0


class Bytes:
    """Objects that are as long as their key says."""

    async def read(self, key: str) -> AsyncIterator[bytes]:
        left = int(key)
        while left:
            piece = min(left, 1000)
            left -= piece
            yield b"x" * piece


def artifacts(*sizes: int, name: str = "only/größe {n}.bin") -> list[Artifact]:
    return [Artifact(name.format(n=n), Stored(str(size), "a", size, "00" * 32)) for n, size in enumerate(sizes)]


async def made(files: list[Artifact]) -> bytes:
    blobs: Any = Bytes()
    return b"".join([piece async for piece in download.zip_pieces(blobs, files, AT)])


@pytest.mark.parametrize("limit", [zipfile.ZIP64_LIMIT, 5000, 1000, 100])
@pytest.mark.parametrize("sizes", [(), (0,), (1, 2, 3), (999, 1000, 1001), (4000, 10, 4000, 6000), (3,) * 200])
async def test_its_length_is_known(sizes: tuple[int, ...], limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a lower limit, small archives have all that only those of gigabytes have otherwise."""
    monkeypatch.setattr(zipfile, "ZIP64_LIMIT", limit)

    archive = await made(artifacts(*sizes))

    assert download.zip_length(artifacts(*sizes)) == len(archive)
    with zipfile.ZipFile(io.BytesIO(archive)) as read:
        assert [info.file_size for info in read.infolist()] == list(sizes)
        assert read.testzip() is None


async def test_more_files_than_an_old_archive_could_hold(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zipfile, "ZIP_FILECOUNT_LIMIT", 3)
    files = artifacts(1, 2, 3, 4)

    assert download.zip_length(files) == len(await made(files))
