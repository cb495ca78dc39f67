"""Quantises to int8: tries ways to choose the ranges, keeps sensitive layers in float, says what is int8."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, numpy_helper
from onnxruntime.quantization import QuantType
from onnxruntime.quantization.calibrate import CalibrationMethod, TensorsData
from onnxruntime.quantization.qdq_quantizer import QDQQuantizer
from onnxruntime.quantization.registry import QDQRegistry, QLinearOpsRegistry

from packhorse_converter import calibration, graphs, integers
from packhorse_converter.calibration import Histogram, Ranges
from packhorse_converter.toolchain import (
    Feed,
    FloatLayer,
    ModelUnsupported,
    Options,
    Outputs,
    Quantisation,
    Runner,
    Share,
)

UNEQUAL = 16
"""Parts of a Concat whose ranges differ by more than this factor do not share one int8 scale."""
MOST_TRIED = 24
"""Layers that are tried in float, the most suspicious first: each costs a quantisation and some runs."""
MOST_SELECTION = 16
"""Samples that a choice is based on."""
IN_FLOAT = {"Softmax"}
"""Operators that stay in float: with 256 levels, most probabilities would be zero."""
BOUNDED = {"Sigmoid", "HardSigmoid"}
"""Rare large values before and after them are no outliers: of a detector's scores, they are the few that count."""
WITH_WEIGHTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
EXACT = 60.0
"""dB of an output that is as good as exact: more would hide the other outputs."""

Load = Callable[..., Runner]


def quantise(
    model: onnx.ModelProto, samples: Sequence[Feed], selection: Sequence[Feed], load: Load, options: Options
) -> tuple[onnx.ModelProto, Quantisation]:
    """Raises `ModelUnsupported` if nothing in the model can be quantised."""
    model = onnx.shape_inference.infer_shapes(model)
    _name_nodes(model.graph)
    chosen = list(selection[:MOST_SELECTION])
    exact = [load(model.SerializeToString())] * bool(chosen)
    wanted = [exact[0](feed) for feed in chosen]
    histograms = calibration.observe(model, samples, lambda each: load(each.SerializeToString()))
    excluded = _unequal_concats(model.graph, histograms)
    scores = {each.name for each in model.graph.output}
    scores |= {name for node in model.graph.node if node.op_type in BOUNDED for name in (*node.input, *node.output)}

    def measure(made: onnx.ModelProto) -> float:
        run = load(made.SerializeToString())
        return ratio([run(feed) for feed in chosen], wanted)

    tried: dict[str, float] = {}
    best: tuple[float, str, onnx.ModelProto, Ranges] | None = None
    for name, method, percentile in calibration.candidates(options.calibration):
        ranges = calibration.ranges(histograms, method, percentile)
        ranges |= {name: (histograms[name].low, histograms[name].high) for name in scores if name in histograms}
        made = _insert(model, ranges, excluded)
        if best is None:
            _require_int8(model, made)
        tried[name] = measure(made)
        if best is None or tried[name] > best[0]:
            best = tried[name], name, made, ranges
    assert best is not None
    before, name, made, ranges = best
    layers: list[FloatLayer] = []
    gained = None
    if options.float_layers:
        layers = _sensitive(model, ranges, excluded, before, measure, options.float_layers)
        if layers:
            made = _insert(model, ranges, [*excluded, *(each.name for each in layers)])
            _require_int8(model, made)
            gained = round(measure(made) - before, 2)
    shares = share(made)
    return made, Quantisation(
        method=name,
        tried=tried,
        share=shares,
        float_layers=layers,
        float_layers_gained_db=gained,
        warnings=_warn(shares),
    )


