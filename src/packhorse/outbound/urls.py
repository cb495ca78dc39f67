"""Strict parsing of URLs that users choose, so that no later library reads them differently."""

from __future__ import annotations

import ipaddress
import re
from urllib.parse import quote, urlsplit

from msgspec import Struct

from packhorse.errors import BlockedAddress
from packhorse.outbound.addresses import HOST, Address, ends_in_number

MAX_URL = 2048
MAX_HOST = 253
PORTS = {"https": 443, "http": 80}
UNREADABLE = re.compile(r"[\x00-\x20\x7f\\]")  # characters that browsers, libraries and servers interpret differently


class Target(Struct, frozen=True):
    scheme: str
    host: str  # a name in lower case, or an address without brackets
    port: int
    path: str  # path and query as sent
    literal: Address | None = None  # the host, if it is an address

    @property
    def origin(self) -> tuple[str, str, int]:
        return self.scheme, self.host, self.port

    @property
    def authority(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS[self.scheme] else f"{host}:{self.port}"

    @property
    def url(self) -> str:
        return f"{self.scheme}://{self.authority}{self.path}"


def parse_url(url: str) -> Target:
    """Raises `BlockedAddress` for anything but a plain scheme, host and path."""
    if len(url) > MAX_URL:
        raise BlockedAddress(host="this address", reason=f"it is longer than {MAX_URL} characters")
    if UNREADABLE.search(url):
        raise BlockedAddress(host="this address", reason="it has a space, a backslash or a control character in it")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise BlockedAddress(host="this address", reason=f"it cannot be read ({error})") from None
    if parts.scheme not in PORTS or not url.lower().startswith(f"{parts.scheme}://"):
        raise BlockedAddress(host="this address", reason="it must begin with https:// or http://")
    if "@" in parts.netloc:
        raise BlockedAddress(host="this address", reason="it must not carry a user or a password")
    host, literal = _host(parts.netloc)
    if port == 0:
        raise BlockedAddress(host=host, reason="0 is no port")
    query = f"?{parts.query}" if parts.query else ""
    path = quote((parts.path or "/") + query, safe="/?%:@!$&'()*+,;=~-._[]")
    return Target(parts.scheme, host, port or PORTS[parts.scheme], path, literal)


def _host(netloc: str) -> tuple[str, Address | None]:
    if netloc.startswith("["):
        inside, _, after = netloc[1:].partition("]")
        if after and not after.startswith(":"):
            raise BlockedAddress(host="this address", reason="it has no host that can be read")
        return _ipv6(inside)
    host = netloc.partition(":")[0].lower()
    if not host.isascii():
        raise BlockedAddress(host="this host", reason="a name with other letters is written in its xn-- form")
    if len(host) > MAX_HOST or not HOST.fullmatch(host):  # so no percent signs, and no dot at the end
        raise BlockedAddress(host="this host", reason="it is not the name of a host")
    if not ends_in_number(host):
        return host, None
    try:
        return host, ipaddress.IPv4Address(host)  # four decimal numbers without leading zeros, and nothing else
    except ValueError:
        raise BlockedAddress(host="this host", reason="an IPv4 address is written as four decimal numbers") from None


def _ipv6(text: str) -> tuple[str, Address]:
    try:
        found = ipaddress.IPv6Address(text)
    except ValueError:
        raise BlockedAddress(host="this host", reason="it is not an IPv6 address") from None
    if found.scope_id is not None:
        raise BlockedAddress(host="this host", reason="it names an interface of this machine")
    return str(found), found
