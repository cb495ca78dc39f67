"""Counts and shares in words: one job or several, and how many percent."""

from __future__ import annotations


def plural(count: int | str, one: str, many: str = "") -> str:
    """The word that goes with a count: job or jobs, is or are. The count may be told as text, such as 50+."""
    return one if str(count) == "1" else many or f"{one}s"


def percent(value: float) -> str:
    """Cut, not rounded: 100 % is only what is at its end."""
    return f"{int(value)} %"
