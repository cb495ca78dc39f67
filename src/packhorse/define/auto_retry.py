"""Which failed runs are begun again by themselves."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from packhorse.core import plan
from packhorse.core.error_codes import CODE_PATTERN
from packhorse.define.durations import Duration, seconds

NEVER = plan.Revive()


@dataclass(frozen=True, kw_only=True)
class Revive:
    """A policy: runs that fail with one of these codes are retried without a person.

    ``Revive(codes=("HTTP_500", "TIMEOUT"), times=3, backoff="5m", budget=100, per="1h")``: up to three times each,
    after five minutes, then ten, then twenty; of failures with one fingerprint at most a hundred in any hour.
    """

    codes: Sequence[str]
    times: int = 3
    backoff: Duration = 300.0
    budget: int = 100
    per: Duration = 3_600.0

    def planned(self) -> plan.Revive:
        """As it is in a plan. Raises ValueError."""
        codes = (self.codes,) if isinstance(self.codes, str) else tuple(self.codes)
        for code in codes:
            if not CODE_PATTERN.fullmatch(str(code)):
                raise ValueError(f"revive: {code!r} is not a code such as HTTP_500")
        return plan.Revive(
            codes,
            _at_least_one("times", self.times),
            _positive("backoff", self.backoff),
            _at_least_one("budget", self.budget),
            _positive("per", self.per),
        )


def _at_least_one(what: str, value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"revive: {what} must be a whole number, at least 1, not {value!r}")
    return value


def _positive(what: str, value: Duration) -> float:
    found = seconds(value)
    if found <= 0:
        raise ValueError(f"revive: {what} must be more than 0, not {value!r}")
    return found
