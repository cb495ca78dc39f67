"""Counters of the contract: limits and quotas in sliding windows, and statistics with their percentiles.

What was spent of a limit decides who waits. Statistics decide nothing: a process adds up in memory for a few
seconds, and loses that if it is killed. The arithmetic of both does no I/O.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from math import ceil, log2
from typing import NamedTuple, Protocol

from msgspec import Struct

from packhorse.core.changes import HasRoom
from packhorse.core.models import TaskId
from packhorse.errors import PackhorseError, StorageFull, TooManyJobs

BUCKETS = 60
"""A window's buckets. More would let go of what was spent a little sooner, and cost as much more to add up."""
MARGIN = 0.001
"""Seconds added to a wait, so that rounding does not end it too early."""

MINUTE, QUARTER = 60, 900
"""Seconds of the two stretches that everything is counted in."""
KEPT = {MINUTE: 6 * 3600, QUARTER: 72 * 3600}
"""Seconds for which the counts of each are kept: 360 and 288 stretches, so that no plot has to read many more."""
MOST_PAIRS = 1000
"""Tenants' pipelines that are looked at to count jobs, by stores that do not keep the numbers."""
MOST_RANKS = 10
"""Priorities in which the head of a queue is looked for."""

SMALLEST = 0.001
PER_DOUBLING = 2
LAST_BUCKET = 56
"""Starts at about two days."""


# Limits and quotas


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


class Usage(NamedTuple):
    """What counts towards the quotas of a tenant."""

    jobs: int = 0
    bytes: int = 0


def refuse_usage(used: Usage, guard: HasRoom) -> PackhorseError | None:
    """The error if one more job with its bytes would exceed a quota."""
    if guard.most_jobs and used.jobs + 1 > guard.most_jobs:
        return TooManyJobs(tenant=guard.tenant, used=used.jobs, limit=guard.most_jobs)
    if guard.most_bytes and used.bytes + guard.bytes > guard.most_bytes:
        return StorageFull(tenant=guard.tenant, used=used.bytes, limit=guard.most_bytes)
    return None


Counter = tuple[str, float]
"""Name and window."""
Buckets = dict[int, int]
"""What was spent, by the number of the bucket since the beginning of time."""


def counter(charge: Charge) -> Counter:
    return charge.name, charge.window


def counters_of(charges: Iterable[Charge]) -> list[Counter]:
    """Each once, in the order in which everybody locks them."""
    return sorted({counter(charge) for charge in charges})


def spend(kept: dict[Counter, Buckets], charges: Sequence[Charge], now: float) -> Spent:
    """Add to ``kept`` what fits together, or nothing. What is too old to count is dropped from it."""
    for each in counters_of(charges):
        first = _bucket(each[1], now) - BUCKETS
        kept[each] = {bucket: amount for bucket, amount in kept.get(each, {}).items() if bucket >= first}
    used = {each: sum(kept[each].values()) for each in counters_of(charges)}
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


# Statistics


class Tally(NamedTuple):
    """What is counted: so many of ``name`` in the ``step`` seconds that began at ``at``."""

    step: int
    at: int
    pipeline: str
    queue: str
    """Of the stages it is about; empty for whole jobs."""
    name: str
    """An outcome, or a bucket of a histogram."""


class Counts(Struct, frozen=True):
    """The number of jobs by outcome."""

    active: int = 0
    completed: int = 0
    failed: int = 0
    cancelled: int = 0
    capped: tuple[str, ...] = ()
    """Names of those that are more than was counted."""
    bytes: int = 0
    """Of the files of a tenant."""


class Head(NamedTuple):
    """What is claimed next of a queue, a kind and a priority."""

    queue: str
    job_id: str
    task: TaskId


class Statistics(Protocol):
    async def tally(self, counts: Mapping[Tally, int]) -> None:
        """Add to what is there: what two processes count at one time is the sum of both."""

    async def list_tallies(
        self, step: int, since: float, *, queue: str | None = None, pipeline: str | None = None
    ) -> list[tuple[Tally, int]]:
        """The counts of stretches that end after ``since``, oldest first; of all queues and pipelines, or of one."""

    async def heads(self, kinds: Mapping[str, Collection[str]]) -> list[Head]:
        """For each queue, kind and priority the foremost entry that is ready: the one of the oldest job."""

    async def count_by_status(self, most: int, *, tenant: str | None = None) -> Counts:
        """How many jobs there are, of all tenants. Never walks all of them: what costs to count ends at ``most``.

        With a tenant, only what counts towards its quotas: active jobs and bytes that were submitted under a quota.
        """


def first(step: int, since: float, now: float) -> int:
    """The beginning of the first stretch that ends after ``since`` and is still kept."""
    return int(max(since, now - KEPT[step], 0.0) // step) * step


def capped(found: Mapping[str, int], most: int, *, is_all: bool) -> Counts:
    """From counts by status that may be one more than ``most``, of all jobs there are or of some."""
    by_name = {
        "active": found.get("pending", 0) + found.get("running", 0),
        **{name: found.get(name, 0) for name in ("completed", "failed", "cancelled")},
    }
    more = tuple(name for name, count in by_name.items() if count > most or not is_all)
    return Counts(**{name: min(count, most) for name, count in by_name.items()}, capped=more)


# Durations are counted in fixed buckets, so that counts of any period and any number of processes can be added. Bucket
# 0 reaches a millisecond, each other one 1.41 times as far as the one before, and the last one has no end. Percentiles
# are accurate to about 20 %.


def duration_bucket(seconds: float) -> int:
    if seconds <= SMALLEST:
        return 0
    return min(LAST_BUCKET, ceil(PER_DOUBLING * log2(seconds / SMALLEST)))


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """The duration that this share did not exceed; None if there are no counts."""
    total = sum(counts.values())
    if total <= 0:
        return None
    wanted, passed = share * total, 0
    for number in sorted(counts):
        if counts[number] and passed + counts[number] >= wanted:
            return _point_in(number, max(0.0, wanted - passed) / counts[number])
        passed += counts[number]
    return _upper_bound(max(counts))


def _point_in(number: int, share: float) -> float:
    """The point at this share of a bucket, assuming its values are spread evenly by ratio."""
    if number == 0:
        return SMALLEST * share
    return float(_upper_bound(number - 1) * (_upper_bound(number) / _upper_bound(number - 1)) ** share)


def _upper_bound(number: int) -> float:
    return float(SMALLEST * 2 ** (number / PER_DOUBLING))
