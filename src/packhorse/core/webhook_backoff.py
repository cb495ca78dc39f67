"""When a message that was not taken is sent again, and when it, or whoever never takes any, is given up."""

from __future__ import annotations

from itertools import accumulate

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

PAUSES = (5.0, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, DAY)
MOMENTS = tuple(accumulate(PAUSES))
"""Ages at which a message is tried again: by age, so that waiting in a line behind others is not held against it."""
SOON = PAUSES[0] / 2
"""A moment that is nearer than this is as good as over."""
SPREAD = 0.1
"""What failed together does not come back together."""
LONGEST_ASKED = DAY
"""How long a receiver may ask us to wait."""

FAILING = 5 * DAY
"""After so long without taking a single message a receiver is given up."""
FORGOTTEN = 2 * DAY
"""A failure that is longer ago than any pause says nothing about this one."""


def pause(age: float, attempts: int, luck: float, asked: float = 0.0) -> float | None:
    """Seconds until a message of this age, tried so often, is tried again; None if it is given up.

    One that could not be tried while no worker was there is tried as often as any other.
    """
    coming = next((moment - age for moment in MOMENTS if moment - age >= SOON), None)
    if coming is None and attempts < len(PAUSES):
        coming = PAUSES[attempts]
    if coming is None:
        return None
    return max(coming * (1 + SPREAD * luck), min(asked, LONGEST_ASKED))
