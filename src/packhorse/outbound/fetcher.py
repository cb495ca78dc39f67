"""What a stage fetches from the web with: limits on everything, and no way into the network that it stands in."""

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

from packhorse.define.durations import Duration, Size, seconds, size
from packhorse.errors import OutboundFailed
from packhorse.outbound import urls
from packhorse.outbound.addresses import Allow
from packhorse.outbound.calls import Answer, Outbound
from packhorse.outbound.guard import Policy

NOT_MODIFIED = 304
BATCH = 256 * 1024
"""Bytes that are written at a time."""


class Fetched(Struct, frozen=True):
    """An answer, its body in a file."""

    status: int
    url: str
    """Where it came from in the end, after all redirects. Parameters that were sent along may be in it."""
    headers: Mapping[str, str]
    """In lower case; of several of one name, all of them joined with commas."""
    size: int
    """Bytes of the body, unpacked."""
    is_unchanged: bool
    """Nothing was sent, because what was fetched the last time is still true."""


class Fetcher:
    """Fetches addresses that users choose, though one of them may mean harm.

    Only public addresses are called, at every step of a chain of redirects, and the address that was checked is the one
    that is connected to. No proxy, no cookie. What does not fit into the limits is given up. Whatever goes wrong is an
    `OutboundFailed`, whose ``code`` says what: ``HTTP_404``, ``TIMEOUT``, ``TOO_LARGE``, ``BLOCKED_ADDRESS`` and so on.
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
        """``allow`` names hosts and networks that may be called though they are not public: ``wiki.lan,10.1.0.0/16``.

        It is for who runs the service, never for who submits. ``total`` limits everything together, ``silence`` the
        time without a byte, ``connect`` the time to be connected; ``body`` the answer, as it comes and unpacked.
        ``trust`` is for servers whose certificate nobody vouches for but you.
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
        """Raise `BlockedAddress` for what will never be called, as far as that can be told without asking anybody."""
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
        """Fetch it into the file ``to``, in a function that is not async.

        ``params`` go into the query. ``etag`` and ``modified`` are what the last answer said (``ETag`` and
        ``Last-Modified``): if it still holds, nothing is sent and there is no file. Headers go to the first host only;
        one that cannot be sent is a ``BAD_HEADER``, which tells its name and never what stands in it.
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
        check_headers(given, urls.parse_url(url).host)
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
    """Nothing is left of what did not come whole."""
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
"""Those that belong to the call itself: another value would make it a different call, or none."""

_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")
_VALUE = re.compile(r"([\x21-\x7e]([\t\x20-\x7e]*[\x21-\x7e])?)?")


def is_sendable(value: str) -> bool:
    """A key that was pasted with its line end is not."""
    return _VALUE.fullmatch(value) is not None


def check_headers(headers: Mapping[str, str], host: str) -> None:
    """Raise ``BAD_HEADER`` with the name alone: values are keys, and the transport would quote them in its error."""
    for name, value in headers.items():
        if not _NAME.fullmatch(name) or name.lower() in RESERVED_HEADERS:
            raise _bad_header(host, f"a header {name[:40]!r} cannot be sent along")
        if not is_sendable(value):
            raise _bad_header(
                host, f"what stands in the header {name[:40]!r} cannot be sent; is there a line end in it?"
            )


def _bad_header(host: str, reason: str) -> OutboundFailed:
    return OutboundFailed(code="BAD_HEADER", host=host, reason=reason)
