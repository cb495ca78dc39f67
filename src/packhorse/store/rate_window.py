"""Rate limits and quotas: the contract's counters, and the arithmetic of their sliding windows, which does no I/O."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

BUCKETS = 60
"""A window's buckets. More would let go of what was spent a little sooner, and cost as much more to add up."""
MARGIN = 0.001
"""Seconds added to a wait, so that who waits exactly so long does not come a rounding too early."""


class Charge(NamedTuple):
    """So much of a limit per window of seconds. With another window it is another counter, whatever its name."""

    name: str
    """``ratelimit:client:ab12``, ``quota:hour:ab12``: in Redis, the key behind the prefix."""
    amount: int
    """0 only looks, and is never refused."""
    limit: int
    window: float


class Spent(Struct, frozen=True):
    at: float
    """The store's clock: the receipt that a refund needs."""
    refused: int | None
    """The index of the first charge that did not fit; nothing was added then."""
    left: tuple[int, ...]
    """Of each limit, after this. Never below 0."""
    wait: float
    """Seconds until the refused charge could fit; 0 if none was refused. One that never can: its whole window."""


class Counters(Protocol):
    """Sliding windows, each kept in `BUCKETS` buckets.

    Every bucket that overlaps the window counts whole, so no stretch of that length ever holds more than the limit.
    Two processes, two machines: what is admitted is the limit exactly. The counts of the last moment may be lost with
    the server or the power: they are made at every request, and are not worth a sync of the disk.
    """

    async def spend(self, charges: Sequence[Charge]) -> Spent:
        """Add every amount if none goes over its limit, else none: one atomic step, by the store's clock."""

    async def refund(self, charges: Sequence[Charge], at: float) -> None:
        """Take these amounts back from where a `spend` at ``at`` has put them; never below zero.

        For unsent bytes, and for a permit that is released: a charge of 1 whose window is the longest it may be held,
        so that it ends by itself if its holder dies.
        """


Counter = tuple[str, float]
"""Name and window."""
Buckets = dict[int, int]
"""What was spent, by the number of the bucket since the beginning of time."""


def counter(charge: Charge) -> Counter:
    return charge.name, charge.window


def counters(charges: Iterable[Charge]) -> list[Counter]:
    """Each once, in the order in which everybody locks them."""
    return sorted({counter(charge) for charge in charges})


def spend(kept: dict[Counter, Buckets], charges: Sequence[Charge], now: float) -> Spent:
    """Add to ``kept`` what fits together, or nothing. What is too old to count is dropped from it."""
    for each in counters(charges):
        first = _bucket(each[1], now) - BUCKETS
        kept[each] = {bucket: amount for bucket, amount in kept.get(each, {}).items() if bucket >= first}
    used = {each: sum(kept[each].values()) for each in counters(charges)}
    added = dict(used)
    for n, charge in enumerate(charges):
        added[counter(charge)] += charge.amount
        if charge.amount and added[counter(charge)] > charge.limit:
            excess = added[counter(charge)] - charge.limit
            return Spent(now, n, _left(charges, used), _wait(kept[counter(charge)], charge, excess, now))
    for charge in charges:
        if charge.amount:
            buckets, bucket = kept[counter(charge)], _bucket(charge.window, now)
            buckets[bucket] = buckets.get(bucket, 0) + charge.amount
    return Spent(now, None, _left(charges, added), 0.0)


def refund(kept: dict[Counter, Buckets], charges: Sequence[Charge], at: float) -> None:
    """Take the amounts from ``kept`` where it still has them."""
    for charge in charges:
        buckets, bucket = kept.get(counter(charge), {}), _bucket(charge.window, at)
        if bucket in buckets:
            buckets[bucket] = max(0, buckets[bucket] - charge.amount)


def until(window: float, buckets: Buckets) -> float:
    """When nothing of it counts any more, in whole windows: it moves once in a window, not with every charge."""
    return ((max(buckets, default=0) + BUCKETS) // BUCKETS + 1) * window


def _bucket(window: float, at: float) -> int:
    return int(at * BUCKETS // window)


def _left(charges: Sequence[Charge], used: dict[Counter, int]) -> tuple[int, ...]:
    return tuple(max(0, charge.limit - used[counter(charge)]) for charge in charges)


def _wait(buckets: Buckets, charge: Charge, excess: int, now: float) -> float:
    """Until so much of what was spent before has left the window."""
    for bucket in sorted(buckets):
        excess -= buckets[bucket]
        if excess <= 0:
            return max(0.0, (bucket + BUCKETS + 1) * charge.window / BUCKETS - now) + MARGIN
    return charge.window
