"""multipart/form-data: read piece by piece; files are stored as they arrive, other fields are combined at the end."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import aclosing
from enum import Enum
from typing import Any, NamedTuple, Protocol

from msgspec import Struct
from python_multipart.exceptions import FormParserError
from python_multipart.multipart import MultipartParser, parse_options_header

from packhorse.define.files import ANYTHING, sanitize_name
from packhorse.define.signatures import HEAD
from packhorse.define.validation import (
    NO_PARAMETER,
    NOT_VALID,
    UNDECODABLE,
    FieldError,
    decode_json,
    field_errors,
    invalid,
    list_some,
    unknown_fields,
)
from packhorse.errors import InvalidInput, Malformed, TooLarge, UnsupportedMedia
from packhorse.http.requests import Body
from packhorse.jobs.catalog import Published
from packhorse.jobs.submit import NewJob

MOST_PARTS = 1000
MOST_HEADERS = 8
LONGEST_HEADER = 16 * 1024
"""Bytes. A file name of thousands of letters is shortened later, not refused."""
LONGEST_BOUNDARY = 70
LONGEST_EPILOGUE = 64 * 1024

PLAIN = frozenset({"", "7bit", "8bit", "binary"})


class Pieces(Protocol):
    """The body of a request, or what stands for one."""

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

    def __init__(self, body: Pieces, content_type: str) -> None:
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


BESIDES = 64 * 1024
"""Bytes a request may have besides its parameters and files: metadata, names, punctuation."""

TEXTS = frozenset({"pipeline", "user_id", "delay", "at", "debounce"})
VALUES = frozenset({"parameters", "priority", "metadata"})

NAME = re.compile(r"\w[\w.-]{0,99}")
"""What a file's parameter can be called; it becomes a part of the object's key."""

Values = dict[str, Any]


class StoredPart(NamedTuple):
    """An uploaded file that was stored."""

    name: str
    media_type: str
    reference: dict[str, int]
    """Its placeholder among the parameters."""
    head: bytes


class Form:
    def __init__(
        self, new_job: NewJob, limit: int, pipeline: Published | None, find: Callable[[str], Awaitable[Published]]
    ) -> None:
        """Once the pipeline is known, a file that it does not accept is refused before it is stored."""
        self._new_job = new_job
        self._limit = limit
        self._left = limit + BESIDES
        self._pipeline = pipeline
        self._find = find
        self._texts: dict[str, list[bytes]] = {}
        self._files: dict[str, list[StoredPart]] = {}

    async def read(self, body: Body, content_type: str) -> None:
        form = Multipart(body, content_type)
        async with aclosing(form.parts()) as parts:
            async for part in parts:
                if part.filename is None or part.name in TEXTS | VALUES:
                    await self._take_text(part.name, form)
                else:
                    await self._take_file(part, part.filename, form)

    def named(self) -> Values:
        """Everything but the parameters, as it would be in JSON."""
        found: Values = {name: _text(name, texts[0]) for name, texts in self._texts.items() if name in TEXTS}
        return found | {name: _value(name, texts[0]) for name, texts in self._texts.items() if name in VALUES}

    def parameters(self, pipeline: Published, given: Values) -> tuple[Values, Values]:
        """The parameters with each file as its name, and with each file as its placeholder in the record."""
        renamed = dict[str, list[bytes]]()
        for name, texts in self._texts.items():
            renamed.setdefault(pipeline.file_of(name), []).extend(texts)
        self._texts = renamed
        mistakes = [*self._misplaced_errors(pipeline, given)]
        values: Values = dict(given)
        if mistakes:
            raise invalid(NOT_VALID, mistakes)
        for name, texts in self._texts.items():
            if name not in TEXTS | VALUES:
                values[name] = pipeline.read(name, [_text(name, text) for text in texts])
        self._check(pipeline)
        names = {name: [file.name for file in files] for name, files in self._files.items()}
        references = {name: [file.reference for file in files] for name, files in self._files.items()}
        return values | _arrange(pipeline, names), values | _arrange(pipeline, references)

    def _check(self, pipeline: Published) -> None:
        """Check the files that arrived before the pipeline was known."""
        for name, file in [(name, file) for name, files in self._files.items() for file in files]:
            pipeline.accepts(name).check(name, file.name, file.media_type)
            pipeline.accepts(name).check_content(name, file.name, file.media_type, file.head)
            pipeline.accepts(name).check_size(name, self._new_job.inputs[file.reference["$file"]].file.size)

    def _misplaced_errors(self, pipeline: Published, given: Values) -> list[FieldError]:
        texts = self._texts.keys() - TEXTS - VALUES
        strange = {name for name in texts | self._files.keys() if not pipeline.takes(name)}
        doubled = given.keys() & (texts | self._files.keys()) | texts & self._files.keys()
        doubled |= {name for name, files in self._files.items() if len(files) > 1 and pipeline.files.get(name) == "one"}
        doubled |= {name for name in texts - strange if len(self._texts[name]) > 1 and not pipeline.is_list(name)}
        return [
            *unknown_fields(sorted(strange), pipeline.names),
            *_each(doubled, "This is given twice"),
            *_each(self._files.keys() - pipeline.files.keys() - strange, "This is not a file"),
        ]

    async def _take_text(self, name: str, form: Multipart) -> None:
        if name in self._texts and name in TEXTS | VALUES:
            raise InvalidInput(f"{name} is given twice.", field=name)
        try:
            text = await form.text(name, self._left)
        except TooLarge as error:
            raise too_much(name, self._limit) from error
        self._left -= len(text) + len(name)
        self._texts.setdefault(name, []).append(text)

    async def _take_file(self, part: Part, filename: str, form: Multipart) -> None:
        if self._pipeline is None and "pipeline" in self._texts:
            self._pipeline = await self._find(_text("pipeline", self._texts["pipeline"][0]))
        self._admit(part.name)
        accepts = ANYTHING if self._pipeline is None else self._pipeline.accepts(part.name)
        async with aclosing(form.chunks()) as chunks:
            first = await anext(chunks, b"")
            while len(first) < HEAD and (more := await anext(chunks, b"")):
                first += more
            if not first and not filename:  # a browser sends this if no file was chosen
                return
            accepts.check(part.name, sanitize_name(filename), part.media_type)
            accepts.check_content(part.name, sanitize_name(filename), part.media_type, first[:HEAD])
            try:
                reference = await self._new_job.upload(part.name, filename, _chain(first, chunks), accepts)
            except TooLarge as error:  # the object store names it by its key
                raise TooLarge(field=part.name, limit=error.facts["limit"]) from error
        stored = StoredPart(self._new_job.inputs[-1].file.name, part.media_type, reference, first[:HEAD])
        self._files.setdefault(part.name, []).append(stored)

    def _admit(self, name: str) -> None:
        """Refuse a file that cannot be right before it is stored."""
        if self._pipeline is not None and not self._pipeline.takes(name):
            raise invalid(NOT_VALID, unknown_fields([name], self._pipeline.names))
        if not NAME.fullmatch(name):
            raise invalid(NOT_VALID, [{"field": name, "message": NO_PARAMETER}])
        how = "many" if self._pipeline is None else self._pipeline.files.get(name)
        if how is None:
            files = list_some(self._pipeline.files) if self._pipeline is not None else "none"
            raise InvalidInput(f"{name} takes no file. Parameters that do: {files}.", field=name)
        if how == "one" and name in self._files:
            raise InvalidInput(f"{name} is given twice.", field=name)


def too_much(field: str, limit: int) -> TooLarge:
    """Names the setting, not what was left of the limit."""
    return TooLarge(
        f"{field} is too large. Without files, a job's parameters may have {limit} bytes (PACKHORSE_PARAMETERS_LIMIT), "
        f"and the other fields of the request {BESIDES}.",
        field=field,
        limit=limit,
    )


def _arrange(pipeline: Published, files: Mapping[str, list[Any]]) -> Values:
    return {name: each[0] if pipeline.files[name] == "one" else each for name, each in files.items()}


def _each(names: set[str], message: str) -> list[FieldError]:
    return [{"field": name, "message": message} for name in sorted(names)]


def _text(name: str, data: bytes) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError:
        raise InvalidInput(f"{name} is not UTF-8.", field=name) from None


def _value(name: str, data: bytes) -> Any:
    try:
        return decode_json(data)
    except UNDECODABLE as error:
        if name == "priority":  # no JSON anybody would have meant: what is wrong with the text is said as in JSON
            return _text(name, data)
        raise invalid(NOT_VALID, [{**each, "field": name} for each in field_errors(error)]) from error


async def _chain(first: bytes, rest: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    if first:
        yield first
    async for chunk in rest:
        yield chunk
