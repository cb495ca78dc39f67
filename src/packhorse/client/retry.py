"""How long a client waits for a server that has said when to come again."""

from __future__ import annotations

import time
from collections.abc import Callable

from packhorse.errors import PackhorseError

WAIT = 30.0
"""Seconds that one call waits in all, unless another number is given."""
WAITED_FOR = frozenset({429, 503})
SAFE = frozenset({"GET", "DELETE"})
LEAST = 0.1

OnWait = Callable[[float, PackhorseError], None]


class Patience:
    """Of one call: which refusals it waits out, for as long as the server says and no longer than it may in all."""

    def __init__(self, limit: float, on_wait: OnWait | None, *, is_repeatable: bool) -> None:
        self._until = time.monotonic() + limit
        self._on_wait = on_wait
        self._is_repeatable = is_repeatable

    def wait(self, error: PackhorseError) -> float:
        """Seconds until it may be sent again. Raises the error where that is too late, or may do something twice."""
        seconds = error.retry_after
        if not self._is_repeatable or error.status not in WAITED_FOR or seconds is None:
            raise error
        seconds = max(seconds, LEAST)
        if time.monotonic() + seconds > self._until:
            raise error
        if self._on_wait is not None:
            self._on_wait(seconds, error)
        return seconds
