"""An HTTP request to an address that a user chose: checked, pinned to that address, and limited in time and size.

No proxy from the environment, no cookies, no connection pool: each request has its own connection. The transport gets
the checked IP address, so no second DNS lookup can lead elsewhere. The name is used for the Host header, SNI and the
certificate.
"""

from __future__ import annotations

import asyncio
import ssl
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from urllib.parse import urljoin

import httpx2
from msgspec import Struct
from msgspec.structs import replace

from packhorse.errors import BlockedAddress, OutboundFailed
from packhorse.outbound.addresses import Address, Allow, why_not
from packhorse.outbound.dns import resolve
from packhorse.outbound.urls import Target, parse_url
from packhorse.version import VERSION

REDIRECTS = frozenset({301, 302, 303, 307, 308})
HARMLESS = frozenset({"accept", "accept-language", "user-agent"})
"""Headers that are also sent to another origin after a redirect."""
ADDRESSES = 3  # maximum addresses of one host to try
HTTP_PORTS = frozenset({80, 443})
UNPRIVILEGED = 1024  # lower ports belong to other protocols, such as SMTP or SSH

WINDOWS = {"gzip": zlib.MAX_WBITS | 16, "x-gzip": zlib.MAX_WBITS | 16, "deflate": zlib.MAX_WBITS}
"""The content codings that are decompressed. Several nested ones are refused, because only bombs use them."""
PIECE = 64 * 1024  # bytes that are decompressed at a time, so that a decompression bomb is stopped early

Resolve = Callable[[str], Awaitable[Sequence[Address]]]


def tls_context(url: str) -> ssl.SSLContext:
    """The TLS context for a URL. Loading all certificates is slow, so plain HTTP gets an empty context."""
    if url.lower().startswith("https:"):
        return httpx2.create_ssl_context()
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)  # trusts no certificate, in case of a redirect to https


class Policy(Struct, frozen=True):
    """Limits of one kind of request."""

    schemes: tuple[str, ...] = ("https",)
    redirects: int = 3
    connect: float = 5.0  # seconds to connect
    silence: float = 10.0  # seconds without data
    total: float = 30.0  # seconds for everything, redirects and body included
    headers: int = 32 * 1024  # maximum bytes of the response headers
    body: int = 1024**2  # maximum bytes of the response body, compressed and decompressed


class Guard:
    """Checks targets. The schemes and ports of the policy do not apply to what an operator allows."""

    def __init__(self, allow: Allow, policy: Policy, resolve: Resolve) -> None:
        self._allow = allow
        self._policy = policy
        self._resolve = resolve

    def check(self, target: Target) -> None:
        """Raise BlockedAddress for what can be refused without a DNS lookup."""
        if target.literal is not None:
            self._check(target, target.literal)
        elif target.host not in self._allow.hosts and not self._allow.networks:
            self._check_manner(target)

    async def addresses(self, target: Target) -> list[Address]:
        """Addresses of the host. One address that is not allowed blocks the host."""
        self.check(target)
        found = [target.literal] if target.literal is not None else list(await self._resolve(target.host))
        if not found:
            raise OutboundFailed(code="NOT_RESOLVED", host=target.host, reason="no name server knows it")
        for address in found:
            self._check(target, address)
        return found

    def _check(self, target: Target, address: Address) -> None:
        if target.host in self._allow.hosts or any(address in network for network in self._allow.networks):
            return
        if (why := why_not(address)) is not None:  # before the scheme: https would not help
            raise BlockedAddress(host=target.host, reason=f"its address is {why}")
        self._check_manner(target)

    def _check_manner(self, target: Target) -> None:
        if target.scheme not in self._policy.schemes:
            raise BlockedAddress(host=target.host, reason=f"it must begin with {self._policy.schemes[0]}://")
        if target.port not in HTTP_PORTS and target.port < UNPRIVILEGED:
            raise BlockedAddress(host=target.host, reason=f"port {target.port} is for something else")


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

    async def pieces(self) -> AsyncGenerator[bytes]:
        """The decompressed body. Raises OutboundFailed as soon as it exceeds the limit."""
        said = self.headers.get("content-length", "")
        came, made = 0, 0
        packed = _Packed(self.headers.get("content-encoding", ""), self.host)
        if said.isdigit() and int(said) > self._limit:
            raise self._too_large()
        with _translate_errors(self.host):
            async for raw in self._response.aiter_raw():
                came += len(raw)
                if came > self._limit:
                    raise self._too_large()
                for piece in packed.unpack(raw):
                    made += len(piece)
                    if made > self._limit:
                        raise self._too_large()
                    yield piece
        packed.end()

    def _too_large(self) -> OutboundFailed:
        return OutboundFailed(code="TOO_LARGE", host=self.host, reason=f"it sends more than {self._limit} bytes")


