"""Logging in and out, and what a key lets a person see."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from packhorse.access import grants
from packhorse.wiring import open_store
from tests.api.conftest import publish
from tests.api.processes import Place, Server, served
from tests.web.browser import aside, check_access, person


class Keyed:
    def __init__(self, server: Server, place: Place) -> None:
        self.url = server.url
        self._place = place

    def key(self, *scopes: str, tenant: str = "default", user: str | None = None) -> str:
        async def make() -> str:
            store = await open_store(self._place.settings.store)
            _, text = await grants.create(store, tenant, scopes, by="cli", name="a key", user=user)
            await store.close()
            return text

        return aside(lambda: asyncio.run(make()))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Keyed]:
    place = Place(tmp_path_factory.mktemp("keyed"), keyless=False, failed_limit=0)
    aside(lambda: publish(place))
    with served(place) as server:
        yield Keyed(server, place)


@pytest.fixture
def page(browser: Browser, site: Keyed) -> Iterator[Page]:
    with person(browser, site.url) as page:
        yield page


def log_in(page: Page, key: str) -> None:
    page.get_by_label("Key").fill(key)
    page.get_by_role("button", name="Log in").click()


def test_who_is_not_logged_in_is_taken_there_and_back(page: Page, site: Keyed) -> None:
    page.goto("/queues")
    expect(page).to_have_url(re.compile(r"/login\?next="))

    log_in(page, site.key("admin"))

    expect(page).to_have_url(f"{site.url}/queues")
    expect(page.get_by_role("heading", name="Queues and workers")).to_be_visible()


def test_a_page_with_filters_is_led_back_to_with_them(page: Page, site: Keyed) -> None:
    page.goto("/jobs?status=failed&user_id=a%26b")

    log_in(page, site.key("read"))

    expect(page).to_have_url(f"{site.url}/jobs?status=failed&user_id=a%26b")
    expect(page.get_by_label("User")).to_have_value("a&b")


def test_a_wrong_key_is_told_so_and_can_be_typed_again(page: Page, site: Keyed) -> None:
    page.goto("/login")

    log_in(page, "ph_nonsense")
    expect(page.get_by_role("alert")).to_be_visible()
    check_access(page)
    log_in(page, site.key("operate"))

    expect(page.get_by_role("heading", name="Overview")).to_be_visible()


def test_who_logs_out_is_out_also_by_the_back_button(page: Page, site: Keyed) -> None:
    page.goto("/login")
    log_in(page, site.key("operate"))
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_role("status").first).to_have_text("You are logged out.")
    page.goto("/")

    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_nothing_is_offered_that_would_be_refused(page: Page, site: Keyed) -> None:
    page.goto("/login")

    log_in(page, site.key("read", tenant="acme"))

    expect(page).to_have_url(f"{site.url}/jobs")
    names = page.get_by_role("navigation", name="Main").get_by_role("link").all_inner_texts()
    assert names == ["Jobs", "Schedules", "Failures"]


def test_what_may_not_be_seen_is_refused_as_a_page(page: Page, site: Keyed) -> None:
    page.goto("/login")
    log_in(page, site.key("read", tenant="acme"))
    expect(page).to_have_url(f"{site.url}/jobs")

    answer = page.goto("/keys")

    assert answer is not None
    assert answer.status == 403
    expect(page.get_by_role("heading", name="Forbidden")).to_be_visible()


def test_the_cookie_is_for_no_script_and_the_key_is_not_in_it(page: Page, site: Keyed) -> None:
    page.goto("/login")
    key = site.key("operate")
    log_in(page, key)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    [cookie] = [each for each in page.context.cookies() if each["name"] == "packhorse_session"]

    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert cookie["value"] != key
    assert page.evaluate("document.cookie") == ""


@pytest.mark.parametrize("to", ["https://evil.example/", "//evil.example", "/\\evil.example", "javascript:alert(1)"])
def test_logging_in_leads_to_no_other_site(page: Page, site: Keyed, to: str) -> None:
    page.goto(f"/login?next={to}")

    log_in(page, site.key("operate"))

    expect(page).to_have_url(f"{site.url}/")


def test_another_site_cannot_log_somebody_in(site: Keyed) -> None:
    sent = {"key": site.key("read"), "next": ""}

    answer = httpx2.post(f"{site.url}/login", data=sent, headers={"Origin": "http://evil.example"})

    assert answer.status_code == 403
    assert "set-cookie" not in answer.headers


def test_it_is_encrypted_where_the_connection_is(site: Keyed) -> None:
    sent = {"key": site.key("read"), "next": ""}
    behind = {"Origin": site.url, "X-Forwarded-Proto": "https"}

    answer = httpx2.post(f"{site.url}/login", data=sent, headers=behind)

    assert "; Secure" in answer.headers["set-cookie"]
