"""Answers sent piece by piece: ended by whoever leaves first, and never half without a sign of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from packhorse.http import stream
from packhorse.http.stream import Ending, Streamed

SCOPE: Any = {"type": "http", "path": "/x"}


class Line:
    """A connection: what was sent, and whether anybody is there."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.gone = asyncio.Event()
        self.flowed = asyncio.Event()
        self.asked = 0
        self.stalls_after: int | None = None

    async def receive(self) -> Any:
        self.asked += 1
        if self.asked == 1:
            return {"type": "http.request", "body": b"", "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Any) -> None:
        self.sent.append(message)
        if message.get("body"):
            self.flowed.set()
        if len(self.sent) == self.stalls_after:
            await asyncio.sleep(3600)

    @property
    def bytes(self) -> bytes:
        return b"".join(message.get("body", b"") for message in self.sent)

    @property
    def is_ended(self) -> bool:
        return bool(self.sent) and self.sent[-1].get("more_body") is False


class Source:
    def __init__(self, *pieces: Any) -> None:
        self.is_closed = False
        self._pieces = pieces

    async def pieces(self) -> AsyncGenerator[bytes]:
        try:
            for piece in self._pieces:
                if isinstance(piece, Exception):
                    raise piece
                if piece is None:
                    await asyncio.sleep(3600)
                yield piece
        finally:
            self.is_closed = True


async def run(source: Source, line: Line, **options: Any) -> Ending:
    answer = Streamed(source.pieces(), {"Content-Type": "text/plain"}, **options)
    return await asyncio.wait_for(answer.send_to(SCOPE, line.receive, line.send), 60)


async def test_all_pieces_are_sent_and_the_end_is_said() -> None:
    source, line = Source(b"a", b"b"), Line()

    assert await run(source, line) is Ending.COMPLETED

    assert line.sent[0] == {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/plain")]}
    assert line.bytes == b"ab"
    assert line.is_ended
    assert source.is_closed


async def test_nothing_at_all_is_an_empty_answer() -> None:
    source, line = Source(), Line()

    await run(source, line)

    assert line.bytes == b""
    assert line.is_ended


async def test_a_reader_that_vanishes_ends_it_though_nothing_was_to_be_sent() -> None:
    source, line = Source(b"a", None, b"b"), Line()
    running = asyncio.create_task(run(source, line))
    await line.flowed.wait()

    line.gone.set()

    assert await running is Ending.ABORTED
    assert line.bytes == b"a"
    assert source.is_closed
    assert not line.is_ended


async def test_who_may_not_read_any_more_is_cut() -> None:
    source, line, ended = Source(b"a", None, b"b"), Line(), asyncio.Event()
    running = asyncio.create_task(run(source, line, ended=ended))
    await line.flowed.wait()

    ended.set()

    assert await running is Ending.REVOKED
    assert line.bytes == b"a"
    assert source.is_closed
    assert not line.is_ended


async def test_what_takes_too_long_is_cut() -> None:
    source, line = Source(b"a", None, b"b"), Line()

    assert await run(source, line, limit=0.05) is Ending.TIMED_OUT

    assert line.bytes == b"a"
    assert source.is_closed
    assert not line.is_ended


async def test_a_reader_that_takes_nothing_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream, "STALLED", 0.05)
    source, line = Source(b"a", b"b", b"c"), Line()
    line.stalls_after = 3

    assert await run(source, line) is Ending.TIMED_OUT

    assert source.is_closed
    assert not line.is_ended


async def test_what_fails_before_the_first_piece_can_still_be_said() -> None:
    source, line = Source(ZeroDivisionError()), Line()

    with pytest.raises(ZeroDivisionError):
        await run(source, line)

    assert line.sent == []


async def test_what_fails_later_cuts_the_connection(caplog: pytest.LogCaptureFixture) -> None:
    source, line = Source(b"a", ZeroDivisionError()), Line()

    assert await run(source, line) is Ending.FAILED

    assert not line.is_ended
    assert "ZeroDivisionError" in caplog.text


async def test_a_cancelled_answer_lets_go_of_its_source() -> None:
    source, line = Source(b"a", None), Line()
    running = asyncio.create_task(run(source, line))
    await line.flowed.wait()

    running.cancel()

    with pytest.raises(asyncio.CancelledError):
        await running
    assert source.is_closed
