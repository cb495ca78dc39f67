"""Logging in and out, and what a key lets a person see."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator

import httpx2
import pytest
from playwright.sync_api import Browser, Page, expect

from packhorse.auth import keys
from packhorse.factory import open_store
from tests.http.conftest import publish
from tests.http.processes import Place, Server, served
from tests.tiers import sampled
from tests.web.browser import aside, check_access, person

HOSTILE = '"><img src=x onerror=alert(1)>'


class Keyed:
    def __init__(self, server: Server, place: Place) -> None:
        self.url = server.url
        self._place = place

    def key(self, *scopes: str, tenant: str = "default", user: str | None = None) -> str:
        async def make() -> str:
            store = await open_store(self._place.settings.store)
            _, text = await keys.create(store, tenant, scopes, by="cli", name="a key", user=user)
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


@pytest.mark.parametrize("typed", sampled(["hunter2 is my password", "ph_tooshort"]))
def test_what_is_no_key_is_told_what_one_looks_like_and_not_said_back(page: Page, typed: str) -> None:
    page.goto("/login")

    log_in(page, typed)

    expect(page.get_by_role("alert")).to_contain_text("Copy it again: a key is ph_ and 60 lowercase letters and digits")
    expect(page.get_by_label("Key")).to_have_value("")
    assert typed not in page.content()


def test_an_address_that_is_none_is_a_page_for_who_is_not_logged_in(page: Page) -> None:
    answer = page.goto("/nope")

    assert answer is not None
    assert answer.status == 404
    check_access(page)
    page.get_by_role("link", name="Back to overview").click()
    expect(page.get_by_role("heading", name="Log in")).to_be_visible()


def test_the_page_of_a_key_says_whose_it_is_and_how_much_is_left_to_it(page: Page, site: Keyed) -> None:
    key = site.key("read", "submit", tenant="acme", user=HOSTILE)
    page.goto("/login")
    log_in(page, site.key("admin", tenant="acme"))
    expect(page).to_have_url(f"{site.url}/jobs")

    page.goto(f"/keys/{key[3:23]}")

    for text in ("a key", "acme", "read, submit", HOSTILE, "never"):
        expect(page.locator(".facts")).to_contain_text(text)
    for text in ("GiB", "1 d"):
        expect(page.get_by_role("row", name="Downloaded").last).to_contain_text(text)
    check_access(page)
    page.get_by_label("Revoke this key permanently").check()
    page.get_by_role("button", name="Revoke key").click()
    page.get_by_role("link", name=key[3:23]).click()
    expect(page.locator(".facts")).to_contain_text("Ended")
    expect(page.get_by_role("button")).to_have_text(["Log out"])


def test_a_key_is_rotated_after_a_question_that_warns_who_is_logged_in_with_it(page: Page, site: Keyed) -> None:
    own, other = site.key("admin", tenant="acme"), site.key("read", tenant="acme")
    warning = page.get_by_text("You are logged in with this key")
    page.goto("/login")
    log_in(page, own)
    expect(page).to_have_url(f"{site.url}/jobs")
    page.goto(f"/keys/{other[3:23]}")
    page.get_by_role("button", name="Rotate key").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Rotate “a key”?")
    expect(page.locator("main")).to_contain_text("This key expires at once")
    expect(warning).to_have_count(0)
    page.get_by_role("link", name="Cancel").click()
    expect(page.locator(".facts")).to_contain_text("never")

    page.goto(f"/keys/{own[3:23]}")
    expect(warning).to_be_visible()
    page.get_by_label("This key expires").select_option("1d")
    page.get_by_role("button", name="Rotate key").click()
    expect(warning).to_be_visible()
    expect(page.locator("main")).to_contain_text("This key expires in a day")
    check_access(page)
    page.get_by_role("button", name="Create new key").click()

    assert page.locator("#text").inner_text().startswith("ph_")
    page.goto(f"/keys/{own[3:23]}")
    expect(page.locator(".facts")).to_contain_text(re.compile("in (23 h|1 d)"))


@pytest.mark.parametrize("path", sampled(["/jobs/new?pipeline=add", "/schedules/new"]))
def test_a_key_for_any_user_has_to_say_for_whom(page: Page, site: Keyed, path: str) -> None:
    page.goto("/login")
    log_in(page, site.key("operate"))
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()

    page.goto(path)

    expect(page.get_by_label("User")).to_have_js_property("required", True)
    expect(page.locator("label", has_text="User")).to_contain_text("(required)")


def test_who_is_logged_out_meanwhile_is_told_so_and_keeps_what_was_typed(page: Page, site: Keyed) -> None:
    key = site.key("submit", "read")
    page.goto("/login")
    log_in(page, key)
    expect(page).to_have_url(f"{site.url}/jobs")
    page.goto("/jobs/new?pipeline=add")
    page.get_by_label("User").fill("ann")
    page.locator("#f-a").fill("41")
    page.context.clear_cookies()
    page.get_by_role("button", name="Submit").click()

    expect(page.get_by_role("alert")).to_contain_text("You are not logged in any more")
    expect(page.locator("#f-a")).to_have_value("41")
    check_access(page)
    with page.context.expect_page() as opened:
        page.get_by_role("link", name="Log in").click()
    log_in(opened.value, key)
    expect(opened.value).to_have_url(f"{site.url}/jobs")
    opened.value.close()
    page.get_by_role("button", name="Submit").click()

    expect(page).to_have_url(re.compile(r"/jobs/[0-9a-f-]{36}$"))


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

    [cookie] = [each for each in page.context.cookies() if each["name"].startswith("packhorse_session")]

    assert cookie["httpOnly"]
    assert cookie["sameSite"] == "Lax"
    assert cookie["value"] != key
    assert page.evaluate("document.cookie") == ""


@pytest.mark.parametrize(
    "to", sampled(["/\\evil.example", "https://evil.example/", "//evil.example", "javascript:alert(1)"])
)
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
