"""The converter's pipeline with stages that copy the model: what the documents say about jobs, and no conversion."""

from __future__ import annotations

import os
import time
from pathlib import Path

from packhorse import App, Context, File, Params, needs

app = App("converter")


class Convert(Params):
    model: File
    ref_images: list[File] = []  # noqa: RUF012 (msgspec copies it)
    model_id: int = 1
    version: str = "0001"
    platform: str = "520"
    enable_evaluate: bool = False
    enable_sim_fp: bool = False
    enable_sim_fixed: bool = False
    enable_sim_hw: bool = False


convert = app.pipeline("convert", Convert, one_per="user", outputs={"nef_path": "nef"})


def _copy(ctx: Context, model: File, name: str) -> File:
    out = ctx.scratch / name
    out.write_bytes(model.read_bytes())
    return File(out)


@convert.stage(queue="onnx")
def onnx(ctx: Context, p: Convert) -> File:
    return _copy(ctx, p.model, "out.onnx")


@convert.stage(queue="bie", retries=0)
def bie(ctx: Context, p: Convert, model: File = needs(onnx)) -> File:
    if p.platform == "none":
        raise ValueError("There is no such platform.")
    ctx.progress(1, 4, "quantising")
    while not Path(os.environ["GATE"]).exists():
        time.sleep(0.02)
    return _copy(ctx, model, "out.bie")


@convert.stage(queue="nef")
def nef(ctx: Context, p: Convert, model: File = needs(bie)) -> File:
    return _copy(ctx, model, "out.nef")
