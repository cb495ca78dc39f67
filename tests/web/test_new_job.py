"""A new job from the page: a form made from what the pipeline takes, with files, and mistakes beside their fields."""

from __future__ import annotations

import re
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, Route, expect

from packhorse.client import Client, Json
from tests.http.conftest import run
from tests.http.processes import Place, Server
from tests.web.browser import check_access, person
from tests.web.forms import HOSTILE

FORMS = Path(__file__).with_name("forms.py")
PNG: Any = {"name": "a.png", "mimeType": "image/png", "buffer": b"\x89PNG\r\n\x1a\n"}
JOB = re.compile(r"/jobs/[0-9a-f-]{36}$")


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with run(Place(tmp_path_factory.mktemp("forms"), app=str(FORMS), secret_key="s" * 40)) as server:
        yield server


@pytest.fixture(params=["with a script", "without a script"])
def anybody(request: pytest.FixtureRequest, browser: Browser, running: Server) -> Iterator[Page]:
    with person(browser, running.url, java_script_enabled=request.param == "with a script") as page:
        yield page


@pytest.fixture
def user() -> str:
    return secrets.token_hex(4)


def begun(page: Page, **files: Any) -> None:
    """The form, with what it needs."""
    page.goto("/jobs/new?pipeline=everything")
    page.locator("#f-image").set_input_files(files.get("image", PNG))
    page.locator("#f-text").fill("some text")


def submitted(page: Page, client: Client) -> Json:
    """The job that the page has gone to, when it has ended."""
    page.get_by_role("button", name="Submit").click()
    page.wait_for_url(JOB)
    return client.wait(page.url.rpartition("/")[2])


def mistake(page: Page, name: str) -> Any:
    return page.locator(f'[data-mistake="{name}"]')


def test_which_pipeline_is_asked_where_there_are_several(page: Page) -> None:
    page.goto("/jobs")
    page.get_by_role("link", name="New job").click()
    check_access(page)
    expect(page.get_by_text(f"All of it. {HOSTILE}")).to_be_visible()
    page.get_by_role("link", name="everything").click()

    expect(page.get_by_role("heading", level=1)).to_have_text("New job: everything")


def test_fields_are_what_the_pipeline_takes(page: Page) -> None:
    page.goto("/jobs/new?pipeline=everything")

    facts = {
        name: page.locator(f"#f-{name}").evaluate("(it) => [it.type, it.value, it.required, it.accept ?? '']")
        for name in ("image", "text", "notes", "title", "pages", "colour", "labels", "size", "password", "is_known")
    }
    assert facts == {
        "image": ["file", "", True, ".png,image/jpeg"],
        "text": ["text", "", True, ""],
        "notes": ["file", "", False, ""],
        "title": ["text", "Untitled", False, ""],
        "pages": ["number", "2", False, ""],
        "colour": ["select-one", "red", False, ""],
        "labels": ["textarea", "", False, ""],
        "size": ["textarea", "", False, ""],
        "password": ["password", "", False, ""],
        "is_known": ["select-one", "", False, ""],
    }
    assert page.locator("#f-notes").evaluate("(it) => it.multiple")
    assert page.locator("#f-is_public").is_checked()
    assert not page.locator("#f-is_final").is_checked()
    expect(page.locator("#about-pages")).to_contain_text(HOSTILE)


def test_what_is_left_empty_is_as_the_pipeline_has_it(page: Page, client: Client) -> None:
    begun(page)

    job = submitted(page, client)

    assert job["status"] == "completed", job["error"]
    assert job["user_id"] == "local"
    assert job["result"] == {
        "image": "a.png", "bytes": 8, "text": "some text", "notes": [], "title": "Untitled", "remark": None, "pages": 2,
        "share": None, "is_public": True, "is_final": False, "is_known": None, "colour": "red", "labels": [],
        "numbers": [], "size": None, "password": None,
    }  # fmt: skip


