"""The pipeline: optimise, quantise, pack; each stage on a queue of its own, for workers of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from packhorse import Accepts, App, Choices, Context, File, Params, Permanent, needs
from packhorse_converter import calibration, toolchain
from packhorse_converter.calibration import PictureRefused
from packhorse_converter.comparison import Agreement, compare
from packhorse_converter.toolchain import About, Feed, ModelRefused, Report, Toolchain

app = App("converter", statuses={"pending": "created"})

MOST_IMAGES = 500
MEMORY = "8GB"
"""Of each stage: the largest model that is accepted has 1 GB, and libraries copy it several times."""


class Convert(Params):
    """An ONNX model for an edge NPU: optimised, quantised to int8 and packed for its platform."""

    model: Annotated[File, Accepts(".onnx", size="1GB")]
    ref_images: Annotated[
        list[Annotated[File, Accepts(".png", ".jpg", ".jpeg", ".bmp", ".webp", size="20MB", content=False)]],
        Meta(max_length=MOST_IMAGES),
    ] = []  # noqa: RUF012 (msgspec copies it)
    model_id: Annotated[int, Meta(ge=1, le=65_535)] = 1
    version: Annotated[str, Meta(pattern=r"^[0-9A-Za-z._-]{1,16}$")] = "0001"
    platform: Literal["520", "720", "530", "630", "730"] = "520"
    enable_evaluate: bool = False
    enable_sim_fp: bool = False
    enable_sim_fixed: bool = False
    enable_sim_hw: bool = False
    toolchain: Annotated[str, Choices(toolchain.names)] = toolchain.BUILT_IN


class Optimised(msgspec.Struct, frozen=True):
    model: File
    before: Report
    after: Report
    toolchain: str


class Quantised(msgspec.Struct, frozen=True):
    model: File
    calibration: Literal["images", "synthetic"]
    samples: int
    error: Agreement
    """Of the quantised model with the float one, on what it was calibrated with."""
    evaluation: Agreement | None = None
    """The same on the uploaded pictures, or on other noise: none of what it was calibrated with."""
    sim_fp: Agreement | None = None
    """The optimised model with the uploaded one, in floating point."""
    sim_fixed: Agreement | None = None
    """The quantised model, step by step as it is written down, with the float one."""


class Packed(msgspec.Struct, frozen=True):
    model: File
    platform: str
    model_id: int
    version: str
    toolchain: str
    toolchain_version: str
    report: Report
    calibration: str
    error: Agreement
    evaluation: Agreement | None = None
    sim_fp: Agreement | None = None
    sim_fixed: Agreement | None = None
    sim_hw: Agreement | None = None
    """The model read back from the packed file, in whole numbers, with the quantised one."""


convert = app.pipeline(
    "convert",
    Convert,
    one_per="user",
    keep="7d",
    outputs={"onnx_path": "onnx", "bie_path": "bie", "nef_path": "nef"},
    result_name="{source}{suffix}",
    downloads={
        "per": "key",
        "at_once": 10,
        "per_10s": 5,
        "per_minute": 20,
        "bytes_per_hour": "1GB",
        "bytes_per_day": "6GB",
    },
)


@contextmanager
def _refusals() -> Iterator[None]:
    """What is wrong with a model or a picture is no better in another attempt."""
    try:
        yield
    except PictureRefused as error:
        raise Permanent(str(error), code="INVALID_REFERENCE") from error
    except ModelRefused as error:
        raise Permanent(str(error), code="INVALID_MODEL") from error


@convert.stage(queue="onnx", timeout="10m", weight=2, memory=MEMORY)
@_refusals()
def onnx(ctx: Context, p: Convert) -> Optimised:
    out = ctx.scratch / "out.onnx"
    before, after = _tools(p).optimise(p.model.path, out)
    ctx.log.info("%d nodes became %d, %d parameters", before.nodes, after.nodes, after.parameters)
    return Optimised(File(out), before, after, p.toolchain)


@convert.stage(queue="bie", timeout="30m", weight=5, memory=MEMORY)
@_refusals()
def bie(ctx: Context, p: Convert, optimised: Optimised = needs(onnx)) -> Quantised:
    tools, out = _tools(p), ctx.scratch / "out.bie"
    calibrating, evaluating = _split_feeds(p, optimised.after)
    source = ctx.scratch / "in.onnx"
    shutil.copyfile(optimised.model.path, source)
    ctx.progress(0, 4, f"calibrating with {len(calibrating)} samples")
    tools.quantise(source, calibrating, out)
    ctx.progress(1, 4, "measuring the error")
    exact, quantised = tools.runner(source), tools.runner(out)
    error = compare(quantised, exact, calibrating)
    ctx.log.info("%.1f dB, %.1f %% of the samples have the same answer", error.sqnr_db, error.top1 * 100)
    made = Quantised(File(out), "images" if p.ref_images else "synthetic", len(calibrating), error)
    ctx.progress(2, 4, "simulating")
    return msgspec.structs.replace(
        made,
        evaluation=compare(quantised, exact, evaluating) if p.enable_evaluate else None,
        sim_fp=compare(exact, tools.runner(p.model.path, exactly=True), evaluating) if p.enable_sim_fp else None,
        sim_fixed=compare(tools.runner(out, exactly=True), exact, evaluating) if p.enable_sim_fixed else None,
    )


@convert.stage(queue="nef", timeout="10m", memory=MEMORY)
@_refusals()
def nef(ctx: Context, p: Convert, quantised: Quantised = needs(bie), optimised: Optimised = needs(onnx)) -> Packed:
    tools, out = _tools(p), ctx.scratch / "out.nef"
    tools.pack(quantised.model.path, About(int(p.platform), p.model_id, p.version, p.toolchain), out)
    _, evaluating = _split_feeds(p, optimised.after)
    sim_hw = None
    if p.enable_sim_hw:
        sim_hw = compare(tools.packed_runner(out), tools.runner(quantised.model.path), evaluating)
    return Packed(
        File(out, name=f"{Path(p.model.name).stem}.nef"),
        p.platform,
        p.model_id,
        p.version,
        p.toolchain,
        tools.version,
        optimised.after,
        quantised.calibration,
        quantised.error,
        quantised.evaluation,
        quantised.sim_fp,
        quantised.sim_fixed,
        sim_hw,
    )


def _tools(p: Convert) -> Toolchain:
    return toolchain.toolchains()[p.toolchain]


def _split_feeds(p: Convert, report: Report) -> tuple[Sequence[Feed], Sequence[Feed]]:
    """Inputs for the calibration, and inputs for the evaluation."""
    if p.ref_images:
        pictures = calibration.picture_feeds([image.path for image in p.ref_images], report.inputs)
        return pictures, pictures
    noise = calibration.noise_feeds(report.inputs, 2 * calibration.SYNTHETIC)
    return noise[: calibration.SYNTHETIC], noise[calibration.SYNTHETIC :]
