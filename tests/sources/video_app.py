"""Two processors of the video app that only count frames: what the document says about jobs, without the analysis."""

from __future__ import annotations

import os
import time
from pathlib import Path

from packhorse import App, Context, File, Params, needs

app = App("video")
FRAMES = 14315


class Analyse(Params):
    video: File
    is_broken: bool = False


analyse = app.pipeline("analyse", Analyse, keep="24h")


@analyse.stage(queue="cut")
def cut(ctx: Context, p: Analyse) -> dict[str, int]:
    print("looking for cuts")
    return {"cuts": 3}


@analyse.stage(queue="yolo", retries=0)
def yolo(ctx: Context, p: Analyse, found: dict[str, int] = needs(cut)) -> File:
    ctx.progress(5000, FRAMES, "Processing frame 5000")
    while not Path(os.environ["GATE"]).exists():
        time.sleep(0.02)
    if p.is_broken:
        raise ValueError("The frame cannot be read.")
    ctx.progress(FRAMES, FRAMES, f"Processing frame {FRAMES}")
    out = ctx.scratch / "yolo.json"
    out.write_text("{}")
    return File(out)
