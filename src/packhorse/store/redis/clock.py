"""The server's time, as far as this process knows it."""

from __future__ import annotations

import time
from collections.abc import Callable

FRESH = 60.0
"""Seconds for which a better measurement is preferred to a newer one."""


class ServerClock:
    """Runs on between measurements by a clock that nobody can set. Rather behind the server's than ahead of it: what is
    due now by this clock is then due there too."""

    def __init__(self, given: Callable[[], float] | None = None) -> None:
        self._given = given
        self._offset = time.time() - time.monotonic()
        self._doubt = float("inf")
        self._at = 0.0

    def __call__(self) -> float:
        return self._given() if self._given is not None else time.monotonic() + self._offset

    def said(self) -> str:
        """What scripts are told: nothing, so that they ask the server, unless the clock was handed in."""
        return "" if self._given is None else repr(self._given())

    def learn(self, server: float, sent: float) -> None:
        """The server's time somewhere between ``sent`` and now, both of the monotonic clock."""
        received = time.monotonic()
        doubt = received - sent
        if doubt <= self._doubt or received - self._at > FRESH:
            self._offset, self._doubt, self._at = server - received, doubt, received

    @property
    def ahead(self) -> float:
        """Seconds by which the server's clock is ahead of this machine's."""
        return time.monotonic() + self._offset - time.time()
