"""Cron expressions in a time zone: when they fire, and what a clock change does to them. The same in every process.

Five fields are minute, hour, day, month and weekday; a sixth in front of them is the second. A line of five fields that
names its hour fires once on every day it names: at the end of the gap where the clock jumps over its time, and only the
first time where the clock shows it twice. Everything else follows the clock on the wall.

Time zone tables come from the system. The current time is always an argument.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice
from math import floor
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from msgspec import Struct

from packhorse.errors import InvalidInput

MAX_LINE = 200  # characters of a line: a list of all minutes of an hour has 170
END_OF_CALENDAR = 253_402_300_799.0  # the end of the year 9999
MAX_SKIPPED = 20  # maximum skipped times reported per gap
MIN_CHANGE_GAP = 2 * 86_400  # seconds within which a time zone changes its clock at most once
WALK_SECONDS = 3600.0  # longest span in seconds that is searched tick by tick

UNREADABLE = (CronSimError, AssertionError, OverflowError, TypeError, ValueError)
"""What the parser raises for invalid lines. Only CronSimError carries a message for people."""

RANGES = {
    "wrong number of fields": "it must have five or six fields",
    "bad second": "second must be 0–59",
    "bad minute": "minute must be 0–59",
    "bad hour": "hour must be 0–23",
    "bad day-of-month": "day must be 1–31",
    "bad month": "month must be 1–12",
    "bad day-of-week": "weekday must be 0–7",
}
"""What to say instead of the cron library's message."""
MISSING_LINE = "A schedule needs a cron expression"
UNKNOWN_ZONE = "Unknown time zone. Use a name such as Europe/Berlin"

Mark = Literal["", "skipped", "moved", "doubled"]
FieldError = tuple[str, str]  # the field, and what is wrong with it


class Moment(Struct, frozen=True):
    """A time of a cron expression, and whether it fires then."""

    at: float | None  # None for a local time that does not exist
    local: str
    mark: Mark = ""
    note: str = ""


def check(line: str, zone: str, now: float) -> None:
    """Raise InvalidInput with the errors, also for a line that never fires."""
    if found := find_errors(line, zone, now):
        raise invalid(found)


def find_errors(line: str, zone: str, now: float) -> list[FieldError]:
    is_known = _is_zone(zone)
    in_line = _line_error(line, zone if is_known else "UTC", now)
    return ([] if is_known else [("zone", UNKNOWN_ZONE)]) + ([] if in_line is None else [("cron", in_line)])


def _line_error(line: str, zone: str, now: float) -> str | None:
    if not line:
        return MISSING_LINE
    if len(line) > MAX_LINE:
        return f"It has more than {MAX_LINE} characters"
    try:
        CronSim(line, datetime.fromtimestamp(now, UTC))
    except UNREADABLE as error:
        why = str(error).lower() if isinstance(error, CronSimError) else "use digits, * / , and -"
        return f"Invalid cron expression: {RANGES.get(why, why)}"
    return "It never fires" if next_tick(line, zone, now) is None else None


def zone_of(name: str) -> tzinfo:
    if not _is_zone(name):
        raise invalid([("zone", UNKNOWN_ZONE)])
    return UTC if name == "UTC" else ZoneInfo(name)


_zones = lru_cache(1)(available_timezones)


def _is_zone(name: str) -> bool:
    return name == "UTC" or name in _zones()  # UTC is known also where the system has no tables


def next_tick(line: str, zone: str, moment: float) -> float | None:
    """The first tick after that moment."""
    return next(ticks(line, zone, moment), None)


def ticks(line: str, zone: str, moment: float) -> Iterator[float]:
    """Ticks after that moment, in order, in whole seconds. The result does not depend on the starting moment.

    CronSim reads the line on a clock that never jumps. Each named time is mapped to the real clock, one span between
    two clock changes after the other. ``done`` is the last time handled, ``since`` the start of the span, and there is
    no clock change up to ``steady``.
    """
    where, is_once = zone_of(zone), _is_once(line)
    done = since = floor(moment)
    while done < END_OF_CALENDAR - 2 * MIN_CHANGE_GAP:
        offset, steady = _offset(since, where), since
        change = None
        for at in (named - offset for named in _named_after(line, done + offset)):
            if at > steady:  # look ahead once for many ticks
                change = _change(steady, max(at, steady + MIN_CHANGE_GAP), where)
                steady = max(at, steady + MIN_CHANGE_GAP) if change is None else change - 1
            if change is not None and at >= change:
                break
            is_repeated = is_once and datetime.fromtimestamp(at, where).fold == 1
            if not is_repeated:
                yield float(at)
            done = at
        else:  # the end of the calendar
            return
        is_jumped = offset + at < change + _offset(change, where)
        since, done = change, change - 1
        if is_once and is_jumped:
            yield float(change)
            done = change


