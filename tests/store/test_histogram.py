"""Times in fixed buckets: percentiles of known distributions, and what can be added up."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from statistics import quantiles

import pytest

from packhorse.store.counters import LAST_BUCKET, SMALLEST, duration_bucket, percentile

LUCK = random.Random(7)
DISTRIBUTIONS: dict[str, Callable[[], float]] = {
    "uniform": lambda: LUCK.uniform(0.01, 10.0),
    "exponential": lambda: LUCK.expovariate(1 / 3.0) + 0.002,
    "lognormal": lambda: LUCK.lognormvariate(0.0, 1.5),
    "two humps": lambda: LUCK.choice((LUCK.gauss(0.05, 0.005), LUCK.gauss(300.0, 20.0))),
}


def counted(values: list[float]) -> Counter[int]:
    return Counter(map(duration_bucket, values))


@pytest.mark.parametrize("name", DISTRIBUTIONS)
@pytest.mark.parametrize("share", [0.45, 0.95, 0.99])
def test_a_percentile_is_right_within_a_fifth(name: str, share: float) -> None:
    values = [DISTRIBUTIONS[name]() for _ in range(20_000)]
    exact = quantiles(values, n=100)[round(share * 100) - 1]

    assert percentile(counted(values), share) == pytest.approx(exact, rel=0.2)


def test_the_percentiles_of_parts_are_those_of_the_whole_when_they_are_added() -> None:
    values = [LUCK.uniform(0.01, 10.0) for _ in range(3000)]
    parts = [counted(values[n::3]) for n in range(3)]

    assert parts[0] + parts[1] + parts[2] == counted(values)


@pytest.mark.parametrize("seconds", [-5.0, 0.0, SMALLEST / 2, SMALLEST])
def test_what_took_no_time_worth_telling_is_in_the_first_bucket(seconds: float) -> None:
    assert duration_bucket(seconds) == 0
    assert percentile({0: 9}, 0.5) == pytest.approx(SMALLEST / 2)


def test_what_took_longer_than_all_buckets_is_in_the_last() -> None:
    assert duration_bucket(1e12) == duration_bucket(1e9) == LAST_BUCKET
    assert duration_bucket(3600.0) < LAST_BUCKET


def test_a_longer_time_is_never_in_an_earlier_bucket() -> None:
    values = sorted(LUCK.lognormvariate(0.0, 4.0) for _ in range(1000))

    numbers = [duration_bucket(value) for value in values]

    assert numbers == sorted(numbers)


def test_of_nothing_there_is_no_percentile() -> None:
    assert percentile({}, 0.5) is None
    assert percentile({3: 0}, 0.5) is None


def test_one_value_is_all_its_percentiles() -> None:
    found = [percentile({duration_bucket(2.0): 1}, share) for share in (0.01, 0.5, 0.99, 1.0)]

    assert found == [pytest.approx(2.0, rel=0.42)] * 4
    assert found == sorted(found, key=lambda value: value or 0.0)
