"""The built-in toolchain: ONNX Slim simplifies, ONNX Runtime runs and writes quantised models."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from msgspec.structs import replace

from packhorse_converter import container, graphs, quantiser, samples
from packhorse_converter.integers import Integers
from packhorse_converter.toolchain import (
    About,
    Feed,
    ModelRefused,
    ModelUnsupported,
    Optimisation,
    Options,
    Outputs,
    Quantisation,
    Report,
    Runner,
)

ARENA = 4 * 1024**3
"""Bytes for all tensors of running models: sizes that show only when a model runs are bounded by this."""
OTHER_FLOATS = {"tensor(float16)": np.float16, "tensor(double)": np.float64}
"""Types of an uploaded model's inputs; samples are float32, as the optimised model takes them."""
FLOAT = 1e-6
"""Rounding of float32: outputs may all be close to zero."""
CLOSE = 1e-3
"""Largest difference between the uploaded and the simplified model, as a part of the largest output."""


class OpenToolchain:
    version = f"onnxslim {version('onnxslim')}, onnxruntime {version('onnxruntime')}"

    def optimise(self, model: Path, to: Path, options: Options) -> Optimisation:
        loaded = graphs.load(model)
        before = graphs.report(loaded)
        fixed, warnings = graphs.normalise(loaded, options.input_shape)
        below, feed, expected = _try(fixed)
        warnings += ["Integer inputs are all zero in the samples: other values made the model fail."] * (
            below is not None
        )
        slim = _simplify(fixed)
        if slim is None or not _agrees(slim, feed, expected):
            warnings.append("The model could not be simplified and was converted as it is.")
            slim = onnx.shape_inference.infer_shapes(fixed)
        fused = _fuse(slim)
        if fused is not None and len(fused.graph.node) < len(slim.graph.node) and _agrees(fused, feed, expected):
            slim = fused
        graphs.check_sizes(slim)
        onnx.save(slim, to)
        return Optimisation(before, _limit(graphs.report(slim), below), warnings)

    def quantise(
        self, model: Path, samples: Sequence[Feed], selection: Sequence[Feed], to: Path, options: Options
    ) -> Quantisation:
        made, report = quantiser.quantise(onnx.load(model), samples, selection, load, options)
        onnx.save(made, to)
        return report

    def pack(self, model: Path, about: About, to: Path) -> None:
        container.write(onnx.load(model), about, to)

    def runner(self, model: Path, *, exactly: bool = False) -> Runner:
        return load(model.read_bytes(), exactly=exactly)

    def integer_run(self, packed: Path) -> Integers:
        return Integers(container.read(packed).model, load)


def load(model: bytes, *, exactly: bool = False) -> Runner:
    """Raises `ModelUnsupported` if the runtime cannot run it."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    if _has_arena():
        options.add_session_config_entry("session.use_env_allocators", "1")
    if exactly:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # broad: the library raises anything
        raise ModelUnsupported(f"The runtime cannot load the model: {graphs.first_line(error)}") from error

    other = {each.name: OTHER_FLOATS[each.type] for each in session.get_inputs() if each.type in OTHER_FLOATS}

    def run(feed: Feed) -> Outputs:
        try:
            given = {name: array.astype(other[name]) if name in other else array for name, array in feed.items()}
            outputs: Outputs = session.run(None, given)
        except Exception as error:  # broad: as above
            if "arena" in str(error):
                raise ModelRefused(f"Running the model takes more than {ARENA // 1024**3} GiB.") from error
            raise ModelUnsupported(f"The runtime cannot run the model: {graphs.first_line(error)}") from error
        return outputs

    return run


@cache
def _has_arena() -> bool:
    """Register the bounded memory of this process, once."""
    memory = onnxruntime.OrtMemoryInfo(
        "Cpu", onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR, 0, onnxruntime.OrtMemType.DEFAULT
    )
    as_needed = {"arena_extend_strategy": 1, "initial_chunk_size_bytes": -1, "max_dead_bytes_per_chunk": -1}
    onnxruntime.create_and_register_allocator(memory, onnxruntime.OrtArenaCfg({"max_mem": ARENA, **as_needed}))
    return True


def _try(model: onnx.ModelProto) -> tuple[int | None, Feed, Outputs]:
    """Run the model once: what fails later should fail in the first stage, with the operator's name.

    Returns 1 if its integers must be zero (below 1), what it ran with, and what came out.
    """
    run = load(model.SerializeToString(), exactly=True)
    report = graphs.report(model)
    below, feed = None, samples.synthetic_feeds(report.inputs, [0], None)[0]
    try:
        outputs = run(feed)
    except ModelUnsupported:
        if all(each.dtype.kind not in "iu" for each in feed.values()):
            raise
        below = 1  # perhaps they are indices, and out of bounds
        feed = samples.synthetic_feeds(_limit(report, below).inputs, [0], None)[0]
        outputs = run(feed)
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    for value, output in zip(model.graph.output, outputs, strict=True):
        if getattr(output, "dtype", np.dtype(object)).kind not in "fiub":
            by = makers.get(value.name, "unknown")
            raise ModelUnsupported(f"Its output {value.name!r} of the operator {by} is not a tensor of numbers.")
    return below, feed, outputs


def _limit(report: Report, below: int | None) -> Report:
    if below is None:
        return report
    integers = [replace(each, below=below) if each.type.startswith(("int", "uint")) else each for each in report.inputs]
    return replace(report, inputs=integers)


def _simplify(model: onnx.ModelProto) -> onnx.ModelProto | None:
    import onnxslim  # takes seconds to load

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    try:
        slim: Any = onnxslim.slim(copy)
        graphs.drop_weights_from_inputs(slim)
        onnx.checker.check_model(slim)
        found: onnx.ModelProto = onnx.shape_inference.infer_shapes(slim)
    except Exception:  # broad: it raises anything, and the model can be converted without it
        return None
    same = [each.name for each in found.graph.output] == [each.name for each in model.graph.output]
    return found if same and len(found.graph.input) == len(model.graph.input) else None


def _fuse(model: onnx.ModelProto) -> onnx.ModelProto | None:
    """With fewer transposes, and normalisation in the weights: what the runtime does before it runs a model.

    It stays in standard operators. Models that were trained with the channels last need it: a convolution that is
    scaled per channel afterwards loses most of its accuracy in int8.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "fused.onnx"
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
        options.optimized_model_filepath = str(path)
        try:
            onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
            made = onnx.load(path)
            for unused in [each for each in made.opset_import if each.domain not in graphs.STANDARD]:
                if all(node.domain != unused.domain for node in graphs.nodes_in(made.graph)):
                    made.opset_import.remove(unused)
            onnx.checker.check_model(made)
            return onnx.shape_inference.infer_shapes(made)
        except Exception:  # broad: the library raises anything, and the model can be converted without it
            return None


def _agrees(slim: onnx.ModelProto, feed: Feed, expected: Outputs) -> bool:
    try:
        outputs = load(slim.SerializeToString())(feed)
    except ModelRefused:
        return False
    for a, b in zip(outputs, expected, strict=True):
        if a.shape != b.shape:
            return False
        size = float(np.max(np.abs(b[np.isfinite(b)]), initial=0.0)) if b.dtype.kind == "f" else 1.0
        if b.dtype.kind == "f" and not np.allclose(a, b, rtol=CLOSE, atol=CLOSE * size + FLOAT, equal_nan=True):
            return False
    return True