def ratio(made: Sequence[Outputs], wanted: Sequence[Outputs]) -> float:
    """Signal to noise in dB: the mean over the outputs, so that one with large values does not hide the others."""
    found = []
    for k in range(len(wanted[0])):
        pairs = [
            (np.asarray(a[k], np.float64), np.asarray(b[k], np.float64)) for a, b in zip(made, wanted, strict=True)
        ]
        pairs = [(a, b) for a, b in pairs if a.shape == b.shape and np.isfinite(b).all()]
        signal = sum(float(np.sum(b**2)) for _, b in pairs)
        noise = sum(float(np.sum((a - b) ** 2)) for a, b in pairs)
        if signal > 0:
            found.append(EXACT if noise == 0 else min(10 * math.log10(signal / noise), EXACT))
    return round(float(np.mean(found)), 2) if found else 0.0


def share(quantised: onnx.ModelProto) -> Share:
    """How much of the model is int8, counted in the model as it is written down and lowered."""
    int8, other = _weights(quantised)
    integer, rest = integers.integer_nodes(integers.lower(quantised))
    inner = [
        node for node in quantised.graph.node for graph in graphs.graphs_in(node) for node in graphs.nodes_in(graph)
    ]
    for node in inner:
        if node.op_type not in integers.MOVES | integers.CONVERSIONS:
            rest[node.op_type] += 1
    total = integer.total() + rest.total()
    return Share(
        weights=round(int8 / (int8 + other), 4) if int8 + other else 0.0,
        operators=round(integer.total() / total, 4) if total else 0.0,
        float_operators=dict(sorted(rest.items())),
    )


def _weights(model: onnx.ModelProto) -> tuple[int, int]:
    """Elements of int8 weights, and of float weights. Scales and zero points are no weights."""
    parameters = {
        name for node in graphs.nodes_in(model.graph) if node.op_type in integers.CONVERSIONS for name in node.input[1:]
    }
    int8 = other = 0
    for tensor in graphs.tensors_in(model):
        elements = math.prod(tensor.dims)
        if tensor.name in parameters:
            continue
        if tensor.data_type == TensorProto.INT8:
            int8 += elements
        elif tensor.data_type == TensorProto.FLOAT and elements > 1:
            other += elements
    return int8, other


def _require_int8(model: onnx.ModelProto, made: onnx.ModelProto) -> None:
    int8, other = _weights(made)
    if int8 or (not other and any(integers.integer_nodes(integers.lower(made)))):
        return
    inside = {
        node.op_type: inner.op_type
        for node in model.graph.node
        for graph in graphs.graphs_in(node)
        for inner in graphs.nodes_in(graph)
        if inner.op_type in WITH_WEIGHTS
    }
    if inside:
        outer, inner = next(iter(inside.items()))
        raise ModelUnsupported(f"Nothing in the model can be quantised: its {inner} is inside a {outer}.")
    kinds = ", ".join(sorted({node.op_type for node in model.graph.node})[:20])
    raise ModelUnsupported(
        f"Nothing in the model can be quantised: it has no weights for int8. Its operators: {kinds}."
    )


def _warn(found: Share) -> list[str]:
    if found.weights < 0.5:
        kinds = ", ".join(f"{number} {kind}" for kind, number in found.float_operators.items())
        return [f"Only {found.weights:.0%} of the weights are int8. In floating point: {kinds}."]
    return []


def _insert(model: onnx.ModelProto, ranges: Ranges, excluded: Iterable[str]) -> onnx.ModelProto:
    """The model with quantise and dequantise nodes. A kind of operator that the library fails on stays in float."""
    kinds = sorted({node.op_type for node in model.graph.node} & {*QDQRegistry, *QLinearOpsRegistry} - IN_FLOAT)
    first: Exception | None = None
    for left_out in ("", *(kind for kind in kinds if kind not in WITH_WEIGHTS), *WITH_WEIGHTS):
        try:
            return _insert_for(model, ranges, excluded, [kind for kind in kinds if kind != left_out])
        except Exception as error:  # broad: the library raises anything
            first = first or error
    assert first is not None
    raise ModelUnsupported(f"The model cannot be quantised: {graphs.first_line(first)} Operators: {', '.join(kinds)}.")


