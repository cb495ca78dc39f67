"""Queues and workers, keys, the audit, and health."""

from __future__ import annotations

import pytest
from playwright.sync_api import Browser, Page, expect

from packhorse.client import Client
from tests.http.processes import Server
from tests.tiers import sampled
from tests.web.browser import check_access, person

PAGES = ["/", "/queues", "/keys", "/webhooks", "/limits", "/audit", "/health", "/components", "/docs"]
REACHED = """() => [...document.querySelectorAll(".scroll button, .scroll a, .scroll summary")]
  .filter((each) => each.offsetParent && each.getBoundingClientRect().right > innerWidth)
  .map((each) => each.textContent.trim())"""
"""What can be pressed in tables, and only after scrolling sideways."""
FEW = """() => document.querySelectorAll("section:nth-of-type(n+6), nav li:nth-of-type(n+6)")
  .forEach((each) => each.remove())"""
"""Leave a few: one template writes all the calls of /docs, and axe takes half a minute for them."""
HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'


@pytest.mark.parametrize("path", sampled(PAGES, 2))
def test_it_can_be_used_by_everybody_in_both_themes_and_on_a_phone(
    browser: Browser, running: Server, path: str
) -> None:
    for scheme in ("light", "dark"):
        with person(browser, running.url, color_scheme=scheme, viewport={"width": 360, "height": 740}) as page:
            answer = page.goto(path)
            assert answer is not None
            assert answer.ok
            assert page.evaluate("document.documentElement.scrollWidth") <= 360
            page.evaluate(FEW)
            check_access(page)


def test_what_is_done_with_a_row_is_within_reach_on_a_phone(browser: Browser, running: Server, client: Client) -> None:
    client.put_schedule("reached", cron="0 3 * * *", zone="Europe/Berlin", pipeline="hold", user="ann")
    client.put_schedule("reached", cron="0 4 * * *", pipeline="hold", user="ann", version=1, reason="later " * 30)
    broken = client.wait(client.submit("fail", {"message": "the disk is full " * 9}, user="ann")["job_id"])
    working = client.submit("hold", {"seconds": 60}, user="ann")["job_id"]
    client.token(broken["job_id"])
    [model] = [client.wait(client.submit("convert", {}, files={"model": __file__}, user="ann")["job_id"])]
    paths = {
        "/schedules": "Run now",
        "/schedules/reached": "Roll back…",
        "/failures?view=single": "Retry…",
        "/queues": working[-12:],
        f"/jobs/{broken['job_id']}/share": "Revoke",
        f"/jobs/{model['job_id']}": "Download",
    }
    with person(browser, running.url, viewport={"width": 360, "height": 740}) as page:
        for path, name in paths.items():
            page.goto(path)
            wanted = page.locator(".scroll").locator("button, a").filter(has_text=name).first
            expect(wanted).to_be_visible()
            within = page.evaluate(REACHED)
            assert within == [], path
            check_access(page)
    client.cancel(working)


def test_a_queue_is_paused_with_a_reason_and_goes_on(page: Page, client: Client) -> None:
    page.goto("/queues")
    row = page.get_by_role("region", name="Queues").get_by_role("row", name="onnx")
    row.get_by_text("Pause", exact=True).click()
    row.get_by_label("Reason for pausing onnx").fill(HOSTILE)
    row.get_by_role("button", name="Pause onnx").click()

    expect(row).to_contain_text("paused")
    expect(row).to_contain_text(HOSTILE)
    assert next(each for each in client.queues() if each["name"] == "onnx")["paused"]["reason"] == HOSTILE
    row.get_by_role("button", name="Resume onnx").click()

    expect(row.get_by_text("Pause", exact=True)).to_be_visible()
    assert next(each for each in client.queues() if each["name"] == "onnx")["paused"] is None


def test_the_worker_is_there_with_what_it_does(page: Page, client: Client) -> None:
    job = client.submit("hold", {"seconds": 30}, user="busy")
    page.goto("/queues")

    workers = page.get_by_role("region", name="Workers")
    expect(workers).to_contain_text("alive")
    expect(workers.get_by_role("link", name=job["job_id"][-12:])).to_be_visible()

    client.cancel(job["job_id"])
    expect(workers.get_by_role("link", name=job["job_id"][-12:])).to_be_hidden()


def test_a_key_is_made_shown_once_and_revoked(page: Page) -> None:
    page.goto("/keys")
    page.get_by_text("Create a key").click()
    page.get_by_label("Name").fill(HOSTILE)
    page.get_by_label("operate", exact=True).check()
    page.get_by_role("button", name="Create key").click()

    text = page.locator("#text").inner_text()
    assert text.startswith("ph_")
    check_access(page)
    page.goto("/keys")
    expect(page.get_by_text(text)).to_have_count(0)
    row = page.get_by_role("row", name=text[3:23])
    expect(row).to_contain_text(HOSTILE)
    expect(row).to_contain_text("submit, read, operate")
    row.get_by_role("link").click()
    check_access(page)
    page.get_by_label("Revoke this key permanently").check()
    page.get_by_role("button", name="Revoke key").click()

    expect(page.get_by_role("row", name=text[3:23])).to_contain_text("ended")


def test_what_a_key_cannot_have_is_said_beside_its_field(page: Page) -> None:
    page.goto("/keys")
    page.get_by_text("Create a key").click()
    page.get_by_label("admin", exact=True).check()
    page.get_by_label("Only for this user").fill("ann")
    page.get_by_role("button", name="Create key").click()

    expect(page.get_by_role("alert")).to_contain_text("cannot be restricted to one user")
    expect(page.get_by_label("Only for this user")).to_have_value("ann")


def test_the_audit_tells_of_it(page: Page, client: Client) -> None:
    made = client.create_key(["read"], name="told")

    page.goto("/audit")

    expect(page.get_by_role("row", name=made["key_id"]).first).to_contain_text("key.created")


def test_health_says_what_doctor_says(page: Page, client: Client) -> None:
    found = client.health()

    page.goto("/health")

    closed = page.locator("details.group:not([open]) > summary")  # where all is well
    while closed.count():
        closed.first.click()
    for each in found["findings"]:
        expect(page.get_by_role("rowheader", name=each["name"], exact=True).first).to_be_visible()
