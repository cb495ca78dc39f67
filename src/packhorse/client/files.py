"""Uploads and downloads, a piece at a time.

Uploads are read while they are sent, and again from the start if repeated. Downloads are written to a temporary file,
checked against the server's digest, then renamed.
"""

from __future__ import annotations

import asyncio
import os
import re
import secrets
import tempfile
from base64 import b64encode
from collections.abc import AsyncIterator, Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from hashlib import sha256
from io import BytesIO
from itertools import chain, count
from pathlib import Path
from typing import Any, BinaryIO, Self
from urllib.parse import unquote

import httpx2
import msgspec

from packhorse.define.files import File, sanitize_name
from packhorse.errors import InvalidInput, Unreachable

Content = str | os.PathLike[str] | bytes | BinaryIO
Sent = Content | File | tuple[str, Content]  # a path, bytes or an open file, alone or with the file name to send
Files = Mapping[str, Sent | Sequence[Sent]]
OnProgress = Callable[[int, int], None]  # called with bytes sent so far, and in all

CHUNK = 256 * 1024


class Form:
    """A multipart form of known length. Raises InvalidInput for what cannot be read.

    Each field is a part of its own: text as it is, anything else as JSON.
    """

    def __init__(self, fields: Mapping[str, Any], files: Files, on_progress: OnProgress | None) -> None:
        self._boundary = secrets.token_hex(16)
        self._fields = [
            (self._head(name), value.encode() if isinstance(value, str) else msgspec.json.encode(value))
            for name, value in fields.items()
        ]
        parts = [_part(name, each) for name, given in files.items() for each in _several(given)]
        self._parts = [(self._head(part.parameter, part.name), part) for part in parts]
        self._total = sum(part.size for part in parts)
        self._on_progress = on_progress or (lambda _sent, _total: None)

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
                    self._on_progress(done, self._total)

    async def async_chunks(self) -> AsyncIterator[bytes]:
        """The same; files are read in a thread, so that the event loop does not wait for the disk."""
        done = 0
        pieces = self._pieces()
        try:
            while (found := await asyncio.to_thread(next, pieces, None)) is not None:
                piece, of_file = found
                yield piece
                done += of_file
                if of_file:
                    self._on_progress(done, self._total)
        finally:
            with suppress(ValueError):  # cancelled while a thread is reading: then the file goes with the generator
                pieces.close()

    def _pieces(self) -> Generator[tuple[bytes, int]]:
        """Each piece, and how many of its bytes are from a file."""
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
        head = f'--{self._boundary}\r\nContent-Disposition: form-data; name="{_quote(name)}"'
        if filename is not None:
            head += f'; filename="{_quote(filename)}"\r\nContent-Type: application/octet-stream'
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
            yield self.content  # the caller opened it and closes it
            return
        with _open(self.parameter, self.content) as file:
            yield file


def _part(parameter: str, given: Sent) -> _Part:
    name, content = given if isinstance(given, tuple) else (None, given)
    if isinstance(content, File):
        name, content = content.name, content.path
    if isinstance(content, bytes | bytearray | memoryview):
        return _Part(parameter, name or parameter, len(content), BytesIO(content))
    if isinstance(content, str | os.PathLike):
        path = Path(content)
        with _open(parameter, path) as file:
            return _Part(parameter, name or path.name, os.fstat(file.fileno()).st_size, path)
    return _part_of_file(parameter, name, content)


def _part_of_file(parameter: str, name: str | None, file: BinaryIO) -> _Part:
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
    path = getattr(file, "name", None)
    return _Part(parameter, name or (Path(path).name if isinstance(path, str) else parameter), size, file, start)


def _open(parameter: str, path: Path) -> BinaryIO:
    if not path.is_file():
        raise InvalidInput(f"There is no file {path}.", field=parameter)
    try:
        return path.open("rb")
    except OSError as error:
        raise InvalidInput(f"{path} cannot be read: {error.strerror}.", field=parameter) from error


def _several(given: Sent | Sequence[Sent]) -> Sequence[Sent]:
    return given if isinstance(given, Sequence) and not isinstance(given, str | bytes | tuple) else [given]


def _quote(name: str) -> str:
    """Escape a name as browsers do."""
    return name.replace('"', "%22").replace("\r", "%0D").replace("\n", "%0A")


class IncomingFile:
    """A file being downloaded. Leaving the context without `finish` removes it."""

    def __init__(self, response: httpx2.Response, to: Path) -> None:
        self._url = str(response.url)
        self._expected = response.headers.get("repr-digest")
        self._to = _unused(to / filename(response.headers["content-disposition"])) if to.is_dir() else to
        self._to.parent.mkdir(parents=True, exist_ok=True)
        fd, self._temporary = tempfile.mkstemp(prefix=".packhorse-", dir=self._to.parent)
        self._file = open(fd, "wb")  # noqa: SIM115 (closed when this is left)
        self._digest = sha256()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        with suppress(FileNotFoundError):  # it was renamed
            os.unlink(self._temporary)

    def add(self, piece: bytes) -> None:
        self._digest.update(piece)
        self._file.write(piece)

    def finish(self) -> Path:
        """Check the digest and give the file its name."""
        self._file.close()
        digest = b64encode(self._digest.digest()).decode()
        if self._expected is not None and self._expected != f"sha-256=:{digest}:":
            raise Unreachable("The file was corrupted during the download; try again.", url=self._url)
        os.chmod(self._temporary, 0o666 & ~_mask())
        os.replace(self._temporary, self._to)
        return self._to


def _unused(path: Path) -> Path:
    """Never overwrites an existing file with a name that the server chose: ``a.jpg``, then ``a (1).jpg``."""
    names = chain([path], (path.with_name(f"{path.stem} ({n}){path.suffix}") for n in count(1)))
    return next(each for each in names if not each.exists())


def filename(disposition: str) -> str:
    """The name in a Content-Disposition, sanitised: the server must not choose the folder."""
    extended = re.search(r"filename\*=UTF-8''([^;\s]+)", disposition, re.IGNORECASE)
    if extended:
        return sanitize_name(unquote(extended[1]))
    plain = re.search(r'filename="((?:[^"\\]|\\.)*)"', disposition, re.IGNORECASE)
    return sanitize_name(re.sub(r"\\(.)", r"\1", plain[1]) if plain else "result")


def _mask() -> int:
    """The umask can only be read by setting it."""
    mask = os.umask(0o077)
    os.umask(mask)
    return mask
