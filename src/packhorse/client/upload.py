"""Uploads: files are read while they are sent, never held in memory, and again from the start if repeated."""

from __future__ import annotations

import asyncio
import os
import secrets
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from packhorse.define.files import File
from packhorse.errors import InvalidInput

Content = str | os.PathLike[str] | bytes | BinaryIO
Sent = Content | File | tuple[str, Content]
"""A path, bytes or an open file, as it is or with the name it shall have."""
Files = Mapping[str, Sent | Sequence[Sent]]
OnProgress = Callable[[int, int], None]
"""Called with bytes sent so far, and in all."""

CHUNK = 256 * 1024


def fields(asked: Mapping[str, Any]) -> dict[str, str]:
    """Each value as a part of its own: text as it is, anything else as JSON."""
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode() for name, value in asked.items()
    }


class Form:
    """A multipart form of known length. Raises InvalidInput for what cannot be read."""

    def __init__(self, fields: Mapping[str, str], files: Files, tell: OnProgress | None) -> None:
        self._boundary = secrets.token_hex(16)
        self._fields = [(self._head(name), value.encode()) for name, value in fields.items()]
        parts = [_part(name, each) for name, given in files.items() for each in _several(given)]
        self._parts = [(self._head(part.parameter, part.name), part) for part in parts]
        self._total = sum(part.size for part in parts)
        self._tell = tell or _ignore

    def headers(self) -> dict[str, str]:
        fields = sum(len(head) + len(value) + 2 for head, value in self._fields)
        length = fields + sum(len(head) + part.size + 2 for head, part in self._parts) + len(self._end())
        return {"Content-Type": f"multipart/form-data; boundary={self._boundary}", "Content-Length": str(length)}

    def chunks(self) -> Iterator[bytes]:
        """All of it, from the start."""
        done = 0
        with closing(self._pieces()) as pieces:
            for piece, of_file in pieces:
                yield piece
                done += of_file
                if of_file:
                    self._tell(done, self._total)

    async def async_chunks(self) -> AsyncIterator[bytes]:
        """The same; files are read in a thread, so that nobody else in the loop waits for the disk."""
        done = 0
        pieces = self._pieces()
        try:
            while (found := await asyncio.to_thread(next, pieces, None)) is not None:
                piece, of_file = found
                yield piece
                done += of_file
                if of_file:
                    self._tell(done, self._total)
        finally:
            with suppress(ValueError):  # cancelled while a thread is reading: then the file goes with the generator
                pieces.close()

    def _pieces(self) -> Generator[tuple[bytes, int]]:
        """Each piece, and how much of it is of a file."""
        for head, value in self._fields:
            yield head + value + b"\r\n", 0
        for head, part in self._parts:
            yield head, 0
            with part.open() as file:
                while piece := file.read(CHUNK):
                    yield piece, len(piece)
            yield b"\r\n", 0
        yield self._end(), 0

    def _head(self, name: str, filename: str | None = None) -> bytes:
        head = f'--{self._boundary}\r\nContent-Disposition: form-data; name="{_quoted(name)}"'
        if filename is not None:
            head += f'; filename="{_quoted(filename)}"\r\nContent-Type: application/octet-stream'
        return f"{head}\r\n\r\n".encode()

    def _end(self) -> bytes:
        return f"--{self._boundary}--\r\n".encode()


@dataclass(frozen=True)
class _Part:
    parameter: str
    name: str
    size: int
    content: Path | BinaryIO
    start: int = 0

    @contextmanager
    def open(self) -> Iterator[BinaryIO]:
        if not isinstance(self.content, Path):
            self.content.seek(self.start)
            yield self.content  # open it was, open it stays
            return
        with _readable(self.parameter, self.content) as file:
            yield file


def _part(parameter: str, given: Sent) -> _Part:
    name, content = given if isinstance(given, tuple) else (None, given)
    if isinstance(content, File):
        name, content = content.name, content.path
    if isinstance(content, bytes | bytearray | memoryview):
        return _Part(parameter, name or parameter, len(content), BytesIO(content))
    if isinstance(content, str | os.PathLike):
        path = Path(content)
        with _readable(parameter, path) as file:
            return _Part(parameter, name or path.name, os.fstat(file.fileno()).st_size, path)
    return _open(parameter, name, content)


def _open(parameter: str, name: str | None, file: BinaryIO) -> _Part:
    try:
        start = file.tell()
        size = file.seek(0, os.SEEK_END) - start
        file.seek(start)
        is_binary = isinstance(file.read(0), bytes)
    except (AttributeError, OSError, ValueError) as error:
        raise InvalidInput(
            "An open file must be one that can be read again from where it is; else give its bytes.", field=parameter
        ) from error
    if not is_binary:
        raise InvalidInput('An open file must be opened as bytes, with the mode "rb".', field=parameter)
    called = getattr(file, "name", None)
    return _Part(parameter, name or (Path(called).name if isinstance(called, str) else parameter), size, file, start)


def _readable(parameter: str, path: Path) -> BinaryIO:
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}.", field=parameter)
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.", field=parameter) from error


def _several(given: Sent | Sequence[Sent]) -> Sequence[Sent]:
    return given if isinstance(given, Sequence) and not isinstance(given, str | bytes | tuple) else [given]


def _quoted(name: str) -> str:
    """As browsers do."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


def _ignore(_sent: int, _total: int) -> None:
    pass
