"""An app for the tests of the pages: goes on when a test lets it, says what it is told to, makes files to see."""

from __future__ import annotations

import json
import time
import wave
from base64 import b64decode
from pathlib import Path
from typing import Any

import av
import numpy as np

from packhorse import App, Context, File, Params, Permanent, each, needs

app = App("shown")


def filmed(path: Path) -> None:
    """A second of ten pictures."""
    with av.open(str(path), "w") as film:
        track = film.add_stream("libvpx", rate=10)
        track.width, track.height, track.pix_fmt = 64, 48, "yuv420p"
        for shade in range(10):
            picture = np.full((48, 64, 3), 20 * shade, np.uint8)
            film.mux(track.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        film.mux(track.encode())


PNG = b64decode("iVBORw0KGgoAAAANSUhEUgAAAAgAAAAICAIAAABLbSncAAAAEklEQVR4nGP4z8CAFWEXHbQSACj/P8Fu7N9hAAAAAElFTkSuQmCC")
HOSTILE = {
    "evil.svg": '<svg xmlns="http://www.w3.org/2000/svg" onload="hacked=1"><script>window.hacked=1</script></svg>',
    "evil.html": "<!doctype html><script>window.hacked=1; document.title='hacked'</script><img src=x onerror=hacked=1>",
}


class Steps(Params):
    gate: str = ""
    """A path: `prepare` waits for it with .1 at its end, `finish_up` with .2."""
    note: str = ""
    mend: str = ""
    """A path: without it `finish_up` fails."""
    lines: int = 3


steps = app.pipeline("steps", Steps, description="Two stages")


@steps.stage
def prepare(ctx: Context, p: Steps) -> int:
    for n in range(p.lines):
        print("preparing", n, p.note)
    ctx.progress(1, 4, f"ready to go {p.note}")
    passed(p.gate, ".1")
    ctx.progress(3, 4, "nearly there")
    return 1


@steps.stage(retries=0)
def finish_up(ctx: Context, p: Steps, done: int = needs(prepare)) -> dict[str, Any]:
    print("finishing", p.note)
    ctx.progress(1, 2, "half way")
    passed(p.gate, ".2")
    if p.mend and not Path(p.mend).exists():
        raise Permanent(f"It is broken. {p.note}", code="NO_LUCK")
    return {"done": done, "note": p.note}


def passed(gate: str, which: str) -> None:
    """A minute at most: a test that has failed lets nobody through."""
    end = time.monotonic() + 60
    while gate and not Path(gate + which).exists() and time.monotonic() < end:
        time.sleep(0.02)


class Media(Params):
    note: str = ""
    source: File | None = None


media = app.pipeline("media", Media)


@media.stage(name="draw")
def draw(ctx: Context, p: Media) -> list[File]:
    made = {
        "picture.png": PNG,
        "notes.txt": f"first line {p.note}\n".encode() + b"more\n" * 20_000,
        "data.json": json.dumps({"note": p.note, "numbers": [1, 2]}).encode(),
        **{name: text.encode() for name, text in HOSTILE.items()},
    }
    for name, body in made.items():
        (ctx.scratch / name).write_bytes(body)
    with wave.open(str(ctx.scratch / "sound.wav"), "wb") as sound:
        sound.setnchannels(1)
        sound.setsampwidth(2)
        sound.setframerate(8000)
        sound.writeframes(b"\0\0" * 8000)
    filmed(ctx.scratch / "film.webm")
    if p.note:
        (ctx.scratch / "plain").write_text("x")
        return [File(ctx.scratch / "plain", name=p.note.replace("/", "_"))]
    return [File(ctx.scratch / name) for name in (*made, "sound.wav", "film.webm")]


class Nearly(Params):
    count: int = 3


nearly = app.pipeline("nearly", Nearly, description="Fails at its very end")


@nearly.stage
def begin(ctx: Context, p: Nearly) -> list[int]:
    return list(range(p.count))


@nearly.stage(retries=0)
def end(ctx: Context, p: Nearly, number: int = each(begin)) -> int:
    """Each goes through all of it; the last one fails then."""
    for _ in ctx.track(range(5)):
        time.sleep(0.02)
    if number == p.count - 1:
        raise Permanent("So near.", code="NO_LUCK")
    return number


@app.job(retries=0)
def fail(message: str) -> None:
    raise RuntimeError(message)


@app.job
def add(a: int, b: int = 0) -> int:
    return a + b
