"""Counts and shares in words."""

from __future__ import annotations

import pytest

from packhorse.core.plurals import percent, plural


@pytest.mark.parametrize(
    ("count", "told"), [(0, "jobs are"), (1, "job is"), (2, "jobs are"), ("1", "job is"), ("1+", "jobs are")]
)
def test_one_of_them_or_several(count: int | str, told: str) -> None:
    assert plural(count, "job is", "jobs are") == told


def test_most_words_only_get_an_s() -> None:
    assert [plural(count, "run") for count in (0, 1, 2)] == ["runs", "run", "runs"]


@pytest.mark.parametrize(("value", "told"), [(0.0, "0 %"), (0.99, "0 %"), (99.99, "99 %"), (100.0, "100 %")])
def test_a_hundred_percent_is_only_what_is_at_its_end(value: float, told: str) -> None:
    assert percent(value) == told
