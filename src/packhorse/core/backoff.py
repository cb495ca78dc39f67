"""Delays before the next attempt of a stage and before the next delivery of a webhook."""

from __future__ import annotations

from itertools import accumulate

from packhorse.core.plan import Backoff

MAX_DOUBLINGS = 32
"""The cap is reached long before; more would overflow a float."""

MINUTE, HOUR, DAY = 60.0, 3600.0, 86_400.0

WEBHOOK_DELAYS = (5.0, 5 * MINUTE, 30 * MINUTE, 2 * HOUR, 5 * HOUR, 10 * HOUR, 14 * HOUR, 20 * HOUR, DAY)
WEBHOOK_AGES = tuple(accumulate(WEBHOOK_DELAYS))
"""Ages of a message at which it is sent again. Counted by age, so that waiting in a queue costs no attempt."""
MIN_WEBHOOK_DELAY = WEBHOOK_DELAYS[0] / 2
"""A retry time closer than this counts as passed."""
JITTER = 0.1
"""Spread, so that messages that failed together are not retried together."""
MAX_RETRY_AFTER = DAY
"""Maximum delay that a receiver can request with Retry-After."""

ENDPOINT_GIVE_UP = 5 * DAY
"""An endpoint that accepted no message for this long is disabled."""
ENDPOINT_FORGIVE = 2 * DAY
"""Failures older than this no longer count against an endpoint."""


def retry_delay(backoff: Backoff, attempt: int, luck: float) -> float:
    """Seconds to wait after the failure of ``attempt``: doubled each time, capped, and spread by ``luck`` in [0, 1).

    The spread keeps tasks that failed together from retrying together.
    """
    whole = min(backoff.cap, backoff.base * 2.0 ** min(attempt - 1, MAX_DOUBLINGS))
    return whole * (0.5 + luck / 2)


def webhook_delay(age: float, attempts: int, luck: float, asked: float = 0.0) -> float | None:
    """Seconds until a message of this age is sent again; None if no attempt is left.

    A message that could not be sent because no worker was running still gets all its attempts.
    """
    coming = next((moment - age for moment in WEBHOOK_AGES if moment - age >= MIN_WEBHOOK_DELAY), None)
    if coming is None and attempts < len(WEBHOOK_DELAYS):
        coming = WEBHOOK_DELAYS[attempts]
    if coming is None:
        return None
    return max(coming * (1 + JITTER * luck), min(asked, MAX_RETRY_AFTER))
