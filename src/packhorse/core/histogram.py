"""Times as counts in fixed buckets, so that those of any stretch and any number of processes can be added up.

Bucket 0 holds what took a millisecond or less; each further one reaches 1.41 times as far as the one before, the last
as far as there is time. A percentile that is read off is right within a fifth.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2

SMALLEST = 0.001
PER_DOUBLING = 2
LAST = 56
"""Begins at about two days."""


def bucket(seconds: float) -> int:
    if seconds <= SMALLEST:
        return 0
    return min(LAST, ceil(PER_DOUBLING * log2(seconds / SMALLEST)))


def percentile(counts: Mapping[int, int], share: float) -> float | None:
    """The time within which that share of all stayed; None if there is nothing to tell from."""
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
    """The point at that share of a bucket, taking what is in it for evenly spread by ratio."""
    if number == 0:
        return SMALLEST * share
    return float(_upper_bound(number - 1) * (_upper_bound(number) / _upper_bound(number - 1)) ** share)


def _upper_bound(number: int) -> float:
    return float(SMALLEST * 2 ** (number / PER_DOUBLING))