def last_tick(line: str, zone: str, moment: float, since: float) -> float:
    """The last tick up to that moment. ``since`` is an earlier tick."""
    if moment - since > WALK_SECONDS:  # the span may be years
        offset = _offset(floor(moment), zone_of(zone))
        back = CronSim(line, _clock(floor(moment) + 1 + offset), reverse=True)
        for named in islice(back, 5):  # after a clock change the first ones may not count
            start = max(since, _epoch(named) - offset - 2 * WALK_SECONDS)
            if (found := _last(line, zone, start, moment)) is not None:
                return found
    return _last(line, zone, since, moment) or since


def _last(line: str, zone: str, start: float, moment: float) -> float | None:
    last = None
    for at in ticks(line, zone, start):
        if at > moment:
            break
        last = at
    return last


def count(line: str, zone: str, first: float, last: float, most: int) -> int:
    """Number of ticks from ``first`` to ``last``, both included, at most ``most``."""
    found = 1
    for at in islice(ticks(line, zone, first), most - 1):
        if at > last:
            break
        found += 1
    return found


def preview(line: str, zone: str, moment: float, wanted: int) -> list[Moment]:
    """The next ticks, with the local times that are skipped between them."""
    found: list[Moment] = []
    before = moment
    for at in islice(ticks(line, zone, moment), wanted):
        found += _skipped_times(line, zone, before, at)
        found.append(_describe_tick(line, zone, at))
        before = at
    return found


def utc(at: float) -> str:
    """The time as ISO 8601 in UTC, for people."""
    return datetime.fromtimestamp(int(at), UTC).isoformat().replace("+00:00", "Z")


def _describe_tick(line: str, zone: str, at: float) -> Moment:
    local = _local(at, zone)
    text = local.isoformat()
    other = local.replace(fold=1 - local.fold)
    if other.utcoffset() != local.utcoffset() and not _is_imaginary(local):
        which = "second" if local.fold else "first"
        return Moment(at, text, "doubled", f"The clock shows {local:%H:%M} twice on this day; this is the {which} time")
    if next(_named_after(line, _epoch(local) - 1), None) != _epoch(local):
        return Moment(at, text, "moved", "Its time does not exist on this day; it fires when the clock has jumped")
    return Moment(at, text)


def _skipped_times(line: str, zone: str, before: float, at: float) -> Iterator[Moment]:
    """Local times that the line names between two ticks but that do not exist."""
    last = _local(at, zone).replace(tzinfo=None)
    where = zone_of(zone)
    told = 0
    for named in CronSim(line, _local(before, zone).replace(tzinfo=None)):
        if named >= last or told == MAX_SKIPPED:
            return
        if _is_imaginary(named.replace(tzinfo=where)):
            told += 1
            yield Moment(None, named.isoformat(), "skipped", "The clock jumps over this time")


def _named_after(line: str, local: int) -> Iterator[int]:
    """Local times that the line names, as seconds of a clock that never jumps."""
    try:
        yield from (_epoch(found) for found in CronSim(line, _clock(local)))
    except (OverflowError, ValueError):
        return


def _is_once(line: str) -> bool:
    """Whether the line names hours: it then fires once a day for each, even if the clock repeats the hour."""
    minute, hour, *rest = line.split()
    return len(rest) == 3 and not minute.startswith("*") and not hour.startswith("*")


def _change(after: int, until: int, where: tzinfo) -> int | None:
    """The first clock change in (after, until], or None."""
    low, offset = after, _offset(after, where)
    while low < until:
        high = min(low + MIN_CHANGE_GAP, until)
        if _offset(high, where) != offset:
            while high - low > 1:
                middle = (low + high) // 2
                low, high = (middle, high) if _offset(middle, where) == offset else (low, middle)
            return high
        low = high
    return None


def _offset(at: int, where: tzinfo) -> int:
    offset = datetime.fromtimestamp(at, where).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def _clock(seconds: int) -> datetime:
    return datetime.fromtimestamp(seconds, UTC).replace(tzinfo=None)


def _epoch(clock: datetime) -> int:
    return int(clock.replace(tzinfo=UTC).timestamp())


def _is_imaginary(local: datetime) -> bool:
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) != local.replace(tzinfo=None)


def _local(moment: float, zone: str) -> datetime:
    return datetime.fromtimestamp(moment, UTC).astimezone(zone_of(zone))


def invalid(found: Sequence[FieldError], prefix: str = "") -> InvalidInput:
    text = "; ".join(f"{field}: {message}" for field, message in found)
    return InvalidInput(f"{prefix}{text}.", errors=[{"field": field, "message": message} for field, message in found])
