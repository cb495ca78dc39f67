"""When a cron line fires: in its zone, through the change of clocks, the same whoever asks from wherever."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import islice, takewhile
from zoneinfo import ZoneInfo

import pytest

from packhorse.core import cron
from packhorse.errors import InvalidInput

BERLIN, NEW_YORK, LORD_HOWE = "Europe/Berlin", "America/New_York", "Australia/Lord_Howe"
"""Lord Howe moves its clocks by half an hour, and on the other half of the globe."""


def at(text: str, zone: str = "UTC", fold: int = 0) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone), fold=fold).timestamp()


def fires(line: str, zone: str, after: str, count: int) -> list[str]:
    """Local times, with their offset, of the next ticks after a moment of UTC."""
    found = islice(cron.ticks(line, zone, at(after)), count)
    return [datetime.fromtimestamp(tick, ZoneInfo(zone)).isoformat() for tick in found]


def until(end: float, ticks: Iterator[float]) -> list[float]:
    return list(takewhile(lambda tick: tick <= end, ticks))


# Forward: the clock jumps over an hour (half an hour on Lord Howe).


@pytest.mark.parametrize(
    ("zone", "line", "day_before", "expected"),
    [
        (BERLIN, "30 2 * * *", "2026-03-28T12:00", ["2026-03-29T03:00:00+02:00", "2026-03-30T02:30:00+02:00"]),
        (NEW_YORK, "30 2 * * *", "2026-03-07T12:00", ["2026-03-08T03:00:00-04:00", "2026-03-09T02:30:00-04:00"]),
        (LORD_HOWE, "15 2 * * *", "2026-10-03T00:00", ["2026-10-04T02:30:00+11:00", "2026-10-05T02:15:00+11:00"]),
    ],
)
def test_a_time_that_is_jumped_over_fires_when_the_clock_has_jumped(
    zone: str, line: str, day_before: str, expected: list[str]
) -> None:
    assert fires(line, zone, day_before, 2) == expected


@pytest.mark.parametrize(
    ("zone", "hour_before", "expected"),
    [
        (BERLIN, "2026-03-29T00:15", ["01:30:00+01:00", "03:00:00+02:00", "03:30:00+02:00"]),
        (NEW_YORK, "2026-03-08T06:15", ["01:30:00-05:00", "03:00:00-04:00", "03:30:00-04:00"]),
        (LORD_HOWE, "2026-10-03T14:45", ["01:30:00+10:30", "02:30:00+11:00", "03:00:00+11:00"]),
    ],
)
def test_what_fires_every_half_hour_goes_on_evenly_over_the_jump(
    zone: str, hour_before: str, expected: list[str]
) -> None:
    assert [text[11:] for text in fires("*/30 * * * *", zone, hour_before, 3)] == expected


# Back: the clock shows an hour (half an hour) twice.


@pytest.mark.parametrize(
    ("zone", "line", "day_before", "expected"),
    [
        (BERLIN, "30 2 * * *", "2026-10-24T12:00", ["2026-10-25T02:30:00+02:00", "2026-10-26T02:30:00+01:00"]),
        (NEW_YORK, "30 1 * * *", "2026-10-31T12:00", ["2026-11-01T01:30:00-04:00", "2026-11-02T01:30:00-05:00"]),
        (LORD_HOWE, "45 1 * * *", "2026-04-04T00:00", ["2026-04-05T01:45:00+11:00", "2026-04-06T01:45:00+10:30"]),
    ],
)
def test_a_time_that_comes_twice_fires_the_first_time(
    zone: str, line: str, day_before: str, expected: list[str]
) -> None:
    assert fires(line, zone, day_before, 2) == expected


@pytest.mark.parametrize(
    ("zone", "hour_before", "expected"),
    [
        (BERLIN, "2026-10-25T00:15", ["02:30:00+02:00", "02:00:00+01:00", "02:30:00+01:00", "03:00:00+01:00"]),
        (NEW_YORK, "2026-11-01T05:15", ["01:30:00-04:00", "01:00:00-05:00", "01:30:00-05:00", "02:00:00-05:00"]),
        (LORD_HOWE, "2026-04-04T14:15", ["01:30:00+11:00", "01:30:00+10:30", "02:00:00+10:30", "02:30:00+10:30"]),
    ],
)
def test_what_fires_every_half_hour_goes_on_evenly_through_both(
    zone: str, hour_before: str, expected: list[str]
) -> None:
    assert [text[11:] for text in fires("*/30 * * * *", zone, hour_before, 4)] == expected


@pytest.mark.parametrize(
    ("zone", "line", "in_the_second"),
    [
        (BERLIN, "30 2 * * *", "2026-10-25T01:15"),
        (NEW_YORK, "30 1 * * *", "2026-11-01T06:15"),
        (LORD_HOWE, "45 1 * * *", "2026-04-04T15:05"),
    ],
)
def test_who_asks_during_the_second_of_two_equal_hours_is_told_no_time_that_is_over(
    zone: str, line: str, in_the_second: str
) -> None:
    now = at(in_the_second)

    found = cron.next_tick(line, zone, now)

    assert found is not None
    assert found > now + 12 * 3600
    assert cron.last_tick(line, zone, now, now - 10 * 86_400) < now


@pytest.mark.parametrize("zone", [BERLIN, NEW_YORK, LORD_HOWE, "UTC"])
@pytest.mark.parametrize("line", ["30 2 * * *", "*/30 * * * *", "45 * * * *", "15 1,2 * * *", "0 45 1 * * *"])
def test_ticks_are_the_same_from_wherever_one_asks(zone: str, line: str) -> None:
    """Two schedulers that look at different moments must mean the same ticks."""
    for day in ("2026-03-08", "2026-03-29", "2026-04-05", "2026-10-04", "2026-10-25", "2026-11-01"):
        start = at(day) - 86_400
        whole = until(start + 3 * 86_400, cron.ticks(line, zone, start - 1))

        for moment in range(int(start), int(start + 3 * 86_400), 1700):
            later = [tick for tick in whole if tick > moment]
            earlier = [tick for tick in whole if tick <= moment]
            assert cron.next_tick(line, zone, moment) == (later[0] if later else cron.next_tick(line, zone, whole[-1]))
            if earlier:
                assert cron.last_tick(line, zone, moment, whole[0]) == earlier[-1]


# What a person is shown.


def test_a_preview_marks_what_is_skipped_moved_and_doubled() -> None:
    forward = cron.preview("30 2 * * *", BERLIN, at("2026-03-28T00:00"), 3)
    back = cron.preview("*/30 * * * *", BERLIN, at("2026-10-25T00:15"), 4)
    lost = cron.preview("*/20 2 * * *", BERLIN, at("2026-03-28T12:00"), 1)

    assert [(each.local, each.mark) for each in forward] == [
        ("2026-03-28T02:30:00+01:00", ""),
        ("2026-03-29T02:30:00", "skipped"),
        ("2026-03-29T03:00:00+02:00", "moved"),
        ("2026-03-30T02:30:00+02:00", ""),
    ]
    assert [(each.local, each.mark) for each in back] == [
        ("2026-10-25T02:30:00+02:00", "doubled"),
        ("2026-10-25T02:00:00+01:00", "doubled"),
        ("2026-10-25T02:30:00+01:00", "doubled"),
        ("2026-10-25T03:00:00+01:00", ""),
    ]
    assert "first" in back[0].note
    assert "second" in back[2].note
    assert [each.mark for each in lost] == ["skipped", "skipped", "skipped", ""]
    assert [each.at for each in lost[:3]] == [None, None, None]


def test_a_preview_of_every_second_tells_only_some_of_what_is_skipped() -> None:
    found = cron.preview("* * 2 * * *", BERLIN, at("2026-03-29T00:30"), 1)

    assert len(found) == cron.MAX_SKIPPED + 1


# Lines.


@pytest.mark.parametrize(
    "line",
    ["", "*", "* * * *", "* * * * * * *", "60 * * * *", "* 24 * * *", "* * 32 * *", "* * * 13 *", "* * * * 8",
     "*/0 * * * *", "5-1 * * * *", "a * * * *", "* * * * 1L/2", "0 0 30 2 *", "0 0 31 4,6 *", "* " * 200,
     "0 0 * * MON#6", "99999999999999999999999999 * * * *", "1,, * * * *"],
)  # fmt: skip
def test_a_line_that_makes_no_sense_or_never_fires_is_refused(line: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        cron.check(line, "UTC", 0.0)

    assert refused.value.errors[0]["field"] == "cron"


def test_a_line_whose_day_never_comes_is_refused() -> None:
    with pytest.raises(InvalidInput, match="never fires"):
        cron.check("0 0 30 1 *", "UTC", cron.END_OF_CALENDAR)


@pytest.mark.parametrize("zone", ["", "Mars/Base", "../../etc/passwd", "europe/berlin", "+02:00"])
def test_a_zone_there_is_not_is_refused(zone: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        cron.check("* * * * *", zone, 0.0)

    assert refused.value.errors[0]["field"] == "zone"


def test_six_fields_are_seconds_and_more() -> None:
    assert list(islice(cron.ticks("*/20 * * * * *", "UTC", 100.5), 3)) == [120.0, 140.0, 160.0]
    assert list(islice(cron.ticks("* * * * * *", BERLIN, 100.0), 2)) == [101.0, 102.0]


def test_the_last_tick_before_a_long_time_is_found_at_once() -> None:
    now = at("2026-06-01T12:00:30")

    assert cron.last_tick("* * * * *", "UTC", now, at("1990-01-01T00:00")) == at("2026-06-01T12:00")
    assert cron.last_tick("0 0 1 1 *", "UTC", now, at("2026-01-01T00:00")) == at("2026-01-01T00:00")


def test_ticks_are_counted_no_further_than_asked() -> None:
    assert cron.count("* * * * *", "UTC", 0.0, 600.0, 100) == 11
    assert cron.count("* * * * *", "UTC", 0.0, 600.0, 5) == 5
    assert cron.count("* * * * *", "UTC", 0.0, 0.0, 5) == 1


def test_there_are_no_ticks_past_the_end_of_the_calendar() -> None:
    assert list(cron.ticks("* * * * *", "UTC", cron.END_OF_CALENDAR)) == []
    assert cron.utc(0.5) == datetime.fromtimestamp(0, UTC).isoformat().replace("+00:00", "Z")
