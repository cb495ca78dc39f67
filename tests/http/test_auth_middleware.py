"""Who is let in as long as nobody has a key."""

from __future__ import annotations

from typing import Any

import pytest
from litestar.testing import AsyncTestClient

from packhorse.auth.authenticate import is_local
from packhorse.http.app import close_services, open_services
from packhorse.web.app import build
from tests.http.processes import Place

Http = AsyncTestClient[Any]


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.1:3002", "[::1]", "[::1]:80", "localhost:9"])
async def test_a_local_host_is_served(http: Http, host: str) -> None:
    assert (await http.get("jobs", headers={"Host": host})).status_code == 200


@pytest.mark.parametrize(
    "host",
    ["evil.example", "evil.example:3002", "localhost.evil.example", "127.0.0.1.evil.example", "192.168.1.2", "0.0.0.0",
     "user@localhost", "localhost@evil.example", "[::1", "localhost:abc:1", "", "[::ffff:8.8.8.8]"],
)  # fmt: skip
async def test_a_foreign_host_is_refused(http: Http, host: str) -> None:
    answer = await http.get("jobs", headers={"Host": host})

    assert answer.status_code == 403
    assert answer.json()["type"] == "urn:packhorse:foreign"


@pytest.mark.parametrize(("peer", "status"), [("203.0.113.9", 403), ("127.0.0.1", 200), ("::1", 200)])
async def test_another_machine_is_refused_whatever_host_it_names(place: Place, peer: str, status: int) -> None:
    """As where we are mounted in a server that listens to everybody."""
    told: list[int] = []

    async def send(message: Any) -> None:
        told.append(message.get("status", 0))

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    app = build(place.settings)
    await open_services(app)
    scope = {
        "type": "http", "method": "GET", "path": "/api/v1/jobs", "raw_path": b"/api/v1/jobs", "query_string": b"",
        "headers": [(b"host", b"localhost")], "client": (peer, 1), "server": ("x", 1), "scheme": "http",
        "root_path": "", "http_version": "1.1", "asgi": {"version": "3.0"}, "extensions": {}, "state": {},
    }  # fmt: skip
    await app(scope, receive, send)  # type: ignore[arg-type]
    await close_services(app)

    assert told[0] == status


PROXIED = ["X-Forwarded-For", "X-Forwarded-Host", "X-Forwarded-Proto", "Forwarded", "X-Real-IP", "Via"]


@pytest.mark.parametrize("name", PROXIED)
async def test_what_a_proxy_of_this_machine_forwards_is_refused(http: Http, name: str) -> None:
    """Whoever comes through it has this machine's address, and the proxy may name any host."""
    answer = await http.get("jobs", headers={name: "203.0.113.9"})

    assert (answer.status_code, answer.json()["type"]) == (403, "urn:packhorse:foreign")
    assert name.lower() in answer.json()["detail"].lower()
    assert "PACKHORSE_KEYLESS" in answer.json()["hint"]


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/healthz", "/readyz", "/openapi.json", "/api/v1/pipelines"])
async def test_every_page_has_the_gate(http: Http, path: str) -> None:
    assert (await http.get(f"http://localhost{path}")).status_code == 200
    assert (await http.get(f"http://localhost{path}", headers={"Host": "evil.example"})).status_code == 403


@pytest.mark.parametrize(
    "origin",
    ["http://evil.example", "null", "http://localhost.evil.example", "https://127.0.0.1@x",
     "http://127.0.0.1:9999", "http://localhost:9999", "http://127.0.0.1:3003.evil.example"],
)  # fmt: skip
async def test_a_write_from_a_foreign_page_is_refused(http: Http, origin: str) -> None:
    body = {"pipeline": "add", "parameters": {"a": 1}}

    answer = await http.post("jobs", json=body, headers={"Origin": origin})

    assert answer.status_code == 403
    assert (await http.get("jobs")).json()["items"] == []


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
async def test_a_write_that_the_browser_calls_another_sites_is_refused(http: Http, site: str) -> None:
    """To a browser, the pages of other ports of this machine are of the same site."""
    answer = await http.post("jobs/x/cancel", headers={"Sec-Fetch-Site": site})

    assert answer.status_code == 403
    assert answer.json()["type"] == "urn:packhorse:foreign"


@pytest.mark.parametrize("origin", ["http://localhost:3002", "http://127.0.0.1:3003", "http://[::1]:1"])
async def test_a_write_from_our_own_page_is_taken(http: Http, origin: str) -> None:
    body = {"pipeline": "add", "parameters": {"a": 1}}

    headers = {"Origin": origin, "Host": origin.removeprefix("http://")}
    assert (await http.post("jobs", json=body, headers=headers)).status_code == 202


async def test_a_write_through_the_server_of_a_front_end_is_taken(http: Http) -> None:
    """It passes on what the browser said of its own page, which was asked at the other port."""
    headers = {"Origin": "http://localhost:5173", "Host": "127.0.0.1:3003", "Sec-Fetch-Site": "same-origin"}

    answer = await http.post("jobs", json={"pipeline": "add", "parameters": {"a": 1}}, headers=headers)

    assert answer.status_code == 202


async def test_reading_does_not_ask_for_the_origin(http: Http) -> None:
    answer = await http.get("jobs", headers={"Origin": "http://evil.example"})

    assert answer.status_code == 200
    assert "access-control-allow-origin" not in answer.headers


def test_only_what_can_only_be_this_machine_is_local() -> None:
    assert [is_local(host) for host in ("127.0.0.1", "::1", "localhost")] == [True] * 3
    assert [is_local(host) for host in ("0.0.0.0", "::", "10.0.0.1", "example.com", "")] == [False] * 5
