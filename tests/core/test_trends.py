"""The trend of a group: its failures by the hour, and an honest gap where they are not known."""

from __future__ import annotations

from packhorse.core import failures as rules

NOW = 1_000_000_000.0
HOUR = 3600.0


def test_a_trend_counts_by_the_hour_up_to_now() -> None:
    times = [NOW, NOW - 1, NOW - HOUR, NOW - 23.9 * HOUR]

    assert rules.by_hour(times, NOW) == [1, *[0] * 21, 1, 2]


def test_what_is_older_than_a_day_or_not_yet_is_no_trouble_to_a_trend() -> None:
    assert rules.by_hour([NOW + 5, NOW - 25 * HOUR], NOW) == [*[0] * 23, 1]


def test_hours_that_the_newest_failures_do_not_reach_back_to_are_unknown() -> None:
    times = [NOW - HOUR * 2 * n / rules.MAX_TIMES for n in range(rules.MAX_TIMES)]

    counts = rules.by_hour(times, NOW)

    assert counts[:22] == [None] * 22
    assert sum(each or 0 for each in counts) == rules.MAX_TIMES


def test_the_id_of_a_failure_says_when_it_was() -> None:
    assert rules.time_of(rules.failure_id(NOW + 0.25, "0199-abc", 1)) == NOW + 0.25
