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


def test_the_palette_and_shortcuts_go_where_they_say(page: Page, client: Client) -> None:
    job = client.submit("hold", {"seconds": 0.1}, user="palette-user")
    page.goto("/")
    page.keyboard.press("Control+k")
    field = page.get_by_role("combobox", name="Go to")
    expect(field).to_be_focused()
    expect(page.get_by_role("option", name="Schedules")).to_be_visible()
    check_access(page)

    field.fill("palette-user")
    expect(page.get_by_role("option", name=job["job_id"])).to_be_visible()
    page.keyboard.press("Enter")
    page.wait_for_url(f"**/jobs/{job['job_id']}")
    page.keyboard.press("g")
    page.keyboard.press("j")
    page.wait_for_url("**/jobs")
    page.keyboard.press("j")
    expect(page.locator("tbody a").first).to_be_focused()
    page.keyboard.press("/")
    expect(page.get_by_role("searchbox", name="Search")).to_be_focused()
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("?")
    page.get_by_label("Shortcuts of single keys").uncheck()
    check_access(page)
    page.get_by_role("button", name="Close").click()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog")).to_have_count(0)
