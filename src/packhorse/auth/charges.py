"""Limits as they are charged and told: what a request costs, and the RateLimit headers that say what is left.

The headers are those of draft-ietf-httpapi-ratelimit-headers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

from packhorse.errors import TooMany
from packhorse.store.base import Charge, Spent

SOON = 1.0
"""Seconds after which to look whether a permit is back. It is when somebody is done, which nobody knows."""


class Limit(NamedTuple):
    name: str
    """In the headers, and of the counter."""
    most: int
    window: float
    unit: Literal["requests", "content-bytes", "concurrent-requests"]
    error: type[TooMany]

    def charge(self, whose: str, amount: int) -> Charge:
        kind = "quota" if self.unit == "content-bytes" else "ratelimit"
        return Charge(f"{kind}:{self.name}:{whose}", amount, self.most, self.window)


def headers(limits: Sequence[Limit], spent: Spent) -> dict[str, str]:
    """Empty where there is no limit."""
    if not limits:
        return {}
    policies = [_policy(each) for each in limits]
    states = [
        f'"{each.name}";r={left}' + (f";t={_wait(each, spent)}" if n == spent.refused else "")
        for n, (each, left) in enumerate(zip(limits, spent.left, strict=True))
    ]
    return {"RateLimit-Policy": ", ".join(policies), "RateLimit": ", ".join(states)}


def refusal(limits: Sequence[Limit], spent: Spent) -> TooMany | None:
    """The error, if one of these charges did not fit."""
    if spent.refused is None:
        return None
    limit = limits[spent.refused]
    wait = _wait(limit, spent)
    told = {**headers(limits, spent), "Retry-After": str(wait)}
    return limit.error(policy=limit.name, limit=limit.most, window=round(limit.window), retry_after=wait, headers=told)


def _policy(limit: Limit) -> str:
    window = "" if limit.unit == "concurrent-requests" else f";w={math.ceil(limit.window)}"
    return f'"{limit.name}";q={limit.most};qu="{limit.unit}"{window}'


def _wait(limit: Limit, spent: Spent) -> int:
    return math.ceil(SOON if limit.unit == "concurrent-requests" else max(SOON, spent.wait))
