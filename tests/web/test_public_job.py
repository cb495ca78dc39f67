"""The page for the person who waits: from a link, in a browser that knows nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect

from packhorse.client import Client
from tests.http.processes import Server
from tests.tiers import sampled
from tests.web.browser import check_access, person
from tests.web.shown import LOOKS, Gated, shown


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with shown(tmp_path_factory.mktemp("waiting"), slots=1) as server:
        yield server


@pytest.fixture
def other(browser: Browser, running: Server) -> Iterator[Page]:
    with person(browser, running.url) as page:
        yield page


def shared(page: Page, job_id: str) -> str:
    """A link, as an operator makes it."""
    page.goto(f"/jobs/{job_id}")
    page.get_by_role("link", name="Share").click()
    page.get_by_label("Valid for").select_option("1 hour")
    page.get_by_role("button", name="Create link").click()
    return page.locator("#link-made").inner_text()


def test_a_link_is_opened_by_somebody_else_who_sees_it_through(
    page: Page, other: Page, client: Client, tmp_path: Path
) -> None:
    job = Gated(client, tmp_path)
    job.reaches("prepare")
    other.goto(shared(page, job.id))
    expect(other.locator("h1")).to_have_text("In progress")
    expect(other.locator(".steps li")).to_have_text(["Prepare now", "Finish up comes later"])
    other.evaluate("window.mark = 1")

    job.open(1)
    expect(other.locator(".steps li")).to_have_text(["Prepare done", "Finish up now"])
    job.open(2)

    expect(other.locator("h1")).to_have_text("Your result is ready")
    assert other.evaluate("window.mark") == 1
    with other.expect_download() as saved:
        other.get_by_role("link", name="Download result").click()
    assert Path(saved.value.path()).read_text() == '{"done":1,"note":""}'


def test_who_waits_cancels(page: Page, other: Page, client: Client, tmp_path: Path) -> None:
    job = Gated(client, tmp_path)
    job.reaches("prepare")
    other.goto(shared(page, job.id))

    other.get_by_role("button", name="Cancel job").click()

    expect(other.locator("h1")).to_have_text("Cancelled")
    assert client.get(job.id)["status"] == "cancelled"


def test_a_link_that_is_taken_back_says_so(page: Page, other: Page, client: Client, tmp_path: Path) -> None:
    job = Gated(client, tmp_path)
    link = shared(page, job.id)
    other.goto(link)
    expect(other.locator("h1")).to_have_text("In progress")

    page.get_by_role("link", name="Back to the job").click()
    page.get_by_role("link", name="Share").click()
    page.get_by_role("button", name="Revoke").click()
    expect(page.locator(".said")).to_have_text("Link revoked.")
    expect(page.locator("main")).to_contain_text("No active links.")
    other.goto(link)

    expect(other.locator("h1")).to_have_text("This link does not work")
    check_access(other)
    job.ends()


def test_several_files_are_had_one_by_one_too(page: Page, other: Page, client: Client) -> None:
    job_id = client.wait(client.submit("media", {}, user="ann")["job_id"])["job_id"]
    other.goto(shared(page, job_id))

    with other.expect_download() as saved:
        other.get_by_role("link", name="notes.txt").click()

    assert saved.value.suggested_filename == "notes.txt"
    assert Path(saved.value.path()).read_text().startswith("first line")


@pytest.mark.parametrize(("name", "told"), [("steps", "It is broken."), ("fail", "Something went wrong on our side")])
def test_a_failure_is_told_without_what_is_inside(
    page: Page, other: Page, client: Client, name: str, told: str
) -> None:
    parameters = {"mend": "/nowhere/x"} if name == "steps" else {"message": "KeyError at 0x7f"}
    job = client.wait(client.submit(name, parameters, user="ann")["job_id"])

    other.goto(shared(page, job["job_id"]))

    expect(other.locator("h1")).to_have_text("Failed")
    expect(other.locator("main")).to_contain_text(told)
    for inside in ("0x7f", "Traceback", "nowhere", "ann"):
        expect(other.locator("main")).not_to_contain_text(inside)


def test_its_place_among_those_who_wait_is_told(page: Page, other: Page, client: Client, tmp_path: Path) -> None:
    before = Gated(client, tmp_path)
    before.reaches("prepare")
    client.submit("add", {"a": 1}, user="ann")
    job_id = client.submit("add", {"a": 1}, user="ann")["job_id"]

    other.goto(shared(page, job_id))

    expect(other.locator("h1")).to_have_text("Waiting")
    expect(other.locator("#ahead")).to_have_text("1 job is ahead of it.")
    before.ends()
    expect(other.locator("h1")).to_have_text("Your result is ready")


@pytest.mark.parametrize("look", sampled(LOOKS))
def test_it_can_be_used_by_everybody(
    browser: Browser, running: Server, client: Client, tmp_path: Path, look: str
) -> None:
    failed = client.wait(client.submit("fail", {"message": "x" * 300}, user="ann")["job_id"])["job_id"]
    made = client.wait(client.submit("media", {}, user="ann")["job_id"])["job_id"]
    active = Gated(client, tmp_path)
    active.reaches("prepare")

    with person(browser, running.url, **LOOKS[look]) as page:
        for job_id in (active.id, failed, made):
            page.goto(f"/p/{client.token(job_id)['key']}")
            expect(page.locator("nav")).to_have_count(0)
            check_access(page)
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")

    active.ends()
