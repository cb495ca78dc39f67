"""The book of measurements: a value per row and round, and what was expected of it."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct, field


class Bound(Struct, frozen=True):
    """What a row has to keep, by its median: of its value, or of its ratio if it has one."""

    kind: Literal["at least", "at most"]
    limit: float
    of_ratio: bool = False

    def holds(self, found: float) -> bool:
        return found >= self.limit if self.kind == "at least" else found <= self.limit


class Row(Struct):
    section: str
    name: str
    unit: str
    of: str = ""
    """Whose value it is, where several are measured side by side."""
    to: str = ""
    """What the ratio is to."""
    bound: Bound | None = None
    values: list[float] = field(default_factory=list)
    """One per round."""
    ratios: list[float] = field(default_factory=list)

    @property
    def verdict(self) -> str:
        if self.bound is None:
            return ""
        found = self.ratios if self.bound.of_ratio else self.values
        return "OK" if self.bound.holds(statistics.median(found)) else "BEHIND"


class Book:
    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], Row] = {}
        self._remarks: dict[str, dict[str, None]] = {}

    def note(
        self,
        section: str,
        name: str,
        value: float,
        unit: str,
        *,
        of: str = "",
        ratio: float | None = None,
        to: str = "",
        bound: Bound | None = None,
    ) -> None:
        """Write down one round's value."""
        row = self._rows.setdefault((section, of, name), Row(section, name, unit, of, to, bound))
        row.values.append(value)
        if ratio is not None:
            row.ratios.append(ratio)

    def remark(self, section: str, text: str) -> None:
        """Say something below the section's table, once."""
        self._remarks.setdefault(section, {})[text] = None

    @property
    def remarks(self) -> Mapping[str, Sequence[str]]:
        return {section: list(texts) for section, texts in self._remarks.items()}

    @property
    def rows(self) -> Sequence[Row]:
        return list(self._rows.values())


def at_least(limit: float, *, of_ratio: bool = False) -> Bound:
    return Bound("at least", limit, of_ratio)


def at_most(limit: float, *, of_ratio: bool = False) -> Bound:
    return Bound("at most", limit, of_ratio)


def percentile(values: Sequence[float], part: float) -> float:
    """The smallest value that so large a part of all is not above."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, max(0, -int(-part * len(ordered) // 1) - 1))]
