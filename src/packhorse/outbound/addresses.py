"""Which IP addresses are public, and which only an operator can allow."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from msgspec import Struct

Address = ipaddress.IPv4Address | ipaddress.IPv6Address
Network = ipaddress.IPv4Network | ipaddress.IPv6Network

# Tables of our own, after IANA's registries of special addresses: what Python calls global differs between releases.
SPECIAL_IPV4 = {
    "0.0.0.0/8": "this network",
    "10.0.0.0/8": "private",
    "100.64.0.0/10": "shared by a carrier",
    "127.0.0.0/8": "loopback",
    "168.63.129.16/32": "a cloud's own service",
    "169.254.0.0/16": "link-local",
    "172.16.0.0/12": "private",
    "192.0.0.0/24": "reserved",
    "192.0.2.0/24": "documentation",
    "192.88.99.0/24": "reserved",
    "192.168.0.0/16": "private",
    "198.18.0.0/15": "benchmarking",
    "198.51.100.0/24": "documentation",
    "203.0.113.0/24": "documentation",
    "224.0.0.0/4": "multicast",
    "240.0.0.0/4": "reserved",
}
EMBEDDING = {
    "::ffff:0:0/96": "an IPv4 address in disguise",
    "::/96": "an IPv4 address in disguise",
    "64:ff9b::/96": "translated to IPv4",
    "64:ff9b:1::/48": "translated to IPv4",
    "2001::/32": "a Teredo tunnel",
    "2002::/16": "a 6to4 tunnel",
}
SPECIAL_IPV6 = {
    "::1/128": "loopback",
    "::/128": "this host",
    **EMBEDDING,
    "fe80::/10": "link-local",
    "fc00::/7": "private",
    "ff00::/8": "multicast",
    "2001::/23": "reserved",
    "2001:db8::/32": "documentation",
    "3fff::/20": "documentation",
}
GLOBAL_IPV6 = ipaddress.IPv6Network("2000::/3")  # the only range that has been assigned so far
ISATAP = {0x00005EFE, 0x02005EFE}  # the upper half of an interface that carries an IPv4 address in its lower half

SPECIAL: list[tuple[Network, str]] = [
    (ipaddress.ip_network(network), why) for network, why in (SPECIAL_IPV4 | SPECIAL_IPV6).items()
]

HOST = re.compile(r"(?!-)[a-z0-9_-]{1,63}(?<!-)(\.(?!-)[a-z0-9_-]{1,63}(?<!-))*")


def why_not(address: Address) -> str | None:
    """Why the address is not allowed; None if it is public."""
    for network, why in SPECIAL:
        if address in network:
            return why
    if isinstance(address, ipaddress.IPv6Address):
        if address not in GLOBAL_IPV6:
            return "reserved"
        if int(address) >> 32 & 0xFFFFFFFF in ISATAP:
            return "an IPv4 address in disguise"
    return None


class Allow(Struct, frozen=True):
    """Hosts and networks that an operator allows although they are not public."""

    hosts: frozenset[str] = frozenset()
    networks: tuple[Any, ...] = ()

    @classmethod
    def of(cls, text: str) -> Allow:
        """Parse ``hooks.internal,10.1.0.0/16``. Raises ValueError."""
        hosts: set[str] = set()
        networks: list[Network] = []
        for part in filter(None, (part.strip().lower() for part in text.split(","))):
            try:
                networks.append(ipaddress.ip_network(part))
            except ValueError:
                if "/" in part or ends_in_number(part) or not HOST.fullmatch(part):
                    raise ValueError(f"{part!r} is neither a host nor a network") from None
                hosts.add(part)
        return cls(frozenset(hosts), tuple(networks))


def ends_in_number(host: str) -> bool:
    """Whether some library reads it as an IPv4 address: ``127.1``, ``0x7f000001``, ``2130706433``, ``0177.0.0.1``."""
    last = host.rpartition(".")[2]
    return last.isdigit() or re.fullmatch(r"0x[0-9a-f]*", last) is not None
