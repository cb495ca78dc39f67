"""The app that a measured worker runs. Every stage writes its own ledger, which packhorse cannot touch."""

from __future__ import annotations

import asyncio
import os
import time

from packhorse import App, Context, Params, needs

app = App("bench")

_fd = -1


def note(what: str, key: object) -> None:
    """One line, one O_APPEND write, the clock that all processes of a machine share."""
    global _fd
    now = time.monotonic_ns()
    if _fd < 0:
        _fd = os.open(os.environ["BENCH_LEDGER"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    os.write(_fd, f"{what} {key} {now}\n".encode())


@app.job(queue="async")
async def light(n: int) -> int:
    note("light", n)
    return n


@app.job(queue="sync")
def plain(n: int) -> int:
    note("plain", n)
    return n


class Number(Params):
    n: int


three = app.pipeline("three", Number)


@three.stage(queue="async")
async def first(_: Context, p: Number) -> int:
    note("first", p.n)
    return p.n


@three.stage(queue="async")
async def second(_: Context, p: Number, before: int = needs(first)) -> int:
    note("second", p.n)
    return before


@three.stage(queue="async")
async def third(_: Context, p: Number, before: int = needs(second)) -> int:
    note("third", p.n)
    return before


@app.job(queue="long")
async def long_async(ctx: Context, n: int, seconds: float) -> int:
    note(f"begin-{ctx.attempt}", n)
    await asyncio.sleep(seconds)
    note("end", n)
    return n


@app.job(queue="long")
def long_sync(ctx: Context, n: int, seconds: float) -> int:
    note(f"begin-{ctx.attempt}", n)
    time.sleep(seconds)
    note("end", n)
    return n
