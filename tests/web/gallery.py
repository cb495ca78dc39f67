"""An app for screenshots: graphs, fan-outs of any size, long logs, results of every kind, and failures."""

from __future__ import annotations

import asyncio
import csv
import random
import time
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from PIL import Image

from packhorse import Accepts, App, Context, File, Params, Permanent, Skip, each, gather, needs

app = App("studio")

UNSUPPORTED = "Operator NonMaxSuppression of node detect/nms_3 is not supported by platform 730."
WIDTH = 20_000  # elements a stage may have


def passed(gate: str) -> None:
    """Waits for the file, ten minutes at most."""
    end = time.monotonic() + 600
    while gate and not Path(gate).exists() and time.monotonic() < end:
        time.sleep(0.1)


def picture(path: Path, seed: int, width: int = 960, height: int = 540) -> Path:
    """Hills under a sky, of other colours for each seed."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    sky = np.stack([0.55 + 0.4 * y, 0.65 + 0.2 * y, 0.85 - 0.1 * y], axis=-1)
    for layer in range(4):
        edge = 0.45 + 0.12 * layer + 0.06 * np.sin(6 * x + seed + layer) + 0.03 * np.sin(17 * x + 3 * seed * layer)
        shade = np.array([0.35, 0.45 + 0.03 * (seed % 5), 0.5]) * (1 - layer / 5)
        sky = np.where((y > edge)[..., None], shade, sky)
    Image.fromarray((255 * sky.clip(0, 1)).astype(np.uint8)).save(path)
    return path


class Convert(Params):
    model: Annotated[File, Accepts(".onnx", ".txt")]
    platform: Literal["520", "720", "730"] = "720"
    evaluate: bool = True
    order: int = 0


convert = app.pipeline("convert", Convert, description="Convert an ONNX model", search=("order", "platform"))


@convert.stage
def validate(ctx: Context, p: Convert) -> int:
    print(f"INFO checking {p.model.name}: 53 operators, opset 17")
    return 53


@convert.stage
def optimize(ctx: Context, p: Convert, operators: int = needs(validate)) -> File:
    for n in ctx.track(range(operators)):
        print(f"DEBUG folded constant {n}")
        time.sleep(0.004)
    (ctx.scratch / "optimized.onnx").write_bytes(b"\x08\x07" * 60_000)
    return File(ctx.scratch / "optimized.onnx")


@convert.stage
def quantize(ctx: Context, p: Convert, model: File = needs(optimize)) -> File:
    print("\x1b[33mWARNING\x1b[0m layer conv_12 clips 0.3 % of its activations")
    print("INFO calibrated with \x1b[1m64\x1b[0m images in \x1b[36m1.2 s\x1b[0m")
    (ctx.scratch / "model.nef").write_bytes(b"\x01\x02" * 21_000)
    return File(ctx.scratch / "model.nef", name=f"{Path(p.model.name).stem}.nef")


@convert.stage
def evaluate(ctx: Context, p: Convert, model: File = needs(quantize)) -> dict[str, Any]:
    if not p.evaluate:
        return {}
    return {"top1": 0.7613, "top5": 0.9286, "images": 500}


@convert.stage(retries=0)
def package(ctx: Context, p: Convert, model: File = needs(quantize), score: dict[str, Any] = needs(evaluate)) -> File:
    if p.platform == "730":
        raise Permanent(UNSUPPORTED, code="UNSUPPORTED")
    (ctx.scratch / "out.nef").write_bytes(b"\x03" * 41_500)
    return File(ctx.scratch / "out.nef", name=f"{Path(p.model.name).stem}.nef")


class Render(Params):
    frames: int = 48
    lines: int = 0
    gate: str = ""
    hold: int = 0
    """From this frame on each waits for the gate."""
    broken: list[int] = []  # noqa: RUF012 (msgspec copies it)
    source: File | None = None


render = app.pipeline("render", Render, description="Render every frame of a scene and join them")


@render.stage
def scene(ctx: Context, p: Render) -> list[int]:
    levels = ("DEBUG", "INFO", "INFO", "INFO", "WARNING", "INFO", "\x1b[31mERROR\x1b[0m")
    for n in range(p.lines):
        print(f"{levels[n * n % 7]} texture {n:06} loaded from atlas/{n % 97:02}.exr in {n % 13} ms")
    return list(range(p.frames))


@render.stage
def audio(ctx: Context, p: Render) -> int:
    time.sleep(0.3)
    return 48_000


@render.stage(queue="frames", elements=WIDTH, retries=1, backoff=("10m", "10m"))
async def frame(ctx: Context, p: Render, number: int = each(scene)) -> int:
    if number in p.broken:
        raise RuntimeError(f"Texture atlas/{number % 97:02}.exr is truncated: expected 4194304 bytes, got 2097152")
    while p.gate and number >= p.hold and not Path(p.gate).exists():  # noqa: ASYNC110 (a file)
        await asyncio.sleep(0.2)
    print(f"INFO rendered frame {number}")
    await asyncio.sleep(0.02 + number % 7 / 100)
    return number


@render.stage
def join(ctx: Context, p: Render, frames: list[int] = gather(frame), rate: int = needs(audio)) -> File:
    return File(picture(ctx.scratch / "poster.png", len(frames)))


class Simulate(Params):
    cells: int = 1000
    gate: str = ""
    hold: int = 0
    source: File | None = None


simulate = app.pipeline("simulate", Simulate, description="Flow around a body, cell by cell")


@simulate.stage
def mesh(ctx: Context, p: Simulate) -> list[int]:
    return list(range(p.cells))


@simulate.stage(queue="cells", elements=WIDTH, retries=1, tolerate=0.01, backoff=("10m", "10m"))
async def cell(ctx: Context, p: Simulate, number: int = each(mesh)) -> int:
    if number % 997 == 99:
        raise Permanent(f"Cell {number} diverged after 500 iterations", code="DIVERGED")
    while p.gate and number >= p.hold and not Path(p.gate).exists():  # noqa: ASYNC110 (a file)
        await asyncio.sleep(0.2)
    return number


@simulate.stage
def drag(ctx: Context, p: Simulate, cells: list[Any] = gather(cell)) -> dict[str, float]:
    return {"drag": 0.2841, "lift": -0.0127}


class Album(Params):
    photos: int = 200
    source: File | None = None


album = app.pipeline("album", Album, description="Thumbnails and a contact sheet of an album")


@album.stage
def unpack(ctx: Context, p: Album) -> list[int]:
    return list(range(p.photos))


@album.stage(elements=WIDTH, tolerate=0.1, retries=0)
async def thumbnail(ctx: Context, p: Album, number: int = each(unpack)) -> File:
    if number % 41 == 17:
        raise Permanent(f"IMG_{number:04}.CR2 has no preview", code="NO_PREVIEW")
    picture(ctx.scratch / "t.png", number, 160, 90)
    return File(ctx.scratch / "t.png", name=f"IMG_{number:04}.png")


@album.stage
def faces(ctx: Context, p: Album, photos: list[int] = needs(unpack)) -> dict[str, Any] | Skip:
    return Skip("no faces asked for")


@album.stage
def sheet(ctx: Context, p: Album, thumbnails: list[Any] = gather(thumbnail)) -> File:
    return File(picture(ctx.scratch / "sheet.png", 7))


class Speech(Params):
    recording: File | None = None
    language: Literal["de", "en", "ar"] = "en"
    fails: str = ""


speech = app.pipeline("transcribe", Speech, description="Text and speakers of a recording")


@speech.stage
def decode(ctx: Context, p: Speech) -> float:
    for n in range(40):
        print(f"INFO decoded {n + 1} min")
    return 2400.0


@speech.stage(retries=1, backoff=("200ms", "200ms"))
def recognize(ctx: Context, p: Speech, seconds: float = needs(decode)) -> list[str]:
    if p.fails == "memory":
        raise MemoryError("CUDA out of memory. Tried to allocate 2.37 GiB (GPU 0; 7.79 GiB total capacity)")
    if p.fails:
        raise Permanent(f"The recording has no speech in language {p.language}.", code="NO_SPEECH")
    return ["Good morning, everybody.", "Shall we begin?"]


@speech.stage
def speakers(ctx: Context, p: Speech, seconds: float = needs(decode)) -> list[str]:
    return ["A", "B"]


@speech.stage
def transcript(
    ctx: Context, p: Speech, text: list[str] = needs(recognize), who: list[str] = needs(speakers)
) -> list[File]:
    (ctx.scratch / "transcript.txt").write_text("\n".join(f"{a}: {b}" for a, b in zip(who, text, strict=True)) * 20)
    with (ctx.scratch / "segments.csv").open("w") as out:
        rows = csv.writer(out)
        rows.writerow(["start", "end", "speaker", "text"])
        rows.writerows([n * 3, n * 3 + 2.5, who[n % 2], text[n % 2]] for n in range(60))
    return [File(ctx.scratch / "segments.csv"), File(ctx.scratch / "transcript.txt")]


class Train(Params):
    epochs: int = 3
    dataset: str = "s3://datasets/roads-2026"


train = app.pipeline("train", Train, description="Train on a GPU")


@train.stage(queue="gpu")
def fit(ctx: Context, p: Train) -> float:
    return 0.93


@app.job
def report(day: str = "today", rows: int = 3) -> dict[str, Any]:
    random.seed(rows)
    return {
        "day": day,
        "orders": 1284,
        "revenue": 48_120.5,
        "top": [{"sku": f"A-{n}", "sold": 90 - n} for n in range(rows)],
    }


@app.job(retries=0)
def fetch(url: str) -> str:
    raise Permanent(f"GET {url} returned 503 Service Unavailable after 3 redirects", code="HTTP_503")
