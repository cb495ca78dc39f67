"""Timestamps as every document shows them: ISO 8601, UTC, cut to microseconds."""

from datetime import datetime, timedelta
from functools import lru_cache

EPOCH = datetime(1970, 1, 1)

EXACT = 2.0**20
"""From here on, the fraction has so few digits that multiplying it by a million is exact."""

LAST_TIME = 253_402_300_799.0
"""The end of the year 9999, the last ISO time; a delay may be any number."""


def iso(at: float | None) -> str | None:
    """UTC, cut to microseconds, never rounded up: a filter with the time that a job shows must find that job."""
    if at is None:
        return None
    if EXACT <= at < LAST_TIME:
        seconds = int(at)
        rest = int((at - seconds) * 1_000_000)
    else:
        over, under = min(at, LAST_TIME).as_integer_ratio()
        seconds, rest = divmod(over * 1_000_000 // under, 1_000_000)
    return f"{_second(seconds)}.{rest:06}Z"


@lru_cache(maxsize=1024)
def _second(at: int) -> str:
    return (EPOCH + timedelta(seconds=at)).isoformat()
