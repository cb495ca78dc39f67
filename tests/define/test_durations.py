from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from packhorse.define.options import seconds, size


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("250ms", 0.25),
        ("90s", 90.0),
        ("10m", 600.0),
        ("1.5h", 5400.0),
        ("7d", 604_800.0),
        ("2w", 1_209_600.0),
        ("1h30m", 5400.0),
        (" 1h 30m ", 5400.0),
        ("10 m", 600.0),
        ("90", 90.0),
        (90, 90.0),
        (0.5, 0.5),
        (0, 0.0),
        (timedelta(minutes=1), 60.0),
    ],
)
def test_durations_mean_what_people_read(written: Any, meant: float) -> None:
    assert seconds(written) == meant


@pytest.mark.parametrize(
    "nonsense",
    [
        *("", "m", "10x", "-5m", "1,5h", "1e3s", "ten", "5M", "1 0m5", "٣m", "9" * 400),
        *(-1, float("nan"), float("inf"), True, None, [], timedelta(seconds=-1)),
    ],
)
def test_nonsense_is_no_duration(nonsense: Any) -> None:
    with pytest.raises(ValueError, match='is not a duration: write "250ms"'):
        seconds(nonsense)


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("512MB", 512 * 1024**2),
        ("2GiB", 2 * 1024**3),
        ("1.5kb", 1536),
        ("1.3GB", 1_395_864_371),
        ("3 T", 3 * 1024**4),
        ("7B", 7),
        ("1024", 1024),
        (1024, 1024),
    ],
)
def test_sizes_mean_what_people_read(written: Any, meant: int) -> None:
    assert size(written) == meant


@pytest.mark.parametrize("nonsense", ["", "MB", "-1MB", "1 PB", "1iB", "1Mi B", -1, True, None, float("nan")])
def test_nonsense_is_no_size(nonsense: Any) -> None:
    with pytest.raises(ValueError, match='is not a size: write "512MB"'):
        size(nonsense)
