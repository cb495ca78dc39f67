"""A web server on loopback that does what it is told, however improper, and remembers what it was asked."""

from __future__ import annotations

import asyncio
import json
import ssl
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Asked:
    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[[Asked, asyncio.StreamWriter], Awaitable[None]]


@dataclass
class Web:
    port: int = 0
    asked: list[Asked] = field(default_factory=list)
    connections: int = 0
    answer: Answer = field(default_factory=lambda: answering(200))
    """How whoever asks next is answered."""

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"


def answering(status: int, body: bytes = b"", **headers: str) -> Answer:
    async def answer(_: Asked, writer: asyncio.StreamWriter) -> None:
        given = {"content-length": str(len(body)), **{name.replace("_", "-"): value for name, value in headers.items()}}
        lines = [f"HTTP/1.1 {status} Whatever", *(f"{name}: {value}" for name, value in given.items()), "", ""]
        writer.write("\r\n".join(lines).encode() + body)
        await writer.drain()

    return answer


def by_path(**answers: Answer) -> Answer:
    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await answers[asked.path.strip("/").partition("?")[0]](asked, writer)

    return answer


def in_turn(*answers: Answer) -> Answer:
    """Each once, then the last for ever."""
    left = list(answers)

    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await (left.pop(0) if len(left) > 1 else left[0])(asked, writer)

    return answer


def held(gate: asyncio.Event, then: Answer) -> Answer:
    async def answer(asked: Asked, writer: asyncio.StreamWriter) -> None:
        await gate.wait()
        await then(asked, writer)

    return answer


async def dropping(_: Asked, writer: asyncio.StreamWriter) -> None:
    writer.transport.abort()


@asynccontextmanager
async def web(answer: Answer | None = None, tls: ssl.SSLContext | None = None) -> AsyncIterator[Web]:
    found = Web()
    if answer is not None:
        found.answer = answer
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        found.connections += 1
        task = asyncio.current_task()
        assert task is not None
        tasks.add(task)
        try:
            with suppress(OSError, asyncio.IncompleteReadError, asyncio.CancelledError):  # it may be over any time
                asked = await _read(reader)
                found.asked.append(asked)
                await found.answer(asked, writer)
        finally:
            tasks.discard(task)
            writer.close()

    server = await asyncio.start_server(serve, "127.0.0.1", 0, ssl=tls)
    found.port = server.sockets[0].getsockname()[1]
    try:
        yield found
    finally:
        server.close()
        for _ in range(5):  # a connection closes a few steps of the loop after its task, or is just being accepted
            for task in tasks:
                task.cancel()
            await asyncio.sleep(0)


async def _read(reader: asyncio.StreamReader) -> Asked:
    head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    first, *lines = head.strip().split("\r\n")
    method, path, _ = first.split(" ")
    headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
    return Asked(method, path, headers, await reader.readexactly(int(headers.get("content-length", "0"))))


@contextmanager
def web_aside(answer: Answer | None = None) -> Iterator[Web]:
    """The same in a thread of its own, for tests that block their loop, or have none."""
    with ThreadPoolExecutor(1) as thread:
        is_up, loop = threading.Event(), asyncio.new_event_loop()
        over = asyncio.Event()
        found: list[Web] = []

        async def serve() -> None:
            async with web(answer) as server:
                found.append(server)
                is_up.set()
                await over.wait()

        serving = thread.submit(loop.run_until_complete, serve())
        is_up.wait()
        try:
            yield found[0]
        finally:
            loop.call_soon_threadsafe(over.set)
            serving.result()
            loop.close()
