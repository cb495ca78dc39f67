"""The pipeline: optimise, quantise, pack; each stage on a queue of its own, for workers of its own."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Literal, NamedTuple

import msgspec
from msgspec import Meta

from packhorse import Accepts, App, Choices, Context, File, Params, Permanent, needs
from packhorse_converter import preprocessing, samples, toolchain
from packhorse_converter.comparison import Agreement, compare
from packhorse_converter.preprocessing import Given, Layout, Order, PictureRefused, Preprocessing, Unfit
from packhorse_converter.toolchain import (
    About,
    Check,
    Feed,
    Method,
    ModelRefused,
    Options,
    Quantisation,
    Report,
    Runner,
    Toolchain,
)

app = App(
    "converter",
    statuses={"pending": "created", "running:onnx": "ONNX", "running:bie": "BIE", "running:nef": "NEF"},
)

MOST_IMAGES = 500
MEMORY = "8GB"
"""Of each stage: the largest model that is accepted has 1 GB, and libraries copy it several times."""
REFERENCED = 2
"""Samples that the reference for integer arithmetic computes: it is far slower than the runtime."""
ENOUGH = 8
"""Samples for the evaluation; with fewer, the verdict comes with a warning."""

TOOLCHAINS = Choices(toolchain.names)
Number = Annotated[float, Meta(ge=-65_536, le=65_536)]
Factor = Annotated[float, Meta(gt=0, le=65_536)]
Size = Annotated[int, Meta(ge=1, le=65_536)]


class Convert(Params):
    """Converts an ONNX model for an edge NPU: optimises it, quantises it to int8 and packs it for the platform."""

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
    toolchain: Annotated[str, TOOLCHAINS] = toolchain.BUILT_IN
    mean: Annotated[list[Number], Meta(min_length=1, max_length=3)] | None = None
    """Subtracted from each pixel (0 to 255): one value, or one per channel in the order of the model's channels."""
    scale: Annotated[list[Factor], Meta(min_length=1, max_length=3)] | None = None
    """Multiplied after that. Without mean and scale, pixels are scaled to 0 to 1; with only a mean, it is 1."""
    channel_order: Order | None = None
    layout: Layout | None = None
    input_shape: Annotated[list[Size], Meta(min_length=1, max_length=6)] | None = None
    """For a model that leaves height and width open, in the order of the model's dimensions."""
    calibration: Method = "auto"
    float_layers: Annotated[int, Meta(ge=0, le=16)] = 0
    """How many of the most sensitive layers may stay in floating point."""


class Optimised(msgspec.Struct, frozen=True):
    model: File
    before: Report
    after: Report
    toolchain: str
    preprocessing: Preprocessing | None = None
    warnings: list[str] = []


class Images(msgspec.Struct, frozen=True):
    """Names of the reference images by what they were used for."""

    calibration: list[str]
    selection: list[str]
    """To choose between calibration methods and to find sensitive layers."""
    evaluation: list[str]
    """To measure the result."""


class Quantised(msgspec.Struct, frozen=True):
    model: File
    calibration: Literal["images", "synthetic"]
    samples: int
    quantisation: Quantisation
    error: Agreement | None
    """Of the quantised model with the float one, on samples that it was calibrated with."""
    images: Images | None = None
    evaluation: Agreement | None = None
    """The same on samples that had no part in the quantisation."""
    sim_fp: Agreement | None = None
    """The optimised model with the uploaded one, in floating point."""
    sim_fixed: Agreement | None = None
    """The quantised model, step by step as it is written down, with the float one."""
    warnings: list[str] = []


class IntegerReport(msgspec.Struct, frozen=True):
    """How a packed model ran in integer arithmetic."""

    integer_operators: dict[str, int]
    """What ran with int8 inputs, from the runtime's profile."""
    float_operators: dict[str, int]
    check: Check
    """The runtime's integer operators, one by one, against an independent implementation."""
    reference: Agreement
    """The whole model in the runtime against the same implementation."""