class _Packed:
    """Decompresses a response in small pieces. Raises OutboundFailed for an unknown coding and for broken data."""

    def __init__(self, coding: str, host: str) -> None:
        coding = coding.strip().lower()
        self._is_plain = coding in ("", "identity")
        self._host = host
        self._is_begun = False
        if not self._is_plain and coding not in WINDOWS:
            raise self._error(f"it answers in {coding[:40]!r}")
        self._window = WINDOWS.get(coding, zlib.MAX_WBITS)
        self._zlib = zlib.decompressobj(self._window)

    def unpack(self, data: bytes) -> Iterator[bytes]:
        if self._is_plain:
            yield data
            return
        while data:
            try:
                piece = self._zlib.decompress(data, PIECE)
            except zlib.error as error:
                if not self._is_begun and self._window == zlib.MAX_WBITS:  # many send deflate without its header
                    self._window = -zlib.MAX_WBITS
                    self._zlib = zlib.decompressobj(self._window)
                    continue
                raise self._error() from error
            self._is_begun = True
            if piece:
                yield piece
            data = self._zlib.unconsumed_tail
            if self._zlib.eof and self._zlib.unused_data and self._window > zlib.MAX_WBITS:  # gzip may be in members
                data = self._zlib.unused_data
                self._zlib = zlib.decompressobj(self._window)

    def end(self) -> None:
        """Without compression there is nothing to check: the connection reports missing bytes."""
        if self._is_begun and not self._zlib.eof:
            raise self._error()

    def _error(self, reason: str = "its answer cannot be unpacked") -> OutboundFailed:
        return OutboundFailed(code="BAD_ENCODING", host=self._host, reason=reason)


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
        self._guard.check(parse_url(url))

    @asynccontextmanager
    async def call(
        self, method: str, url: str, *, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> AsyncIterator[Answer]:
        """The response, with any status. Raises `BlockedAddress` or `OutboundFailed`."""
        call = _Call(method, parse_url(url), dict(headers or {}), body)
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
        if self._trust is None:  # created once: it reads every certificate there is
            self._trust = httpx2.create_ssl_context()
        for address in addresses:
            transport = await opened.enter_async_context(httpx2.AsyncHTTPTransport(verify=self._trust, trust_env=False))
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
        fixed = {"Host": target.authority, "Accept-Encoding": "gzip, deflate", "Connection": "close"}
        waits = {"connect": policy.connect, "read": policy.silence, "write": policy.silence, "pool": policy.connect}
        return httpx2.Request(
            call.method,
            httpx2.URL(scheme=target.scheme, host=host, port=target.port, raw_path=target.path.encode("ascii")),
            headers={"User-Agent": f"packhorse/{VERSION}", **call.headers, **fixed},
            content=call.body or None,
            extensions={"timeout": waits, "sni_hostname": target.host},
        )


class _Call(Struct, frozen=True):
    method: str
    target: Target
    headers: dict[str, str]
    body: bytes

    def redirect(self, status: int, place: str) -> _Call:
        """The request after a redirect. The new address is checked like the first one."""
        here, there = self.target, parse_url(urljoin(self.target.url, place))
        if here.scheme == "https" and there.scheme != "https":
            raise self._redirect_error("it sent us on from https to http")
        is_read = status == 303 or (status in (301, 302) and self.method == "POST")
        moved = replace(self, target=there)
        if is_read and self.method != "HEAD":
            kept = {name: value for name, value in self.headers.items() if not name.lower().startswith("content-")}
            moved = replace(moved, method="GET", body=b"", headers=kept)
        if here.origin == there.origin:
            return moved
        if moved.body:
            raise self._redirect_error("it sent us on to another host with what was meant for this one")
        kept = {name: value for name, value in moved.headers.items() if name.lower() in HARMLESS}
        return replace(moved, headers=kept)

    def _redirect_error(self, reason: str) -> OutboundFailed:
        return OutboundFailed(code="BAD_REDIRECT", host=self.target.host, reason=reason)


@contextmanager
def _translate_errors(host: str) -> Iterator[None]:
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
