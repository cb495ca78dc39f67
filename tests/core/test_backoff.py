"""When a message is tried again, and when it is given up."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.plan import Backoff
from packhorse.core.webhooks import (
    DAY,
    HOUR,
    MAX_RETRY_AFTER,
    MINUTE,
    WEBHOOK_AGES,
    WEBHOOK_DELAYS,
    webhook_delay,
)


def test_the_pauses_grow_and_end_within_days() -> None:
    age, tries, pauses = 0.0, 1, []

    while (wait := webhook_delay(age, tries, luck=0.0)) is not None:
        pauses.append(wait)
        age, tries = age + wait, tries + 1

    assert pauses == pytest.approx(list(WEBHOOK_DELAYS))
    assert pauses[:4] == [5.0, 5 * MINUTE, 30 * MINUTE, 2 * HOUR]
    assert 3 * DAY < age < 4 * DAY


def test_a_try_that_took_long_does_not_bring_the_next_nearer_than_moments() -> None:
    assert webhook_delay(4.9, 1, luck=0.0) == pytest.approx(WEBHOOK_AGES[1] - 4.9)


def test_luck_only_ever_adds() -> None:
    assert webhook_delay(0.0, 1, luck=0.0) == 5.0
    assert webhook_delay(0.0, 1, luck=0.999) == pytest.approx(5.5, abs=0.01)


@pytest.mark.parametrize(("asked", "waited"), [(1.0, 5.0), (60.0, 60.0), (30 * DAY, MAX_RETRY_AFTER)])
def test_a_receiver_may_ask_for_more_time_within_bounds(asked: float, waited: float) -> None:
    assert webhook_delay(0.0, 1, luck=0.0, asked=asked) == waited


def test_a_message_that_could_not_be_tried_for_days_is_still_tried_as_often_as_any_other() -> None:
    late = WEBHOOK_AGES[-1] + DAY

    assert webhook_delay(late, 1, luck=0.0) == WEBHOOK_DELAYS[1]
    assert webhook_delay(late, len(WEBHOOK_DELAYS) - 1, luck=0.0) == WEBHOOK_DELAYS[-1]
    assert webhook_delay(late, len(WEBHOOK_DELAYS), luck=0.0) is None


ALMOST_ONE = math.nextafter(1.0, 0.0)


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (50, 60.0)])
def test_the_wait_doubles_up_to_the_cap(attempt: int, seconds: float) -> None:
    assert Backoff(base=1.0, cap=60.0).delay(attempt, ALMOST_ONE) == pytest.approx(seconds)


def test_no_luck_halves_the_wait() -> None:
    assert Backoff(base=8.0, cap=60.0).delay(1, 0.0) == 4.0


def test_the_cap_is_spread_too() -> None:
    assert Backoff(base=1.0, cap=60.0).delay(1_000, 0.5) == 45.0


def test_a_base_over_the_cap_waits_for_the_cap() -> None:
    assert Backoff(base=100.0, cap=10.0).delay(1, ALMOST_ONE) == pytest.approx(10.0)


@given(
    base=st.floats(0.0, 1e6),
    cap=st.floats(0.0, 1e6),
    attempt=st.integers(1, 10**9),
    luck=st.floats(0.0, 1.0, exclude_max=True),
)
def test_every_wait_is_finite_and_within_the_cap(base: float, cap: float, attempt: int, luck: float) -> None:
    assert 0.0 <= Backoff(base, cap).delay(attempt, luck) <= cap


@given(attempt=st.integers(1, 100), luck=st.floats(0.0, 1.0, exclude_max=True))
def test_a_later_attempt_never_waits_less(attempt: int, luck: float) -> None:
    assert Backoff().delay(attempt + 1, luck) >= Backoff().delay(attempt, luck)
