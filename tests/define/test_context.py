from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from packhorse.define import Context, Later, Permanent


class Recording(Context):
    cancelled = False

    def __init__(self) -> None:
        self.reports: list[tuple[float, float | None, str]] = []

    def progress(self, current: float, total: float | None = None, message: str = "") -> None:
        self.reports.append((current, total, message))

    def artifact(self, name: str, content: Path | str | bytes) -> None: ...


def test_track_reports_before_the_first_and_after_each_element() -> None:
    ctx = Recording()

    seen = list(ctx.track("ab", message="reading"))

    assert seen == ["a", "b"]
    assert ctx.reports == [(0, 2, "reading"), (1, 2, "reading"), (2, 2, "reading")]


def test_track_does_not_count_an_element_that_is_still_worked_on() -> None:
    ctx = Recording()

    for _ in ctx.track([1, 2]):
        break

    assert ctx.reports == [(0, 2, "")]


def test_track_of_unknown_length_takes_the_total_it_is_told() -> None:
    def numbers() -> Iterator[int]:
        yield 1

    ctx = Recording()
    list(ctx.track(numbers()))
    list(ctx.track(numbers(), total=5))

    assert ctx.reports == [(0, None, ""), (1, None, ""), (0, 5, ""), (1, 5, "")]


@pytest.mark.parametrize("seconds", [-1, float("nan"), float("inf")])
def test_later_is_not_before_now_nor_never(seconds: float) -> None:
    with pytest.raises(ValueError, match="seconds from now"):
        Later(seconds)


def test_permanent_carries_message_and_code() -> None:
    assert (Permanent("no").message, Permanent("no").code, str(Permanent("no"))) == ("no", "PERMANENT", "no")
    assert Permanent("no", code="EMPTY").code == "EMPTY"
