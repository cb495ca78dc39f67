"""Plots: what is drawn is in its box, and what is written around it can be read on any screen."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import product
from typing import Literal

import pytest
from playwright.sync_api import Browser, Page, ViewportSize, expect

from packhorse.client import Client
from packhorse.web.widgets import plots
from tests.http.processes import Server, until
from tests.tiers import sampled
from tests.web.browser import check_access, person
from tests.web.shown import Gated, shown

Theme = Literal["light", "dark"]

SCREENS: dict[str, ViewportSize] = {"phone": {"width": 360, "height": 740}, "desk": {"width": 1280, "height": 900}}
LEAST = 13
"""Pixels. A letter that is smaller is hard to read for many."""

SIZES = """
[...document.querySelectorAll(
  ".plot .key, .plot figcaption, .ticks span, .times span, .plot text, .legend, .chart-title, .u-legend :is(th, td)"
)]
  .filter((each) => each.getClientRects().length)
  .map((each) => [each.textContent, parseFloat(getComputedStyle(each).fontSize) * (each.getScreenCTM?.().a ?? 1)])
"""
DRAWN = """
[...document.querySelectorAll(".canvas canvas")]
  .map((each) => parseFloat(each.getContext("2d").font) / devicePixelRatio)
"""
OVER = """
[...document.querySelectorAll(".frame")].flatMap((frame) => {
  const rows = [...frame.querySelectorAll(".ticks, .times")].map((each) => [...each.children]);
  return rows.flatMap((row) => row.slice(1).filter((each, at) => {
    const a = row[at].getBoundingClientRect(), b = each.getBoundingClientRect();
    return a.right > b.left && a.bottom > b.top;
  }).map((each) => each.textContent));
})
"""


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with shown(tmp_path_factory.mktemp("plots")) as server:
        yield server


@pytest.fixture(scope="module")
def measured(running: Server, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A job that ran long enough to have been measured, and was counted."""
    with Client(running.url) as client:
        job = Gated(client, tmp_path_factory.mktemp("gate"))
        until(lambda: any(len(each["samples"]) > 2 for each in client.metrics(job.id)), 60)
        job.ends()
        until(lambda: client.stats(window="1h")["window"]["outcomes"], 60)
    return job.id


def test_lines_are_in_percent_of_the_box() -> None:
    drawn = plots.lines({"cpu": [0.0, 2.0, None, 1.0]}, ["a", "b", "c", "d"], str, bands=[("work", 0.25, 0.75)])

    assert drawn.lines == [plots.Line("cpu", "M0 100h0.01L33.33 0M100 50h0.01")]
    assert drawn.bands == [plots.Band("work", 25.0, 50.0)]
    assert drawn.ticks == [plots.Tick(0.0, "2.0"), plots.Tick(50.0, "1.0"), plots.Tick(100.0, "0.0")]
    assert drawn.times == ["a", "b", "d"]


def test_bars_stand_on_each_other_and_fill_the_box() -> None:
    drawn = plots.bars({"completed": [3.0, 0.0], "failed": [1.0, 0.0]}, ["a", "b"], str)

    low, high = drawn.bars
    assert (low.x, low.y, low.height) == (0.0, 25.0, 75.0)
    assert (high.x, high.y, high.height) == (0.0, 0.0, 25.0)
    assert (low.width, drawn.times) == (50.0 - plots.GAP, ["a", "b"])


@pytest.mark.parametrize(("screen", "theme"), sampled(product(SCREENS, ["light", "dark"])))
def test_what_is_written_around_them_can_be_read(
    browser: Browser, running: Server, measured: str, screen: str, theme: Theme
) -> None:
    with person(browser, running.url, viewport=SCREENS[screen], color_scheme=theme) as page:
        page.goto(f"/jobs/{measured}")
        expect(page.locator(".frame").nth(1)).to_be_visible()
        check_legible(page)

        page.goto("/")
        expect(page.locator(".frame").nth(1)).to_be_attached()  # what all viewers share may be a few seconds old
        expect(page.locator(".canvas canvas")).to_have_count(4)
        check_legible(page)
        drawn = page.evaluate(DRAWN)
        assert len(drawn) == 4
        assert min(drawn) >= LEAST

        page.route("**/*.js", lambda route: route.abort())  # where axe has to run, scripts cannot be forbidden
        page.goto("/")
        expect(page.locator(".frame").nth(1)).to_be_visible()
        check_legible(page)


def check_legible(page: Page) -> None:
    assert page.evaluate(SIZES) != []
    assert [each for each in page.evaluate(SIZES) if each[1] < LEAST] == []
    assert page.evaluate(OVER) == []
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    check_access(page)
