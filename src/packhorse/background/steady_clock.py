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
        self.monotonic = monotonic
        self._host = host or (time.time if monotonic is time.monotonic else monotonic)
        self._since = monotonic()
        """Since when, by the monotonic clock, the clocks have run evenly."""
        self._jumped_at = -math.inf
        self._last: tuple[float, float, float] | None = None
        """What the store's clock, this host's and the monotonic one said in the last observation."""
        self._took = 0.0
        """Seconds that the answer took: the store's clock said this at any time in it."""

    def observe(self, now: float, asked: float | None = None) -> None:
        """Note the store's time, as the store has just told it. ``asked`` is the monotonic time before the request.

        An answer that takes seconds is late, which looks like a clock that jumps back and then ahead.
        """
        host, steady = self._host(), self.monotonic()
        took = 0.0 if asked is None else steady - asked
        if self._last is None:
            self._since = steady
        else:
            gap = steady - self._last[2]
            ahead = now - self._last[0] - gap
            moved = ahead - min(max(ahead, -took), self._took)  # what no delay of this answer or the last explains
            jump = max(moved, host - self._last[1] - gap, key=abs)
            if abs(jump) > self._lease / 3:
                log.clock_jumped(jump)
                self._jumped_at = steady
            if gap > self._lease / 2 or max(took, abs(jump)) > self._lease / 3:
                self._since = steady
        self._last, self._took = (now, host, steady), took

    def steady_for(self) -> float:
        """Seconds for which the clocks have run evenly; 0 if the last observation is too old, or no longer holds."""
        if self._last is None:
            return 0.0
        steady = self.monotonic()
        gap = steady - self._last[2]
        is_lasting = gap <= self._lease / 2 and abs(self._host() - self._last[1] - gap) <= self._lease / 3
        return steady - self._since if is_lasting else 0.0

    def now(self, after: float) -> float | None:
        """The store's time, by the last observation, if the clocks have run evenly for ``after`` seconds.

        After a jump it takes `DOUBT` times as long, so that an operator has time to correct the clock.
        """
        steady = self.monotonic()
        if self._last is None or self.steady_for() < after or steady - self._jumped_at < DOUBT * after:
            return None
        return self._last[0] + steady - self._last[2]
