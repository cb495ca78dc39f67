"""Cron lines in words: what people read means what the line does, or the line is shown as it is."""

from __future__ import annotations

from collections import defaultdict
from datetime import datetime
from itertools import islice, product

import pytest
from cronsim import CronSim
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.text import describe_cron, describe_schedule
from packhorse.plurals import counted, plural

SAID = {
    "* * * * *": "every minute",
    "*/15 * * * *": "every 15 minutes",
    "0/15 * * * *": "every 15 minutes",
    "0 * * * *": "every hour",
    "1 * * * *": "every hour, 1 minute past",
    "0,30 * * * *": "every hour, 0 and 30 minutes past",
    "15 */2 * * *": "every 2 hours, 15 minutes past",
    "0 3 * * *": "every day at 03:00",
    "5 9,17 * * *": "every day at 09:05 and 17:05",
    "0 9 * * 1-5": "Monday to Friday at 09:00",
    "0 9 * * mon,wed": "every Monday and Wednesday at 09:00",
    "0 9 * * 7": "every Sunday at 09:00",
    "0 9 * * 5#2": "on the 2nd Friday of the month at 09:00",
    "0 9 * * 5L": "on the last Friday of the month at 09:00",
    "0 0 1 * *": "on the 1st of the month at 00:00",
    "0 0 1,15 * *": "on the 1st and 15th of the month at 00:00",
    "0 0 11-13 * *": "on the 11th to 13th of the month at 00:00",
    "0 0 L * *": "on the last day of the month at 00:00",
    "0 0 LW * *": "on the last working day of the month at 00:00",
    "0 0 24 12 *": "every year on 24 December at 00:00",
    "0 0 29 2 *": "every leap year on 29 February at 00:00",
    "0 3 1 JAN,JUL *": "on the 1st of January and July at 03:00",
    "0 3 1 6-8 *": "on the 1st of the month from June to August at 03:00",
    "0 3 * 6-8 *": "every day from June to August at 03:00",
    "0 3 * 2 1": "every Monday in February at 03:00",
    "0 9-17 * * 1-5": "every hour from 09:00 to 17:00, Monday to Friday",
    "*/10 9-17 * * *": "every 10 minutes from 09:00 to 17:50",
    "* 3 * * *": "every minute from 03:00 to 03:59",
    "*/10 * * * * *": "every 10 seconds",
    "30 0 3 * * *": "every day at 03:00:30",
}

UNSAID = [
    "*/7 * * * *",  # an hour ends in between
    "*/60 * * * *",
    "0 3 1-7 * 1",  # either is enough
    "0 3 */2 * 1",  # both are needed
    "0 0 1 */3 *",
    "0 0 * * 0,7",
    "7-59/13 * * * *",
    "0 1,2,3,4,5 * * *",
    "0 0 1 1 * *  *",
    "nonsense",
    "",
    "0 0 * * 1#",
    "0 0 * * ²",
]


@pytest.mark.parametrize("line", SAID)
def test_a_line_is_put_into_words(line: str) -> None:
    assert describe_cron(line) == SAID[line]


@pytest.mark.parametrize("line", UNSAID)
def test_a_line_that_has_no_good_words_is_shown_itself(line: str) -> None:
    assert describe_cron(line) is None
    assert describe_schedule(line, "Asia/Tokyo") == f"{line}, Asia/Tokyo"


def test_the_clock_is_named() -> None:
    assert describe_schedule("0 3 * * *", "Europe/Berlin") == "every day at 03:00, Europe/Berlin"


FIELDS = (
    ("0", "5", "1-3", "0,30", "*/15", "0/15", "*/7", "*", "0-59"),
    ("*", "*/2", "3", "9-17", "9,17", "0/6", "5-5"),
    ("*", "1", "L", "1,15", "1-7", "*/2"),
    ("*", "1", "JAN", "6-8", "1,7", "*/3"),
    ("*", "1", "MON", "1-5", "0,6", "0", "7", "5#2", "5L", "*/2", "0-6", "1-7"),
)


def test_lines_with_the_same_words_fire_at_the_same_times() -> None:
    alike = defaultdict(list)
    for line in map(" ".join, product(*FIELDS)):
        if (found := describe_cron(line)) is not None:
            alike[found].append(line)

    several = {found: lines for found, lines in alike.items() if len(lines) > 1}
    different = {
        found: lines
        for found, lines in several.items()
        if len({tuple(islice(CronSim(line, datetime(2026, 1, 1)), 12)) for line in lines}) > 1
    }

    assert len(alike) > 1000
    assert several
    assert different == {}


@given(st.lists(st.text("0123456789*/,-#LWMONJA", min_size=1, max_size=6), min_size=5, max_size=6).map(" ".join))
def test_no_line_is_too_odd_to_be_asked_about(line: str) -> None:
    assert describe_schedule(line, "UTC").endswith(", UTC")


@pytest.mark.parametrize(
    ("count", "told"), [(0, "jobs are"), (1, "job is"), (2, "jobs are"), ("1", "job is"), ("1+", "jobs are")]
)
def test_one_of_them_or_several(count: int | str, told: str) -> None:
    assert plural(count, "job is", "jobs are") == told


def test_most_words_only_get_an_s() -> None:
    assert [plural(count, "run") for count in (0, 1, 2)] == ["runs", "run", "runs"]


def test_what_is_counted_stands_beside_its_count() -> None:
    assert [counted(count, "entry", "entries") for count in (1, 2, "50+")] == ["1 entry", "2 entries", "50+ entries"]
