"""The overview: how it goes, at a glance, without a reload."""

from __future__ import annotations

from playwright.sync_api import Page, expect

from packhorse.client import Client
from tests.web.browser import check_access


def figure(page: Page, name: str) -> str:
    return page.locator(".figures > div", has_text=name).locator("dd").inner_text()


def test_a_job_that_ends_is_counted_without_a_reload(page: Page, client: Client) -> None:
    page.goto("/")
    before = int(figure(page, "Ended today"))
    page.evaluate("window.mark = 1")

    client.wait(client.submit("hold", {"seconds": 0.1}, user="ann")["job_id"])

    expect(page.locator(".figures > div", has_text="Ended today").locator("dd")).to_have_text(str(before + 1))
    assert page.evaluate("window.mark") == 1


def test_it_can_be_used_by_everybody(page: Page) -> None:
    page.goto("/")

    check_access(page)
