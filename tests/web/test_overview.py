"""The overview: how it goes, at a glance, without a reload."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from packhorse.client import Client
from tests.web.browser import check_access


def test_a_job_is_shown_and_plots_are_drawn_without_a_reload(page: Page, client: Client) -> None:
    client.wait(client.submit("hold", {"seconds": 0.1}, user="ann")["job_id"])
    page.goto("/")
    page.evaluate("window.mark = 1")
    expect(page.get_by_role("group", name="Plot: ").locator("canvas")).to_have_count(4)

    job = client.wait(client.submit("hold", {"seconds": 0.1}, user="bob")["job_id"])

    recent = page.get_by_role("region", name="Recent").locator("li", has=page.locator(f'a[title="{job["job_id"]}"]'))
    expect(recent).to_contain_text("completed")
    expect(page.get_by_role("group", name="Plot: ").locator("canvas")).to_have_count(4)
    assert page.evaluate("window.mark") == 1


def test_it_can_be_used_by_everybody(page: Page) -> None:
    page.goto("/")

    check_access(page)
