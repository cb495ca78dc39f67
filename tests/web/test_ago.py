"""Times told as "3 min ago": they move on while a page is open, whether or not anything happens to what it is about."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from packhorse.client import Client
from packhorse.web.widgets import formatting

PASSED = (0.0, 0.4, 1.2, 9.3, 10.0, 59.4, 60.0, 119.0, 3599.0, 3600.0, 86_399.0, 86_400.0, 1e6)
JUST = re.compile(r"^(now|\d+ s ago)$")
MODULE = "import('/static/ago.js')"


@pytest.fixture
def ended(client: Client) -> Any:
    return client.wait(client.submit("add", {"a": 1}, user="ann")["job_id"])


def test_those_of_an_ended_job_move_on(page: Page, ended: Any) -> None:
    page.clock.install()
    page.goto(f"/jobs/{ended['job_id']}")
    told = page.locator("#words time")
    title = told.get_attribute("title")
    expect(told).to_have_text(JUST)

    page.clock.fast_forward(5 * 60_000)
    expect(told).to_have_text("5 min ago")
    page.clock.fast_forward(2 * 3_600_000)
    expect(told).to_have_text("2 h ago")

    expect(told).to_have_attribute("datetime", ended["started_at"])
    expect(told).to_have_attribute("title", str(title))


def test_what_is_to_come_comes_nearer(page: Page, ended: Any) -> None:
    page.clock.install()
    page.goto(f"/jobs/{ended['job_id']}")

    page.clock.fast_forward(60 * 3_600_000)

    expect(page.locator("dt:text('Expires') + dd time")).to_have_text("in 4 d")


def test_the_person_who_waits_is_told_the_same(page: Page, client: Client, ended: Any) -> None:
    page.clock.install()
    page.goto(f"/p/{client.token(ended['job_id'])['key']}")

    page.clock.fast_forward(5 * 60_000)

    expect(page.locator("time.ago")).to_have_text("5 min ago")


def test_a_page_that_refreshes_itself_goes_on_from_what_the_server_says(page: Page, ended: Any) -> None:
    page.clock.install()
    page.goto(f"/jobs/{ended['job_id']}")
    page.clock.fast_forward(5 * 60_000)
    told = page.locator("#words time")
    expect(told).to_have_text("5 min ago")

    page.evaluate("import('/static/live.js').then((live) => live.refresh())")
    page.clock.run_for(1000)

    expect(told).to_have_text(JUST)
    page.clock.fast_forward(10 * 60_000)
    expect(told).to_have_text("10 min ago")


def test_a_browser_whose_clock_is_wrong_is_not_believed(page: Page, ended: Any) -> None:
    page.clock.install(time=datetime.now(UTC) + timedelta(days=3))
    page.goto(f"/jobs/{ended['job_id']}")

    page.clock.fast_forward(5 * 60_000)

    expect(page.locator("#words time")).to_have_text("5 min ago")


def test_script_and_server_have_the_same_words(page: Page) -> None:
    page.goto("/jobs")
    now = datetime.now(UTC)
    both = [*PASSED, *(-each for each in PASSED)]

    by_script = page.evaluate(f"(passed) => {MODULE}.then((module) => passed.map(module.ago))", both)

    assert by_script == [formatting.ago((now - timedelta(seconds=each)).isoformat(), now) for each in both]
