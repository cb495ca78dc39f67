"""Messages between supervisor and child: length-prefixed msgpack, checked against these types. No pickle."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Literal

import msgspec
from msgspec import Struct

from packhorse.core.redaction import redact, secret_forms, split_redacted

FRAME = 16 * 1024 * 1024
"""Bytes of a message at most. Files are sent as paths, and results have a limit far below."""


class Document(Struct, frozen=True):
    """A value as JSON, with the files it refers to by number."""

    value: bytes
    files: tuple[tuple[str, str], ...] = ()
    """Path and name of each."""
    failed: tuple[int, str, str] | None = None
    """Element, code and message, if it failed and there is no value."""


class Argument(Struct, frozen=True):
    """What fills one parameter of the stage."""

    parameter: str
    how: Literal["needs", "each", "gather"]
    values: tuple[Document, ...]
    """One result, or the results of all elements in order."""
    is_skipped: bool = False
    """Whether the stage that it would come from was skipped."""


# To the child.


class Run(Struct, frozen=True, tag=True):
    call: int
    kind: str
    job_id: str
    user_id: str
    trace_id: str
    attempt: int
    element: int
    scratch: str
    """A folder of its own, which the child creates when it is first used."""
    parameters: Document
    arguments: tuple[Argument, ...] = ()
    limit: int = 256 * 1024
    """Bytes the result's JSON may have."""
    memory: int | None = None
    """Bytes that it may allocate."""
    artifacts: int = 10_000
    """Files that it may publish, those of its result included."""
    secrets: tuple[tuple[str, ...], ...] = ()
    """Their paths in the parameters."""
    schedule: str | None = None
    tick: float = 0.0
    previous: bytes = b""
    """JSON of the result of the previous run, if there was one."""

    def words(self) -> tuple[str, ...]:
        """The secrets, in the forms in which they may appear in the output of the stage."""
        return secret_forms(self.parameters.value, self.secrets)

    # Long texts are cut. Secrets are redacted before: half of one could not be recognised any more.

    def beginning(self, text: str, most: int) -> str:
        return text if len(text) <= most else redact(text, self.words())[:most]

    def end(self, text: str, most: int) -> str:
        return text if len(text) <= most else redact(text, self.words())[-most:]

    def pieces(self, text: str, most: int) -> list[str]:
        text = text if len(text) <= most else redact(text, self.words())
        return [text[start : start + most] for start in range(0, len(text), most)] or [text]


class Stop(Struct, frozen=True, tag=True):
    call: int


ToChild = Run | Stop


# From the child.


class Ready(Struct, frozen=True, tag=True):
    """The user's code is loaded."""


class Broken(Struct, frozen=True, tag=True):
    """The user's code cannot be loaded."""

    message: str


class Moved(Struct, frozen=True, tag=True):
    call: int
    current: float
    total: float | None
    message: str


class Said(Struct, frozen=True, tag=True):
    """Output of a stage in a shared process, where the pipe does not tell whose it is."""

    call: int
    text: str
    """One or more whole lines."""


class Made(Struct, frozen=True, tag=True):
    """A file published with ``ctx.artifact``."""

    call: int
    name: str
    path: str


class Returned(Struct, frozen=True, tag=True):
    call: int
    result: Document
    width: int | None
    """Length of the returned list, None if it was no list."""
    has_scratch: bool = False
    """Whether the stage has used its folder: most do not, and there is nothing to remove."""


class Raised(Struct, frozen=True, tag=True):
    call: int
    code: str
    message: str
    permanent: bool
    detail: str


class Postponed(Struct, frozen=True, tag=True):
    call: int
    seconds: float
    until: float | None = None


class Skipped(Struct, frozen=True, tag=True):
    call: int
    reason: str


Outcome = Returned | Raised | Postponed | Skipped
FromChild = Ready | Broken | Moved | Said | Made | Outcome

_size = struct.Struct(">I")
_encoder = msgspec.msgpack.Encoder()
to_child: Callable[[bytes], ToChild] = msgspec.msgpack.Decoder[ToChild](ToChild).decode
from_child: Callable[[bytes], FromChild] = msgspec.msgpack.Decoder[FromChild](FromChild).decode


def to_frame(message: ToChild | FromChild) -> bytes:
    body = _encoder.encode(message)
    return _size.pack(len(body)) + body


def to_text(text: object) -> str:
    """As text that can be sent: a lone surrogate, as in a file name of unknown encoding, has no UTF-8."""
    return str(text).encode(errors="backslashreplace").decode()


class Frames:
    """Cuts a stream into messages. Raises ValidationError for one that is too long."""

    def __init__(self, limit: int = FRAME) -> None:
        self._rest = bytearray()
        self._limit = limit

    def feed(self, data: bytes) -> Iterator[bytes]:
        whole: bytes | bytearray = data
        if self._rest:
            self._rest += data  # in place: a long message comes in many pieces
            whole = self._rest
        start, end = 0, len(whole)
        while end - start >= 4:
            (size,) = _size.unpack_from(whole, start)
            if size > self._limit:
                raise msgspec.ValidationError(f"a message of {size} bytes is over the limit of {self._limit}")
            if end - start - 4 < size:
                break
            yield bytes(whole[start + 4 : start + 4 + size])
            start += 4 + size
        if whole is self._rest:
            del self._rest[:start]
        else:
            self._rest += whole[start:]


class Lines:
    """Cuts output into lines. The beginning of a very long one is passed on, redacted, before its end has come."""

    def __init__(self, longest: int) -> None:
        self._longest = longest
        self._rest = ""
        self._is_cut = False
        """Whether the beginning of the line was passed on."""

    def feed(self, text: str, secrets: Callable[[], Sequence[str]]) -> list[str]:
        *lines, self._rest = (self._rest + text).split("\n")
        if self._is_cut and lines:
            self._is_cut = False
            lines = lines if lines[0] else lines[1:]  # nothing but the line end was left
        if len(self._rest) > self._longest:
            beginning, self._rest = split_redacted(self._rest, secrets())
            lines, self._is_cut = [*lines, beginning] if beginning else lines, True
        return lines

    def end(self) -> list[str]:
        """What is left without a line end."""
        rest, self._rest, self._is_cut = self._rest, "", False
        return [rest] if rest else []
