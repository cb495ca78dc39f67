"""Ranges of a model's activations, from histograms of what they were on samples: largest, percentile or entropy.

Two passes over the samples: the first finds the limits of each tensor, the second fills a histogram between them. A
model is run for a few tensors at a time, so that memory stays bounded whatever the model's size.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from packhorse_converter.toolchain import Feed, Method, Outputs, Runner

BINS = 2048
MOST_AT_ONCE = 2**25
"""Elements of the tensors that one run returns: 128 MiB of float32."""
NARROW = 1e-3
"""A range that is narrower than this part of its values is a single value."""
PERCENTILES = (99.99, 99.9)
STEPS = 255
"""Differences between the levels of int8."""
SHRINK = np.linspace(0.2, 1.0, 41)
"""Fractions of a range that entropy calibration tries."""

Range = tuple[float, float]
Ranges = dict[str, Range]
Load = Callable[[onnx.ModelProto], Runner]


class Histogram(NamedTuple):
    low: float
    high: float
    counts: NDArray[np.int64]

    def centres(self) -> NDArray[np.float64]:
        edges = np.linspace(self.low, self.high, len(self.counts) + 1)
        return (edges[1:] + edges[:-1]) / 2


def observe(model: onnx.ModelProto, samples: Sequence[Feed], load: Load) -> dict[str, Histogram]:
    """Histograms of the model's inputs and activations. ``model`` has inferred shapes."""
    given = {value.name for value in model.graph.input}
    found: dict[str, Histogram] = {}
    for names in _groups(model):
        inner = [name for name in names if name not in given]
        run = load(_with_outputs(model, inner)) if inner else _nothing
        limits: dict[str, Range] = {}
        for name, values in _values(run, names, samples):
            low, high = limits.get(name, (math.inf, -math.inf))
            limits[name] = min(low, float(values.min())), max(high, float(values.max()))
        counts = {name: np.zeros(BINS, np.int64) for name in limits}
        for name, values in _values(run, names, samples):
            low, high = limits[name]
            if high - low > NARROW * max(abs(low), abs(high)):
                counts[name] += np.histogram(values, BINS, (low, high))[0]
        found |= {name: Histogram(*limits[name], counts[name]) for name in limits}
    return found


def ranges(found: dict[str, Histogram], method: Method, percentile: float = PERCENTILES[0]) -> Ranges:
    if method == "percentile":
        return {name: _percentile(each, percentile) for name, each in found.items()}
    if method == "entropy":
        return {name: _entropy(each) for name, each in found.items()}
    return {name: (each.low, each.high) for name, each in found.items()}


def candidates(method: Method) -> list[tuple[str, Method, float]]:
    """Name, method and percentile of what is tried."""
    percentiles: list[tuple[str, Method, float]] = [(f"percentile {each}", "percentile", each) for each in PERCENTILES]
    every: list[tuple[str, Method, float]] = [("max", "max", 0.0), *percentiles, ("entropy", "entropy", 0.0)]
    return [each for each in every if method in ("auto", each[1])]


def _values(run: Runner, names: Sequence[str], samples: Sequence[Feed]) -> Iterator[tuple[str, NDArray[Any]]]:
    for feed in samples:
        made = iter(run(feed))
        for name in names:
            values = feed[name] if name in feed else next(made)
            values = values[np.isfinite(values)]
            if values.size:
                yield name, values


def _nothing(_: Feed) -> Outputs:
    return []


def _groups(model: onnx.ModelProto) -> Iterator[list[str]]:
    """Names of the float tensors, in groups that together stay below `MOST_AT_ONCE`."""
    graph = model.graph
    made = {name for node in graph.node for name in node.output} | {given.name for given in graph.input}
    group: list[str] = []
    size = 0
    for value in {each.name: each for each in (*graph.input, *graph.value_info, *graph.output)}.values():
        kind = value.type.tensor_type
        if kind.elem_type != TensorProto.FLOAT or value.name not in made:
            continue
        elements = math.prod(max(dim.dim_value, 1) for dim in kind.shape.dim)
        if group and size + elements > MOST_AT_ONCE:
            yield group
            group, size = [], 0
        group.append(value.name)
        size += elements
    if group:
        yield group


def _with_outputs(model: onnx.ModelProto, names: Sequence[str]) -> onnx.ModelProto:
    """The model with these tensors as its outputs, and only what they need."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    del made.graph.output[:]
    made.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
    needed, kept = set(names), []
    for node in reversed(made.graph.node):
        if needed & set(node.output):
            kept.append(node)
            needed |= set(node.input) | _captured(node)
    nodes = [onnx.NodeProto.FromString(node.SerializeToString()) for node in reversed(kept)]
    weights = [each for each in model.graph.initializer if each.name in needed]
    made.graph.ClearField("node")
    made.graph.node.extend(nodes)
    made.graph.ClearField("initializer")
    made.graph.initializer.extend(weights)
    return made


def _captured(node: onnx.NodeProto) -> set[str]:
    inner = [each.g for each in node.attribute if each.HasField("g")]
    return {name for graph in inner for each in graph.node for name in (*each.input, *_captured(each))}


def _percentile(found: Histogram, percentile: float) -> Range:
    """Without the share of values beyond the percentile, on both sides together."""
    total = found.counts.sum()
    if total == 0:
        return found.low, found.high
    spare = (1 - percentile / 100) / 2
    below = np.cumsum(found.counts) / total
    edges = np.linspace(found.low, found.high, BINS + 1)
    low = edges[int(np.searchsorted(below, spare, side="right"))]
    high = edges[min(int(np.searchsorted(below, 1 - spare)) + 1, BINS)]
    return (float(low), float(high)) if low < high else (found.low, found.high)


def _entropy(found: Histogram) -> Range:
    """The part of the range whose int8 version tells most of the original distribution (least divergence)."""
    total = found.counts.sum()
    if total == 0:
        return found.low, found.high
    best, least = (found.low, found.high), math.inf
    centres = found.centres()
    for part in SHRINK:
        low, high = found.low * part, found.high * part
        if (divergence := _divergence(found.counts, centres, low, high)) < least:
            best, least = (float(low), float(high)), divergence
    return best


def _divergence(counts: NDArray[np.int64], centres: NDArray[np.float64], low: float, high: float) -> float:
    inside = (centres >= low) & (centres <= high)
    if inside.sum() < 2:
        return math.inf
    clipped = counts[inside].astype(np.float64)
    wanted = clipped.copy()
    wanted[0] += counts[centres < low].sum()
    wanted[-1] += counts[centres > high].sum()
    levels = np.round((centres[inside] - low) / (high - low) * STEPS).astype(np.int64)
    filled = clipped > 0
    sums = np.bincount(levels, clipped, STEPS + 1)
    numbers = np.bincount(levels, filled, STEPS + 1)
    made = np.where(filled, (sums / np.maximum(numbers, 1))[levels], 0.0)
    if made.sum() == 0 or wanted.sum() == 0:
        return math.inf
    p, q = wanted / wanted.sum(), made / made.sum()
    q = np.maximum(q, 1e-9)
    there = p > 0
    return float(np.sum(p[there] * np.log(p[there] / q[there])))
