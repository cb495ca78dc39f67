"""What a request may ask of the server before anybody knows who sends it."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
from litestar import _parsers

from packhorse.http.requests import LARGEST_HEADERS, LONGEST_PATH, LONGEST_QUERY, MOST_PARAMETERS
from tests.http.keyed import asking
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
    assert {each["message"] for each in answer.json()["errors"]} == {"There is no parameter of this name; there is none"}


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
