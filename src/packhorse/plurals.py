"""Singular and plural. Below everything else, because the log needs it, too."""

from __future__ import annotations


def plural(count: int | str, one: str, many: str = "") -> str:
    """The singular or plural for a count: job or jobs, is or are. The count may be text, such as 50+."""
    return one if str(count) == "1" else many or f"{one}s"


def counted(count: int | str, one: str, many: str = "") -> str:
    """The count and what is counted: 1 job, 2 jobs, 50+ jobs."""
    return f"{count} {plural(count, one, many)}"
