"""Calls to servers that redirect, stall, flood, lie and vanish: real ones, on loopback."""

from __future__ import annotations

import asyncio
import gzip
import ipaddress
import ssl
import traceback
import zlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from packhorse.errors import BlockedAddress, OutboundFailed
from packhorse.outbound.addresses import Address, Allow
from packhorse.outbound.calls import PIECE, Outbound, Policy, tls_context
from tests.servers import tls
from tests.servers.web import Answer, Asked, Web, answering, by_path, dropping, web

LOOPBACK = Allow.of("127.0.0.0/8")
HERE = ipaddress.ip_address("127.0.0.1")
POLICY = Policy(total=20.0, silence=10.0, body=100_000)


def packed(data: bytes) -> bytes:
    """Without the time, which would give the same test another name in every process."""
    return gzip.compress(data, mtime=0)


@pytest.fixture
async def server() -> AsyncIterator[Web]:
    async with web() as server:
        yield server


def calls(policy: Policy = POLICY, **options: Any) -> Outbound:
    return Outbound(LOOPBACK, policy, **options)


async def got(outbound: Outbound, url: str, method: str = "GET", **asked: Any) -> tuple[int, bytes]:
    async with outbound.call(method, url, **asked) as answer:
        return answer.status, b"".join([piece async for piece in answer.pieces()])


async def refused(outbound: Outbound, url: str, method: str = "GET", **asked: Any) -> str:
    """The code."""
    with pytest.raises(OutboundFailed) as failed:
        await got(outbound, url, method, **asked)
    return failed.value.code


def chunks(*pieces: bytes, then: Answer | None = None, **headers: str) -> Answer:
    """An answer without a length, piece by piece."""

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        lines = ["HTTP/1.1 200 OK", *(f"{name.replace('_', '-')}: {value}" for name, value in headers.items())]
        writer.write("\r\n".join([*lines, "connection: close", "", ""]).encode())
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        if then is not None:
            await then(asked, writer)

    return answer


async def for_ever(_: Asked, _writer: asyncio.StreamWriter) -> None:
    await asyncio.Event().wait()


# One call.


async def test_what_is_sent_arrives_and_what_is_answered_comes_back(server: Web) -> None:
    server.answer = answering(201, b"thanks", content_type="text/plain", set_cookie="a=b")

    outbound = calls()
    async with outbound.call("POST", f"{server.url}/hook?a=b", headers={"X-Mine": "1"}, body=b"hello") as answer:
        body = b"".join([piece async for piece in answer.pieces()])
    await got(outbound, server.url)

    first, second = server.asked
    assert (answer.status, answer.headers["content-type"], body) == (201, "text/plain", b"thanks")
    assert (first.method, first.path, first.body, first.headers["x-mine"]) == ("POST", "/hook?a=b", b"hello", "1")
    assert first.headers["host"] == f"127.0.0.1:{server.port}"
    assert "cookie" not in second.headers


async def test_a_bad_status_is_an_answer_until_a_good_one_is_required(server: Web) -> None:
    server.answer = answering(404)

    async with calls().call("GET", server.url) as answer:
        with pytest.raises(OutboundFailed) as failed:
            answer.require()

    assert failed.value.code == "HTTP_404"


async def test_what_nobody_allows_is_not_even_connected_to(server: Web) -> None:
    with pytest.raises(BlockedAddress):
        await got(Outbound(policy=replace(POLICY, schemes=("http",))), server.url)

    assert server.connections == 0


