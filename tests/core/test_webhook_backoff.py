"""When a message is tried again, and when it is given up."""

from __future__ import annotations

import pytest

from packhorse.core.webhook_backoff import DAY, HOUR, LONGEST_ASKED, MINUTE, MOMENTS, PAUSES, pause


def test_the_pauses_grow_and_end_within_days() -> None:
    age, tries, pauses = 0.0, 1, []

    while (wait := pause(age, tries, luck=0.0)) is not None:
        pauses.append(wait)
        age, tries = age + wait, tries + 1

    assert pauses == pytest.approx(list(PAUSES))
    assert pauses[:4] == [5.0, 5 * MINUTE, 30 * MINUTE, 2 * HOUR]
    assert 3 * DAY < age < 4 * DAY


def test_a_try_that_took_long_does_not_bring_the_next_nearer_than_moments() -> None:
    assert pause(4.9, 1, luck=0.0) == pytest.approx(MOMENTS[1] - 4.9)


def test_luck_only_ever_adds() -> None:
    assert pause(0.0, 1, luck=0.0) == 5.0
    assert pause(0.0, 1, luck=0.999) == pytest.approx(5.5, abs=0.01)


@pytest.mark.parametrize(("asked", "waited"), [(1.0, 5.0), (60.0, 60.0), (30 * DAY, LONGEST_ASKED)])
def test_a_receiver_may_ask_for_more_time_within_bounds(asked: float, waited: float) -> None:
    assert pause(0.0, 1, luck=0.0, asked=asked) == waited


def test_a_message_that_could_not_be_tried_for_days_is_still_tried_as_often_as_any_other() -> None:
    late = MOMENTS[-1] + DAY

    assert pause(late, 1, luck=0.0) == PAUSES[1]
    assert pause(late, len(PAUSES) - 1, luck=0.0) == PAUSES[-1]
    assert pause(late, len(PAUSES), luck=0.0) is None
