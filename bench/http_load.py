"""A client that costs so little that the server is what is measured: bytes made beforehand, answers barely read."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import AsyncGenerator, Iterator

HOST = "127.0.0.1"
PIECE = 256 * 1024


def request(method: str, path: str, body: bytes = b"", *, length: int | None = None, headers: str = "") -> bytes:
    size = len(body) if length is None else length
    head = f"{method} {path} HTTP/1.1\r\nHost: {HOST}\r\nContent-Length: {size}\r\n{headers}\r\n"
    return head.encode() + body


async def answer(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    status, length = await head(reader)
    return status, await reader.readexactly(length)


async def head(reader: asyncio.StreamReader) -> tuple[int, int]:
    """Status, and length of the body; 0 of one whose length is not told."""
    found = (await reader.readuntil(b"\r\n\r\n")).lower()
    _, _, rest = found.partition(b"content-length:")
    return int(found[9:12]), int(rest.partition(b"\r\n")[0] or 0)


async def rate(port: int, asked: bytes, callers: int, seconds: float) -> float:
    """Answers per second to callers that ask again as soon as they have been answered."""
    count = itertools.count()
    until = time.monotonic() + seconds

    async def call() -> None:
        reader, writer = await asyncio.open_connection(HOST, port)
        while time.monotonic() < until:
            writer.write(asked)
            status, _ = await answer(reader)
            assert status == 202, status
            next(count)
        writer.close()

    began = time.monotonic()
    await asyncio.gather(*(call() for _ in range(callers)))
    return next(count) / (time.monotonic() - began)


async def send(port: int, path: str, pieces: Iterator[bytes], length: int, headers: str) -> tuple[float, bytes]:
    """Seconds until it was answered, and the answer."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=2**20)
    began = time.monotonic()
    writer.write(request("POST", path, length=length, headers=headers))
    for piece in pieces:
        writer.write(piece)
        await writer.drain()
    status, body = await answer(reader)
    writer.close()
    assert status < 300, body
    return time.monotonic() - began, body


async def take(port: int, path: str) -> tuple[float, int]:
    """Seconds until the last byte, and how many there were."""
    reader, writer = await asyncio.open_connection(HOST, port, limit=2**20)
    began = time.monotonic()
    writer.write(request("GET", path))
    status, length = await head(reader)
    assert status == 200, status
    left = length
    while left and (piece := await reader.read(min(left, PIECE))):
        left -= len(piece)
    writer.close()
    assert not left
    return time.monotonic() - began, length


async def watch(port: int, path: str) -> AsyncGenerator[tuple[float, bytes]]:
    """Each line of a stream, and when it came."""
    reader, writer = await asyncio.open_connection(HOST, port)
    try:
        writer.write(request("GET", path))
        status, _ = await head(reader)
        assert status == 200, status
        while line := await reader.readline():
            yield time.monotonic(), line
    finally:
        writer.close()
