"""A generated text and the report that the built-in sample must make of it, computed without the sample's code."""

from __future__ import annotations

import hashlib
from collections import Counter
from typing import Any

NAME, TITLE = "journey.md", "A journey"
DAYS, LINES = 8, 20
WORDS = ("mule", "pack", "pass", "salt", "wool", "snow", "rope", "bell", "inn", "toll", "ford", "load")

Lines = list[list[str]]


def text() -> str:
    """A section for each day."""
    return "".join(f"# Day {day}\n{_join(_lines(day))}\n" for day in range(1, DAYS + 1))


def expected() -> dict[str, Any]:
    """The content of the report."""
    data = text().encode()
    return {
        "title": TITLE,
        "source": {"name": NAME, "size": len(data), "sha256": hashlib.sha256(data).hexdigest()},
        "words": DAYS * LINES * len(WORDS),
        "sections": [_section(day) for day in range(1, DAYS + 1)],
    }


def _section(day: int) -> dict[str, Any]:
    lines = _lines(day)
    counts = Counter(word for words in lines for word in words)
    frequent = sorted(counts, key=lambda word: (-counts[word], word))[:3]
    return {
        "title": f"Day {day}",
        "lines": LINES,
        "words": LINES * len(WORDS),
        "characters": len(_join(lines)),
        "frequent": {word: counts[word] for word in frequent},
    }


def _lines(day: int) -> Lines:
    return [[WORDS[(day * step + i * i) % len(WORDS)] for i in range(len(WORDS))] for step in range(LINES)]


def _join(lines: Lines) -> str:
    return "\n".join(" ".join(words) for words in lines)
