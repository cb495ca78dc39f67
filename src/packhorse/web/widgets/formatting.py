"""Numbers, times, names and differences in the words that people use."""

from __future__ import annotations

import re
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


def between(least: float, most: float | None) -> str:
    """As a guess that says how sure it is: 20 to 40 s, 50 s to 2 min; one time if both are about the same."""
    low, high = about(least), about(most or least)
    if low == high or most is None or most <= least:
        return low
    number, _, unit = low.partition(" ")
    return f"{number} to {high}" if high.endswith(f" {unit}") else f"{low} to {high}"


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


# Log lines: levels, and the colours of a terminal.

LEVEL = re.compile(r"\b(DEBUG|TRACE|INFO|NOTICE|WARN|WARNING|ERROR|CRITICAL|FATAL)\b")
RAISED = re.compile(r"(Traceback \(most recent|[\w.]*(Error|Exception)(: |$))")
LEVEL_BEGINS = 60  # a level stands within so many characters of a line
LEVELS = {"TRACE": "debug", "NOTICE": "info", "WARN": "warning", "CRITICAL": "error", "FATAL": "error"}
ESCAPE = re.compile(r"\x1b(?:\[([0-9;:]*)([@-~])|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
COLOURS = ("black", "red", "green", "yellow", "blue", "magenta", "cyan", "white")
STYLES = {1: "bold", 2: "dim", 3: "italic", 4: "underlined"}


def level(text: str) -> str:
    """debug, info, warning or error; empty if a line does not say."""
    if RAISED.match(text):
        return "error"
    found = LEVEL.search(text, 0, LEVEL_BEGINS)
    return "" if found is None else LEVELS.get(found[1], found[1].lower())


def styled(text: str) -> list[tuple[str, str]]:
    """What a terminal would show of a line: the names of styles, and a text that has them."""
    text = text.rstrip("\r\n").rpartition("\r")[2]
    if "\x1b" not in text:
        return [("", text)]
    styles: dict[str, str] = {}
    parts: list[tuple[str, str]] = []
    at = 0
    for found in ESCAPE.finditer(text):
        _add_part(parts, styles, text[at : found.start()])
        at = found.end()
        if found[2] == "m":
            _restyle(styles, [int(each or 0) for each in re.split("[;:]", found[1] or "0")])
    _add_part(parts, styles, text[at:])
    return parts


def _add_part(parts: list[tuple[str, str]], styles: dict[str, str], text: str) -> None:
    if text:
        parts.append((" ".join(styles.values()), text))


def _restyle(styles: dict[str, str], codes: list[int]) -> None:
    while codes:
        code = codes.pop(0)
        if code == 0:
            styles.clear()
        elif code in STYLES:
            styles[STYLES[code]] = f"ansi-{STYLES[code]}"
        elif code == 22:
            styles.pop("bold", None), styles.pop("dim", None)
        elif code in (23, 24):
            styles.pop(STYLES[code - 20], None)
        elif code in (38, 48):
            colour = codes.pop(1) if len(codes) > 1 and codes[0] == 5 else None
            del codes[: 1 if colour is not None else 4]
            if code == 38 and colour is not None and colour < 16:
                styles["colour"] = f"ansi-{COLOURS[colour % 8]}"
        elif code == 39:
            styles.pop("colour", None)
        elif 30 <= code <= 37 or 90 <= code <= 97:
            styles["colour"] = f"ansi-{COLOURS[code % 10]}"
