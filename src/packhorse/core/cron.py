"""Cron lines in a time zone: when they fire, the same in every process, and what the clock change does to them.

Five fields are minute, hour, day, month and weekday; a sixth in front of them is the second. A line of five fields that
names its hour fires once on every day it names: at the end of the gap where the clock jumps over its time, and only the
first time where the clock shows it twice. Everything else follows the clock on the wall.

Times are read from tables that are part of the system; the moment they are asked about is always given.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from itertools import islice
from typing import Literal
from zoneinfo import ZoneInfo, available_timezones

from cronsim import CronSim, CronSimError
from msgspec import Struct

from packhorse.errors import InvalidInput

LONGEST = 200
"""Characters of a line: a list of all minutes of an hour has 170."""
LAST = 253_402_300_799.0
"""The end of the year 9999."""
MOST_SKIPPED = 20
"""Skipped times that are told of one gap."""
FIRST = 86_400.0 * 366
"""A moment that is early enough for whatever looks back from it."""

UNREADABLE = (CronSimError, AssertionError, OverflowError, TypeError, ValueError)
"""What the parser raises for lines that make no sense; not all of it is meant to be told."""

Mark = Literal["", "skipped", "moved", "doubled"]


class Moment(Struct, frozen=True):
    """A time that a line names: when it fires, or that it does not."""

    at: float | None
    """None for a local time that does not exist."""
    local: str
    mark: Mark = ""
    note: str = ""


def check(line: str, zone: str, now: float) -> None:
    """Raises InvalidInput that names the field; also for a line that never fires."""
    if len(line) > LONGEST:
        raise _refused("cron", f"It has more than {LONGEST} characters")
    zone_of(zone)
    try:
        CronSim(line, datetime.fromtimestamp(now, UTC))
    except UNREADABLE as error:
        why = f": {str(error).lower()}" if isinstance(error, CronSimError) else ""
        raise _refused("cron", f"It is no cron line of five or six fields{why}") from error
    if following(line, zone, now) is None:
        raise _refused("cron", "It never fires")


def zone_of(name: str) -> tzinfo:
    if name == "UTC":  # known also where the system has no tables
        return UTC
    if name not in _zones():
        raise _refused("zone", "There is no such time zone; one is named like Europe/Berlin")
    return ZoneInfo(name)


def following(line: str, zone: str, moment: float) -> float | None:
    """The first tick after that moment."""
    return next(ticks(line, zone, moment), None)


def ticks(line: str, zone: str, moment: float) -> Iterator[float]:
    """The ticks after that moment, rising, whole seconds."""
    if moment >= LAST - FIRST:
        return
    try:
        for found in CronSim(line, _local(moment, zone)):
            # In the second of two hours that the clock shows alike, a time of the first is found again.
            if (at := found.timestamp()) > moment:
                yield at
                moment = at
    except (OverflowError, ValueError):  # the end of the calendar
        return


def latest(line: str, zone: str, moment: float, since: float) -> float:
    """The last tick up to that moment, ``since`` being an earlier one."""
    if moment - since > 60.0:  # what lies between may be years
        back = CronSim(line, _local(moment + 1.0, zone), reverse=True)
        since = max(since, next((at for found in islice(back, 3) if (at := found.timestamp()) <= moment), since))
    for at in ticks(line, zone, since):
        if at > moment:
            break
        since = at
    return since


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
        found += _skipped(line, zone, before, at)
        found.append(_shown(line, zone, at))
        before = at
    return found


def utc(at: float) -> str:
    """As people are told of it."""
    return datetime.fromtimestamp(int(at), UTC).isoformat().replace("+00:00", "Z")


def _shown(line: str, zone: str, at: float) -> Moment:
    local = _local(at, zone)
    text = local.isoformat()
    other = local.replace(fold=1 - local.fold)
    if other.utcoffset() != local.utcoffset() and not _is_imaginary(local):
        which = "second" if local.fold else "first"
        return Moment(at, text, "doubled", f"The clock shows {local:%H:%M} twice on this day; this is the {which} time")
    if _named(line, local) != local.replace(tzinfo=None):
        return Moment(at, text, "moved", "Its time does not exist on this day; it fires when the clock has jumped")
    return Moment(at, text)


def _skipped(line: str, zone: str, before: float, at: float) -> Iterator[Moment]:
    """Local times that the line names between two ticks, and that no clock shows."""
    last = _local(at, zone).replace(tzinfo=None)
    where = zone_of(zone)
    told = 0
    for named in CronSim(line, _local(before, zone).replace(tzinfo=None)):
        if named >= last or told == MOST_SKIPPED:
            return
        if _is_imaginary(named.replace(tzinfo=where)):
            told += 1
            yield Moment(None, named.isoformat(), "skipped", "The clock jumps over this time")


def _named(line: str, local: datetime) -> datetime | None:
    """The first local time from this one on that the line names, on a clock that never jumps."""
    second = datetime.fromtimestamp(local.replace(tzinfo=UTC).timestamp() - 1, UTC).replace(tzinfo=None)
    return next(CronSim(line, second), None)


def _is_imaginary(local: datetime) -> bool:
    return local.astimezone(UTC).astimezone(local.tzinfo).replace(tzinfo=None) != local.replace(tzinfo=None)


def _local(moment: float, zone: str) -> datetime:
    return datetime.fromtimestamp(moment, UTC).astimezone(zone_of(zone))


@lru_cache(1)
def _zones() -> frozenset[str]:
    return frozenset(available_timezones())


def _refused(field: str, message: str) -> InvalidInput:
    return InvalidInput(f"{field}: {message}.", errors=[{"field": field, "message": message}])
