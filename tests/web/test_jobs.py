"""The list of jobs: found, paged, picked, and many of them changed."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator

import pytest
from playwright.sync_api import Browser, Locator, Page, expect

from packhorse.client import Client, Json
from tests.http.processes import Server
from tests.tiers import sampled
from tests.web.browser import check_access, person
from tests.web.forms import HOSTILE


@pytest.fixture
def user() -> str:
    return secrets.token_hex(4)


def waiting(client: Client, user: str, count: int) -> list[Json]:
    """Jobs that nothing starts for an hour."""
    return [client.submit("add", {"a": a}, user=user, delay="1h") for a in range(count)]


def rows(page: Page) -> Locator:
    return page.locator("tbody tr")


def pick(page: Page, job: Json) -> Locator:
    return page.get_by_label(f"Select job {job['job_id'][-12:]}")


def test_what_is_filtered_is_an_address_to_share(page: Page, client: Client, user: str) -> None:
    mine = waiting(client, user, 2)
    client.wait(client.submit("add", {"a": 1}, user=user)["job_id"])
    page.goto("/jobs")
    page.get_by_role("navigation", name="Status").get_by_role("link", name="Pending").click()
    page.get_by_label("Pipeline").select_option("add")
    page.get_by_label("User").fill(user)
    page.get_by_text("Time", exact=True).click()
    page.get_by_label("Created from").fill("2026-01-01T12:30:15")
    page.get_by_role("button", name="Search").click()

    expect(rows(page)).to_have_count(2)
    expect(page.locator("#count")).to_have_text("2 jobs match")
    shared = page.url
    assert f"user_id={user}" in shared
    page.goto("/jobs")
    page.goto(shared)

    expect(rows(page)).to_have_count(2)
    expect(page.get_by_role("navigation", name="Status").locator("[aria-current]")).to_have_text("Pending 2")
    expect(page.get_by_label("Created from")).to_have_value("2026-01-01T12:30:15")
    expect(rows(page).first.get_by_role("link")).to_have_attribute("href", f"/jobs/{mine[1]['job_id']}")
    page.get_by_role("link", name="Clear").click()
    expect(page.get_by_label("User")).to_have_value("")


def test_a_pipeline_that_does_not_exist_is_told_beside_its_field(page: Page) -> None:
    answer = page.goto("/jobs?pipeline=typo")

    assert answer is not None
    assert answer.status == 422
    expect(page.locator("#wrong-pipeline")).to_contain_text("There is no pipeline named 'typo'")


def test_a_time_that_is_none_is_told_beside_its_field(page: Page) -> None:
    answer = page.goto("/jobs?created_from=soon&user_id=ann")

    assert answer is not None
    assert answer.status == 422
    expect(page.get_by_label("Created from")).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_label("Created from")).to_have_value("soon")
    expect(page.get_by_label("User")).to_have_value("ann")


def test_pages_go_on_to_the_oldest_and_back(page: Page, client: Client, user: str) -> None:
    jobs = waiting(client, user, 52)
    page.goto(f"/jobs?user_id={user}")

    expect(rows(page)).to_have_count(50)
    page.get_by_role("link", name="Older").click()
    expect(rows(page)).to_have_count(2)
    expect(pick(page, jobs[0])).to_be_visible()
    expect(page.locator("#count")).to_have_text("52 jobs match")
    page.get_by_role("link", name="Newest").click()
    expect(pick(page, jobs[51])).to_be_visible()


def test_a_job_moves_without_a_reload_and_what_is_picked_stays_picked(page: Page, client: Client, user: str) -> None:
    [job] = waiting(client, user, 1)
    page.goto(f"/jobs?user_id={user}")
    pick(page, job).check()
    page.evaluate("window.mark = 1")

    running = client.submit("hold", {"seconds": 60}, user=user)
    expect(rows(page)).to_have_count(2)
    expect(rows(page).first).to_contain_text("running")
    client.cancel(running["job_id"])
    expect(rows(page).first).to_contain_text("cancelled")

    assert page.evaluate("window.mark") == 1
    expect(pick(page, job)).to_be_checked()
    expect(page.locator("#picked")).to_have_text("1 selected:")


def test_two_that_are_picked_are_cancelled_then_retried_then_deleted(page: Page, client: Client, user: str) -> None:
    first, second, other = waiting(client, user, 3)
    for verb, asked, told in (
        ("Cancel…", "Cancel 2 jobs", "2 jobs cancelled."),
        ("Retry…", "Retry 2 jobs", "2 jobs retried."),
        ("Delete…", "Delete 2 jobs", "2 jobs deleted."),
    ):
        page.goto(f"/jobs?user_id={user}")
        pick(page, first).check()
        pick(page, second).check()
        page.get_by_role("button", name=verb).click()
        expect(page.get_by_role("heading", level=1)).to_have_text(f"{asked}?")
        check_access(page)
        page.get_by_role("button", name=asked).click()
        expect(page.get_by_role("status").first).to_have_text(told)
        assert page.url.endswith(f"/jobs?user_id={user}")
        for job in (first, second) if verb == "Retry…" else ():
            assert client.wait(job["job_id"])["status"] == "completed"

    expect(rows(page)).to_have_count(1)
    assert [job["job_id"] for job in client.iterate(user=user)] == [other["job_id"]]


def test_one_that_is_picked_is_one(page: Page, client: Client, user: str) -> None:
    [job] = waiting(client, user, 1)
    page.goto(f"/jobs?user_id={user}")
    expect(page.locator("#count")).to_have_text("1 job matches")

    pick(page, job).check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 1 job?")
    page.get_by_role("button", name="Cancel 1 job").click()

    expect(page.get_by_role("status").first).to_have_text("1 job cancelled.")


def test_what_cannot_be_done_is_said_before_and_left_alone(page: Page, client: Client, user: str) -> None:
    done = client.wait(client.submit("add", {"a": 1}, user=user)["job_id"])
    [job] = waiting(client, user, 1)
    page.goto(f"/jobs?user_id={user}")
    page.get_by_label("Select all on this page").check()
    page.get_by_role("button", name="Cancel…").click()

    expect(page.get_by_text("Not changed: 1 completed.")).to_be_visible()
    page.get_by_role("button", name="Cancel 1 job").click()
    expect(page.get_by_role("status").first).to_have_text("1 job cancelled. Not changed: 1 completed.")
    assert [client.get(each["job_id"])["status"] for each in (done, job)] == ["completed", "cancelled"]


@pytest.fixture(params=["with a script", "without a script"])
def anybody(request: pytest.FixtureRequest, browser: Browser, running: Server) -> Iterator[tuple[Page, bool]]:
    has_script = request.param == "with a script"
    with person(browser, running.url, java_script_enabled=has_script) as page:
        yield page, has_script


def test_all_that_match_are_cancelled_in_steps_until_all_are_done(
    anybody: tuple[Page, bool], client: Client, user: str
) -> None:
    page, has_script = anybody
    waiting(client, user, 230)
    page.goto(f"/jobs?user_id={user}&status=pending")
    page.locator('input[name="id"]').first.check()
    page.get_by_label("all 230 matching jobs").check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 230 jobs?")
    [late] = waiting(client, user, 1)
    page.get_by_role("button", name="Cancel 230 jobs").click()
    if not has_script:
        expect(page.get_by_role("heading", level=1)).to_have_text("200 jobs cancelled so far")
        page.get_by_role("button", name="Continue").click()

    expect(page.get_by_role("status").first).to_have_text("230 jobs cancelled.")
    expect(rows(page)).to_have_count(1)
    assert client.count(user=user, status="cancelled")["count"] == 230
    assert client.get(late["job_id"])["status"] == "pending"


def test_what_to_do_with_selected_jobs_is_offered_while_some_are(
    anybody: tuple[Page, bool], client: Client, user: str
) -> None:
    page, _ = anybody
    [job] = waiting(client, user, 1)
    page.goto(f"/jobs?user_id={user}")
    actions = page.get_by_role("group", name=re.compile("selected", re.IGNORECASE))
    expect(actions).to_be_hidden()

    pick(page, job).check()
    expect(actions.get_by_role("button")).to_have_text(["Cancel…", "Retry…", "Delete…"])
    pick(page, job).uncheck()

    expect(actions).to_be_hidden()


def test_a_job_is_picked_and_cancelled_by_keyboard_alone(page: Page, client: Client, user: str) -> None:
    [job] = waiting(client, user, 1)
    page.goto(f"/jobs?user_id={user}")
    for _ in range(40):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.name") == "id":
            break
    page.keyboard.press("Space")
    while page.evaluate("document.activeElement.value") != "cancel":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", level=1)).to_have_text("Cancel 1 job?")
    while page.evaluate("document.activeElement.textContent") != "Cancel 1 job":
        page.keyboard.press("Tab")
    page.keyboard.press("Enter")

    expect(page.get_by_role("status").first).to_have_text("1 job cancelled.")
    assert client.get(job["job_id"])["status"] == "cancelled"


def test_it_can_be_used_by_everybody_in_both_themes_and_on_a_phone(
    browser: Browser, running: Server, client: Client
) -> None:
    waiting(client, f"{HOSTILE} on a phone", 1)
    for scheme in ("light", "dark"):
        with person(browser, running.url, color_scheme=scheme, viewport={"width": 360, "height": 740}) as page:
            page.goto("/jobs")
            check_access(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            page.locator('input[name="id"]').first.check()
            page.locator("#all").check()
            page.get_by_role("button", name="Cancel…").click()
            expect(page.get_by_role("heading", level=1)).to_have_text(re.compile(r"Cancel \d+ jobs?\?"))
            check_access(page)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360


@pytest.mark.parametrize(
    "hostile", sampled([HOSTILE, "javascript:alert(1)", "{{ 7 * 7 }}", "' onmouseover=alert(1) x='"])
)
def test_whatever_a_user_is_called_is_only_text(page: Page, client: Client, hostile: str) -> None:
    job = client.submit("add", {"a": 1}, user=hostile, delay="1h")
    page.goto("/jobs")
    page.get_by_label("User").fill(hostile)
    page.get_by_role("button", name="Search").click()

    expect(rows(page)).to_have_count(1)
    expect(rows(page).first).to_contain_text(hostile)
    expect(page.get_by_label("User")).to_have_value(hostile)
    pick(page, job).check()
    page.get_by_role("button", name="Cancel…").click()
    expect(page.get_by_role("cell", name=hostile)).to_be_visible()
    page.get_by_role("button", name="Cancel 1 job").click()
    expect(page.get_by_role("status").first).to_have_text("1 job cancelled.")
    expect(page.get_by_label("User")).to_have_value(hostile)
    assert page.locator("main img").count() == 0
