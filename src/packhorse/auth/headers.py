"""Request headers as the ASGI server gives them, names in lower case; and the client's address behind proxies.

Litestar's headers object costs more than a small request may.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

Headers = Iterable[tuple[bytes, bytes]]
Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address


def header_values(headers: Headers, name: bytes) -> list[str]:
    return [value.decode("latin-1") for header, value in headers if header == name]


def first_header(headers: Headers, name: bytes) -> str | None:
    for header, value in headers:
        if header == name:
            return value.decode("latin-1")
    return None


def networks(text: str) -> tuple[Network, ...]:
    """``127.0.0.1, 10.0.0.0/8``. Raises ValueError for anything else."""
    return tuple(ip_network(part.strip()) for part in text.split(",") if part.strip())


def client_address(peer: str, forwarded: Iterable[str], trusted: Sequence[Network]) -> str:
    """The address that the outermost trusted proxy reports, or the peer if that is no trusted proxy.

    ``X-Forwarded-For`` grows to the right, and anybody may send one: it is read from the right, as long as a trusted
    proxy added the next address.
    """
    hops = [hop.strip() for line in forwarded for hop in line.split(",")]
    found = peer
    while hops and _is_in(found, trusted):
        hop = _plain(hops.pop())
        if hop is None:
            break
        found = hop
    return found


def rate_limit_address(address: str) -> str:
    """What counts as one address: an IPv6 customer has at least a /64, and would never run out of addresses."""
    found = _address(address)
    if isinstance(found, IPv6Address):
        return str(IPv6Network((found, 64), strict=False))
    return address


def _plain(hop: str) -> str | None:
    """Some proxies add the port."""
    if hop.startswith("["):
        hop = hop[1:].partition("]")[0]
    elif hop.count(":") == 1:
        hop = hop.partition(":")[0]
    found = _address(hop)
    return None if found is None else str(found)


def _is_in(address: str, trusted: Sequence[Network]) -> bool:
    found = _address(address)
    return found is not None and any(found in network for network in trusted)


def _address(text: str) -> Address | None:
    try:
        found = ip_address(text)
    except ValueError:
        return None
    return found.ipv4_mapped or found if isinstance(found, IPv6Address) else found
