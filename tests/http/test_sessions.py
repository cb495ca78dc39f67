"""A browser that has logged in: let in by its cookie, and by nobody else's page."""

from __future__ import annotations

import asyncio
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from packhorse.auth import keys
from packhorse.auth.authenticate import session_cookie
from packhorse.factory import open_store
from packhorse.store.base import Store
from tests.http.conftest import publish
from tests.http.keyed import BASE, asking, audited, key
from tests.http.processes import Place
from tests.journey.site import until

Http = AsyncTestClient[Any]
SAME = {"Sec-Fetch-Site": "same-origin"}


@pytest.fixture
def place(anywhere: str, tmp_path: Path) -> Place:
    place = Place(tmp_path, keyless=False, store=anywhere, session=7200.0)
    publish(place)
    return place


@pytest.fixture
async def http(place: Place) -> AsyncIterator[Http]:
    async with asking(place) as http:
        yield http


def cookie(text: str) -> dict[str, str]:
    """The header with a session's text."""
    return {"Cookie": f"packhorse_session={text}"}


async def logged_in(http: Http, shown: dict[str, str]) -> dict[str, str]:
    """The header of a browser that has logged in."""
    made = await http.post("sessions", headers=shown)
    assert made.status_code == 201
    return cookie(made.json()["session"])


async def test_a_session_may_do_what_its_key_may_and_no_more(http: Http, store: Store) -> None:
    browser = await logged_in(http, await key(store, "acme", "read"))

    assert (await http.get("jobs", headers=browser)).status_code == 200
    assert (await http.get("keys", headers=browser)).status_code == 403
    assert (await http.post("jobs", json={"pipeline": "hold"}, headers=browser | SAME)).status_code == 403


async def test_it_ends_with_its_key_within_a_second(http: Http, store: Store) -> None:
    admin, reader = await key(store, "acme", "admin"), await key(store, "acme", "read")
    browser = await logged_in(http, reader)
    assert (await http.get("jobs", headers=browser)).status_code == 200

    key_id = reader["Authorization"].removeprefix("Bearer ph_")[:20]
    await http.delete(f"keys/{key_id}", headers=admin)

    async def is_out() -> bool:
        return (await http.get("jobs", headers=browser)).status_code == 401

    await until(is_out, 30, lambda: "it is still let in")


async def test_who_logs_out_is_out(http: Http, store: Store) -> None:
    shown = await key(store)
    browser, other = await logged_in(http, shown), await logged_in(http, shown)

    assert (await http.delete("sessions/current", headers=browser | SAME)).status_code == 204

    assert (await http.get("jobs", headers=browser)).status_code == 401
    assert (await http.get("jobs", headers=other)).status_code == 200


async def test_it_ends_by_itself(http: Http, place: Place, store: Store) -> None:
    async with asking(place.but(session=0.001)) as brief:
        browser = await logged_in(brief, await key(store))

    answer = await http.get("jobs", headers=browser)

    assert (answer.status_code, answer.json()["type"]) == (401, "urn:packhorse:unauthorized")


FOREIGN = [
    {},
    {"Sec-Fetch-Site": "cross-site"},
    {"Sec-Fetch-Site": "same-site"},
    {"Origin": "http://evil.example"},
    {"Origin": "null"},
    {"Origin": "http://[packhorse.example"},
    {"Origin": "http://packhorse.example.evil.example"},
    {"Sec-Fetch-Site": "cross-site", "Origin": "http://packhorse.example"},
]


@pytest.mark.parametrize("headers", FOREIGN, ids=lambda each: " ".join(each.values()) or "silent")
async def test_a_page_of_another_site_cannot_act_with_the_cookie(
    http: Http, store: Store, headers: dict[str, str]
) -> None:
    browser = await logged_in(http, await key(store))

    answer = await http.post("jobs", json={"pipeline": "hold", "user_id": "ann"}, headers=browser | headers)

    assert (answer.status_code, answer.json()["type"]) == (403, "urn:packhorse:foreign")
    assert "from our own pages" in answer.json()["detail"]
    assert "with a key" in answer.json()["hint"]
    assert (await http.get("jobs", headers=browser)).json()["items"] == []


@pytest.mark.parametrize("headers", [SAME, {"Origin": "http://packhorse.example"}], ids=["fetch", "origin"])
async def test_our_own_pages_can(http: Http, store: Store, headers: dict[str, str]) -> None:
    browser = await logged_in(http, await key(store))

    answer = await http.post("jobs", json={"pipeline": "hold", "user_id": "ann"}, headers=browser | headers)

    assert answer.status_code == 202


