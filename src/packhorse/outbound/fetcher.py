"""`Fetcher`: downloads for stages, with limits on everything and no access to the internal network."""

from __future__ import annotations

import asyncio
import os
import re
import ssl
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlencode

from msgspec import Struct

from packhorse.define.options import Duration, Size, seconds, size
from packhorse.errors import OutboundFailed
from packhorse.outbound.addresses import Allow
from packhorse.outbound.calls import Answer, Outbound, Policy
from packhorse.outbound.urls import parse_url

NOT_MODIFIED = 304
BATCH = 256 * 1024  # bytes that are written at a time


class Fetched(Struct, frozen=True):
    """A response whose body is in a file."""

    status: int
    url: str
    """Final URL after redirects. It may contain the query parameters that were sent."""
    headers: Mapping[str, str]
    """Names in lower case. Repeated headers are joined with commas."""
    size: int
    """Bytes of the decompressed body."""
    is_unchanged: bool
    """The server answered 304: the previous download is still current, and there is no file."""


class Fetcher:
    """Fetches URLs that users choose, which may be malicious.

    It connects to public addresses only, at every redirect, and to exactly the address that was checked. No proxy, no
    cookies. Exceeding a limit ends the request. Every error is an `OutboundFailed` with a ``code``: ``HTTP_404``,
    ``TIMEOUT``, ``TOO_LARGE``, ``BLOCKED_ADDRESS`` and so on.
    """

    def __init__(
        self,
        *,
        allow: str = "",
        schemes: Sequence[str] = ("https",),
        redirects: int = 3,
        total: Duration = "30s",
        silence: Duration = "10s",
        connect: Duration = "5s",
        body: Size = "10MB",
        trust: ssl.SSLContext | None = None,
    ) -> None:
        """``allow`` lists hosts and networks that are allowed although they are not public: ``wiki.lan,10.1.0.0/16``.

        Only the operator should set it, never the user who submits. ``total`` limits the whole request, ``silence`` the
        time without data, ``connect`` the time to connect, ``body`` the size of the response, compressed and not.
        ``trust`` is a TLS context for servers with a private certificate.
        """
        policy = Policy(
            schemes=tuple(schemes),
            redirects=redirects,
            connect=seconds(connect),
            silence=seconds(silence),
            total=seconds(total),
            body=size(body),
        )
        self._outbound = Outbound(Allow.of(allow), policy, trust=trust)

    def check(self, url: str) -> None:
        """Raise `BlockedAddress` for a URL that is not allowed, as far as that is known without a DNS lookup."""
        self._outbound.check(url)

    def get(
        self,
        url: str,
        to: Path,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        etag: str | None = None,
        modified: str | None = None,
    ) -> Fetched:
        """Download to the file ``to``, from a function that is not async.

        ``params`` are added to the query. ``etag`` and ``modified`` are the ``ETag`` and ``Last-Modified`` of the last
        response: if nothing changed, no file is written. Headers are sent to the first host only. An invalid header is
        a ``BAD_HEADER`` error, which names the header and never shows its value.
        """
        return asyncio.run(self.a_get(url, to, params=params, headers=headers, etag=etag, modified=modified))

    async def a_get(
        self,
        url: str,
        to: Path,
        *,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        etag: str | None = None,
        modified: str | None = None,
    ) -> Fetched:
        conditions = {"If-None-Match": etag, "If-Modified-Since": modified}
        asked = {name: value for name, value in conditions.items() if value and is_sendable(value)}
        given = dict(headers or {})
        check_headers(given, parse_url(url).host)
        async with self._outbound.call("GET", _with(url, params), headers={**given, **asked}) as answer:
            is_unchanged = answer.status == NOT_MODIFIED and bool(asked)
            if not is_unchanged:
                answer.require()
            written = 0 if is_unchanged else await _write(answer, to)
            return Fetched(answer.status, answer.url, dict(answer.headers), written, is_unchanged)


def _with(url: str, params: Mapping[str, str] | None) -> str:
    if not params:
        return url
    before = url.partition("#")[0]  # what follows is not sent anyway
    return f"{before}{'&' if '?' in before else '?'}{urlencode(params)}"


async def _write(answer: Answer, to: Path) -> int:
    """Write the body to a file. A partial file is deleted."""
    written, held = 0, bytearray()
    file = to.open("wb")  # before the try: what cannot be opened is not ours to remove
    try:
        with file:
            async for piece in answer.pieces():
                held += piece
                written += len(piece)
                if len(held) >= BATCH:
                    await asyncio.to_thread(file.write, bytes(held))
                    held.clear()
            file.write(held)
    except BaseException:
        with suppress(FileNotFoundError):
            os.unlink(to)
        raise
    return written


RESERVED_HEADERS = frozenset({"host", "content-length", "transfer-encoding", "connection", "accept-encoding"})
"""Headers that the request itself sets."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"([\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?)?")


def is_sendable(value: str) -> bool:
    """Whether a header value is valid. A key pasted with its newline is not."""
    return _VALUE.fullmatch(value) is not None


def check_headers(headers: Mapping[str, str], host: str) -> None:
    """Raise ``BAD_HEADER`` with the name only: values may be keys, and the transport would quote them."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in RESERVED_HEADERS:
            raise _bad_header(host, f"a header {name[:40]!r} cannot be sent along")
        if not is_sendable(value):
            raise _bad_header(host, f"the value of the header {name[:40]!r} cannot be sent; it may contain a line end")


def _bad_header(host: str, reason: str) -> OutboundFailed:
    return OutboundFailed(code="BAD_HEADER", host=host, reason=reason)