async def test_a_proxy_of_the_environment_is_not_asked(server: Web, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    status, _ = await got(calls(), server.url)

    assert status == 200


# Names.


async def test_a_name_is_looked_up_once_and_that_address_is_called(server: Web) -> None:
    """The second look-up of a name that is bound anew would lead inside."""
    looked: list[str] = []

    async def resolve(host: str) -> list[Address]:
        looked.append(host)
        return [HERE] if len(looked) == 1 else [ipaddress.ip_address("10.0.0.1")]

    status, _ = await got(calls(resolve=resolve), f"http://nobody.invalid:{server.port}/")

    assert (status, looked) == (200, ["nobody.invalid"])
    assert server.asked[0].headers["host"] == f"nobody.invalid:{server.port}"


async def test_an_address_at_which_nobody_listens_gives_way_to_the_next(server: Web) -> None:
    async def resolve(_: str) -> list[Address]:
        return [ipaddress.ip_address("127.0.0.2"), HERE]

    status, _ = await got(calls(resolve=resolve), f"http://nobody.invalid:{server.port}/")

    assert status == 200


async def test_a_real_name_that_leads_inside_is_refused(server: Web) -> None:
    assert await refused(Outbound(), f"https://localhost:{server.port}/") == "BLOCKED_ADDRESS"
    assert server.connections == 0


async def test_a_name_that_nobody_knows_is_told(server: Web) -> None:
    assert await refused(calls(), "https://nobody.invalid/") == "NOT_RESOLVED"


# Redirects.


async def test_a_redirect_is_followed_and_the_place_it_led_to_is_told(server: Web) -> None:
    server.answer = by_path(a=answering(302, location="b?x=1"), b=answering(200, b"here"))

    async with calls().call("GET", f"{server.url}/a") as answer:
        body = b"".join([piece async for piece in answer.pieces()])

    assert (body, answer.url) == (b"here", f"{server.url}/b?x=1")


async def test_as_many_redirects_as_are_allowed_are_followed_and_no_more(server: Web) -> None:
    server.answer = by_path(
        a=answering(302, location="/b"), b=answering(302, location="/c"), c=answering(301, location="/d"),
        d=answering(200, b"there"),
    )  # fmt: skip

    assert await got(calls(), f"{server.url}/a") == (200, b"there")
    assert await refused(calls(replace(POLICY, redirects=2)), f"{server.url}/a") == "TOO_MANY_REDIRECTS"


async def test_a_redirect_without_end_is_cut(server: Web) -> None:
    server.answer = answering(302, location="/")

    assert await refused(calls(), server.url) == "TOO_MANY_REDIRECTS"
    assert len(server.asked) == POLICY.redirects + 1


async def test_who_follows_none_is_given_the_redirect(server: Web) -> None:
    server.answer = answering(302, location="/b")

    status, _ = await got(calls(replace(POLICY, redirects=0)), server.url)

    assert (status, len(server.asked)) == (302, 1)


@pytest.mark.parametrize(
    "place",
    [
        "http://169.254.169.254/latest/meta-data/",
        "http://[::ffff:10.0.0.1]/",
        "//10.0.0.1/",
        "https://2130706433/",
        "file:///etc/passwd",
        "http://user@127.0.0.1/",
    ],
)
async def test_a_redirect_is_checked_like_the_first_address(server: Web, place: str) -> None:
    server.answer = answering(302, location=place)

    assert await refused(calls(), server.url) == "BLOCKED_ADDRESS"


async def test_a_redirect_to_a_name_that_leads_inside_is_refused(server: Web) -> None:
    async def resolve(_: str) -> list[Address]:
        return [ipaddress.ip_address("10.0.0.1")]

    server.answer = answering(302, location="https://inside.example/")

    assert await refused(calls(resolve=resolve), server.url) == "BLOCKED_ADDRESS"


async def test_what_was_meant_for_one_origin_does_not_go_to_another(server: Web) -> None:
    async with web() as other:
        server.answer = answering(302, location=f"{other.url}/")
        headers = {"Authorization": "Bearer secret", "Cookie": "a=b", "X-Api-Key": "secret", "Accept": "text/plain"}
        await got(calls(), server.url, headers=headers)

    [asked] = other.asked
    assert "secret" not in str(asked.headers)
    assert "cookie" not in asked.headers
    assert asked.headers["accept"] == "text/plain"


async def test_within_one_origin_the_headers_stay(server: Web) -> None:
    server.answer = by_path(a=answering(302, location="/b"), b=answering(200))

    await got(calls(), f"{server.url}/a", headers={"Authorization": "Bearer secret"})

    assert server.asked[1].headers["authorization"] == "Bearer secret"


@pytest.mark.parametrize(("status", "method", "body"), [(302, "GET", b""), (303, "GET", b""), (307, "POST", b"hello")])
async def test_a_redirected_post_is_a_get_unless_the_server_insists(
    server: Web, status: int, method: str, body: bytes
) -> None:
    server.answer = by_path(a=answering(status, location="/b"), b=answering(200))

    await got(calls(), f"{server.url}/a", "POST", body=b"hello", headers={"Content-Type": "text/plain"})

    asked = server.asked[1]
    assert (asked.method, asked.body, "content-type" in asked.headers) == (method, body, bool(body))


async def test_a_body_is_not_sent_on_to_another_origin(server: Web) -> None:
    async with web() as other:
        server.answer = answering(307, location=other.url)

        assert await refused(calls(), server.url, "POST", body=b"secret") == "BAD_REDIRECT"
        assert other.connections == 0


# Too much, too slow, too little.


@pytest.mark.parametrize(
    "answer",
    [
        answering(200, b"x" * 100_001),
        answering(200, b"short", content_length="100001"),
        chunks(*[b"x" * 10_000] * 11),
        chunks(packed(b"\0" * 50_000_000), content_encoding="gzip"),
        chunks(zlib.compress(b"\0" * 50_000_000), content_encoding="deflate"),
        chunks(*[packed(b"\0" * 1000)] * 200, content_encoding="gzip"),
        chunks(*[packed(b"")] * 6000, content_encoding="gzip"),
        answering(200, x_big="x" * 40_000),
    ],
    ids=["length", "lie", "endless", "bomb", "deflated bomb", "many small bombs", "nothing, packed", "headers"],
)
async def test_what_is_too_large_is_cut(server: Web, answer: Answer) -> None:
    server.answer = answer

    assert await refused(calls(), server.url) == "TOO_LARGE"


async def test_a_bomb_is_unpacked_in_small_pieces_and_only_as_far_as_the_limit(server: Web) -> None:
    server.answer = chunks(packed(b"\0" * 50_000_000), content_encoding="gzip")
    seen: list[int] = []

    async def read() -> None:
        async with calls(replace(POLICY, body=1_000_000)).call("GET", server.url) as answer:
            async for piece in answer.pieces():
                seen.append(len(piece))  # noqa: PERF401 (what came before the error counts)

    with pytest.raises(OutboundFailed):
        await read()

    assert max(seen) <= PIECE
    assert sum(seen) <= 1_000_000


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("gzip", packed(b"hello " * 1000)),
        ("gzip", packed(b"hello " * 400) + packed(b"hello " * 600)),
        ("deflate", zlib.compress(b"hello " * 1000)),
        ("deflate", zlib.compress(b"hello " * 1000)[2:-4]),
        ("identity", b"hello " * 1000),
    ],
)
async def test_what_is_packed_is_unpacked(server: Web, coding: str, body: bytes) -> None:
    server.answer = chunks(*(body[i : i + 7] for i in range(0, len(body), 7)), content_encoding=coding)

    assert await got(calls(), server.url) == (200, b"hello " * 1000)


