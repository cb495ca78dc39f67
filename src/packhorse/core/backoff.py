"""When a message that was not taken is sent again, and when it, or whoever never takes any, is given up."""

from __future__ import annotations

from itertools import accumulate

from packhorse.core.plan import Backoff

MAX_DOUBLINGS = 32
"""Past this the cap has long been reached, and 2**n would outgrow a float."""

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

WEBHOOK_DELAYS = (5.0, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, DAY)
WEBHOOK_AGES = tuple(accumulate(WEBHOOK_DELAYS))
"""Ages at which a message is tried again: by age, so that waiting in a line behind others is not held against it."""
MIN_WEBHOOK_DELAY = WEBHOOK_DELAYS[0] / 2
"""A moment that is nearer than this is as good as over."""
JITTER = 0.1
"""What failed together does not come back together."""
MAX_RETRY_AFTER = DAY
"""How long a receiver may ask us to wait."""

ENDPOINT_GIVE_UP = 5 * DAY
"""After so long without taking a single message a receiver is given up."""
ENDPOINT_FORGIVE = 2 * DAY
"""A failure that is longer ago than any pause says nothing about this one."""


def retry_delay(backoff: Backoff, attempt: int, luck: float) -> float:
    """Seconds after the failure of ``attempt``: doubling, capped, and spread over its upper half by ``luck`` in [0, 1).

    Without the spread, everything that failed together comes back together.
    """
    whole = min(backoff.cap, backoff.base * 2.0 ** min(attempt - 1, MAX_DOUBLINGS))
    return whole * (0.5 + luck / 2)


def webhook_delay(age: float, attempts: int, luck: float, asked: float = 0.0) -> float | None:
    """Seconds until a message of this age, tried so often, is tried again; None if it is given up.

    One that could not be tried while no worker was there is tried as often as any other.
    """
    coming = next((moment - age for moment in WEBHOOK_AGES if moment - age >= MIN_WEBHOOK_DELAY), None)
    if coming is None and attempts < len(WEBHOOK_DELAYS):
        coming = WEBHOOK_DELAYS[attempts]
    if coming is None:
        return None
    return max(coming * (1 + JITTER * luck), min(asked, MAX_RETRY_AFTER))
