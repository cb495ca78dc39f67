"""An HTTP request to an address that a user chose: checked, pinned to that address, and limited in time and size.

No proxy from the environment, no cookies, no connection pool: each request has its own connection. The transport gets
the checked IP address, so no second DNS lookup can lead elsewhere. The name is used for the Host header, SNI and the
certificate.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from urllib.parse import urljoin

import httpx2
from msgspec import Struct
from msgspec.structs import replace

from packhorse.errors import OutboundFailed
from packhorse.outbound import urls
from packhorse.outbound.addresses import Address, Allow
from packhorse.outbound.decompress import SUPPORTED, unpacker
from packhorse.outbound.dns import resolve
from packhorse.outbound.guard import Guard, Policy, Resolve
from packhorse.outbound.urls import Target
from packhorse.version import VERSION

REDIRECTS = frozenset({301, 302, 303, 307, 308})
HARMLESS = frozenset({"accept", "accept-language", "user-agent"})
"""Headers that are also sent to another origin after a redirect."""
ADDRESSES = 3
"""Maximum addresses of one host to try."""


class Answer:
    """A response. Its body is streamed."""

    def __init__(self, response: httpx2.Response, target: Target, policy: Policy) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self.url = target.url
        self.host = target.host
        self._response = response
        self._limit = policy.body

    @property
    def is_good(self) -> bool:
        return 200 <= self.status < 300

    def require(self) -> None:
        """Raise ``HTTP_404`` and the like."""
        if not self.is_good:
            raise OutboundFailed(code=f"HTTP_{self.status}", host=self.host, reason=f"it answered {self.status}")

    async def pieces(self) -> AsyncIterator[bytes]:
        """The decompressed body. Raises OutboundFailed as soon as it exceeds the limit."""
        said = self.headers.get("content-length", "")
        came, made = 0, 0
        unpack = unpacker(self.headers.get("content-encoding", ""), self.host)
        if said.isdigit() and int(said) > self._limit:
            raise self._too_large()
        with _translate_errors(self.host):
            async for raw in self._response.aiter_raw():
                came += len(raw)
                if came > self._limit:
                    raise self._too_large()
                for piece in unpack.unpack(raw):
                    made += len(piece)
                    if made > self._limit:
                        raise self._too_large()
                    yield piece
        unpack.end()

    async def whole(self) -> bytes:
        return b"".join([piece async for piece in self.pieces()])

    def _too_large(self) -> OutboundFailed:
        return OutboundFailed(code="TOO_LARGE", host=self.host, reason=f"it sends more than {self._limit} bytes")


class Outbound:
    def __init__(
        self,
        allow: Allow = Allow(),
        policy: Policy = Policy(),
        *,
        resolve: Resolve = resolve,
        trust: ssl.SSLContext | None = None,
    ) -> None:
        self._policy = policy
        self._guard = Guard(allow, policy, resolve)
        self._trust = trust

    def check(self, url: str) -> None:
        """Raise `BlockedAddress` for a URL that is not allowed, as far as that is known without a DNS lookup."""
        self._guard.check(urls.parse_url(url))

    @asynccontextmanager
    async def call(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> AsyncIterator[Answer]:
        """The response, with any status. Raises `BlockedAddress` or `OutboundFailed`."""
        call = _Call(method, urls.parse_url(url), dict(headers or {}), body)
        limit = asyncio.timeout(self._policy.total)
        try:
            async with limit, AsyncExitStack() as opened:
                yield await self._follow(call, opened)
        except TimeoutError:
            if not limit.expired():
                raise
            raise OutboundFailed(code="TIMEOUT", host=call.target.host, reason="it took too long") from None

    async def _follow(self, call: _Call, opened: AsyncExitStack) -> Answer:
        for _ in range(self._policy.redirects + 1):
            response = await self._send(call, opened)
            place = response.headers.get("location")
            if response.status_code not in REDIRECTS or place is None or not self._policy.redirects:
                return Answer(response, call.target, self._policy)
            await opened.aclose()
            call = call.redirect(response.status_code, place)
        raise OutboundFailed(
            code="TOO_MANY_REDIRECTS",
            host=call.target.host,
            reason=f"it sent us on more than {self._policy.redirects} times",
        )

    async def _send(self, call: _Call, opened: AsyncExitStack) -> httpx2.Response:
        host = call.target.host
        addresses = (await self._guard.addresses(call.target))[:ADDRESSES]
        with _translate_errors(host):
            response = await self._connect(call, addresses, opened)
        if sum(len(name) + len(value) for name, value in response.headers.raw) > self._policy.headers:
            raise OutboundFailed(code="TOO_LARGE", host=host, reason="its headers are too large")
        return response

    async def _connect(self, call: _Call, addresses: list[Address], opened: AsyncExitStack) -> httpx2.Response:
        """Connect to the first address that accepts. Nothing is sent to the others."""
        for address in addresses:
            transport = await opened.enter_async_context(
                httpx2.AsyncHTTPTransport(verify=self._context(), trust_env=False)
            )
            try:
                response = await transport.handle_async_request(self._request(call, address))
            except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
                if address == addresses[-1] or _is_tls(error):
                    raise
                continue
            opened.push_async_callback(response.aclose)
            return response
        raise AssertionError("there is always an address")

    def _request(self, call: _Call, address: Address) -> httpx2.Request:
        target, policy = call.target, self._policy
        host = f"[{address}]" if address.version == 6 else str(address)
        fixed = {"Host": target.authority, "Accept-Encoding": SUPPORTED, "Connection": "close"}
        waits = {"connect": policy.connect, "read": policy.silence, "write": policy.silence, "pool": policy.connect}
        return httpx2.Request(
            call.method,
            httpx2.URL(scheme=target.scheme, host=host, port=target.port, raw_path=target.path.encode("ascii")),
            headers={"User-Agent": f"packhorse/{VERSION}", **call.headers, **fixed},
            content=call.body or None,
            extensions={"timeout": waits, "sni_hostname": target.host},
        )

    def _context(self) -> ssl.SSLContext:
        if self._trust is None:  # made once: it reads every certificate there is
            self._trust = httpx2.create_ssl_context()
        return self._trust


class _Call(Struct, frozen=True):
    method: str
    target: Target
    headers: dict[str, str]
    body: bytes

    def redirect(self, status: int, place: str) -> _Call:
        """The request after a redirect. The new address is checked like the first one."""
        here, there = self.target, urls.parse_url(urljoin(self.target.url, place))
        if here.scheme == "https" and there.scheme != "https":
            raise self._redirect_error("it sent us on from https to http")
        is_read = status == 303 or (status in (301, 302) and self.method == "POST")
        moved = replace(self, target=there)
        if is_read and self.method != "HEAD":
            moved = replace(moved, method="GET", body=b"", headers=_without_content(self.headers))
        if here.origin == there.origin:
            return moved
        if moved.body:
            raise self._redirect_error("it sent us on to another host with what was meant for this one")
        kept = {name: value for name, value in moved.headers.items() if name.lower() in HARMLESS}
        return replace(moved, headers=kept)

    def _redirect_error(self, reason: str) -> OutboundFailed:
        return OutboundFailed(code="BAD_REDIRECT", host=self.target.host, reason=reason)


def _without_content(headers: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in headers.items() if not name.lower().startswith("content-")}


@contextmanager
def _translate_errors(host: str) -> Iterator[None]:
    """Convert errors of the transport to OutboundFailed."""
    try:
        yield
    except httpx2.LocalProtocolError:
        reason = "what should be sent is no HTTP"
        raise OutboundFailed(code="BAD_HEADER", host=host, reason=reason) from None  # the other one quotes the headers
    except httpx2.TransportError as error:
        code, reason = _describe(error)
        raise OutboundFailed(code=code, host=host, reason=reason) from error


def _describe(error: httpx2.TransportError) -> tuple[str, str]:
    if isinstance(error, httpx2.TimeoutException):
        return "TIMEOUT", "it was silent for too long"
    if _is_tls(error):
        return "TLS_FAILED", "its certificate or its TLS is not good"
    if isinstance(error, httpx2.ConnectError):
        return "UNREACHABLE", "nobody could be connected to"
    return "BAD_ANSWER", "it ended the connection, or did not speak HTTP"


def _is_tls(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False