class Packed(msgspec.Struct, frozen=True):
    model: File
    platform: str
    model_id: int
    version: str
    toolchain: str
    toolchain_version: str
    report: Report
    calibration: str
    quantisation: Quantisation
    error: Agreement | None
    verdict: Literal["good", "degraded", "unusable", "not measured"]
    """Of the evaluation, or of the error if there was no evaluation."""
    preprocessing: Preprocessing | None = None
    images: Images | None = None
    evaluation: Agreement | None = None
    sim_fp: Agreement | None = None
    sim_fixed: Agreement | None = None
    sim_hw: Agreement | None = None
    """The model read back from the packed file, with integer operators, with the quantised one."""
    integer: IntegerReport | None = None
    warnings: list[str] = []


convert = app.pipeline(
    "convert",
    Convert,
    one_per="user",
    keep="7d",
    outputs={"onnx_path": "onnx", "bie_path": "bie", "nef_path": "nef"},
    has_output=True,
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
    """What is wrong with a model, a picture or a parameter is no better in another attempt."""
    try:
        yield
    except PictureRefused as error:
        raise Permanent(str(error), code="INVALID_REFERENCE") from error
    except Unfit as error:
        raise Permanent(str(error), code="INVALID_PARAMETERS") from error
    except ModelRefused as error:
        raise Permanent(str(error), code=error.code) from error


@convert.stage(queue="onnx", timeout="10m", weight=2, memory=MEMORY)
@_refusals()
def onnx(ctx: Context, p: Convert) -> Optimised:
    out = ctx.scratch / "out.onnx"
    made = _tools(p).optimise(p.model.path, out, _options(p))
    how = preprocessing.plan(made.after.inputs, Given(p.mean, p.scale, p.channel_order, p.layout))
    if how is None and p.ref_images:
        raise PictureRefused("The model takes no pictures, so it cannot be calibrated with any: leave ref_images out.")
    warnings = [*made.warnings, *(preprocessing.warn(how) if how is not None else [])]
    for warning in warnings:
        ctx.log.warning("%s", warning)
    ctx.log.info("%d nodes became %d, %d parameters", made.before.nodes, made.after.nodes, made.after.parameters)
    return Optimised(File(out), made.before, made.after, p.toolchain, how, warnings)


@convert.stage(queue="bie", timeout="30m", weight=5, memory=MEMORY)
@_refusals()
def bie(ctx: Context, p: Convert, optimised: Optimised = needs(onnx)) -> Quantised:
    tools, out = _tools(p), ctx.scratch / "out.bie"
    parts = _split_feeds(p, optimised)
    source = ctx.scratch / "in.onnx"
    shutil.copyfile(optimised.model.path, source)
    ctx.progress(0, 4, f"calibrating with {len(parts.calibration)} samples")
    made = tools.quantise(source, parts.calibration, parts.selection, out, _options(p))
    ctx.progress(1, 4, "measuring the error")
    exact, quantised = tools.runner(source), tools.runner(out)
    error = _compare(quantised, exact, parts.calibration, optimised)
    evaluation = _compare(quantised, exact, parts.evaluation, optimised) if p.enable_evaluate else None
    ctx.progress(2, 4, "simulating")
    uploaded = tools.runner(p.model.path, exactly=True) if p.enable_sim_fp else None
    fixed = tools.runner(out, exactly=True) if p.enable_sim_fixed else None
    warnings = [*made.warnings, *_warnings(p, parts, evaluation or error)]
    for warning in warnings:
        ctx.log.warning("%s", warning)
    return Quantised(
        File(out),
        "images" if p.ref_images else "synthetic",
        len(parts.calibration),
        made,
        error,
        images=parts.images,
        evaluation=evaluation,
        sim_fp=_compare(exact, uploaded, parts.evaluation, optimised),
        sim_fixed=_compare(fixed, exact, parts.evaluation, optimised),
        warnings=warnings,
    )


@convert.stage(queue="nef", timeout="10m", memory=MEMORY)
@_refusals()
def nef(ctx: Context, p: Convert, quantised: Quantised = needs(bie), optimised: Optimised = needs(onnx)) -> Packed:
    tools, out = _tools(p), ctx.scratch / "out.nef"
    about = About(int(p.platform), p.model_id, p.version, p.toolchain, optimised.preprocessing)
    tools.pack(quantised.model.path, about, out)
    sim_hw, integer = _simulate(p, tools, out, quantised, optimised) if p.enable_sim_hw else (None, None)
    measured = quantised.evaluation or quantised.error
    return Packed(
        File(out),
        p.platform,
        p.model_id,
        p.version,
        p.toolchain,
        tools.version,
        optimised.after,
        quantised.calibration,
        quantised.quantisation,
        quantised.error,
        "not measured" if measured is None else measured.verdict,
        optimised.preprocessing,
        quantised.images,
        quantised.evaluation,
        quantised.sim_fp,
        quantised.sim_fixed,
        sim_hw,
        integer,
        [*optimised.warnings, *quantised.warnings],
    )


def _tools(p: Convert) -> Toolchain:
    return toolchain.toolchains()[p.toolchain]


def _options(p: Convert) -> Options:
    return Options(p.input_shape, p.calibration, p.float_layers)


def _simulate(
    p: Convert, tools: Toolchain, packed: Path, quantised: Quantised, optimised: Optimised
) -> tuple[Agreement | None, IntegerReport | None]:
    hardware = tools.integer_run(packed)
    if hardware is None:
        return None, None
    feeds = _split_feeds(p, optimised).evaluation
    sim_hw = _compare(hardware.run, tools.runner(quantised.model.path, exactly=True), feeds, optimised)
    reference = _compare(hardware.run, hardware.reference, feeds[:REFERENCED], optimised)
    assert reference is not None
    return sim_hw, IntegerReport(*hardware.operators(), hardware.check(feeds[0]), reference)


def _compare(
    run: Runner | None, expected: Runner | None, feeds: Sequence[Feed], optimised: Optimised
) -> Agreement | None:
    if run is None or expected is None:
        return None
    names = [each.name for each in optimised.after.outputs]
    how = optimised.preprocessing
    return compare(run, expected, feeds, names, None if how is None else (how.height, how.width))


class _Parts(NamedTuple):
    calibration: Sequence[Feed]
    selection: Sequence[Feed]
    evaluation: Sequence[Feed]
    images: Images | None


def _split_feeds(p: Convert, optimised: Optimised) -> _Parts:
    inputs, how = optimised.after.inputs, optimised.preprocessing
    if not p.ref_images or how is None:
        count = samples.SYNTHETIC
        numbers = [range(count), range(count, count + count // 2), range(2 * count, 3 * count)]
        first, second, third = (samples.synthetic_feeds(inputs, each, how) for each in numbers)
        return _Parts(first, second, third, None)
    parts = samples.split(len(p.ref_images))
    paths = [image.path for image in p.ref_images]
    names = Images(*([p.ref_images[i].name for i in each] for each in parts))
    first, second, third = (samples.picture_feeds(paths, each, inputs, how) for each in parts)
    return _Parts(first, second, third, names)


def _warnings(p: Convert, parts: _Parts, measured: Agreement | None) -> list[str]:
    found = []
    if parts.images is None:
        found.append(
            "Calibrated and measured with made-up samples: send ref_images for a result that can be relied on."
        )
    elif len(p.ref_images) < 2:
        found.append("The only reference image was used to calibrate and to measure: send more.")
    elif p.enable_evaluate and len(parts.evaluation) < ENOUGH:
        found.append(f"The evaluation has only {len(parts.evaluation)} images; send more for a firm verdict.")
    if measured is not None and measured.verdict != "good":
        worst = min(measured.outputs, key=lambda each: each.sqnr_db)
        found.append(f"The quantised model is {measured.verdict}: output {worst.name!r} has {worst.sqnr_db} dB.")
    return found
