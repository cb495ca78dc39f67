"""The file format that all processors write their findings in."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

Box = tuple[float, float, float, float]
"""Left, top, right and bottom, as fractions of width and height."""
Point = tuple[float, float, float]
"""x and y, as fractions, and visibility."""

DIGITS = 4


class Finding(msgspec.Struct, frozen=True, omit_defaults=True):
    at: float
    """Seconds from the beginning of the video."""
    label: str
    """What it is: the text that was read, the spoken word, the class of an object."""
    until: float | None = None
    """End, if it lasts."""
    score: float | None = None
    box: Box | None = None
    points: dict[str, Point] | None = None
    speaker: str | None = None


class Report(msgspec.Struct, frozen=True):
    """The file that a processor writes."""

    processor: str
    model: str
    looked_at: int
    """Number of frames or seconds."""
    findings: list[Finding]


def write(report: Report, to: Path) -> None:
    to.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))


def read(path: Path) -> Report:
    return msgspec.json.decode(path.read_bytes(), type=Report)


def box(left: float, top: float, right: float, bottom: float) -> Box:
    """Clamped to the picture and rounded."""
    return (_share(left), _share(top), _share(right), _share(bottom))


def points(named: Iterable[tuple[str, float, float, float]]) -> dict[str, Point]:
    return {name: (round(x, DIGITS), round(y, DIGITS), round(seen, DIGITS)) for name, x, y, seen in named}


def _share(value: float) -> float:
    return round(min(max(float(value), 0.0), 1.0), DIGITS)
