"""What is different, and the values of parameters, as people can read them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

LONGEST = 2000
"""Characters of a value that are shown: the API has all of it."""


class Difference(NamedTuple):
    field: str
    old: str
    new: str


def differences(items: Sequence[Any]) -> list[Difference]:
    """Of one whose values are the same, only the writing has changed."""
    return [Difference(each["field"], *_values(each["old"], each["new"])) for each in items]


def _values(old: Any, new: Any) -> tuple[str, str]:
    if old == new and old is not None:
        return value(old), f"{value(new)} (changed)"  # a secret: shown as dots, then and now
    return value(old), value(new)


def value(found: Any) -> str:
    """A text as it is, everything else as JSON."""
    if found is None:
        return "–"
    text = found if isinstance(found, str) else msgspec.json.encode(found).decode()
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"


def pretty(found: Any) -> str:
    """JSON over several lines, to be edited."""
    return msgspec.json.format(msgspec.json.encode(found), indent=2).decode()
