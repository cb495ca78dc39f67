"""The page: ours alone, and nothing on it that a user could make run."""

from __future__ import annotations

import re
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

Http = AsyncTestClient[Any]

ROOT = "http://127.0.0.1"


async def test_the_page_and_its_files_are_served(http: Http) -> None:
    page = await http.get(f"{ROOT}/")
    named = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)

    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert named[:3] == ["/static/icon.svg", "/static/page.css", "/static/page.js"]
    for path in named[:3]:
        assert (await http.get(ROOT + path)).status_code == 200


async def test_who_only_asks_whether_the_page_is_there_is_told(http: Http) -> None:
    answer = await http.head(f"{ROOT}/")

    assert (answer.status_code, answer.content) == (200, b"")
    assert answer.headers["content-type"] == "text/html; charset=utf-8"
    assert "content-security-policy" in answer.headers


BROWSER = {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.mark.parametrize(
    ("path", "status", "said", "back"),
    [
        ("/nope", 404, "Nothing is at this address", "/"),
        ("/jobs/a/b/c", 404, "Nothing is at this address", "/jobs"),
        ("/static/nope.js", 404, "Nothing is at this address", "/"),
        ("/jobs/confirm", 405, "It only takes what a form sends", "/jobs"),
        ("/schedules/nightly/run", 405, "It only takes what a form sends", "/schedules"),
        ("/logout", 405, "It only takes what a form sends", "/"),
    ],
)
async def test_an_address_that_is_no_page_is_told_as_one_with_a_way_back(
    http: Http, path: str, status: int, said: str, back: str
) -> None:
    answer = await http.get(ROOT + path, headers=BROWSER)

    assert (answer.status_code, answer.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert "content-security-policy" in answer.headers
    assert ("allow" in answer.headers) == (status == 405)
    assert said in answer.text
    assert f'<a href="{back}">Back to ' in answer.text
    script = await http.get(ROOT + path, headers={"Accept": "*/*"})
    assert (script.status_code, script.headers["content-type"]) == (status, "application/problem+json")


@pytest.mark.parametrize(("path", "status"), [("/api/v1/nope", 404), ("/api/v1/jobs/x/cancel", 405), ("/api", 404)])
async def test_the_api_answers_a_browser_too_with_a_problem(http: Http, path: str, status: int) -> None:
    answer = await http.get(ROOT + path, headers=BROWSER)

    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/static/live.js", "/static/page.css", "/static/docs.css"])
async def test_nothing_comes_from_elsewhere_and_nothing_runs_inline(http: Http, path: str) -> None:
    answer = await http.get(ROOT + path)

    policy = answer.headers["content-security-policy"]
    assert policy.startswith("default-src 'none'; script-src 'self'; ")
    assert "unsafe" not in policy
    assert "://" not in answer.text
    assert not re.search(r"<script(?![^>]*src=)|\son\w+=|<style|style=", answer.text)


@pytest.mark.parametrize("name", ["page.js", "live.js", "ago.js"])
async def test_no_script_writes_markup(http: Http, name: str) -> None:
    script = (await http.get(f"{ROOT}/static/{name}")).text

    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function", script)


async def test_a_browser_that_looks_for_an_icon_is_given_ours(http: Http) -> None:
    answer = await http.get(f"{ROOT}/favicon.ico")

    assert (answer.status_code, answer.headers["content-type"]) == (200, "image/svg+xml")
    assert answer.content == (await http.get(f"{ROOT}/static/icon.svg")).content
    again = await http.get(f"{ROOT}/favicon.ico", headers={"If-None-Match": answer.headers["etag"]})
    assert again.status_code == 304


@pytest.mark.parametrize("name", ["nope.js", "..%2fpage.py", "index.html", "%2e%2e%2f__init__.py"])
async def test_only_the_files_of_the_page_are_served(http: Http, name: str) -> None:
    assert (await http.get(f"{ROOT}/static/{name}")).status_code == 404
