"""Forms as browsers send them: small ones read within limits of size, time and number, those with files passed on.

The framework would take any size for any time, and remember the last thousand bodies: some have a key in them.
A browser sends every field, also those that nobody has filled in.
"""

from __future__ import annotations

import secrets
from collections.abc import AsyncGenerator, Iterator, Mapping
from contextlib import aclosing
from typing import Any
from urllib.parse import parse_qsl

from litestar.datastructures import FormMultiDict
from litestar.types import Receive

from packhorse.errors import Malformed, PackhorseError, TooLarge, UnsupportedMedia
from packhorse.http.form import Multipart, Part
from packhorse.http.requests import Body
from packhorse.settings import Settings
from packhorse.web.render import Page
from packhorse.web.widgets.fields import Field

BESIDE = ("user_id", "priority", "delay")  # what is said beside the parameters, of which none is called so
KIND = "application/x-www-form-urlencoded"
SMALL = 16 * 1024  # bytes of a form that anybody may send
ROOM = 64 * 1024  # bytes besides parameters, all of which may be in a form
FIELDS = 1000


class Relayed:
    """A form with files, told on to the API while it comes in: no more of a file is in memory than one piece of it."""

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
                yield self._head(part)
                async with aclosing(self._form.chunks()) as chunks:
                    async for chunk in chunks:
                        yield chunk
                yield b"\r\n"
        for name, text in self._fields_told(texts):
            yield self._head(Part(name, None)) + text.encode() + b"\r\n"
        yield f"--{self._boundary}--\r\n".encode()

    async def _text(self, name: str) -> str:
        try:
            text = await self._form.text(name, self._left)
        except TooLarge as error:
            raise TooLarge(field=name, limit=self._limit) from error
        self._left -= len(text)
        return text.decode(errors="replace")

    def _fields_told(self, texts: Mapping[str, list[str]]) -> Iterator[tuple[str, str]]:
        yield from ((name, text) for name in BESIDE for text in texts.get(name, ()) if text)
        for name, field in self._fields.items():
            if field.kind not in ("file", "files"):
                yield from ((name, text) for text in field.told(texts.get(name, ())))

    def _shown(self, texts: Mapping[str, list[str]]) -> dict[str, list[str]]:
        secret = {name for name, field in self._fields.items() if field.kind == "secret"}
        return {name: each for name, each in texts.items() if name not in secret}

    def _head(self, part: Part) -> bytes:
        said = f'form-data; name="{_quoted(part.name)}"'
        if part.filename is not None:
            said += f'; filename="{_quoted(part.filename)}"'
        kind = part.media_type if part.media_type.isprintable() else ""
        typed = f"Content-Type: {kind}\r\n" if kind else ""
        return f"--{self._boundary}\r\nContent-Disposition: {said}\r\n{typed}\r\n".encode()


def _quoted(text: str) -> str:
    """As browsers do it."""
    return text.replace("\r", "%0D").replace("\n", "%0A").replace('"', "%22")


async def form(request: Page, *, is_small: bool = False) -> FormMultiDict:
    """Raises TooLarge, TooSlow, Malformed or UnsupportedMedia."""
    settings: Settings = request.app.state.settings
    sent = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    limit = SMALL if is_small else 3 * settings.parameters_limit + ROOM  # most of what is typed takes three bytes
    body = await Body(request.receive, settings).whole(limit)
    if body and sent != KIND:
        raise UnsupportedMedia(f"A form is sent as {KIND}.")
    try:
        pairs = parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True, max_num_fields=FIELDS)
    except ValueError:
        raise TooLarge(f"A form has at most {FIELDS} fields.", field="body", limit=FIELDS) from None
    return FormMultiDict(pairs)
