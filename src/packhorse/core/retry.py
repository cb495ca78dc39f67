"""How long to wait before the next attempt."""

from __future__ import annotations

from packhorse.core.plan import Backoff

DOUBLINGS = 32
"""Past this the cap has long been reached, and 2**n would outgrow a float."""


def delay(backoff: Backoff, attempt: int, luck: float) -> float:
    """Seconds after the failure of ``attempt``: doubling, capped, and spread over its upper half by ``luck`` in [0, 1).

    Without the spread, everything that failed together comes back together.
    """
    whole = min(backoff.cap, backoff.base * 2.0 ** min(attempt - 1, DOUBLINGS))
    return whole * (0.5 + luck / 2)
