"""What a request may ask of the server before anybody knows who sends it, and the headers of every response."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest
from litestar import _parsers

from packhorse.http.requests import LARGEST_HEADERS, LONGEST_PATH, LONGEST_QUERY, MOST_PARAMETERS
from packhorse.store.base import Store
from packhorse.web.pages import docs
from packhorse.web.pages.docs import docs_page
from tests.http.keyed import asking, key
from tests.http.processes import Place
from tests.http.unserved import Http

SITE = "http://packhorse.example"


@pytest.fixture
async def http(place: Place) -> AsyncIterator[Http]:
    async with asking(place.but(keyless=False)) as http:
        yield http


MANY_NAMES = "&".join(f"{n:x}" for n in range(12_000))
LONG = {
    "many names": f"/healthz?{MANY_NAMES}",
    "one more": f"/healthz?{'&' * MOST_PARAMETERS}",
    "a long value": f"/healthz?a={'x' * LONGEST_QUERY}",
    "a long path": f"/{'x' * LONGEST_PATH}",
    "no such route": f"/nowhere?{MANY_NAMES}",
}


@pytest.mark.parametrize("address", LONG.values(), ids=LONG)
async def test_a_long_address_is_refused_before_it_is_parsed(
    http: Http, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("packhorse.http.requests.parse_qsl", lambda *_, **__: pytest.fail("it was parsed"))

    answer = await http.get(f"{SITE}{address}")

    assert (answer.status_code, answer.json()["type"]) == (414, "urn:packhorse:address-too-long")
    assert answer.headers["x-trace-id"]
    assert "\n" not in answer.json()["detail"]


async def test_as_many_parameters_as_are_allowed_are_read(http: Http) -> None:
    answer = await http.get(f"{SITE}/healthz?{'&'.join(f'a{n}' for n in range(MOST_PARAMETERS))}")

    assert answer.status_code == 422
    assert {each["message"] for each in answer.json()["errors"]} == {"Unknown parameter. Parameters: none"}


async def test_a_parameter_given_twice_is_named_once(http: Http) -> None:
    answer = await http.get(f"{SITE}/healthz?a=1&a=2&a=3")

    twice = [each for each in answer.json()["errors"] if "twice" in each["message"]]
    assert [each["field"] for each in twice] == ["a"]


async def test_a_query_is_not_kept_in_memory(http: Http) -> None:
    before = _parsers.parse_query_string.cache_info().currsize

    for n in range(5):
        assert (await http.get(f"{SITE}/login?next=/{n}{'x' * 1000}")).status_code == 200

    assert _parsers.parse_query_string.cache_info().currsize == before


@pytest.mark.parametrize("path", ["/login", "/healthz", "/nowhere", "/api/v1/jobs"])
async def test_large_headers_are_refused(http: Http, path: str) -> None:
    cookies = "; ".join(f"c{n}=1" for n in range(60_000))

    answer = await http.get(f"{SITE}{path}", headers={"Cookie": cookies})

    assert (answer.status_code, answer.json()["type"]) == (431, "urn:packhorse:headers-too-large")
    assert "delete the cookies" in answer.json()["hint"]


async def test_many_small_headers_count_together(http: Http) -> None:
    size = LARGEST_HEADERS // 8

    answer = await http.get(f"{SITE}/healthz", headers={f"x-{n}": "x" * size for n in range(8)})

    assert answer.status_code == 431


@pytest.mark.parametrize("path", ["/login", "/jobs", "/nowhere"])
async def test_cookies_are_not_kept_in_memory(http: Http, path: str) -> None:
    before = _parsers.parse_cookie_string.cache_info().currsize

    for n in range(5):
        answer = await http.get(f"{SITE}{path}", headers={"Cookie": f"c{n}=1; d=2", "Accept": "text/html"})
        assert answer.status_code in (200, 404)

    assert _parsers.parse_cookie_string.cache_info().currsize == before


EVERYWHERE = ["/healthz", "/openapi.json", "/api/v1/me", "/api/v1/jobs", "/api/v1/nowhere", "/login", "/docs"]


@pytest.mark.parametrize("path", [*EVERYWHERE, f"/healthz?{'&' * MOST_PARAMETERS}"])
async def test_no_response_is_guessed_at_or_kept(http: Http, store: Store, path: str) -> None:
    answer = await http.get(f"{SITE}{path}", headers=await key(store))

    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
    assert answer.headers.get_list("cache-control") == ["no-store"]
    assert "strict-transport-security" not in answer.headers


async def test_a_submit_is_not_kept_either(http: Http, store: Store) -> None:
    asked = {"pipeline": "add", "user_id": "ann", "parameters": {"a": 1}}

    answer = await http.post("jobs", json=asked, headers=await key(store))

    assert answer.status_code == 202
    assert (answer.headers["x-content-type-options"], answer.headers["cache-control"]) == ("nosniff", "no-store")


async def test_a_route_that_says_how_it_may_be_kept_is_believed(http: Http, store: Store) -> None:
    service = await key(store)
    asked = {"pipeline": "add", "user_id": "ann", "parameters": {"a": 1}}
    job_id = (await http.post("jobs", json=asked, headers=service)).json()["job_id"]

    answer = await http.get(f"jobs/{job_id}", headers=service)

    assert answer.headers.get_list("cache-control") == ["private, no-cache"]


@pytest.mark.parametrize("path", ["/healthz", "/api/v1/jobs", "/login", "/nowhere"])
async def test_by_https_a_browser_is_told_to_stay_with_it(http: Http, path: str) -> None:
    answer = await http.get(f"{SITE}{path}", headers={"X-Forwarded-Proto": "https"})

    assert answer.headers["strict-transport-security"] == "max-age=31536000"


async def test_the_page_of_the_api_is_written_once_for_every_host(http: Http, monkeypatch: pytest.MonkeyPatch) -> None:
    http.app.state.pop("docs_page", None)
    written = []

    def write(*given: Any) -> str:
        written.append(given)
        return docs_page(*given)

    monkeypatch.setattr(docs, "docs_page", write)

    pages = [(await http.get(f"http://{host}/docs")).text for host in ("a.example", "b.example:81", "a.example")]

    assert len(written) == 1
    assert "http://a.example/api/v1/jobs" in pages[0]
    assert "http://b.example:81/api/v1/jobs" in pages[1]
    assert pages[0] == pages[2]
    assert not [page for page in pages if "packhorse.invalid" in page]