def _insert_for(model: onnx.ModelProto, ranges: Ranges, excluded: Iterable[str], kinds: list[str]) -> onnx.ModelProto:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    limits = {name: (np.float32(low), np.float32(high)) for name, (low, high) in ranges.items()}
    quantizer: Any = QDQQuantizer(
        copy,
        True,  # per channel
        False,
        QuantType.QInt8,
        QuantType.QInt8,
        TensorsData(CalibrationMethod.MinMax, limits),
        [],
        list(excluded),
        kinds,
        {},
    )
    root = logging.getLogger()
    root.addFilter(_is_error)  # the library warns there that the model should be optimised, which it is
    try:
        quantizer.quantize_model()
    finally:
        root.removeFilter(_is_error)
    quantizer.model.topological_sort()
    made: onnx.ModelProto = quantizer.model.model
    return made


def _is_error(record: logging.LogRecord) -> bool:
    return record.levelno >= logging.ERROR


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Unique names: layers are excluded by name."""
    seen: set[str] = set()
    for i, node in enumerate(graph.node):
        if not node.name or node.name in seen:
            node.name = f"{node.op_type}_{i}"
        seen.add(node.name)


def _unequal_concats(graph: onnx.GraphProto, found: dict[str, Histogram]) -> list[str]:
    """Concats whose parts have very different ranges, such as boxes in pixels beside scores up to 1.

    One scale for all would round the small ones to zero. What follows up to the outputs only moves these values, and
    stays in float too.
    """
    names: list[str] = []
    wide: set[str] = set()
    for node in graph.node:
        if node.op_type == "Concat":
            sizes = [max(abs(found[name].low), abs(found[name].high)) for name in node.input if name in found]
            sizes = [size for size in sizes if size > 0]
            is_unequal = len(sizes) > 1 and max(sizes) > UNEQUAL * min(sizes)
        else:
            is_unequal = node.op_type in integers.MOVES and bool(node.input) and node.input[0] in wide
        if is_unequal:
            names.append(node.name)
            wide |= set(node.output)
    return names


def _sensitive(
    model: onnx.ModelProto,
    ranges: Ranges,
    excluded: Sequence[str],
    before: float,
    measure: Callable[[onnx.ModelProto], float],
    most: int,
) -> list[FloatLayer]:
    """The layers that gain most if they stay in float: the best alone, then others that add to it."""
    nodes = _suspects(model, ranges)[:MOST_TRIED]
    alone = {node.name: measure(_insert(model, ranges, [*excluded, node.name])) for node in nodes}
    chosen: list[FloatLayer] = []
    reached = before
    for node in sorted(nodes, key=lambda each: alone[each.name], reverse=True)[: 2 * most]:
        names = [*excluded, *(each.name for each in chosen), node.name]
        now = measure(_insert(model, ranges, names)) if chosen else alone[node.name]
        if now > reached and len(chosen) < most:
            chosen.append(FloatLayer(node.name, node.op_type, round(now - reached, 2)))
            reached = now
    return chosen


def _suspects(model: onnx.ModelProto, ranges: Ranges) -> list[onnx.NodeProto]:
    """Layers with weights: the first and the last, then those with the widest ranges for the size of their weights."""
    weights = {each.name: each for each in model.graph.initializer}
    layers = [
        node for node in model.graph.node if node.op_type in WITH_WEIGHTS and any(n in weights for n in node.input)
    ]

    def width(node: onnx.NodeProto) -> float:
        low, high = ranges.get(node.output[0], (0.0, 0.0))
        name = next(n for n in node.input if n in weights)
        spread = float(np.std(numpy_helper.to_array(weights[name]).astype(np.float64))) or 1.0
        return (high - low) / spread

    ends = [*layers[:2], *layers[-2:]]
    rest = sorted((node for node in layers if node not in ends), key=width, reverse=True)
    unique = {node.name: node for node in (*ends, *rest)}
    return list(unique.values())
