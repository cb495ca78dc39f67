"""Text for people: cron expressions in words (``0 3 * * 1-5`` is "Monday to Friday at 03:00").

A cron expression is described only if a few words say exactly the same. Otherwise the expression itself is
shown: anyone who writes ``7-59/13 * 1,8 * 5#2`` can read it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

SECOND, MINUTE, HOUR, DAY, MONTH, WEEKDAY = range(6)
RANGES = (range(60), range(60), range(24), range(1, 32), range(1, 13), range(8))
DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September", "October", "November",
    "December",
)  # fmt: skip
MAX_LISTED = 4  # maximum times, days or months that a sentence lists


class NoWords(Exception):
    """The line has no short description."""


def describe_schedule(line: str, zone: str) -> str:
    """The description and the time zone; the line itself if it has no short description."""
    return f"{describe_cron(line) or line}, {zone}"


def describe_cron(line: str) -> str | None:
    parts = line.upper().split()
    parts = ["0", *parts] if len(parts) == 5 else parts
    try:
        return _sentence(parts)
    except (NoWords, ValueError):
        return None


def _sentence(parts: Sequence[str]) -> str:
    if len(parts) != 6:
        raise NoWords
    days = _days(parts[DAY], parts[WEEKDAY], parts[MONTH])
    often, is_at = _times(parts)
    if is_at:
        return f"{days or 'every day'} at {often}"
    return ", ".join(each for each in (often, days) if each)


# Days


def _days(day: str, weekday: str, month: str) -> str:
    """Empty for every day."""
    months = [MONTHS[each - 1] for each in _values(month, MONTH)]
    if weekday == "*":
        return _of_month(day, months, _is_range(month))
    if day != "*":  # cron then matches either of them, which takes too many words
        raise NoWords
    return _of_week(weekday) + _in_months(months, _is_range(month))


def _of_month(day: str, months: Sequence[str], is_range: bool) -> str:
    if day == "*":
        return f"every day{_in_months(months, is_range)}" if months else ""
    if day.isdigit() and len(months) == 1:
        if (day, months) == ("29", ["February"]):
            return "every leap year on 29 February"
        return f"every year on {int(day)} {months[0]}"
    of = f" of {_join(months, False)}" if months and not is_range else f" of the month{_in_months(months, is_range)}"
    return f"on the {_day(day)}{of}"


def _day(day: str) -> str:
    if day in ("L", "LW"):
        return "last day" if day == "L" else "last working day"
    return _join([_ordinal(each) for each in _values(day, DAY)], _is_range(day))


def _in_months(months: Sequence[str], is_range: bool) -> str:
    if not months:
        return ""
    return f" from {_join(months, True)}" if is_range else f" in {_join(months, False)}"


def _of_week(weekday: str) -> str:
    name, hash, nth = weekday.partition("#")
    if hash:
        return f"on the {_ordinal(int(nth))} {DAYS[_number(name, WEEKDAY) % 7]} of the month"
    if weekday.endswith("L"):
        return f"on the last {DAYS[_number(weekday[:-1], WEEKDAY) % 7]} of the month"
    names = [DAYS[each % 7] for each in _values(weekday, WEEKDAY)]
    if len(set(names)) < len(names):  # Sunday as 0 and as 7
        raise NoWords
    return _join(names, _is_range(weekday)) if _is_range(weekday) else f"every {_join(names, False)}"


# Times of the day


def _times(parts: Sequence[str]) -> tuple[str, bool]:
    """When on such a day, and whether these are clock times."""
    second, minute, hour = parts[:3]
    if second == "0":
        return _of_hours(minute, hour)
    if second.isdigit() and minute.isdigit() and _is_list(hour):
        clock = [f"{each:02}:{int(minute):02}:{int(second):02}" for each in _values(hour, HOUR)]
        return _join(clock, False), True
    if (minute, hour) == ("*", "*"):
        return _every(second, SECOND, "second"), False
    raise NoWords


def _of_hours(minute: str, hour: str) -> tuple[str, bool]:
    if _is_list(minute) and _is_list(hour):
        clock = [f"{h:02}:{m:02}" for h in _values(hour, HOUR) for m in _values(minute, MINUTE)]
        return _join(clock, False), True
    if not _is_stepped(minute):
        return _every_hour(_values(minute, MINUTE), hour), False
    often = _every(minute, MINUTE, "minute")
    if hour == "*":
        return often, False
    if not (_is_range(hour) or hour.isdigit()):
        raise NoWords
    hours = _values(hour, HOUR, most=24)
    last = 60 - _step(minute, MINUTE)
    return f"{often} from {hours[0]:02}:00 to {hours[-1]:02}:{last:02}", False


def _every_hour(minutes: Sequence[int], hour: str) -> str:
    if _is_range(hour):
        [minute] = minutes
        hours = _values(hour, HOUR, most=24)
        return f"every hour from {hours[0]:02}:{minute:02} to {hours[-1]:02}:{minute:02}"
    often = _every(hour, HOUR, "hour")
    if minutes == [0]:
        return often
    return f"{often}, {_join([str(each) for each in minutes], False)} minute{'' if minutes == [1] else 's'} past"


def _every(part: str, field: int, unit: str) -> str:
    step = _step(part, field)
    return f"every {unit}" if step == 1 else f"every {step} {unit}s"


def _step(part: str, field: int) -> int:
    """The step, if it divides the field evenly: every 7 minutes does not, because the hour ends in between."""
    if part == "*":
        return 1
    star, slash, step = part.partition("/")
    size = len(RANGES[field])
    if star not in ("*", "0") or not slash or size % int(step) or int(step) == size:
        raise NoWords
    return int(step)


# Fields


def _values(part: str, field: int, most: int = MAX_LISTED) -> list[int]:
    """The values a field names, sorted; empty if it names all."""
    if part == "*":
        return []
    found: set[int] = set()
    for each in part.split(","):
        low, dash, high = each.partition("-")
        start = _number(low, field)
        found |= set(range(start, (_number(high, field) if dash else start) + 1))
    if len(found) > (most if not _is_range(part) else len(RANGES[field])):
        raise NoWords
    return sorted(found)


def _number(text: str, field: int) -> int:
    names = DAYS if field == WEEKDAY else MONTHS if field == MONTH else ()
    for at, name in enumerate(names):
        if text == name[:3].upper():
            return at + (field == MONTH)
    if (number := int(text)) not in RANGES[field]:
        raise NoWords
    return number


def _is_list(part: str) -> bool:
    return all(each.isdigit() for each in part.split(","))


def _is_range(part: str) -> bool:
    low, dash, high = part.partition("-")
    return bool(dash) and low != high and "," not in part and "/" not in part


def _is_stepped(part: str) -> bool:
    return part == "*" or "/" in part


def _join(names: Sequence[str], is_range: bool) -> str:
    if is_range:
        return f"{names[0]} to {names[-1]}"
    if len(names) > MAX_LISTED:
        raise NoWords
    return " and ".join([", ".join(names[:-1]), names[-1]] if len(names) > 1 else names)


def _ordinal(number: int) -> str:
    end = "th" if 10 < number < 14 else {1: "st", 2: "nd", 3: "rd"}.get(number % 10, "th")
    return f"{number}{end}"


CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")
"""Characters that move the cursor of a terminal, begin a line in a log or turn around how text is read."""
