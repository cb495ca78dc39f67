"""Times as jobs show them: cut to microseconds, never a hair later than they were."""

from __future__ import annotations

import math
from datetime import UTC, datetime
from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from packhorse.schemas.progress import EXACT, LAST_TIME, iso

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def microseconds(text: str | None) -> int:
    assert text is not None
    since = datetime.fromisoformat(text) - EPOCH
    return (since.days * 86_400 + since.seconds) * 1_000_000 + since.microseconds


@given(
    st.floats(0, LAST_TIME, exclude_max=True)
    | st.floats(1.7e9, 1.9e9)
    | st.integers(0, 2_000_000_000_000_000)
    .map(lambda at: math.nextafter(at / 1_000_000, 0.0))
    .filter(lambda at: at >= 0)
)
def test_a_time_is_cut_and_never_rounded_up(at: float) -> None:
    assert microseconds(iso(at)) == math.floor(Fraction(at) * 1_000_000)


def test_both_ways_of_cutting_meet() -> None:
    before = math.nextafter(EXACT, 0.0)

    assert iso(before) == "1970-01-13T03:16:15.999999Z"
    assert iso(EXACT) == "1970-01-13T03:16:16.000000Z"
