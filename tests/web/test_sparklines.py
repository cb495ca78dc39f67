"""Sparklines and differences: what is drawn says the same as its words."""

from __future__ import annotations

from typing import Any

import pytest

from packhorse.web.widgets import formatting, plots
from packhorse.web.widgets.formatting import LONGEST, differences, value


def ran(status: str, at: int = 0, **more: Any) -> dict[str, Any]:
    return {"tick": f"2026-01-01T00:00:{at:02}Z", "status": status, "duration_ms": None, "count": 1, **more}


def test_runs_are_drawn_the_newest_on_the_right_each_with_its_shape() -> None:
    drawn = plots.runs_spark([ran("failed", 2), ran("completed", 1, duration_ms=1500), ran("missed", 0, count=7)])

    assert [bar.name for bar in drawn.bars] == ["missed", "completed", "failed"]
    assert drawn.bars[-1].x + drawn.bars[-1].width == drawn.width - 1
    assert len({(bar.y, bar.height) for bar in drawn.bars}) == 3
    assert drawn.bars[1].title == "2026-01-01 00:00:01 UTC: completed in 1.5 s"
    assert drawn.bars[0].title.endswith("missed 7 times")
    assert drawn.text == "Last 3 runs: 1 missed, 1 completed, 1 failed; the last one failed"


def test_no_more_than_thirty_runs_are_drawn_and_none_is_said() -> None:
    assert len(plots.runs_spark([ran("completed")] * 50).bars) == 30
    assert plots.runs_spark([]).text == "No runs yet"
    assert plots.runs_spark([ran("failed")]).text == "The only run: failed"


def test_a_trend_is_as_tall_as_its_hours() -> None:
    counts = [0] * 22 + [1, 4]
    drawn = plots.trend_spark({"since": "2026-01-01T00:00:00Z", "seconds": 3600.0, "counts": counts, "is_cut": False})

    assert [bar.title for bar in drawn.bars] == ["1 to 2 h ago: 1", "in the last hour: 4"]
    assert drawn.bars[0].height < drawn.bars[1].height < drawn.height
    assert drawn.text == "In 24 h: 5, of these 4 in the last hour"


def test_a_trend_that_is_cut_says_so_and_draws_what_is_unknown_apart() -> None:
    counts = [None] * 23 + [200]
    drawn = plots.trend_spark({"since": "2026-01-01T00:00:00Z", "seconds": 3600.0, "counts": counts, "is_cut": True})

    assert [bar.name for bar in drawn.bars] == ["unknown"] * 23 + ["count"]
    assert drawn.text == "The newest 200 are from the last 1 h; before that is not known"


def test_values_are_told_as_they_are_written_and_not_without_end() -> None:
    assert (value("plain"), value({"a": [1, True]}), value(None)) == ("plain", '{"a":[1,true]}', "–")
    assert len(value("x" * 10_000)) == LONGEST + 1


def test_a_secret_that_has_changed_is_told_apart_from_one_that_has_not() -> None:
    [changed] = differences([{"field": "parameters.key", "old": "••••", "new": "••••"}])

    assert changed == ("parameters.key", "••••", "•••• (changed)")


@pytest.mark.parametrize(("value", "told"), [(0.0, "0 %"), (0.99, "0 %"), (99.99, "99 %"), (100.0, "100 %")])
def test_a_hundred_percent_is_only_what_is_at_its_end(value: float, told: str) -> None:
    assert formatting.percent(value) == told
