"""Limits: how they are charged, the RateLimit headers, and how often one client may send requests.

The store counts for all processes together. A write per request would cost more than most requests do, so a process
takes its allowance from the store in portions and gives back what it did not use: all processes together never admit
more than the limit, and at most a hundredth of it is unused for a moment.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from packhorse.errors import StoreError, TooMany
from packhorse.settings import Settings
from packhorse.store.base import Charge, Spent, Store

WINDOW = 300.0
PORTIONS = 100
IDLE = 5.0
"""Seconds after which an unused allowance is given back."""
SOON = 1.0
"""Retry-After for a limit on concurrent requests: nobody knows when one ends."""


class Limit(NamedTuple):
    name: str
    """As in the headers and in the counter's name."""
    most: int
    window: float
    unit: Literal["requests", "content-bytes", "concurrent-requests"]
    error: type[TooMany]
    what: str = "requests"
    """What is counted, in the words of the refusal."""
    who: str = "this key"
    """What is limited (user, token or key), as the error names it."""

    def charge(self, whose: str, amount: int) -> Charge:
        kind = "quota" if self.unit == "content-bytes" else "ratelimit"
        return Charge(f"{kind}:{self.name}:{whose}", amount, self.most, self.window)


def token_share(most: int, settings: Settings) -> int:
    """What one token may use of a limit that all tokens of a key share; 0 if there is no limit."""
    return math.ceil(most * settings.token_share) if most else 0


def limit_headers(limits: Sequence[Limit], spent: Spent) -> dict[str, str]:
    """The RateLimit headers (draft-ietf-httpapi-ratelimit-headers); empty without limits."""
    if not limits:
        return {}
    policies = [_policy(each) for each in limits]
    states = [
        f'"{each.name}";r={left}' + (f";t={_wait(each, spent)}" if n == spent.refused else "")
        for n, (each, left) in enumerate(zip(limits, spent.left, strict=True))
    ]
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(states)}


def refusal(limits: Sequence[Limit], spent: Spent) -> TooMany | None:
    """The error to raise, if one of these charges exceeded its limit."""
    if spent.refused is None:
        return None
    limit = limits[spent.refused]
    wait = _wait(limit, spent)
    response_headers = {**limit_headers(limits, spent), "Retry-After": str(wait)}
    return limit.error(
        policy=limit.name,
        what=limit.what,
        who=limit.who,
        limit=limit.most,
        window=round(limit.window),
        retry_after=wait,
        headers=response_headers,
    )


@dataclass
class Allowance:
    """How many requests of one client this process may still admit."""

    left: int = 0
    taken_at: float = 0.0
    """By the store's clock; a refund names it."""
    used_at: float = 0.0
    known_left: int = 0
    """What was left in the store when the portion was taken."""
    blocked_until: float = 0.0


class Rates:
    def __init__(self, store: Store, limit: int, window: float = WINDOW) -> None:
        self._store = store
        self._limit = limit
        self._window = window
        self._portion = max(1, limit // PORTIONS)
        self._clients: dict[str, Allowance] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def admit(self, client: str, wanted: int = 1) -> Spent:
        """Count a request. It is refused, or what is left is in the answer, as if the store had counted it.

        ``wanted``: how many requests are about to be counted, this one included.
        """
        allowance = self._clients.setdefault(client, Allowance())
        allowance.used_at = time.monotonic()
        if allowance.left == 0:
            async with self._turns.setdefault(client, asyncio.Lock()):
                if allowance.left == 0 and allowance.blocked_until <= time.monotonic():
                    await self._take(client, allowance, wanted)
        if allowance.left == 0:
            return Spent(0.0, 0, (0,), max(0.0, allowance.blocked_until - time.monotonic()))
        allowance.left -= 1
        return Spent(0.0, None, (allowance.left + allowance.known_left,), 0.0)

    async def admit_many(self, client: str, count: int) -> tuple[int, Spent]:
        """Count so many requests; how many of them are admitted, and what is left or why the next is refused."""
        admitted, spent = 0, Spent(0.0, None, (0,), 0.0)
        while admitted < count and spent.refused is None:
            spent = await self.admit(client, count - admitted)
            if spent.refused is None:
                allowance = self._clients[client]
                more = min(allowance.left, count - admitted - 1)
                allowance.left -= more
                admitted += 1 + more
        return admitted, spent

    async def run(self) -> None:
        while True:
            await asyncio.sleep(IDLE)
            await self.give_back(idle=IDLE)

    async def give_back(self, idle: float = 0.0) -> None:
        """Return the allowances of clients that have been idle that long. A failure loses them: it is only a limit."""
        before = time.monotonic() - idle
        for client, allowance in list(self._clients.items()):
            if allowance.used_at > before or self._turns[client].locked():
                continue
            del self._clients[client], self._turns[client]
            if allowance.left:
                try:
                    await self._store.refund([self.charge(client, allowance.left)], allowance.taken_at)
                except StoreError:
                    return

    async def _take(self, client: str, allowance: Allowance, wanted: int) -> None:
        amount = max(self._portion, wanted)
        spent = await self._store.spend([self.charge(client, amount)])
        if spent.refused is not None and 0 < spent.left[0] < amount:
            amount = min(wanted, spent.left[0])
            spent = await self._store.spend([self.charge(client, amount)])
        if spent.refused is not None:
            allowance.blocked_until = time.monotonic() + min(spent.wait, self._window)
            return
        allowance.left, allowance.taken_at, allowance.known_left = amount, spent.at, spent.left[0]

    def charge(self, client: str, amount: int) -> Charge:
        return Charge(f"ratelimit:client:{client}", amount, self._limit, self._window)


def _policy(limit: Limit) -> str:
    window = "" if limit.unit == "concurrent-requests" else f";w={math.ceil(limit.window)}"
    return f'"{limit.name}";q={limit.most};qu="{limit.unit}"{window}'


def _wait(limit: Limit, spent: Spent) -> int:
    return math.ceil(SOON if limit.unit == "concurrent-requests" else max(SOON, spent.wait))
