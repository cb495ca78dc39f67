"""Reads multipart/form-data piece by piece, without holding a part in memory."""

from __future__ import annotations

from collections import deque
from collections.abc import AsyncGenerator
from enum import Enum
from typing import Protocol

from msgspec import Struct
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from packhorse.errors import Malformed, TooLarge, UnsupportedMedia

MOST_PARTS = 1000
MOST_HEADERS = 8
LONGEST_HEADER = 16 * 1024
"""Bytes. A file name of thousands of letters is shortened later, not refused."""
LONGEST_BOUNDARY = 70
LONGEST_EPILOGUE = 64 * 1024

PLAIN = frozenset({"", "7bit", "8bit", "binary"})


class Body(Protocol):
    async def read(self) -> bytes | None:
        """The next piece, None after the last."""


class Part(Struct, frozen=True):
    name: str
    filename: str | None
    """None for a plain field."""
    media_type: str = ""


class Mark(Enum):
    PART_END = 1
    END = 2


class Multipart:
    """Iterate over `parts`; read each with `chunks` or `text` before the next."""

    def __init__(self, body: Body, content_type: str) -> None:
        self._body = body
        self._waiting: deque[Part | bytes | Mark] = deque()
        self._parts = 0
        self._header: tuple[bytearray, bytearray] = (bytearray(), bytearray())
        self._headers: dict[str, str] = {}
        self._parser = MultipartParser(
            boundary_of(content_type),
            {
                "on_part_begin": self._on_part_begin,
                "on_header_field": lambda data, start, end: self._header[0].extend(data[start:end]),
                "on_header_value": lambda data, start, end: self._header[1].extend(data[start:end]),
                "on_header_end": self._on_header_end,
                "on_headers_finished": self._on_headers_finished,
                "on_part_data": lambda data, start, end: self._waiting.append(data[start:end]),
                "on_part_end": lambda: self._waiting.append(Mark.PART_END),
                "on_end": lambda: self._waiting.append(Mark.END),
            },
            max_header_count=MOST_HEADERS,
            max_header_size=LONGEST_HEADER,
        )

    async def parts(self) -> AsyncGenerator[Part]:
        """Skips what was not read of a part."""
        while (found := await self._next()) is not Mark.END:
            if isinstance(found, Part):
                yield found
        await self._end()

    async def chunks(self) -> AsyncGenerator[bytes]:
        """The bytes of the part that was yielded last."""
        while isinstance(found := await self._next(), bytes):
            yield found

    async def text(self, name: str, limit: int) -> bytes:
        """The same in one piece."""
        pieces, size = [], 0
        async for piece in self.chunks():
            size += len(piece)
            if size > limit:
                raise TooLarge(field=name, limit=limit)
            pieces.append(piece)
        return b"".join(pieces)

    async def _end(self) -> None:
        """The form is complete; read the rest of the request, which must be short."""
        left = LONGEST_EPILOGUE
        while piece := await self._body.read():
            left -= len(piece)
            if left < 0:
                raise Malformed(reason="too much follows the end of the form")

    async def _next(self) -> Part | bytes | Mark:
        while not self._waiting:
            piece = await self._body.read()
            if piece is None:
                raise Malformed(reason="the multipart body ends early")
            try:
                self._parser.write(piece)
            except FormParserError as error:
                raise Malformed(reason=f"as multipart, {error}") from error
        return self._waiting.popleft()

    def _on_part_begin(self) -> None:
        self._parts += 1
        if self._parts > MOST_PARTS:
            raise TooLarge("There are too many parts.", field="parts", limit=MOST_PARTS)
        self._headers = {}

    def _on_header_end(self) -> None:
        name, value = (bytes(each).decode("latin-1") for each in self._header)
        self._headers[name.lower()] = value
        self._header = (bytearray(), bytearray())

    def _on_headers_finished(self) -> None:
        kind, options = parse_options_header(self._headers.get("content-disposition"))
        if kind != b"form-data" or not options.get(b"name"):
            raise Malformed(reason="a part does not say which field it is")
        if self._headers.get("content-transfer-encoding", "").lower() not in PLAIN:
            raise Malformed(reason="a part has a transfer encoding, which forms do not")
        filename = options.get(b"filename")
        self._waiting.append(
            Part(
                _decode_name(options[b"name"]),
                None if filename is None else filename.decode(errors="replace"),
                self._headers.get("content-type", ""),
            )
        )


def boundary_of(content_type: str) -> bytes:
    kind, options = parse_options_header(content_type)
    boundary = options.get(b"boundary", b"")
    if kind != b"multipart/form-data":
        raise UnsupportedMedia()
    if not 0 < len(boundary) <= LONGEST_BOUNDARY:
        raise Malformed(reason="the Content-Type names no usable boundary")
    return boundary


def _decode_name(name: bytes) -> str:
    try:
        return name.decode()
    except UnicodeDecodeError:
        raise Malformed(reason="the name of a part is not UTF-8") from None
