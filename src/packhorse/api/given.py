"""JSON that somebody sent, read no deeper than anybody means it."""

from __future__ import annotations

from typing import Any

import msgspec

DEEPEST = 64
"""Levels of nesting. Past a few hundred, what checks it next falls over; nobody writes down that many."""


def decoded(data: bytes) -> Any:
    """Raises what `mistakes_in` reads."""
    value = msgspec.json.decode(data)
    level = [value]
    for _ in range(DEEPEST):
        level = [inner for each in level for inner in _inside(each)]
    if level:
        raise ValueError("It is nested too deeply")
    return value


def _inside(value: Any) -> Any:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()
