"""Pipelines as a team would write them: three stages in a row, a fan-out with a fan-in, and functions as jobs."""

from __future__ import annotations

import asyncio
import time

from packhorse import App, Context, File, Later, Params, Permanent, each, gather, needs

app = App("edge")


class Convert(Params):
    model: File
    platform: str = "520"


convert = app.pipeline("convert", Convert, one_per="user", keep="7d", deadline="2h")


@convert.stage(queue="onnx", timeout="10m", stall="1m", retry_on=("timeout",))
def onnx(ctx: Context, p: Convert) -> File:
    for step in ctx.track(["read", "check", "write"], message="checking"):
        ctx.log.info("%s the model", step)
    print("platform", p.platform)
    made = ctx.scratch / "model.onnx"
    made.write_bytes(p.model.read_bytes() + b" checked")
    return File(made)


@convert.stage(queue="bie", retry_on=("timeout",))
async def bie(ctx: Context, p: Convert, model: File = needs(onnx)) -> File:
    await asyncio.sleep(0)
    ctx.progress(1, 1)
    ctx.artifact("table.txt", b"0.5 0.25")
    made = ctx.scratch / "model.bie"
    made.write_bytes(model.read_bytes() + b" quantised")
    return File(made)


@convert.stage(queue="nef")
def nef(ctx: Context, p: Convert, quantised: File = needs(bie)) -> File:
    return quantised


class Split(Params):
    text: str


split = app.pipeline("split", Split)


@split.stage
def words(ctx: Context, p: Split) -> list[str]:
    return p.text.split()


@split.stage
def lengths(ctx: Context, p: Split, word: str = each(words)) -> int:
    return len(word)


@split.stage
async def total(ctx: Context, p: Split, all: list[int] = gather(lengths)) -> int:
    return sum(all)


@app.job
def add(a: int, b: int = 1) -> int:
    return a + b


@app.job(retries=1)
async def poll(ctx: Context, url: str) -> str | Later:
    if url == "http://gone":
        raise Permanent("There is nothing there.", code="GONE")
    return url


@app.job(backoff="10ms")
def flaky(ctx: Context, times: int) -> list[int]:
    ctx.log.warning("attempt %d", ctx.attempt)
    ctx.artifact(f"{ctx.attempt}.txt", b"tried")
    if ctx.attempt <= times:
        raise ValueError(ctx.attempt)
    return [ctx.attempt]


@app.job
def endless(ctx: Context) -> None:
    try:
        while True:
            ctx.progress(1)
            time.sleep(0.01)
    finally:
        print("cancelled:", ctx.cancelled)


@app.job
async def a_endless(ctx: Context) -> None:
    try:
        while True:
            ctx.progress(1)
            await asyncio.sleep(0.01)
    finally:
        print("cancelled:", ctx.cancelled)