def test_all_that_is_filled_in_comes_to_the_job(anybody: Page, client: Client, user: str) -> None:
    page = anybody
    begun(page)
    page.locator("#f-user_id").fill(user)
    notes: Any = [{"name": f"{name}.txt", "mimeType": "text/plain", "buffer": name.encode()} for name in "ab"]
    page.locator("#f-notes").set_input_files(notes)
    for name, text in {
        "title": "", "remark": '"quoted"; ünï\\', "pages": "3", "share": "0.25", "labels": "one\n two \n\nthree",
        "numbers": "1\n2", "size": '{"width": 4}', "password": "s3cret",
    }.items():  # fmt: skip
        page.locator(f"#f-{name}").fill(text)
    page.locator("#f-is_public").uncheck()
    page.locator("#f-is_final").check()
    page.locator("#f-is_known").select_option("false")
    page.locator("#f-colour").select_option("green")
    page.get_by_text("Start time and priority").click()
    page.locator("#f-priority").fill("5")
    page.locator("#f-delay").fill("10ms")

    job = submitted(page, client)

    assert job["status"] == "completed", job["error"]
    assert (job["user_id"], job["priority"]) == (user, 5)
    assert job["result"] == {
        "image": "a.png", "bytes": 8, "text": "some text", "notes": ["a.txt", "b.txt"], "title": "",
        "remark": '"quoted"; ünï\\', "pages": 3, "share": 0.25, "is_public": False, "is_final": True, "is_known": False,
        "colour": "green", "labels": ["one", "two", "three"], "numbers": [1, 2], "size": {"width": 4, "height": 1},
        "password": 6,
    }  # fmt: skip


def test_mistakes_are_told_beside_their_fields_and_what_was_typed_stays(anybody: Page, client: Client) -> None:
    page = anybody
    before = client.count()["count"]
    begun(page)
    page.locator("#f-numbers").fill("1\nmany")
    page.locator("#f-size").fill('{"width": ')
    page.locator("#f-remark").fill(HOSTILE)
    page.locator("#f-is_public").uncheck()
    page.get_by_text("Start time and priority").click()
    page.locator("#f-delay").fill("soon")
    page.get_by_role("button", name="Submit").click()

    expect(mistake(page, "numbers")).to_contain_text("numbers[1]")
    expect(mistake(page, "size")).not_to_be_empty()
    expect(page.locator("#f-size")).to_have_attribute("aria-invalid", "true")
    for name, text in {"numbers": "1\nmany", "size": '{"width": ', "remark": HOSTILE, "delay": "soon"}.items():
        expect(page.locator(f"#f-{name}")).to_have_value(text)
    expect(page.locator("#f-is_public")).not_to_be_checked()
    expect(mistake(page, "text")).to_be_empty()
    assert client.count()["count"] == before


def test_a_delay_that_is_none_opens_where_it_stands(page: Page) -> None:
    begun(page)
    page.get_by_text("Start time and priority").click()
    page.locator("#f-delay").fill("soon")
    page.get_by_text("Start time and priority").click()
    page.get_by_role("button", name="Submit").click()

    expect(mistake(page, "delay")).not_to_be_empty()
    expect(page.locator("#f-delay")).to_be_visible()


def test_with_a_script_the_chosen_file_is_still_chosen_after_a_mistake(page: Page, client: Client) -> None:
    begun(page)
    page.locator("#f-size").fill("{")
    page.get_by_role("button", name="Submit").click()
    expect(mistake(page, "size")).not_to_be_empty()
    expect(page.locator("#f-size")).to_be_focused()
    check_access(page)
    page.locator("#f-size").fill("")

    assert submitted(page, client)["result"]["bytes"] == 8


def test_a_file_of_the_wrong_kind_or_size_is_refused_at_its_field(anybody: Page) -> None:
    begun(anybody, image={"name": "a.gif", "mimeType": "image/gif", "buffer": b"1"})
    anybody.get_by_role("button", name="Submit").click()
    expect(mistake(anybody, "image")).to_contain_text("must be .png or image/jpeg")
    begun(anybody, image={**PNG, "buffer": PNG["buffer"].ljust(2_000_000)})
    anybody.get_by_role("button", name="Submit").click()
    expect(mistake(anybody, "image")).to_contain_text("is too large (limit")


