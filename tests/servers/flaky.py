"""A way to a server on which things go wrong when a test says so: connections are cut, delayed, left in the dark."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import Literal, Self

HOST = "127.0.0.1"
PIECE = 64 * 1024

Fate = Literal["pass", "503", "cut", "lost", "spoilt"]
"""Of a request: it passes, is answered by the way itself, is dropped, or its answer is; or its body is changed."""


class Flaky:
    """A TCP proxy. In the dark nothing is passed on and nothing is cut: whoever waits, waits."""

    def __init__(self, port: int) -> None:
        self._to = port
        self._light = asyncio.Event()
        self._light.set()
        self._live: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None
        self.port = 0
        self.delay = 0.0
        """Seconds before each piece of data is passed on."""
        self.cuts: list[int] = []
        """The answers to come that are cut, each after so many bytes; one per connection."""
        self.connections = 0

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        """Listen, on the same port as before if there was one."""
        self._server = await asyncio.start_server(self._accepted, HOST, self.port)
        self.port = self._server.sockets[0].getsockname()[1]

    async def close(self) -> None:
        """Refuse new connections, and cut those there are."""
        if self._server is not None:
            self._server.close()
        self.lighten()
        await self.cut()

    async def cut(self) -> None:
        """Those there are now; clients may connect again meanwhile."""
        cut = set(self._live)
        for task in cut:
            task.cancel()
        if cut:
            await asyncio.wait(cut)

    def darken(self) -> None:
        self._light.clear()

    def lighten(self) -> None:
        self._light.set()

    async def _accepted(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task
        self._live.add(task)
        self.connections += 1
        try:
            with contextlib.suppress(OSError, EOFError, asyncio.CancelledError):  # this is where things go wrong
                await self._serve(reader, writer)
        finally:
            self._live.discard(task)
            writer.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await self._light.wait()
        server, to_server = await asyncio.open_connection(HOST, self._to)
        try:
            ways = [self._relay(reader, to_server), self._relay(server, writer, self._next_cut())]
            both = [asyncio.ensure_future(way) for way in ways]
            try:
                await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in both:
                    way.cancel()
                await asyncio.gather(*both, return_exceptions=True)
        finally:
            to_server.transport.abort()

    def _next_cut(self) -> int | None:
        return self.cuts.pop(0) if self.cuts else None

    async def _relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, cut: int | None = None) -> None:
        while data := await reader.read(PIECE):
            await self._light.wait()
            await asyncio.sleep(self.delay)
            writer.write(data if cut is None else data[:cut])
            await writer.drain()
            if cut is not None and (cut := cut - len(data)) <= 0:
                return


class FlakyHttp(Flaky):
    """The same for HTTP/1.1: each request has a fate of its own, and a connection to itself."""

    def __init__(self, port: int) -> None:
        super().__init__(port)
        self.fates: list[Fate] = []
        """Of the requests to come; then by chance."""
        self.rates: dict[Fate, float] = {}
        self.chance = random.Random(7)
        self.concerns: Callable[[str], bool] = lambda _: True
        """Which requests, by their first line, have a fate; the others pass."""
        self.seen: list[str] = []
        """The first lines of all requests."""
        self.struck = 0
        """How many of them did not pass."""

    def _fate(self, line: str) -> Fate:
        self.seen.append(line)
        fate = self._drawn(line)
        self.struck += fate != "pass"
        return fate

    def _drawn(self, line: str) -> Fate:
        if not self.concerns(line):
            return "pass"
        if self.fates:
            return self.fates.pop(0)
        drawn = self.chance.random()
        for fate, rate in self.rates.items():
            drawn -= rate
            if drawn < 0:
                return fate
        return "pass"

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        line, *fields = head.decode("latin-1").split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (field.partition(":") for field in fields)}
        left = int(headers.get("content-length", 0))
        fate = self._fate(line)
        if fate == "cut":
            return
        if fate == "503":
            await reader.readexactly(left)
            writer.write(b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            await writer.drain()
            return
        await self._light.wait()
        server, to_server = await asyncio.open_connection(HOST, self._to)
        try:
            kept = [field for field in fields if field and not field.lower().startswith("connection:")]
            to_server.write("\r\n".join([line, *kept, "Connection: close", "", ""]).encode("latin-1"))
            while left:
                data = await reader.read(min(left, PIECE))
                if not data:
                    return
                await self._light.wait()
                to_server.write(data if fate != "spoilt" else bytes(len(data)))
                await to_server.drain()
                left -= len(data)
            if fate == "lost":
                await server.read()
                return
            await self._relay(server, writer, self._next_cut() if line.startswith("GET") else None)
        finally:
            to_server.transport.abort()
