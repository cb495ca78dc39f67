"""An app whose pipelines take everything that a form can hold, and say what nobody should."""

from __future__ import annotations

import time
from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from packhorse import Accepts, App, Context, File, Params, Secret

HOSTILE = '"><img src=x onerror=alert(1)><script>alert(2)</script>'

app = App("forms")


class Size(Struct):
    width: int
    height: int = 1


class Everything(Params):
    image: Annotated[File, Accepts(".png", "image/jpeg", size="1MB")]
    text: str
    notes: list[File] = []  # noqa: RUF012 (msgspec copies it)
    title: str = "Untitled"
    remark: str | None = None
    pages: Annotated[int, Meta(ge=1, le=9, description=f"How many. {HOSTILE}")] = 2
    share: float | None = None
    is_public: bool = True
    is_final: bool = False
    is_known: bool | None = None
    colour: Literal["red", "green"] = "red"
    labels: list[str] = []  # noqa: RUF012 (msgspec copies it)
    numbers: list[int] = []  # noqa: RUF012 (msgspec copies it)
    size: Size | None = None
    password: Secret | None = None


everything = app.pipeline("everything", Everything, description=f"All of it. {HOSTILE}")


@everything.stage
def take(ctx: Context, p: Everything) -> dict[str, Any]:
    ctx.log.info("taken")
    found = {name: getattr(p, name) for name in p.__struct_fields__}
    files = {"image": p.image.name, "notes": [each.name for each in p.notes], "bytes": len(p.image.read_bytes())}
    return {**found, **files, "password": None if p.password is None else len(p.password.reveal())}


class Alone(Params):
    text: File
    seconds: float = 0.0


alone = app.pipeline("alone", Alone, one_per="user")


@alone.stage
def wait(ctx: Context, p: Alone) -> int:
    for i in range(100):
        ctx.progress(i, 100)
        time.sleep(p.seconds / 100)
    return len(p.text.read_bytes())