@pytest.mark.parametrize(
    ("coding", "body"),
    [
        ("br", b"whatever"),
        ("gzip, gzip", packed(packed(b"hello"))),
        ("gzip", b"not gzip"),
        ("gzip", packed(b"hello " * 1000)[:-20]),
    ],
)
async def test_what_cannot_be_unpacked_is_told(server: Web, coding: str, body: bytes) -> None:
    server.answer = chunks(body, content_encoding=coding)

    assert await refused(calls(), server.url) == "BAD_ENCODING"


async def drip(_: Asked, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(b"x")
        await writer.drain()
        await asyncio.sleep(0.02)


SILENT, LONG = "it was silent for too long", "it took too long"


@pytest.mark.parametrize(
    ("answer", "policy", "reason"),
    [
        (for_ever, replace(POLICY, silence=0.2), SILENT),
        (chunks(b"some", then=for_ever), replace(POLICY, silence=0.2), SILENT),
        (for_ever, replace(POLICY, total=0.3), LONG),
        (chunks(b"some", then=drip), replace(POLICY, total=0.5), LONG),
        (drip, replace(POLICY, total=0.5), LONG),
    ],
    ids=["no answer", "no more", "no answer in all", "a byte at a time", "a header at a time"],
)
async def test_who_is_too_slow_is_given_up(server: Web, answer: Answer, policy: Policy, reason: str) -> None:
    server.answer = answer

    with pytest.raises(OutboundFailed) as failed:
        await got(calls(policy), server.url)

    assert (failed.value.code, failed.value.facts["reason"]) == ("TIMEOUT", reason)


async def test_a_name_server_that_does_not_answer_is_given_up(server: Web) -> None:
    async def resolve(_: str) -> list[Address]:
        await asyncio.Event().wait()
        return []

    assert await refused(calls(replace(POLICY, total=0.2), resolve=resolve), "https://example.com") == "TIMEOUT"


async def not_http(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.write(b"220 mail ready\r\n")
    await writer.drain()


@pytest.mark.parametrize(
    "answer",
    [dropping, not_http, answering(200, b"short", content_length="100"), answering(200, x="y" * 200_000)],
    ids=["dropped", "not http", "cut short", "headers without end"],
)
async def test_what_is_not_an_answer_is_told(server: Web, answer: Answer) -> None:
    server.answer = answer

    assert await refused(calls(), server.url) == "BAD_ANSWER"


async def test_where_nobody_listens_nobody_is_reached() -> None:
    async with web() as gone:
        pass

    assert await refused(calls(), gone.url) == "UNREACHABLE"


async def test_an_error_of_whoever_reads_the_answer_stays_theirs(server: Web) -> None:
    with pytest.raises(TimeoutError):
        async with calls().call("GET", server.url):
            raise TimeoutError


# TLS.


def named(_: str) -> Any:
    async def resolve(_: str) -> list[Address]:
        return [HERE]

    return resolve


@pytest.fixture
async def secure(tmp_path: Path) -> AsyncIterator[tuple[Web, ssl.SSLContext]]:
    """A server whose certificate is for hooks.example, and a context that trusts it."""
    key, cert = tls.certificate(tmp_path, "DNS:hooks.example")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    async with web(tls=context) as server:
        yield server, ssl.create_default_context(cafile=str(cert))


async def test_the_certificate_must_be_for_the_name_not_for_the_address(secure: tuple[Web, ssl.SSLContext]) -> None:
    server, trust = secure
    outbound = calls(resolve=named("hooks.example"), trust=trust)

    assert await got(outbound, f"https://hooks.example:{server.port}/") == (200, b"")
    assert await refused(outbound, f"https://other.example:{server.port}/") == "TLS_FAILED"
    assert await refused(outbound, f"https://127.0.0.1:{server.port}/") == "TLS_FAILED"


async def test_a_certificate_that_nobody_vouches_for_is_refused(secure: tuple[Web, ssl.SSLContext]) -> None:
    server, _ = secure

    code = await refused(calls(resolve=named("hooks.example")), f"https://hooks.example:{server.port}/")

    assert (code, server.asked) == ("TLS_FAILED", [])


async def test_no_redirect_leads_from_https_to_http(server: Web, secure: tuple[Web, ssl.SSLContext]) -> None:
    safe, trust = secure
    safe.answer = answering(302, location=f"{server.url}/")
    outbound = calls(resolve=named("hooks.example"), trust=trust)

    assert await refused(outbound, f"https://hooks.example:{safe.port}/") == "BAD_REDIRECT"
    assert server.connections == 0


async def test_what_the_transport_will_not_send_is_not_repeated(server: Web) -> None:
    headers = {"Authorization": "s3cr3tvalue\n"}

    with pytest.raises(OutboundFailed) as failed:
        await got(calls(), server.url, headers=headers)

    assert failed.value.code == "BAD_HEADER"
    assert "s3cr3t" not in "".join(traceback.format_exception(failed.value))


@pytest.mark.parametrize("url", ["https://packhorse.example", "HTTPS://packhorse.example", "https://127.0.0.1:3003"])
def test_an_encrypted_connection_trusts_those_who_vouch_for_sites(url: str) -> None:
    context = tls_context(url)

    assert context.cert_store_stats()["x509_ca"] > 0
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)


@pytest.mark.parametrize("url", ["http://127.0.0.1:3003", "http://https.example", ""])
def test_any_other_trusts_nobody_rather_than_everybody(url: str) -> None:
    context = tls_context(url)

    assert context.cert_store_stats()["x509_ca"] == 0
    assert (context.verify_mode, context.check_hostname) == (ssl.CERT_REQUIRED, True)
