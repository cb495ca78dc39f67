"""The store's clock as background tasks trust it: no lease ends and nothing is deleted by a clock that has jumped."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from packhorse.log import log

DOUBT = 10
"""How many times as long the clocks must run evenly after one of them has jumped, before anything is deleted by it."""


class SteadyClock:
    """Compares the store's clock, and this host's, with the monotonic clock, which nobody can set.

    A clock that somebody sets eight days ahead makes every lease look expired and every job old enough to be deleted.
    So a task that acts on age asks for how long both clocks have run evenly. A gap in our own observations counts as a
    jump: we do not know what happened meanwhile.
    """

    def __init__(
        self,
        lease: float,
        monotonic: Callable[[], float] = time.monotonic,
        host: Callable[[], float] | None = None,
    ) -> None:
        """``host`` is this host's clock; by default `time.time`, unless ``monotonic`` is a test's."""
        self._lease = lease
        self._monotonic = monotonic
        self._host = host or (time.time if monotonic is time.monotonic else monotonic)
        self._since = monotonic()
        """Since when, by the monotonic clock, the clocks have run evenly."""
        self._jumped_at = -math.inf
        self._last: tuple[float, float, float] | None = None
        """What the store's clock, this host's and the monotonic one said in the last observation."""

    def observe(self, now: float) -> None:
        """Note the store's time, as the store has just told it."""
        host, steady = self._host(), self._monotonic()
        if self._last is None:
            self._since = steady
        else:
            gap = steady - self._last[2]
            jump = max(now - self._last[0] - gap, host - self._last[1] - gap, key=abs)
            if abs(jump) > self._lease / 3:
                log.clock_jumped(jump)
                self._jumped_at = steady
            if gap > self._lease / 2 or abs(jump) > self._lease / 3:
                self._since = steady
        self._last = now, host, steady

    def steady_for(self) -> float:
        """Seconds for which the clocks have run evenly; 0 if the last observation is too old, or no longer holds."""
        if self._last is None:
            return 0.0
        steady = self._monotonic()
        gap = steady - self._last[2]
        is_lasting = gap <= self._lease / 2 and abs(self._host() - self._last[1] - gap) <= self._lease / 3
        return steady - self._since if is_lasting else 0.0

    def now(self, after: float) -> float | None:
        """The store's time, by the last observation, if the clocks have run evenly for so many seconds.

        After a jump it takes `DOUBT` times as long, so that an operator has time to correct the clock.
        """
        steady = self._monotonic()
        if self._last is None or self.steady_for() < after or steady - self._jumped_at < DOUBT * after:
            return None
        return self._last[0] + steady - self._last[2]
