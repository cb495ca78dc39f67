"""Durations and sizes as text: "10m", "1.5h", "512MB"."""

from __future__ import annotations

import math
import re
from datetime import timedelta
from functools import lru_cache

Duration = float | str | timedelta
Size = int | str

UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0, "w": 604_800.0}
SIZES = {"": 1, "b": 1} | {k + b: 1024**power for power, k in enumerate("kmgt", 1) for b in ("", "b", "ib")}

_NUMBER = r"([0-9]+(?:\.[0-9]+)?)"
_PART = re.compile(rf"\s*{_NUMBER}\s*(ms|s|m|h|d|w)")
_WHOLE = re.compile(rf"(?:{_PART.pattern})+")
_SIZE = re.compile(rf"{_NUMBER}\s*((?:[kmgt]i?)?b|[kmgt])?", re.IGNORECASE)


def seconds(value: Duration) -> float:
    """``"10m"``, ``"1h30m"``, ``"250ms"``, ``90``, or a ``timedelta``. Raises ValueError for anything else."""
    if isinstance(value, timedelta):
        found: float | None = value.total_seconds()
    elif isinstance(value, str):
        found = _parse(value)
    else:
        found = _number(value)
    if found is None or not math.isfinite(found) or found < 0:
        raise ValueError(f'{value!r} is not a duration: write "250ms", "90s", "10m", "1.5h", "7d" or seconds')
    return found


def size(value: Size) -> int:
    """``"512MB"``, ``"2GiB"`` or bytes; K, M, G and T are powers of 1024. Raises ValueError for anything else."""
    match = _SIZE.fullmatch(value.strip()) if isinstance(value, str) else None
    found = float(match[1]) * SIZES[(match[2] or "").lower()] if match else _number(value)
    if found is None or not math.isfinite(found) or found < 0:
        raise ValueError(f'{value!r} is not a size: write "512MB", "2GiB" or bytes')
    return int(found)


@lru_cache(maxsize=256)
def _parse(text: str) -> float | None:
    if _WHOLE.fullmatch(text.strip()):
        return sum(float(number) * UNITS[unit] for number, unit in _PART.findall(text))
    return _number(text)


def _number(value: object) -> float | None:
    """A plain number, also as the text of an environment variable; never a bool."""
    if isinstance(value, str):
        return float(value) if re.fullmatch(_NUMBER, value.strip()) else None
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None
