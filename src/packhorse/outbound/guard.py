"""Decides which addresses a request may go to, once, before it is made."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence

from msgspec import Struct

from packhorse.errors import BlockedAddress, OutboundFailed
from packhorse.outbound.addresses import Address, Allow, why_not
from packhorse.outbound.urls import Target

Resolve = Callable[[str], Awaitable[Sequence[Address]]]

HTTP_PORTS = frozenset({80, 443})
UNPRIVILEGED = 1024
"""Lower ports belong to other protocols, such as SMTP or SSH."""


class Policy(Struct, frozen=True):
    """Limits of one kind of request."""

    schemes: tuple[str, ...] = ("https",)
    redirects: int = 3
    connect: float = 5.0
    """Seconds to connect."""
    silence: float = 10.0
    """Seconds without data."""
    total: float = 30.0
    """Seconds for everything, redirects and body included."""
    headers: int = 32 * 1024
    """Maximum bytes of the response headers."""
    body: int = 1024**2
    """Maximum bytes of the response body, compressed and decompressed."""


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
        elif not self._allow.names(target.host) and not self._allow.networks:
            self._check_manner(target)

    async def addresses(self, target: Target) -> list[Address]:
        """Addresses of the host. One address that is not allowed blocks the host."""
        found = [target.literal] if target.literal is not None else list(await self._resolve(target.host))
        if not found:
            raise OutboundFailed(code="NOT_RESOLVED", host=target.host, reason="no name server knows it")
        for address in found:
            self._check(target, address)
        return found

    def _check(self, target: Target, address: Address) -> None:
        if self._allow.names(target.host) or self._allow.holds(address):
            return
        self._check_manner(target)
        if (why := why_not(address)) is not None:
            raise BlockedAddress(host=target.host, reason=f"its address is {why}")

    def _check_manner(self, target: Target) -> None:
        if target.scheme not in self._policy.schemes:
            raise BlockedAddress(host=target.host, reason=f"it must begin with {self._policy.schemes[0]}://")
        if target.port not in HTTP_PORTS and target.port < UNPRIVILEGED:
            raise BlockedAddress(host=target.host, reason=f"port {target.port} is for something else")
