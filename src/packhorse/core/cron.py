"""Cron lines in a time zone: when they fire, the same in every process, and what the clock change does to them.

Five fields are minute, hour, day, month and weekday; a sixth in front of them is the second. A line of five fields that
names its hour fires once on every day it names: at the end of the gap where the clock jumps over its time, and only the
first time where the clock shows it twice. Everything else follows the clock on the wall.

Times are read from tables that are part of the system; the moment they are asked about is always given.
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

MAX_LINE = 200
"""Characters of a line: a list of all minutes of an hour has 170."""
END_OF_CALENDAR = 253_402_300_799.0
"""The end of the year 9999."""
MAX_SKIPPED = 20
"""Skipped times that are told of one gap."""
MIN_CHANGE_GAP = 2 * 86_400
"""Seconds in which no clock is moved twice."""
WALK_SECONDS = 3600.0
"""Seconds that are walked through tick by tick."""

UNREADABLE = (CronSimError, AssertionError, OverflowError, TypeError, ValueError)
"""What the parser raises for lines that make no sense; not all of it is meant to be told."""

MISSING_LINE = "When? A schedule needs a cron line"
UNKNOWN_ZONE = "There is no such time zone; one is named like Europe/Berlin"

Mark = Literal["", "skipped", "moved", "doubled"]
FieldError = tuple[str, str]
"""The field, and what is wrong with it."""


class Moment(Struct, frozen=True):
    """A time that a line names: when it fires, or that it does not."""

    at: float | None
    """None for a local time that does not exist."""
    local: str
    mark: Mark = ""
    note: str = ""


def check(line: str, zone: str, now: float) -> None:
    """Raises InvalidInput that names what is wrong; also for a line that never fires."""
    if found := find_errors(line, zone, now):
        raise _invalid(found)


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
        why = f": {str(error).lower()}" if isinstance(error, CronSimError) else ""
        return f"It is no cron line of five or six fields, or names a day that never comes{why}"
    return "It never fires" if next_tick(line, zone, now) is None else None


def zone_of(name: str) -> tzinfo:
    if not _is_zone(name):
        raise _invalid([("zone", UNKNOWN_ZONE)])
    return UTC if name == "UTC" else ZoneInfo(name)


def _is_zone(name: str) -> bool:
    return name == "UTC" or name in _zones()  # UTC is known also where the system has no tables


def next_tick(line: str, zone: str, moment: float) -> float | None:
    """The first tick after that moment."""
    return next(ticks(line, zone, moment), None)


def ticks(line: str, zone: str, moment: float) -> Iterator[float]:
    """The ticks after that moment, rising, whole seconds; the same ones from whatever moment one asks.

    The line is read by a clock that never jumps, and what that clock names is looked up on the real one, stretch by
    stretch between two changes. ``done`` is what has been told, ``since`` where the stretch begins, and up to
    ``steady`` there is no change.
    """
    where, is_once = zone_of(zone), _is_once(line)
    done = since = floor(moment)
    while done < END_OF_CALENDAR - 2 * MIN_CHANGE_GAP:
        offset, steady = _offset(since, where), since
        change = None
        for at in (named - offset for named in _named_after(line, done + offset)):
            if at > steady:  # looked ahead, once for many ticks
                change = _change(steady, max(at, steady + MIN_CHANGE_GAP), where)
                steady = max(at, steady + MIN_CHANGE_GAP) if change is None else change - 1
            if change is not None and at >= change:
                break
            if not (is_once and _is_second(at, where)):
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
    """The last tick up to that moment, ``since`` being an earlier one."""
    if moment - since > WALK_SECONDS:  # what lies between may be years
        offset = _offset(floor(moment), zone_of(zone))
        back = CronSim(line, _clock(floor(moment) + 1 + offset), reverse=True)
        for named in islice(back, 5):  # more than one where the clock has changed, and a time does not count
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
    """How many ticks there are from ``first`` to ``last``, both included; counted no further than ``most``."""
    found = 1
    for at in islice(ticks(line, zone, first), most - 1):
        if at > last:
            break
        found += 1
    return found


def preview(line: str, zone: str, moment: float, wanted: int) -> list[Moment]:
    """The next times it fires, and between them the local times that are skipped."""
    found: list[Moment] = []
    before = moment
    for at in islice(ticks(line, zone, moment), wanted):
        found += _skipped_times(line, zone, before, at)
        found.append(_describe_tick(line, zone, at))
        before = at
    return found


def utc(at: float) -> str:
    """As people are told of it."""
    return datetime.fromtimestamp(int(at), UTC).isoformat().replace("+00:00", "Z")


def _describe_tick(line: str, zone: str, at: float) -> Moment:
    local = _local(at, zone)
    text = local.isoformat()
    other = local.replace(fold=1 - local.fold)
    if other.utcoffset() != local.utcoffset() and not _is_imaginary(local):
        which = "second" if local.fold else "first"
        return Moment(at, text, "doubled", f"The clock shows {local:%H:%M} twice on this day; this is the {which} time")
    if _next_named(line, local) != local.replace(tzinfo=None):
        return Moment(at, text, "moved", "Its time does not exist on this day; it fires when the clock has jumped")
    return Moment(at, text)


def _skipped_times(line: str, zone: str, before: float, at: float) -> Iterator[Moment]:
    """Local times that the line names between two ticks, and that no clock shows."""
    last = _local(at, zone).replace(tzinfo=None)
    where = zone_of(zone)
    told = 0
    for named in CronSim(line, _local(before, zone).replace(tzinfo=None)):
        if named >= last or told == MAX_SKIPPED:
            return
        if _is_imaginary(named.replace(tzinfo=where)):
            told += 1
            yield Moment(None, named.isoformat(), "skipped", "The clock jumps over this time")


def _next_named(line: str, local: datetime) -> datetime | None:
    """The first local time from this one on that the line names."""
    return next((_clock(named) for named in _named_after(line, _epoch(local) - 1)), None)


def _named_after(line: str, local: int) -> Iterator[int]:
    """Local times that the line names, as seconds of a clock that never jumps; to the end of the calendar."""
    try:
        yield from (_epoch(found) for found in CronSim(line, _clock(local)))
    except (OverflowError, ValueError):
        return


def _is_once(line: str) -> bool:
    """Whether it names hours of the day: such a line fires once a day for each, however often the clock shows it."""
    minute, hour, *rest = line.split()
    return len(rest) == 3 and not minute.startswith("*") and not hour.startswith("*")


def _is_second(at: int, where: tzinfo) -> bool:
    """Whether the clock shows this time for the second time."""
    return datetime.fromtimestamp(at, where).fold == 1


def _change(after: int, until: int, where: tzinfo) -> int | None:
    """The first moment after the one, and up to the other, at which the clock is moved."""
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


@lru_cache(1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _invalid(found: Sequence[FieldError]) -> InvalidInput:
    said = "; ".join(f"{field}: {message}" for field, message in found)
    return InvalidInput(f"{said}.", errors=[{"field": field, "message": message} for field, message in found])