def test_a_taken_slot_links_the_job_that_has_it(page: Page, client: Client, user: str) -> None:
    first = client.submit("alone", {"seconds": 60}, files={"text": ("a.txt", b"a")}, user=user)
    page.goto("/jobs/new?pipeline=alone")
    page.locator("#f-user_id").fill(user)
    page.locator("#f-text").set_input_files({"name": "b.txt", "mimeType": "text/plain", "buffer": b"b"})
    page.get_by_role("button", name="Submit").click()

    expect(page.get_by_role("link", name="Show the active job")).to_have_attribute("href", f"/jobs/{first['job_id']}")
    expect(page.locator("#f-user_id")).to_have_value(user)
    client.cancel(first["job_id"])


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """More than goes into the buffers on the way, so that an upload takes its time."""
    path = tmp_path / f"{HOSTILE.replace('/', '')}.txt"
    with path.open("wb") as file:
        file.truncate(40 * 1024 * 1024)
    return path


def test_an_upload_shows_how_far_it_is_and_then_the_job(page: Page, client: Client, large: Path, user: str) -> None:
    page.goto("/jobs/new?pipeline=alone")
    page.evaluate(
        """() => {
          window.seen = [];
          const bar = document.getElementById("sent");
          new MutationObserver(() => window.seen.push(bar.value)).observe(bar, { attributes: true });
          addEventListener("pagehide", () => sessionStorage.setItem("seen", JSON.stringify(window.seen)));
        }"""
    )
    page.locator("#f-user_id").fill(user)
    page.locator("#f-text").set_input_files(large)

    job = submitted(page, client)

    seen = page.evaluate("JSON.parse(sessionStorage.getItem('seen'))")
    assert seen == sorted(seen)
    assert seen[-1] == 100
    assert len(seen) > 1
    assert job["result"] == large.stat().st_size
    assert job["inputs"][0]["filename"] == large.name.replace('"', "%22")  # as browsers send it


def test_an_upload_can_be_cancelled_and_tried_again(page: Page, client: Client, large: Path, user: str) -> None:
    page.goto("/jobs/new?pipeline=alone")
    page.locator("#f-user_id").fill(user)
    page.locator("#f-text").set_input_files(large)
    held: list[Route] = []
    page.route("**/jobs/new*", lambda route: held.append(route))
    page.get_by_role("button", name="Submit").click()
    page.get_by_role("button", name="Cancel the upload").click()

    expect(page.get_by_role("alert")).to_contain_text("Nothing was submitted")
    assert client.count(user=user)["count"] == 0
    page.unroute("**/jobs/new*")
    assert submitted(page, client)["status"] == "completed"
    assert client.count(user=user)["count"] == 1


def test_it_can_be_used_by_everybody_in_both_themes_and_on_a_phone(browser: Browser, running: Server) -> None:
    for path in ("/jobs/new", "/jobs/new?pipeline=everything"):
        for scheme in ("light", "dark"):
            with person(browser, running.url, color_scheme=scheme, viewport={"width": 360, "height": 740}) as page:
                page.goto(path)
                check_access(page)
                assert page.evaluate("document.documentElement.scrollWidth") <= 360
                assert page.locator("main img").count() == 0


def test_a_job_is_submitted_by_keyboard_alone(page: Page, client: Client, user: str) -> None:
    page.goto("/jobs/new?pipeline=everything")
    page.locator("#f-image").set_input_files(PNG)  # the dialog is the system's
    page.locator("#f-user_id").focus()
    page.keyboard.type(user)
    for _ in range(60):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.id") == "f-text":
            page.keyboard.type("by hand")
        if page.evaluate("document.activeElement.textContent") == "Submit":
            break
    page.keyboard.press("Enter")
    page.wait_for_url(JOB)

    assert client.wait(page.url.rpartition("/")[2])["result"]["text"] == "by hand"


def test_a_pipeline_that_is_not_there_is_said_to_be_so(page: Page) -> None:
    answer = page.goto("/jobs/new?pipeline=none")

    assert answer is not None
    assert answer.status == 422
    expect(page.get_by_role("main")).to_contain_text("There is no pipeline named 'none'")
