"""How often one client may ask, counted in the store for all processes together.

A write to the store per request would cost more than most requests do. So a process takes its allowance from the
store a little at a time, and gives back what it did not use: never more than the limit is let in, on all machines
together, and a hundredth of it at most lies idle for a moment.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from packhorse.errors import StoreError
from packhorse.store.base import Charge, Store

WINDOW = 300.0
PORTIONS = 100
IDLE = 5.0
"""Seconds after which an allowance that was not used up is given back."""


@dataclass
class Allowance:
    """What this process may still let in of one client."""

    left: int = 0
    taken_at: float = 0.0
    """The receipt: by the store's clock."""
    used_at: float = 0.0
    known_left: int = 0
    """What the store had left besides, when it was asked."""
    blocked_until: float = 0.0


@dataclass(frozen=True)
class Standing:
    """What a client is told in its headers."""

    is_admitted: bool
    left: int
    wait: float


class Rates:
    def __init__(self, store: Store, limit: int, window: float = WINDOW) -> None:
        self._store = store
        self._limit = limit
        self._window = window
        self._portion = max(1, limit // PORTIONS)
        self._clients: dict[str, Allowance] = {}
        self._turns: dict[str, asyncio.Lock] = {}

    async def admit(self, client: str) -> Standing:
        allowance = self._clients.setdefault(client, Allowance())
        allowance.used_at = time.monotonic()
        if allowance.left == 0:
            async with self._turns.setdefault(client, asyncio.Lock()):
                if allowance.left == 0 and allowance.blocked_until <= time.monotonic():
                    await self._take(client, allowance)
        if allowance.left == 0:
            return Standing(False, 0, max(0.0, allowance.blocked_until - time.monotonic()))
        allowance.left -= 1
        return Standing(True, allowance.left + allowance.known_left, 0.0)

    async def run(self) -> None:
        while True:
            await asyncio.sleep(IDLE)
            await self.give_back(idle=IDLE)

    async def give_back(self, idle: float = 0.0) -> None:
        """Return what was taken of clients that have not asked for so long. Lost at worst: it is only a limit."""
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

    async def _take(self, client: str, allowance: Allowance) -> None:
        spent = await self._store.spend([self.charge(client, self._portion)])
        if spent.refused is not None and 0 < spent.left[0] < self._portion:
            spent = await self._store.spend([self.charge(client, 1)])
            amount = 1
        else:
            amount = self._portion
        if spent.refused is not None:
            allowance.blocked_until = time.monotonic() + min(spent.wait, self._window)
            return
        allowance.left, allowance.taken_at, allowance.known_left = amount, spent.at, spent.left[0]

    def charge(self, client: str, amount: int) -> Charge:
        return Charge(f"ratelimit:client:{client}", amount, self._limit, self._window)
