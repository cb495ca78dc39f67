"""The wait before the next attempt."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from packhorse.core.plan import Backoff
from packhorse.core.retry import delay

ALMOST_ONE = math.nextafter(1.0, 0.0)


@pytest.mark.parametrize(("attempt", "seconds"), [(1, 1.0), (2, 2.0), (3, 4.0), (6, 32.0), (7, 60.0), (50, 60.0)])
def test_the_wait_doubles_up_to_the_cap(attempt: int, seconds: float) -> None:
    assert delay(Backoff(base=1.0, cap=60.0), attempt, ALMOST_ONE) == pytest.approx(seconds)


def test_no_luck_halves_the_wait() -> None:
    assert delay(Backoff(base=8.0, cap=60.0), 1, 0.0) == 4.0


def test_the_cap_is_spread_too() -> None:
    assert delay(Backoff(base=1.0, cap=60.0), 1_000, 0.5) == 45.0


def test_a_base_over_the_cap_waits_for_the_cap() -> None:
    assert delay(Backoff(base=100.0, cap=10.0), 1, ALMOST_ONE) == pytest.approx(10.0)


@given(
    base=st.floats(0.0, 1e6),
    cap=st.floats(0.0, 1e6),
    attempt=st.integers(1, 10**9),
    luck=st.floats(0.0, 1.0, exclude_max=True),
)
def test_every_wait_is_finite_and_within_the_cap(base: float, cap: float, attempt: int, luck: float) -> None:
    assert 0.0 <= delay(Backoff(base, cap), attempt, luck) <= cap


@given(attempt=st.integers(1, 100), luck=st.floats(0.0, 1.0, exclude_max=True))
def test_a_later_attempt_never_waits_less(attempt: int, luck: float) -> None:
    assert delay(Backoff(), attempt + 1, luck) >= delay(Backoff(), attempt, luck)
