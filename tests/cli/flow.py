"""The app that the command line is tested with. `packhorse dev` gets a copy, so that a test may change it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from packhorse import App, Context, File, Params, Permanent, Secret, each, gather

app = App("flow")

VERSION = "one"


class Copy(Params):
    """Copies files."""

    files: list[File]
    times: int = 1
    shout: bool = False


copy = app.pipeline("copy", Copy)


@copy.stage
def read(ctx: Context, p: Copy) -> list[str]:
    print(f"reading {len(p.files)} files")
    return [file.read_text() for file in p.files]


@copy.stage
def change(ctx: Context, p: Copy, text: str = each(read)) -> str:
    ctx.progress(1, 2, "halfway")
    print(f"changing {text}")
    return text.upper() if p.shout else text


@copy.stage
def write(ctx: Context, p: Copy, texts: list[str] = gather(change)) -> File:
    (ctx.scratch / "copy.txt").write_text("\n".join(texts * p.times))
    return File(ctx.scratch / "copy.txt")


@app.job
def greet(name: str, tags: list[str] = [], loud: bool = False) -> dict[str, Any]:  # noqa: B006
    """Says hello."""
    return {"hello": name, "tags": tags, "loud": loud, "version": VERSION}


@app.job
def unlock(key: Secret) -> int:
    return len(key.reveal())


@app.job
def fail(why: str) -> None:
    print("about to fail")
    raise Permanent(why, code="ASKED_FOR")


@app.job
def chatter(long: int = 10) -> None:
    print("from windows\r")
    print("10 %\r50 %\r100 %")
    print("x" * long)
    print("the end")


@app.job
def halfway(ctx: Context, flag: str) -> None:
    """Until the file is there."""
    ctx.artifact("notes/first.txt", b"half")
    ctx.progress(1, 2, "halfway")
    while not Path(flag).exists():
        time.sleep(0.02)


@app.job
def wait(flag: str) -> str:
    """Until the file is there. Tells which code it runs."""
    Path(f"{flag}.awaited").touch()
    while not Path(flag).exists():
        time.sleep(0.02)
    return VERSION
