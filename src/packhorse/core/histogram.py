"""Durations counted in fixed buckets, so that counts of any period and any number of processes can be added.

Bucket 0 holds durations up to a millisecond. Each bucket reaches 1.41 times as far as the one before; the last one has
no end. Percentiles are accurate to about 20 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, log2

SMALLEST = 0.001
PER_DOUBLING = 2
LAST = 56
"""Starts at about two days."""


def bucket(seconds: float) -> int:
    if seconds <= SMALLEST:
        return 0
    return min(LAST, ceil(PER_DOUBLING * log2(seconds / SMALLEST)))


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