async def test_a_key_is_no_session_and_a_session_no_key(http: Http, store: Store) -> None:
    shown = await key(store)
    browser = await logged_in(http, shown)

    as_cookie = cookie(shown["Authorization"].removeprefix("Bearer "))
    as_key = {"Authorization": f"Bearer {browser['Cookie'].partition('=')[2]}"}

    assert (await http.get("jobs", headers=as_cookie)).status_code == 401
    assert (await http.get("jobs", headers=as_key)).status_code == 401
    assert (await http.post("sessions", headers=browser | SAME)).status_code == 403


async def test_the_audit_tells_who_came_and_went(http: Http, store: Store) -> None:
    browser = await logged_in(http, await key(store))
    await http.delete("sessions/current", headers=browser | SAME)

    told = [entry.event for entry in await audited(store, 3)]

    assert told == ["key.accepted", "session.started", "session.ended"]


async def listed(http: Http, shown: dict[str, str]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = (await http.get("sessions", headers=shown)).json()["items"]
    return found


async def test_the_sessions_of_a_key_are_listed_and_any_can_be_ended(http: Http, store: Store) -> None:
    shown = await key(store)
    first, second = await logged_in(http, shown), await logged_in(http, shown)
    await logged_in(http, await key(store))

    found = await listed(http, first)
    assert [each["is_current"] for each in found] == [False, True]
    assert {each["key_id"] for each in found} == {shown["Authorization"].removeprefix("Bearer ph_")[:20]}
    assert "ph_" not in str(found)
    ended = await http.delete(f"sessions/{found[0]['session_id']}", headers=first | SAME)

    assert ended.status_code == 204
    assert (await http.get("jobs", headers=second)).status_code == 401
    assert (await http.get("jobs", headers=first)).status_code == 200
    assert [each["session_id"] for each in await listed(http, first)] == [found[1]["session_id"]]


async def test_an_admin_ends_any_session_of_the_tenant_and_nobody_one_of_another(http: Http, store: Store) -> None:
    browser, others = await logged_in(http, await key(store)), await logged_in(http, await key(store, "umbrella"))
    [theirs] = await listed(http, others)
    [mine] = await listed(http, browser)
    admin, colleague = await key(store, "acme", "admin"), await key(store)

    assert [each["session_id"] for each in await listed(http, admin)] == [mine["session_id"]]
    for session_id, who in ((theirs["session_id"], admin), (mine["session_id"], colleague), ("nonsense", admin)):
        refused = await http.delete(f"sessions/{session_id}", headers=who)
        assert (refused.status_code, refused.json()["type"]) == (404, "urn:packhorse:session-not-found")
    assert (await http.delete(f"sessions/{mine['session_id']}", headers=admin)).status_code == 204

    assert (await http.get("jobs", headers=browser)).status_code == 401
    assert (await http.get("jobs", headers=others)).status_code == 200


async def test_the_page_of_sessions_ends_one_and_forgets_the_cookie_of_its_own(http: Http, store: Store) -> None:
    page, shown = "http://packhorse.example/sessions", await key(store)
    browser, other = await logged_in(http, shown), await logged_in(http, shown)
    found = {each["is_current"]: each["session_id"] for each in await listed(http, browser)}
    text = (await http.get(page, headers=browser)).text
    assert all(id in text for id in found.values())
    assert "this browser" in text

    async def end(session_id: str) -> list[str]:
        answer = await http.post(f"{page}/{session_id}/end", headers=browser | SAME, follow_redirects=False)
        assert (answer.status_code, answer.headers["location"]) == (303, "/sessions")
        return [each.partition("=")[0] for each in answer.headers.get_list("set-cookie")]

    assert await end(found[False]) == ["packhorse_said"]
    assert (await http.get("jobs", headers=other)).status_code == 401
    assert sorted(await end(found[True])) == ["packhorse_said", "packhorse_session"]
    assert (await http.get("jobs", headers=browser)).status_code == 401


async def test_a_session_that_nobody_uses_ends(place: Place, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    async with asking(place.but(session_idle=600.0)) as http:
        used, left = await logged_in(http, await key(store)), await logged_in(http, await key(store))
        serving, later = http.app.state.services.store, store.now()

        async def ask_after(seconds: float, browser: dict[str, str]) -> int:
            monkeypatch.setattr(serving, "now", lambda: later + seconds)
            return (await http.get("jobs", headers=browser)).status_code

        assert [await ask_after(seconds, used) for seconds in (300, 800, 1300)] == [200] * 3
        assert await ask_after(601, left) == 401
        assert await ask_after(1901, used) == 401


async def test_a_key_cannot_fill_the_store_with_sessions(place: Place, store: Store) -> None:
    async with asking(place.but(sessions_limit=3)) as http:
        shown = await key(store)
        browsers = [await logged_in(http, shown) for _ in range(6)]

        assert len(await listed(http, shown)) == 3
        assert [(await http.get("jobs", headers=each)).status_code for each in browsers] == [401] * 3 + [200] * 3


@pytest.mark.parametrize("how", ["logout", "ended by another"])
async def test_logging_out_cuts_what_is_streamed(http: Http, store: Store, how: str) -> None:
    shown = await key(store)
    browser, other = await logged_in(http, shown), await logged_in(http, shown)
    [mine] = [each["session_id"] for each in await listed(http, browser) if each["is_current"]]
    cut = http.app.state.services.keyring.end_of(shown["Authorization"].removeprefix("Bearer ph_")[:20], mine)
    kept = http.app.state.services.keyring.end_of(shown["Authorization"].removeprefix("Bearer ph_")[:20])

    if how == "logout":
        await http.delete("sessions/current", headers=browser | SAME)
    else:
        await http.delete(f"sessions/{mine}", headers=other | SAME)

    async with asyncio.timeout(60):
        while not cut.is_set():  # noqa: ASYNC110 - the application has a loop of its own, which cannot wake ours
            await asyncio.sleep(0.01)
    assert not kept.is_set()


async def test_a_stream_of_a_session_ends_with_it(http: Http, store: Store) -> None:
    browser = await logged_in(http, await key(store))
    begun = asyncio.Event()

    async def send(message: Any) -> None:
        assert message.get("status", 200) == 200
        begun.set()

    async def receive() -> Any:
        await asyncio.sleep(3600)

    headers = [(b"host", b"packhorse.example"), (b"cookie", browser["Cookie"].encode())]
    scope = {
        "type": "http", "method": "GET", "path": "/live", "raw_path": b"/live", "query_string": b"", "headers": headers,
        "client": ("127.0.0.1", 1), "server": ("x", 1), "scheme": "http", "root_path": "", "http_version": "1.1",
        "asgi": {"version": "3.0"}, "extensions": {}, "state": {},
    }  # fmt: skip
    async with asyncio.timeout(60):
        streaming = asyncio.create_task(http.app(scope, receive, send))
        await begun.wait()

        await http.delete("sessions/current", headers=browser | SAME)

        await streaming
    assert not http.app.state.services.streams._open


async def test_by_https_the_cookies_are_bound_to_the_host(http: Http, store: Store) -> None:
    shown = await key(store)
    https = SAME | {"X-Forwarded-Proto": "https"}
    given = {"key": shown["Authorization"].removeprefix("Bearer "), "next": ""}

    made = await http.post("http://packhorse.example/login", data=given, headers=https, follow_redirects=False)
    [text] = made.headers.get_list("set-cookie")
    name, _, value = text.partition(";")[0].partition("=")
    inside = await http.get("jobs", headers={"Cookie": f"{name}={value}", "X-Forwarded-Proto": "https"})
    weak = await http.get("jobs", headers={"Cookie": f"packhorse_session={value}", "X-Forwarded-Proto": "https"})
    left = await http.post(
        "http://packhorse.example/logout", headers=https | {"Cookie": f"{name}={value}"}, follow_redirects=False
    )

    assert name == "__Host-packhorse_session"
    for each in (text, *left.headers.get_list("set-cookie")):
        assert each.startswith("__Host-")
        assert {"Secure", "HttpOnly", "Path=/", "SameSite=lax"} <= set(each.split("; "))
        assert "Domain" not in each
    assert inside.status_code == 200
    assert weak.status_code == 401, "a cookie that any host of the domain could have set"


OTHERS = ['x={"a":1,"b":2}; ', "flag; ", "k=\xe9; ", "x=a b; ", "a@b=1; ", '"; ', ""]


@pytest.mark.parametrize("other", OTHERS, ids=range(len(OTHERS)))
async def test_cookies_of_others_hide_none_of_ours(http: Http, store: Store, other: str) -> None:
    browser = await logged_in(http, await key(store))

    answer = await http.get("jobs", headers={b"Cookie": f"{other}{browser['Cookie']}; z=1".encode("latin-1")})

    assert answer.status_code == 200


def wrong(cookie: str) -> str:
    """The same session with another secret, as somebody would guess it."""
    text = f"{cookie[3:23]}{'0' * 32}"
    return f"ph_{text}{zlib.crc32(text.encode()):08x}"


@pytest.mark.parametrize("sent", ["nonsense", "ph_" + "0" * 60, "another secret"])
async def test_who_guesses_sessions_has_to_wait_as_who_guesses_keys(place: Place, store: Store, sent: str) -> None:
    async with asking(place.but(failed_limit=3)) as http:
        good = await logged_in(http, await key(store))
        text = wrong(good["Cookie"].partition("=")[2]) if sent == "another secret" else sent
        guessed = [await http.get("jobs", headers=cookie(text)) for _ in range(5)]
        with_key = await http.get("jobs", headers={"Authorization": "Bearer nonsense"})
        still_good = await http.get("jobs", headers=good)

    assert [each.status_code for each in guessed] == [401] * 3 + [429] * 2
    assert with_key.status_code == 429
    assert still_good.status_code == 200
    told = {entry.event for entry in await audited(store, 5)}
    assert {"session.wrong", "key.blocked"} <= told


async def test_who_was_let_in_once_may_ask_as_often_as_they_like(place: Place, store: Store) -> None:
    async with asking(place.but(session=0.001)) as brief:
        ended = await logged_in(brief, await key(store))
    async with asking(place.but(failed_limit=3)) as http:
        answers = [(await http.get("jobs", headers=ended)).status_code for _ in range(8)]

    assert answers == [401] * 8


async def test_who_has_logged_out_may_ask_as_often_as_they_like(place: Place, store: Store) -> None:
    async with asking(place.but(failed_limit=3)) as http:
        browser = await logged_in(http, await key(store))
        await http.delete("sessions/current", headers=browser | SAME)
        answers = [(await http.get("jobs", headers=browser)).status_code for _ in range(8)]

    assert answers == [401] * 8


async def test_who_has_logged_out_is_out_though_the_clock_goes_back(
    http: Http, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    browser = await logged_in(http, await key(store))
    await http.delete("sessions/current", headers=browser | SAME)
    serving = http.app.state.services.store
    monkeypatch.setattr(serving, "now", lambda: store.now() - 600)

    assert (await http.get("jobs", headers=browser)).status_code == 401


async def test_the_session_of_another_server_of_this_host_is_not_touched(place: Place, store: Store) -> None:
    """To a browser, two ports of a host are one and the same."""
    async with asking(place.but(failed_limit=2)) as http:
        browser = await logged_in(http, await key(store))
        ours, theirs = browser["Cookie"].replace("=", "_8443="), cookie("nonsense")["Cookie"]
        page, at = "http://packhorse.example/jobs", {"Host": "packhorse.example:8443"}
        alone = [await http.get(page, headers=at | {"Cookie": theirs}, follow_redirects=False) for _ in range(4)]
        beside = await http.get(page, headers=at | {"Cookie": f"{theirs}; {ours}"})

        left = await http.post(
            "http://packhorse.example/logout", headers=at | SAME | {"Cookie": ours}, follow_redirects=False
        )

    told = [each.partition("=")[0] for each in left.headers.get_list("set-cookie")]
    assert sorted(told) == ["packhorse_said_8443", "packhorse_session_8443"]
    assert [each.status_code for each in alone] == [303] * 4
    assert all("set-cookie" not in each.headers for each in alone)
    assert beside.status_code == 200


async def enter(http: Http, shown: dict[str, str], next: str) -> str:
    """Where logging in with the key leads to."""
    given = {"key": shown["Authorization"].removeprefix("Bearer "), "next": next}
    answer = await http.post("http://packhorse.example/login", data=given, headers=SAME, follow_redirects=False)
    assert answer.status_code == 303
    assert [each.partition("=")[0] for each in answer.headers.get_list("set-cookie")] == ["packhorse_session"]
    return str(answer.headers["location"])


ELSEWHERE = [
    "/%2Fevil.example",
    "/%2fevil.example/jobs?a=1",
    "%2F/evil.example",
    "/%5Cevil.example",
    "//evil.example",
    "/\\evil.example",
    "/\tevil.example",
    "/%09/evil.example",
    "https://evil.example",
    "javascript:alert(1)",
]


@pytest.mark.parametrize("next", ELSEWHERE)
async def test_logging_in_leads_to_no_other_site(http: Http, store: Store, next: str) -> None:
    assert await enter(http, await key(store), next) == "/"


INSIDE = {
    "/jobs?said=You+won": "/jobs?said=You+won",
    "/jobs?path=/keys": "/jobs?path=%2Fkeys",
    "/jobs?request=1&said=2": "/jobs?request=1&said=2",
    "/jobs/a%20b": "/jobs/a%20b",
    "/jobs?user_id=a%26b%0D%0ASet-Cookie: x": "/jobs?user_id=a%26b%0D%0ASet-Cookie%3A+x",
    "": "/",
}


@pytest.mark.parametrize("next", INSIDE)
async def test_logging_in_leads_back_and_says_nothing_that_the_address_says(
    http: Http, store: Store, next: str
) -> None:
    assert await enter(http, await key(store), next) == INSIDE[next]


async def test_the_login_page_keeps_the_way_back_and_escapes_it(http: Http) -> None:
    to = '/jobs?user_id="><script>'

    answer = await http.get("http://packhorse.example/login", params={"next": to})

    assert answer.status_code == 200
    assert 'name="next" value="/jobs?user_id=&#34;&gt;&lt;script&gt;"' in answer.text


@pytest.mark.parametrize("name", ["said", "path", "request", "mistake"])
async def test_the_login_page_shows_no_text_of_its_address(http: Http, name: str) -> None:
    answer = await http.get("http://packhorse.example/login", params={name: "You won"})

    assert answer.status_code == 422
    assert "You won" not in answer.text


@pytest.mark.parametrize(
    ("host", "root", "name"),
    [
        ("packhorse.example", "", "packhorse_session"),
        ("packhorse.example:8443", "", "packhorse_session_8443"),
        ("127.0.0.1:3003", "/jobs", "packhorse_session_3003_jobs"),
        ("[::1]", "/tools/jobs-é", "packhorse_session_tools_jobs"),
        ("[::1]:80", "", "packhorse_session_80"),
        ("what:ever;", "", "packhorse_session"),
        ("", "", "packhorse_session"),
    ],
)
def test_the_cookie_is_named_after_where_the_browser_finds_us(host: str, root: str, name: str) -> None:
    assert session_cookie({"headers": [(b"host", host.encode("latin-1"))], "root_path": root}) == name


async def test_a_page_forgets_a_session_that_lets_nobody_in(place: Place, store: Store) -> None:
    async with asking(place.but(failed_limit=2)) as http:
        good, page = await logged_in(http, await key(store)), "http://packhorse.example/jobs"
        sent = cookie("nonsense")
        answers = [await http.get(page, headers=sent, follow_redirects=False) for _ in range(4)]
        kept = await http.get(page, headers=good)

    assert [each.status_code for each in answers] == [303, 303, 429, 429]
    name = sent["Cookie"].partition("=")[0]
    assert all(each.headers["set-cookie"].startswith(f"{name}=") for each in answers)
    assert all("Max-Age=0" in each.headers["set-cookie"] for each in answers)
    assert "set-cookie" not in kept.headers


@pytest.mark.parametrize("text", ["x", "", "ph_", "%00", '"unended', "ph_" + "0" * 60])
async def test_what_is_no_session_lets_nobody_in(http: Http, text: str) -> None:
    answer = await http.get("jobs", headers=cookie(text))

    assert answer.status_code == 401


async def test_the_rest_of_the_limits_of_a_key_is_told(http: Http, store: Store, place: Place) -> None:
    admin = await key(store, "acme", "admin")
    service = admin["Authorization"].removeprefix("Bearer ph_")[:20]
    personal, _ = await keys.create(store, "acme", ("read",), by="cli", user="ann")

    async def limits_of(key_id: str) -> dict[str, Any]:
        items = (await http.get(f"keys/{key_id}/limits", headers=admin)).json()["items"]
        return {each["name"]: each for each in items}

    limits = await limits_of(service)
    assert {name: each["left"] for name, each in limits.items() if name != "api"} == {
        "downloads": None,
        "bytes-day": None,
    }, "downloads are counted per user, and this key is for any"
    assert limits["bytes-day"]["limit"] == place.settings.download_bytes_per_day
    assert limits["api"]["limit"] == place.settings.api_limit
    assert limits["api"]["left"] < place.settings.api_limit
    page = (await http.get(f"{BASE.removesuffix('/api/v1/')}/keys/{service}", headers=admin)).text
    assert page.count("per user") == 2
    async with asking(place.but(api_limit=0)) as unlimited:
        items = (await unlimited.get(f"keys/{service}/limits", headers=admin)).json()["items"]
    assert {each["left"] for each in items} == {None}
    limits = await limits_of(personal.id)
    assert limits["bytes-day"] == {
        "name": "bytes-day",
        "unit": "content-bytes",
        "limit": place.settings.download_bytes_per_day,
        "window_seconds": 86400.0,
        "left": place.settings.download_bytes_per_day,
    }
    assert limits["downloads"]["window_seconds"] is None


@pytest.fixture
async def store(place: Place) -> AsyncIterator[Store]:
    store = await open_store(place.settings.store)
    yield store
    await store.close()
