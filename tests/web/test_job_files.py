"""Files of a job on its page: seen when somebody wants to see them, and never more than seen."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Page, expect

from packhorse.client import Client
from tests.http.processes import Server, until
from tests.tiers import sampled
from tests.web.browser import person
from tests.web.sample import HOSTILE as FILES
from tests.web.shown import HOSTILE, open_all, shown


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with shown(tmp_path_factory.mktemp("files")) as server:
        yield server


@pytest.fixture
def made(client: Client) -> str:
    found: str = client.wait(client.submit("media", {}, user="ann")["job_id"])["job_id"]
    return found


def preview(page: Page, name: str) -> Any:
    place = page.locator("details.preview", has=page.get_by_label(f"Preview of draw/{name}"))
    place.locator("summary").click()
    return place.locator(".shown")


def test_files_are_loaded_when_they_are_looked_at(page: Page, made: str) -> None:
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.goto(f"/jobs/{made}")
    expect(page.locator("details.preview")).to_have_count(7)
    expect(page.locator("#card img")).to_have_js_property("naturalWidth", 8)  # the first file of the result
    artifacts = f"{page.url.replace('/jobs', '/api/v1/jobs')}/artifacts/draw"
    assert {url for url in asked if "/artifacts/" in url} == {f"{artifacts}/picture.png"}

    expect(preview(page, "notes.txt").locator("pre")).to_be_visible()

    assert {url for url in asked if "/artifacts/" in url} == {f"{artifacts}/picture.png", f"{artifacts}/notes.txt"}


def test_sound_is_played(page: Page, made: str) -> None:
    page.goto(f"/jobs/{made}")

    sound = preview(page, "sound.wav").locator("audio")
    expect(sound).to_be_visible()

    expect(sound).to_have_js_property("duration", 1)


def test_a_film_is_played(page: Page, made: str) -> None:
    page.goto(f"/jobs/{made}")

    film = preview(page, "film.webm").locator("video")
    expect(film).to_be_visible()

    expect(film).to_have_js_property("videoWidth", 64)


def test_texts_are_shown_as_far_as_they_are_short(page: Page, made: str) -> None:
    page.goto(f"/jobs/{made}")

    with page.expect_response(lambda answer: "notes.txt" in answer.url) as answered:
        notes = preview(page, "notes.txt")

    expect(notes.locator("pre")).to_contain_text("first line")
    expect(notes).to_contain_text("Only the beginning.")
    assert (answered.value.status, answered.value.headers["content-length"]) == (206, "65536")
    expect(preview(page, "data.json").locator("pre")).to_have_text(
        '{\n  "note": "",\n  "numbers": [\n    1,\n    2\n  ]\n}'
    )


def test_a_preview_stays_open_while_the_page_keeps_itself_fresh(page: Page, made: str) -> None:
    page.goto(f"/jobs/{made}")
    expect(preview(page, "data.json").locator("pre")).to_be_visible()

    page.evaluate("document.addEventListener('refreshed', () => { window.refreshed = 1; })")
    page.evaluate("import('/static/live.js').then((live) => live.refresh())")
    until(lambda: page.evaluate("window.refreshed === 1"), 30)

    expect(page.locator(".preview pre")).to_contain_text("numbers")


@pytest.mark.parametrize("name", sampled(FILES))
def test_a_hostile_file_does_nothing(browser: Browser, running: Server, made: str, name: str) -> None:
    """Looked at it is a text; opened by its address it is saved, and has no rights if it is shown all the same."""
    with person(browser, running.url) as page:
        page.goto(f"/jobs/{made}")
        expect(preview(page, name).locator("pre")).to_have_text(FILES[name])
        assert page.evaluate("window.hacked") is None

        with page.expect_download() as saved:
            page.get_by_role("link", name=f"Download draw/{name}").click()
        assert saved.value.suggested_filename == name

        answer = page.request.get(f"/api/v1/jobs/{made}/artifacts/draw/{name}")
        sent = answer.headers
        assert sent["content-security-policy"] == "sandbox; default-src 'none'"
        assert (sent["content-type"], sent["x-content-type-options"]) == ("application/octet-stream", "nosniff")
        assert sent["content-disposition"].startswith("attachment")


@pytest.mark.parametrize("number", sampled(range(len(HOSTILE))))
def test_what_people_write_is_shown_as_they_wrote_it(
    browser: Browser, running: Server, client: Client, number: int
) -> None:
    text = HOSTILE[number]
    source = (f"{text.replace('/', '_')}.txt", b"x")
    jobs = [
        client.submit("media", {"note": text}, files={"source": source}, user=text, metadata={text: text}),
        client.submit("steps", {"note": text}, user=text),
        client.submit("steps", {"note": text, "mend": "/nowhere/at-all"}, user=text),
        client.submit("fail", {"message": text}, user=text),
    ]
    ended = [client.wait(job["job_id"]) for job in jobs]

    with person(browser, running.url) as page:
        for job in ended:
            page.goto(f"/jobs/{job['job_id']}")
            expect(page.locator(".facts")).to_contain_text(text)
            open_all(page)
            expect(page.locator("main")).to_contain_text(text)
            page.goto(f"/jobs/{job['job_id']}/delete")
            expect(page.locator("main")).to_contain_text(text)
            page.goto(f"/p/{client.token(job['job_id'])['key']}")
            expect(page.locator("h1")).to_be_visible()
            assert page.evaluate("window.hacked") is None

    media, steps, broken, failed = ended
    assert media["status"] == steps["status"] == "completed"
    assert broken["error"]["message"] == f"It is broken. {text}"
    assert failed["error"]["message"].endswith(text)
