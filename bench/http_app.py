"""The app behind the measured server: one pipeline whose result is the file it was given."""

from __future__ import annotations

from packhorse import App, Context, File, Params

app = App("http")


class Kept(Params):
    data: File


keep = app.pipeline("keep", Kept)


@keep.stage
def keeping(_ctx: Context, p: Kept) -> File:
    return p.data


@app.job
def add(a: int, b: int = 0) -> int:
    return a + b
