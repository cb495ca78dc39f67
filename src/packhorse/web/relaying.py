"""A form that a browser sends, told on to the API while it comes in: files as they are, fields as the API takes them.

A browser sends every field, also those that nobody has filled in. No more of a file is in memory than one piece of it.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
from litestar.types import Receive

from packhorse.errors import Malformed, PackhorseError, TooLarge
from packhorse.multipart import Multipart, Part
from packhorse.web.fields import Field

PARAMETER = "p."
"""What the names of parameters begin with in our forms: one may be called as what is said beside them."""
BESIDE = ("user_id", "priority", "delay")
RESERVED = frozenset({*BESIDE, "pipeline", "parameters", "metadata"})
"""What a part of the API's form cannot be called if it is a parameter: those go together, as JSON."""


class Relayed:
    def __init__(self, receive: Receive, content_type: str, fields: Mapping[str, Field], limit: int) -> None:
        """``limit`` is for the bytes of all texts."""
        self._receive = receive
        self._form = Multipart(self, content_type)
        self._fields = fields
        self._left = limit
        self._limit = limit
        self._boundary = secrets.token_hex(16)
        self._pieces = self._told()
        self._is_over = self._is_broken = False
        self.typed: dict[str, list[str]] = {}
        """What was typed, as far as it came in, to be shown again: no secrets, and no files."""

    @property
    def content_type(self) -> str:
        return f"multipart/form-data; boundary={self._boundary}"

    async def receive(self) -> Any:
        """The body as the API receives it. Of one that is broken it only hears the rest, to see that it ends."""
        if self._is_broken:
            return await self._receive()
        try:
            piece = await anext(self._pieces, None)
        except PackhorseError:
            self._is_broken = True
            raise
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    async def read(self) -> bytes | None:
        """The next piece of what the browser sends."""
        if self._is_over:
            return None
        message = await self._receive()
        if message["type"] != "http.request":
            raise Malformed(reason="the connection ended before the body did")
        self._is_over = not message.get("more_body", False)
        return message.get("body", b"") or (None if self._is_over else await self.read())

    async def _told(self) -> AsyncGenerator[bytes]:
        texts: dict[str, list[str]] = {}
        async with aclosing(self._form.parts()) as parts:
            async for part in parts:
                if part.filename is None:
                    texts.setdefault(part.name, []).append(await self._text(part.name))
                    self.typed = self._shown(texts)
                    continue
                yield self._head(part.name.removeprefix(PARAMETER), part)
                async with aclosing(self._form.chunks()) as chunks:
                    async for chunk in chunks:
                        yield chunk
                yield b"\r\n"
        for name, text in self._fields_told(texts):
            yield self._head(name) + text.encode() + b"\r\n"
        yield f"--{self._boundary}--\r\n".encode()

    async def _text(self, name: str) -> str:
        try:
            text = await self._form.text(name, self._left)
        except TooLarge as error:
            raise TooLarge(field=name.removeprefix(PARAMETER), limit=self._limit) from error
        self._left -= len(text)
        return text.decode(errors="replace")

    def _fields_told(self, texts: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
        together: dict[str, Any] = {}
        yield from ((name, text) for name in BESIDE for text in texts.get(name, ()) if text)
        for name, field in self._fields.items():
            if field.kind in ("file", "files"):
                continue
            told = field.told(texts.get(PARAMETER + name, ()))
            if name not in RESERVED:
                yield from ((name, text) for text in told)
            elif told:
                values = [_value(text, field) for text in told]
                together[name] = values if field.kind == "list" else values[0]
        if together:
            yield "parameters", msgspec.json.encode(together).decode()

    def _shown(self, texts: Mapping[str, list[str]]) -> dict[str, list[str]]:
        secret = {PARAMETER + name for name, field in self._fields.items() if field.kind == "secret"}
        return {name: each for name, each in texts.items() if name not in secret}

    def _head(self, name: str, part: Part | None = None) -> bytes:
        said = f'form-data; name="{_quoted(name)}"'
        if part is None:
            return f"--{self._boundary}\r\nContent-Disposition: {said}\r\n\r\n".encode()
        said += f'; filename="{_quoted(part.filename or "")}"'
        kind = part.media_type if part.media_type.isprintable() else ""
        typed = f"Content-Type: {kind}\r\n" if kind else ""
        return f"--{self._boundary}\r\nContent-Disposition: {said}\r\n{typed}\r\n".encode()


def _quoted(text: str) -> str:
    """As browsers do it."""
    return text.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")


def _value(text: str, field: Field) -> Any:
    if field.kind in ("text", "lines", "secret", "choice"):
        return text
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError:
        return text
