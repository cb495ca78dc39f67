"""The frames that were sampled, as one file that every processor reads: pictures, and when each is seen."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple
from zipfile import ZIP_STORED, ZipFile

import msgspec
from PIL import Image

QUALITY = 92
TIMES = "times.json"


class Frame(NamedTuple):
    at: float
    picture: Image.Image


class Writer:
    def __init__(self, path: Path) -> None:
        self._file = ZipFile(path, "w", ZIP_STORED)  # pictures are small already
        self.times: list[float] = []

    def add(self, at: float, picture: Image.Image) -> None:
        data = io.BytesIO()
        picture.save(data, "JPEG", quality=QUALITY)
        self._file.writestr(f"{len(self.times)}.jpg", data.getvalue())
        self.times.append(at)

    def close(self) -> None:
        self._file.writestr(TIMES, msgspec.json.encode(self.times))
        self._file.close()


class Frames:
    """Read one by one: a long video does not fit into memory."""

    def __init__(self, path: Path) -> None:
        self._file = ZipFile(path)
        self.times: list[float] = msgspec.json.decode(self._file.read(TIMES), type=list[float])

    def __len__(self) -> int:
        return len(self.times)

    def __iter__(self) -> Iterator[Frame]:
        return (self[i] for i in range(len(self)))

    def __getitem__(self, i: int) -> Frame:
        return Frame(self.times[i], Image.open(io.BytesIO(self._file.read(f"{i}.jpg"))).convert("RGB"))
