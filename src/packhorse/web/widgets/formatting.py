"""Numbers, times, names and differences in the words that people use."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple

import msgspec

STEPS = ((86_400, "d"), (3_600, "h"), (60, "min"), (1, "s"))


def duration(seconds: float | None) -> str:
    """The two largest units: 3 d 4 h, 12 min, 1.4 s, 80 ms."""
    if seconds is None:
        return "–"
    if seconds < 0:
        return f"-{duration(-seconds)}"
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s".replace(".0 s", " s")
    left, parts = round(seconds), []
    for size, unit in STEPS:
        if left >= size:
            parts.append(f"{left // size} {unit}")
            left %= size
    return " ".join(parts[:2])


def milliseconds(value: float | None) -> str:
    return duration(None if value is None else value / 1000)


def size(count: float | None) -> str:
    if count is None:
        return "–"
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 10 else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def number(value: float | None) -> str:
    """With commas; what is no whole number, with as many digits as tell something."""
    if value is None:
        return "–"
    if float(value).is_integer() or abs(value) >= 100:
        return f"{round(value):,}"
    return f"{value:.3g}"


def percent(value: float) -> str:
    """Truncated, not rounded: only a finished job shows 100 %."""
    return f"{int(value)} %"


def moment(text: str | None) -> datetime | None:
    return None if text is None else datetime.fromisoformat(text)


def ago(text: str | None, now: datetime | None = None) -> str:
    """3 min ago, in 2 h."""
    at = moment(text)
    if at is None:
        return "–"
    passed = ((now or datetime.now(UTC)) - at).total_seconds()
    if abs(passed) < 1:
        return "now"
    rough = duration(float(round(abs(passed)))).split(" ")
    words = " ".join(rough[:2])
    return f"{words} ago" if passed > 0 else f"in {words}"


def is_past(text: str | None, now: datetime | None = None) -> bool:
    at = moment(text)
    return at is not None and at <= (now or datetime.now(UTC))


def clock(text: str | None, pattern: str = "%Y-%m-%d %H:%M:%S UTC") -> str:
    """For the eyes, to the second."""
    at = moment(text)
    return "–" if at is None else at.strftime(pattern)


def hour(text: str | None) -> str:
    return clock(text, "%H:%M")


def second(text: str | None) -> str:
    return clock(text, "%H:%M:%S")


def title(name: str) -> str:
    """A name of a program's as people write: extract_audio, Extract audio."""
    return name.replace("_", " ").replace("-", " ").strip().capitalize() or name


def about(seconds: float) -> str:
    """As exact as a guess is: 8 s, 40 s, 3 min, 2 h."""
    if seconds < 10:
        return f"{max(1, round(seconds))} s"
    if seconds < 55:
        return f"{5 * round(seconds / 5)} s"
    if seconds < 5_400:
        return f"{max(1, round(seconds / 60))} min"
    return f"{round(seconds / 3_600)} h" if seconds < 172_800 else f"{round(seconds / 86_400)} d"


LONGEST = 2000  # characters of a value that are shown: the API has all of it


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
