"""How every job says that it ran: one line, one O_APPEND write, the clock that all processes of a machine share."""

from __future__ import annotations

import asyncio
import os
import time

from bench.peers.side.given import LONG

STAGES = ("first", "second", "third")

_fd = -1


def note(i: int, kind: str = "job") -> None:
    global _fd
    now = time.monotonic_ns()
    if _fd < 0:
        _fd = os.open(os.environ["BENCH_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_fd, f"{i} {kind} {now}\n".encode())


def take_long(i: int) -> None:
    note(i, "begin")
    time.sleep(LONG)
    note(i, "end")


async def take_long_async(i: int) -> None:
    note(i, "begin")
    await asyncio.sleep(LONG)
    note(i, "end")
