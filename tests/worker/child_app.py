"""The app of the children in tests: stages that end in unusual ways, each as a plain function and as a coroutine."""

from __future__ import annotations

import asyncio
import os
import time

from packhorse import App, Context, Params

app = App("children")


class Word(Params):
    word: str = ""


plain = app.pipeline("plain", Word)
aside = app.pipeline("aside", Word)


@plain.stage(name="echo")
def echo(ctx: Context, p: Word) -> str:
    ctx.progress(1, 2, "halfway")
    ctx.progress(2, 2, "there")
    print(f"printed {p.word}")
    return p.word


@aside.stage(name="echo")
async def echo_aside(ctx: Context, p: Word) -> str:
    ctx.progress(1, 2, "halfway")
    ctx.progress(2, 2, "there")
    print(f"printed {p.word}")
    return p.word


@aside.stage(name="halves")
async def halves(ctx: Context, p: Word) -> str:
    print("a line")
    print("half a line", end="")
    return p.word


@plain.stage(name="breaks")
def breaks(ctx: Context, p: Word) -> str:
    raise ValueError("caf\udce9")


@aside.stage(name="breaks")
async def breaks_aside(ctx: Context, p: Word) -> str:
    raise ValueError("caf\udce9")


@plain.stage(name="leaves")
def leaves(ctx: Context, p: Word) -> str:
    raise SystemExit(3)


@aside.stage(name="leaves")
async def leaves_aside(ctx: Context, p: Word) -> str:
    raise SystemExit(3)


@plain.stage(name="stays")
def stays(ctx: Context, p: Word) -> str:
    ctx.progress(1)
    time.sleep(600)
    return "woke up"


@aside.stage(name="stays")
async def stays_aside(ctx: Context, p: Word) -> str:
    ctx.progress(1)
    await asyncio.sleep(600)
    return "woke up"


def fork(ctx: Context, word: str) -> str:
    """Both processes come back from here; the fork does so first, or raises."""
    pid = os.fork()
    if pid == 0:
        ctx.progress(1, 2, "from the fork")
        if word == "raises":
            raise ValueError("in the fork")
        if word == "publishes":
            ctx.artifact("from-the-fork", b"")
        if word == "forks":
            if (second := os.fork()) == 0:
                os._exit(0)
            os.waitpid(second, 0)
        return "from the fork"
    _, status = os.waitpid(pid, 0)
    return f"the fork ended with {os.waitstatus_to_exitcode(status)}"


@plain.stage(name="forks")
def forks(ctx: Context, p: Word) -> str:
    return fork(ctx, p.word)


@aside.stage(name="forks")
async def forks_aside(ctx: Context, p: Word) -> str:
    return fork(ctx, p.word)
