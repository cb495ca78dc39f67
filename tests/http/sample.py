"""An app for the tests of the HTTP interface: files in and out, values, failures, and jobs that take their time."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Literal

from packhorse import Accepts, App, Choices, Context, File, Params, Permanent, Secret, needs

app = App("sample")


class Convert(Params):
    model: File
    ref_images: list[File] = []  # noqa: RUF012 (msgspec copies it)
    platform: Literal["520", "720"] = "520"
    enable_evaluate: bool = False
    version: int = 1
    note: str | None = None
    labels: list[str] = []  # noqa: RUF012 (msgspec copies it)


convert = app.pipeline("convert", Convert, one_per="user", description="Model to model")


@convert.stage(queue="onnx")
def onnx(ctx: Context, p: Convert) -> File:
    print("converting", p.model.name)
    out = ctx.scratch / "model.onnx"
    out.write_bytes(p.model.read_bytes())
    ctx.artifact("report.txt", b"fine")
    return File(out)


@convert.stage(queue="nef")
def nef(ctx: Context, p: Convert, model: File = needs(onnx)) -> File:
    out = ctx.scratch / "out.bin"
    out.write_bytes(model.read_bytes() + p.platform.encode())
    return File(out, name=p.note or "out.nef")


class Split(Params):
    text: Annotated[File, Accepts(path="text_path")]


split = app.pipeline("split", Split)


@split.stage
def words(ctx: Context, p: Split) -> list[File]:
    made = []
    for i, word in enumerate(p.text.read_text().split()):
        path = ctx.scratch / f"{i}.txt"
        path.write_text(word)
        made.append(File(path, name=f"{word}.txt"))
    return made


class Hold(Params):
    seconds: float = 0.0
    lines: int = 0
    gate: str = ""


hold = app.pipeline("hold", Hold)


@hold.stage(retries=0)
def wait(ctx: Context, p: Hold) -> float:
    for i in range(p.lines):
        print("line", i)
    while p.gate and not Path(p.gate).exists():
        time.sleep(0.02)
    steps = max(1, round(p.seconds / 0.05))
    for i in range(steps):
        ctx.progress(i + 1, steps, f"step {i + 1}")
        time.sleep(p.seconds / steps)
    return p.seconds


class Picture(Params):
    image: Annotated[File, Accepts(".png", "image/jpeg", size="1KB")]
    notes: list[Annotated[File, Accepts("text/*", size=100)]] = []  # noqa: RUF012 (msgspec copies it)


picture = app.pipeline("picture", Picture)


@picture.stage
def look(ctx: Context, p: Picture) -> File:
    (ctx.scratch / "seen.png").write_bytes(p.image.read_bytes()[::-1])
    return File(ctx.scratch / "seen.png")


def voices() -> list[str]:
    return ["amy", "bob"]


@app.job
def speak(voice: Annotated[str, Choices(voices)] = "amy") -> str:
    return voice


@app.job
def log_in(name: str, password: Secret, proxy: Secret | None = None) -> str:
    return f"{name} {len(password.reveal())} {proxy is None}"


@app.job
def add(a: int, b: int = 0) -> int:
    return a + b


@app.job(retries=0)
def fail(message: str) -> None:
    raise Permanent(message, code="NO_LUCK")
