"""Names that are looked up: what one owner's slow name server costs everybody else."""

from __future__ import annotations

import asyncio
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from packhorse.outbound import dns
from packhorse.outbound.dns import SHARE, lookup_with, resolve

FOUND = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("192.0.2.1", 0))]


class NameServer:
    """Answers at once, except for what is slow: that it answers when the test says so."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.begun = threading.Semaphore(0)
        self.answer = threading.Event()

    def __call__(self, host: str) -> Any:
        self.asked.append(host)
        self.begun.release()
        if host.startswith("slow"):
            self.answer.wait()
        return FOUND


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[NameServer]:
    server = NameServer()
    monkeypatch.setattr(dns, "_lookup", server)
    yield server
    server.answer.set()


async def look(host: str, owner: str) -> list[str]:
    with lookup_with(owner):
        return [str(each) for each in await resolve(host)]


async def begun(server: NameServer, count: int) -> None:
    for _ in range(count):
        assert await asyncio.to_thread(server.begun.acquire, timeout=30)


async def test_a_slow_name_server_of_one_owner_holds_up_nobody_else(server: NameServer) -> None:
    slow = [asyncio.create_task(look(f"slow{n}.example", "acme")) for n in range(50)]
    await begun(server, SHARE)

    async with asyncio.timeout(30):
        assert await look("quick.example", "other") == ["192.0.2.1"]

    assert len(server.asked) == SHARE + 1
    server.answer.set()
    assert await asyncio.gather(*slow) == [["192.0.2.1"]] * 50


async def test_who_gives_up_waiting_leaves_the_share_taken_until_the_thread_is_free(server: NameServer) -> None:
    slow = [asyncio.create_task(look(f"slow{n}.example", "acme")) for n in range(SHARE)]
    await begun(server, SHARE)
    for each in slow:
        each.cancel()
    await asyncio.gather(*slow, return_exceptions=True)

    next_one = asyncio.create_task(look("quick.example", "acme"))
    assert await look("quick.example", "other") == ["192.0.2.1"]
    assert not next_one.done()

    server.answer.set()
    assert await next_one == ["192.0.2.1"]


async def test_a_name_that_nobody_knows_has_no_address(monkeypatch: pytest.MonkeyPatch) -> None:
    def unknown(_: str) -> Any:
        raise socket.gaierror

    monkeypatch.setattr(dns, "_lookup", unknown)

    assert await look("nobody.example", "acme") == await look("nobody.example", "") == []
