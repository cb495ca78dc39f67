"""Failures on the page: groups triaged as a person does it, one tried first, then all, or dismissed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from packhorse.client import Client
from packhorse.factory import open_store
from tests.contract.failures import failing, wrong
from tests.http.conftest import run
from tests.http.processes import Place, Server, until
from tests.tiers import sampled
from tests.web import mending
from tests.web.browser import aside, check_access, person
from tests.web.hostile import ALL, CORPUS, check_harmless


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Place:
    return Place(tmp_path_factory.mktemp("failures"), app=mending.__file__)


@pytest.fixture(scope="module")
def running(place: Place) -> Iterator[Server]:
    with run(place) as server:
        yield server


def failed(client: Client, message: str, count: int = 1, cure: str = "/nowhere", user: str = "u") -> str:
    """So many jobs that failed alike; the fingerprint of their group."""
    jobs = [client.submit("mend", {"cure": cure, "message": message}, user=f"{user}{n}") for n in range(count)]
    for job in jobs:
        assert client.wait(job["job_id"], 60)["status"] == "failed"
    [failure] = client.failures(job_id=jobs[0]["job_id"])["items"]
    fingerprint: str = failure["fingerprint"]
    return fingerprint


def figure(page: Page, name: str) -> Locator:
    return page.locator(".figures > div", has=page.locator("dt", has_text=name)).locator("dd")


def test_groups_are_listed_with_how_many_for_whom_and_since_when(page: Page, client: Client) -> None:
    fingerprint = failed(client, "No answer in 3 s from the first of them.", 3)

    page.goto("/failures")

    row = page.locator(f"#group-{fingerprint}")
    expect(row.locator("td.right")).to_have_text(["3", "3", "3"])
    expect(row).to_contain_text("No answer in 3 s from the first of them.")
    expect(row.locator(".spark")).to_have_attribute("aria-label", "In 24 h: 3, of these 3 in the last hour")
    row.get_by_role("link", name="BROKEN").click()
    expect(page.get_by_role("region", name="Table of failures").locator("tbody tr")).to_have_count(3)
    [newest] = client.failures(fingerprint=fingerprint, limit=1)["items"]
    expect(page.get_by_role("link", name=newest["job_id"][-8:]).first).to_have_attribute(
        "href", f"/jobs/{newest['job_id']}"
    )


def test_one_is_retried_first_and_if_that_is_mended_all_are(page: Page, client: Client, tmp_path: Path) -> None:
    cure = tmp_path / "cure"
    fingerprint = failed(client, "It needs a cure.", 3, str(cure))
    page.goto(f"/failures/groups/{fingerprint}")
    page.get_by_role("button", name="Retry one first").click()
    page.evaluate("window.mark = 1")
    trial = page.locator(".trial")

    expect(trial).to_contain_text("It failed again: BROKEN, It needs a cure.")
    expect(figure(page, "Open")).to_have_text("3")
    cure.touch()
    page.get_by_role("button", name="Retry one first").click()
    expect(trial).to_contain_text("It completed")
    expect(figure(page, "Resolved")).not_to_have_text("0")
    check_access(page)

    page.get_by_role("link", name="Retry all 2").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 2 failures?")
    expect(page.get_by_role("region", name="Table of failures").locator("tbody tr")).to_have_count(2)
    check_access(page)
    page.get_by_label("Maximum per second").fill("20")
    page.get_by_role("button", name="Retry 2").click()
    page.evaluate("window.mark = 1")

    order = page.get_by_role("region", name="Table of bulk actions").locator("tbody tr")
    expect(order).to_contain_text("2 of 2 done")
    expect(order.locator(".status")).to_have_text("done")
    expect(figure(page, "Open")).to_have_text("0")
    expect(figure(page, "Resolved")).to_have_text("4")
    assert page.evaluate("window.mark") == 1
    expect(page.get_by_role("button", name="Retry one first")).to_have_count(0)


def test_a_group_is_dismissed_with_a_reason_and_out_of_sight_until_it_is_looked_for(page: Page, client: Client) -> None:
    fingerprint = failed(client, "The camera is off.", 2)
    page.goto(f"/failures/groups/{fingerprint}")
    page.get_by_role("link", name="Dismiss…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Dismiss 2 failures?")
    page.get_by_label("Reason").fill("   ")
    page.get_by_role("button", name="Dismiss 2").click()
    expect(page.get_by_label("Reason")).to_have_accessible_description("Give a reason for dismissing these failures")
    assert client.failure_group(fingerprint)["open"] == 2
    page.get_by_label("Reason").fill("it is known")
    page.get_by_role("button", name="Dismiss 2").click()

    expect(figure(page, "Dismissed")).to_have_text("2")
    expect(page.locator("main")).to_contain_text("Dismissed by local")
    page.goto("/failures")
    expect(page.locator(f"#group-{fingerprint}")).to_have_count(0)
    page.get_by_role("link", name="Dismissed groups").click()
    expect(page.locator(f"#group-{fingerprint}")).to_contain_text("it is known")

    failed(client, "The camera is off.")
    page.goto("/failures")
    expect(page.locator(f"#group-{fingerprint}")).to_contain_text("Seen again after it was dismissed")


def test_a_pace_that_is_none_is_told_beside_its_field(page: Page, client: Client) -> None:
    fingerprint = failed(client, "Not so fast.")
    page.goto(f"/failures/retry?fingerprint={fingerprint}")
    page.get_by_label("Maximum per second").fill("nan")
    page.get_by_role("button", name="Retry 1").click()

    field = page.get_by_label("Maximum per second")
    expect(field).to_have_attribute("aria-invalid", "true")
    expect(field).to_have_value("nan")
    assert client.failure_group(fingerprint)["open"] == 1


def test_single_failures_are_filtered_by_an_address_that_can_be_shared(page: Page, client: Client) -> None:
    failed(client, "One by one, please.", 2, user="filtered")
    page.goto("/failures?status=open&pipeline=mend&user_id=filtered1")

    rows = page.get_by_role("region", name="Table of failures").locator("tbody tr")
    expect(rows).to_have_count(1)
    expect(page.get_by_label("User")).to_have_value("filtered1")
    page.get_by_label("User").fill("filtered0")
    page.get_by_role("button", name="Show").click()
    expect(page).to_have_url(re.compile("user_id=filtered0"))
    expect(rows).to_have_count(1)

    page.get_by_role("link", name="Retry all matching open failures").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 1 failure?")
    page.get_by_role("button", name="Retry 1").click()
    expect(page).to_have_url(re.compile("/failures/orders/"))
    expect(page.locator("tbody .status")).to_have_text("done")
    expect(page.locator(".facts")).to_contain_text("filtered0")
    page.goto("/failures?since=yesterday")
    expect(page.get_by_label("Since")).to_have_attribute("aria-invalid", "true")


def test_what_there_is_can_be_chosen_to_filter_by(page: Page, client: Client) -> None:
    failed(client, "To be chosen.")
    client.put_schedule("choosable", cron="0 3 * * *", pipeline="greet", parameters={"name": "Ann"}, user="ann")
    page.goto("/failures?view=single")

    offered = {name: page.locator(f"#known-{name} option") for name in ("error_code", "schedule_id")}
    assert "BROKEN" in [each.get_attribute("value") for each in offered["error_code"].all()]
    assert "choosable" in [each.get_attribute("value") for each in offered["schedule_id"].all()]
    page.get_by_label("Pipeline").select_option("greet")
    page.get_by_role("button", name="Show").click()
    expect(page.get_by_text("No failures match these filters.")).to_be_visible()
    expect(page.get_by_label("Pipeline")).to_have_value("greet")
    page.goto("/failures?pipeline=long-gone")
    expect(page.get_by_label("Pipeline")).to_have_value("long-gone")


def test_who_chooses_nothing_is_told_so(page: Page) -> None:
    answer = page.goto("/failures/retry")

    assert answer is not None
    assert answer.status == 422
    expect(page.locator("main")).to_contain_text("No failures selected")
    page.get_by_role("link", name="Back to failures").click()
    expect(page).to_have_url(re.compile("/failures$"))


def test_one_of_them_is_retried_by_itself(page: Page, client: Client) -> None:
    fingerprint = failed(client, "Just this one.", 2)
    page.goto(f"/failures/groups/{fingerprint}")
    page.get_by_role("region", name="Table of failures").get_by_role("link", name="Retry").first.click()

    expect(page.get_by_role("heading", level=1)).to_have_text("Retry 1 failure?")
    page.get_by_role("button", name="Retry 1").click()
    expect(page.locator("tbody .status")).to_have_text("done")
    until(lambda: client.failure_group(fingerprint)["count"] == 3)


def test_a_group_is_triaged_with_the_keyboard_alone(page: Page, client: Client) -> None:
    fingerprint = failed(client, "By hand.")
    page.goto("/failures")
    page.locator(f"#group-{fingerprint} a").first.focus()
    page.keyboard.press("Enter")
    first = page.get_by_role("button", name="Retry one first")
    expect(first).to_be_visible()
    for _ in range(40):
        page.keyboard.press("Tab")
        if first.evaluate("(button) => button === document.activeElement"):
            break
    page.keyboard.press("Enter")

    expect(page.locator(".trial")).to_contain_text("It failed again")


def test_what_somebody_has_written_is_only_text(page: Page, place: Place, running: Server, client: Client) -> None:
    async def write() -> None:
        store = await open_store(place.settings.store)
        try:
            await failing(store, wrong(ALL, ALL), user=ALL)
        finally:
            await store.close()

    aside(lambda: asyncio.run(write()))
    [failure] = client.failures(error_code=ALL)["items"]
    path = f"/failures/groups/{failure['fingerprint']}"

    page.goto("/failures")
    check_harmless(page, *CORPUS)
    page.goto("/failures?view=single")
    page.get_by_label("Code").fill(ALL)
    page.get_by_role("button", name="Show").click()
    check_harmless(page, *CORPUS)
    page.goto(path)
    check_harmless(page, *CORPUS)
    page.get_by_role("link", name="Dismiss…").click()
    check_harmless(page, *CORPUS)
    page.get_by_label("Reason").fill(ALL)
    page.get_by_role("button", name="Dismiss 1").click()
    expect(figure(page, "Dismissed")).to_have_text("1")
    check_harmless(page, *CORPUS)
    page.goto("/failures/orders")
    check_harmless(page, *CORPUS)
    page.goto("/failures?dismissed=true")
    check_harmless(page, *CORPUS)


@pytest.fixture(scope="module")
def paths(running: Server) -> list[str]:
    with Client(running.url) as client:
        fingerprint = failed(client, "Seen by everybody, " * 20, 2)
        order = client.retry_failures(fingerprint=fingerprint)["order"]["order_id"]
        until(lambda: client.failure_group(fingerprint)["count"] == 4)
        return [
            "/failures",
            "/failures?dismissed=true",
            "/failures?view=single",
            f"/failures/groups/{fingerprint}",
            f"/failures/retry?fingerprint={fingerprint}",
            f"/failures/dismiss?fingerprint={fingerprint}",
            "/failures/orders",
            f"/failures/orders/{order}",
        ]


@pytest.mark.parametrize("theme", sampled(["light", "dark"]))
def test_every_page_can_be_used_by_everybody(browser: Browser, running: Server, paths: list[str], theme: str) -> None:
    with person(browser, running.url, color_scheme=theme) as page:
        for path in paths:
            page.goto(path)
            check_access(page)


def test_every_page_fits_a_narrow_screen(browser: Browser, running: Server, paths: list[str]) -> None:
    with person(browser, running.url, viewport={"width": 360, "height": 740}) as page:
        for path in paths:
            page.goto(path)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360, path
            check_access(page)
