"""What was secret in the calls of one child: something that a call has left running may still print it."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable

from packhorse.core.secret_forms import longest_first

MOMENT = 60.0
"""Seconds after the end of a call. What it left without a parent is ended long before."""


class Remembered:
    def __init__(self, monotonic: Callable[[], float] = time.monotonic) -> None:
        self._monotonic = monotonic
        self._until: dict[tuple[str, ...], float] = {}

    def add(self, secrets: tuple[str, ...]) -> None:
        """Of a call that has ended."""
        if secrets:
            self._until = {each: self._until[each] for each in self._fresh()} | {secrets: self._monotonic() + MOMENT}

    def words(self, running: Iterable[tuple[str, ...]]) -> tuple[str, ...]:
        """With those of the calls that run."""
        return longest_first(word for secrets in {*running, *self._fresh()} for word in secrets)

    def _fresh(self) -> list[tuple[str, ...]]:
        now = self._monotonic()
        return [secrets for secrets, until in self._until.items() if until > now]
