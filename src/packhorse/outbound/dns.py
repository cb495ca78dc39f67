"""DNS lookups in threads, limited per owner, because a name server may never answer."""

from __future__ import annotations

import asyncio
import ipaddress
import socket
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any
from weakref import WeakKeyDictionary

from packhorse.outbound.addresses import Address

SHARE = 2  # Concurrent lookups per owner. A thread cannot be stopped when its caller gives up.

_threads = ThreadPoolExecutor(16, "packhorse-resolve")  # separate threads, so that slow lookups block nothing else
_owner: ContextVar[str] = ContextVar("packhorse_owner", default="")
_shares: WeakKeyDictionary[asyncio.AbstractEventLoop, dict[str, asyncio.Semaphore]] = WeakKeyDictionary()


@contextmanager
def lookup_with(owner: str) -> Iterator[None]:
    """Set the owner of lookups in this block. Lookups without an owner are not limited."""
    before = _owner.set(owner)
    try:
        yield
    finally:
        _owner.reset(before)


async def resolve(host: str) -> Sequence[Address]:
    """Addresses from this machine's resolver; empty for an unknown name."""
    try:
        found = await asyncio.wrap_future(await _start(host))
    except (OSError, UnicodeError):
        return []
    return list(dict.fromkeys(ipaddress.ip_address(at[4][0]) for at in found))


async def _start(host: str) -> Future[Any]:
    owner = _owner.get()
    if not owner:
        return _threads.submit(_lookup, host)
    loop = asyncio.get_running_loop()
    share = _shares.setdefault(loop, {}).setdefault(owner, asyncio.Semaphore(SHARE))
    await share.acquire()
    looking = _threads.submit(_lookup, host)

    def over(_: Future[Any]) -> None:
        with suppress(RuntimeError):  # the loop was closed meanwhile
            loop.call_soon_threadsafe(share.release)

    looking.add_done_callback(over)
    return looking


def _lookup(host: str) -> list[tuple[object, object, int, str, tuple[str, ...]]]:
    return socket.getaddrinfo(host, None, type=socket.SOCK_STREAM, flags=socket.AI_ADDRCONFIG)  # type: ignore[return-value]
