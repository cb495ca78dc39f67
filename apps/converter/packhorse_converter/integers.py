"""A quantised model in integer arithmetic: the graph with integer operators, and an independent reference for them.

The runtime executes the integer operators (QLinearConv, QGemm ...) with its int8 kernels. The reference computes the
same operators with NumPy, with exact sums: products of int8 in float64 have no rounding errors.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import onnx
import onnxruntime
from numpy.lib.stride_tricks import sliding_window_view
from numpy.typing import NDArray
from onnx import helper, numpy_helper

from packhorse_converter.toolchain import Check, Feed, Outputs, Runner

MICROSOFT = "com.microsoft"
SAME = frozenset({"MaxPool", "Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Resize", "Identity"})
"""Operators that move or choose values: they run on int8 as they are, if the scale stays the same."""
ONE_INPUT = {
    "Sigmoid": "QLinearSigmoid",
    "LeakyRelu": "QLinearLeakyRelu",
    "AveragePool": "QLinearAveragePool",
    "GlobalAveragePool": "QLinearGlobalAveragePool",
}
TWO_INPUTS = {"Add": "QLinearAdd", "Mul": "QLinearMul"}
CONVERSIONS = frozenset({"QuantizeLinear", "DequantizeLinear"})
MOVES = frozenset(
    {"Reshape", "Transpose", "Squeeze", "Unsqueeze", "Flatten", "Slice", "Identity", "Gather", "Shape", "Concat"}
    | {"QLinearConcat", "Split", "Expand", "Cast", "Constant", "ConstantOfShape", "Tile", "Pad"}
)
"""Operators that compute nothing; they do not count when the share of integer operators is reported."""

Array = NDArray[Any]


class _Quantised(NamedTuple):
    """An int8 tensor, and the names of its scale and zero point."""

    name: str
    scale: str
    zero: str


def lower(model: onnx.ModelProto) -> onnx.ModelProto:
    """Replace the nodes between dequantise and quantise nodes by integer operators."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    graph = made.graph
    lowering = _Lowering(graph)
    replaced = [node for each in graph.node if (node := lowering.replace(each)) is not None]
    nodes = _prune(replaced, {each.name for each in graph.output})
    del graph.node[:]
    graph.node.extend(nodes)
    del graph.value_info[:]
    if not any(each.domain == MICROSOFT for each in made.opset_import):
        made.opset_import.append(helper.make_opsetid(MICROSOFT, 1))
    return made


def integer_nodes(lowered: onnx.ModelProto) -> tuple[Counter[str], Counter[str]]:
    """Operators that compute in integers and in floating point. Without conversions and what only moves data."""
    integer: Counter[str] = Counter()
    other: Counter[str] = Counter()
    whole = {name for node in lowered.graph.node if node.op_type == "QuantizeLinear" for name in node.output}
    for node in lowered.graph.node:
        is_whole = node.op_type.startswith(("QLinear", "QGemm")) or (node.op_type in SAME and node.input[0] in whole)
        if is_whole:
            whole |= set(node.output)
        if node.op_type not in CONVERSIONS | MOVES:
            (integer if is_whole else other)[node.op_type] += 1
    return integer, other


class _Lowering:
    def __init__(self, graph: onnx.GraphProto) -> None:
        self._values = {each.name: each for each in graph.initializer}
        self._from = {
            node.output[0]: _Quantised(*node.input[:3])
            for node in graph.node
            if node.op_type == "DequantizeLinear" and len(node.input) == 3
        }
        self._readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self._readers.setdefault(name, []).append(node)
        self._ends = {each.name for each in graph.output}
        self._replaced: set[str] = set()

    def replace(self, node: onnx.NodeProto) -> onnx.NodeProto | None:
        """The integer operator for a node, or the node itself; None for a quantise node that is not needed."""
        if node.op_type == "QuantizeLinear" and node.output[0] in self._replaced:
            return None
        if node.op_type in CONVERSIONS or not node.output or node.domain not in ("", "ai.onnx"):
            return node
        to = self._target(node)
        made = None if to is None else self._integer(node, to)
        if made is None or to is None:
            return node
        made.name = node.name
        self._replaced.add(to.name)
        return made

    def _target(self, node: onnx.NodeProto) -> _Quantised | None:
        """What the only output is quantised to."""
        name = node.output[0]
        readers = self._readers.get(name, [])
        if len(node.output) != 1 or name in self._ends or len(readers) != 1:
            return None
        quantise = readers[0]
        if quantise.op_type != "QuantizeLinear" or quantise.input[0] != name or len(quantise.input) != 3:
            return None
        return _Quantised(quantise.output[0], *quantise.input[1:3])

    def _integer(self, node: onnx.NodeProto, to: _Quantised) -> onnx.NodeProto | None:
        kind, given = node.op_type, [self._from.get(name) for name in node.input]
        attributes = list(node.attribute)
        first = given[0] if given else None
        if kind in SAME:
            same = first is not None and self._is_same(first, to) and self._is_nearest(node)
            return _node(kind, [first.name, *node.input[1:]], to, attributes, "") if same and first else None
        if any(each is None for each in given) or first is None:
            return None
        parts = [each for each in given if each is not None]
        if any(self._dims(each.scale) for each in parts if each.name not in self._values):
            return None  # only weights may have a scale per channel
        flat = [name for each in parts[:2] for name in each]
        if kind == "Conv":
            bias = [each.name for each in parts[2:]]
            return _node("QLinearConv", [*flat, to.scale, to.zero, *bias], to, attributes, "")
        if kind == "MatMul":
            return _node("QLinearMatMul", [*flat, to.scale, to.zero], to, attributes, "")
        if kind == "Gemm" and _attribute(node, "beta", 1.0) == 1.0:
            bias = [each.name for each in parts[2:]] or [""]
            kept = [each for each in attributes if each.name != "beta"]
            return _node("QGemm", [*flat, *bias, to.scale, to.zero], to, kept, MICROSOFT)
        if kind in TWO_INPUTS:
            return _node(TWO_INPUTS[kind], [*flat, to.scale, to.zero], to, attributes, MICROSOFT)
        if kind in ONE_INPUT and _attribute(node, "ceil_mode", 0) == 0:
            return _node(ONE_INPUT[kind], [*first, to.scale, to.zero], to, attributes, MICROSOFT)
        if kind == "Concat":
            every = [name for each in parts for name in each]
            return _node("QLinearConcat", [to.scale, to.zero, *every], to, attributes, MICROSOFT)
        return None

    def _is_same(self, a: _Quantised, b: _Quantised) -> bool:
        pairs = ((a.scale, b.scale), (a.zero, b.zero))
        return all(
            x == y or (x in self._values and y in self._values and _equal(self._values[x], self._values[y]))
            for x, y in pairs
        )

    def _is_nearest(self, node: onnx.NodeProto) -> bool:
        return node.op_type != "Resize" or _attribute(node, "mode", b"nearest") == b"nearest"

    def _dims(self, name: str) -> list[int]:
        return list(self._values[name].dims) if name in self._values else []


def _node(kind: str, inputs: list[str], to: _Quantised, attributes: list[Any], domain: str) -> onnx.NodeProto:
    made = helper.make_node(kind, inputs, [to.name], domain=domain)
    made.attribute.extend(attributes)
    return made


def _equal(a: onnx.TensorProto, b: onnx.TensorProto) -> bool:
    return np.array_equal(numpy_helper.to_array(a), numpy_helper.to_array(b))


def _attribute(node: onnx.NodeProto, name: str, default: Any) -> Any:
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)


def _prune(nodes: list[onnx.NodeProto], ends: set[str]) -> list[onnx.NodeProto]:
    """Without the nodes whose outputs nobody reads."""
    kept: list[onnx.NodeProto] = []
    needed = set(ends)
    for node in reversed(nodes):
        if needed & set(node.output):
            kept.append(onnx.NodeProto.FromString(node.SerializeToString()))
            needed |= set(node.input) | captured(node)
    return kept[::-1]


def captured(node: onnx.NodeProto) -> set[str]:
    """Names that the branches and loops of a node read from outside (and some of their own)."""
    inner = [each.g for each in node.attribute if each.HasField("g")]
    return {name for graph in inner for each in graph.node for name in (*each.input, *captured(each))}


class Integers:
    """A quantised model that runs with integer operators."""

    def __init__(self, model: onnx.ModelProto, load: Callable[..., Runner]) -> None:
        self._model = lower(model)
        self._load = load
        self._run: Runner | None = None
        self._reference: Reference | None = None
        self._last: Feed | None = None

    def run(self, feed: Feed) -> Outputs:
        if self._run is None:
            self._run = self._load(self._model.SerializeToString(), exactly=True)
        self._last = feed
        return self._run(feed)

    def reference(self, feed: Feed) -> Outputs:
        if self._reference is None:
            self._reference = Reference(self._model)
        return self._reference.run(feed)

    def check(self, feed: Feed) -> Check:
        """Give each integer operator what it got in a run, and compare what it made with the reference, bit by bit."""
        nodes = [node for node in self._model.graph.node if node.op_type in KERNELS and node.op_type not in CONVERSIONS]
        weights = {each.name: numpy_helper.to_array(each) for each in self._model.graph.initializer}
        wanted = {name for node in nodes for name in (*node.input, *node.output)} - weights.keys() - feed.keys() - {""}
        names = sorted(wanted)
        every = onnx.ModelProto()
        every.CopyFrom(self._model)
        del every.graph.output[:]
        every.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names)
        made = self._load(every.SerializeToString(), exactly=True)(feed) if names else []
        values = {"": None, **weights, **feed, **dict(zip(names, made, strict=True))}
        elements = same = largest = 0
        for node in nodes:
            options = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            expected = KERNELS[node.op_type](options, *(values[name] for name in node.input))
            steps = np.abs(np.asarray(values[node.output[0]], np.int64) - expected.astype(np.int64))
            elements += steps.size
            same += int(np.sum(steps == 0))
            largest = max(largest, int(steps.max(initial=0)))
        return Check(len(nodes), round(same / elements, 6) if elements else 1.0, largest)

    def operators(self) -> tuple[dict[str, int], dict[str, int]]:
        """As the runtime's profile of one more run says: by the types of what each operator really got."""
        assert self._last is not None
        integer: Counter[str] = Counter()
        other: Counter[str] = Counter()
        for event in _profile(self._model, self._last):
            args = event.get("args", {})
            if (
                event.get("cat") != "Node"
                or "input_type_shape" not in args
                or not event["name"].endswith("_kernel_time")
            ):
                continue
            kind = args["op_name"]
            types = {name for each in args["input_type_shape"] for name in each}
            if kind not in CONVERSIONS:
                (integer if types & {"int8", "uint8"} else other)[kind] += 1
        return dict(integer), dict(other)


def _profile(model: onnx.ModelProto, feed: Feed) -> list[dict[str, Any]]:
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 3
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "run")
        session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, dict(feed))
        found: list[dict[str, Any]] = msgspec.json.decode(Path(session.end_profiling()).read_bytes())
        return found


class Reference:
    """Runs a lowered model node by node: integer operators here, all others in the runtime, one at a time."""

    def __init__(self, model: onnx.ModelProto) -> None:
        self._model = model
        self._weights = {each.name: numpy_helper.to_array(each) for each in model.graph.initializer}
        self._sessions: dict[int, onnxruntime.InferenceSession] = {}
        reads = {name: i for i, node in enumerate(model.graph.node) for name in (*node.input, *captured(node))}
        ends = {each.name for each in model.graph.output}
        self._done = {name: i for name, i in reads.items() if name not in ends}

    def run(self, feed: Feed) -> Outputs:
        values: dict[str, Array] = {**self._weights, **{name: np.asarray(value) for name, value in feed.items()}}
        for i, node in enumerate(self._model.graph.node):
            values |= zip(node.output, self._compute(i, node, values), strict=False)
            for name in {*node.input, *captured(node)}:
                if self._done.get(name) == i and name not in self._weights:
                    values.pop(name, None)
        return [values[each.name] for each in self._model.graph.output]

    def _compute(self, i: int, node: onnx.NodeProto, values: Mapping[str, Array]) -> list[Array]:
        kernel = KERNELS.get(node.op_type)
        if kernel is not None:
            given = [values[name] if name else None for name in node.input]
            options = {each.name: helper.get_attribute_value(each) for each in node.attribute}
            return [kernel(options, *given)]
        names = [name for name in dict.fromkeys([*node.input, *sorted(captured(node))]) if name in values]
        if i not in self._sessions:
            self._sessions[i] = _single(self._model, node, {name: values[name] for name in names})
        return list(self._sessions[i].run(None, {name: values[name] for name in names}))


def _single(model: onnx.ModelProto, node: onnx.NodeProto, given: Mapping[str, Array]) -> onnxruntime.InferenceSession:
    inputs = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(value.dtype), value.shape)
        for name, value in given.items()
    ]
    outputs = [helper.make_empty_tensor_value_info(name) for name in node.output if name]
    made = helper.make_model(helper.make_graph([node], "one", inputs, outputs), opset_imports=list(model.opset_import))
    made.ir_version = model.ir_version
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    return onnxruntime.InferenceSession(made.SerializeToString(), options, providers=["CPUExecutionProvider"])


# -- integer kernels in NumPy; arguments are in the order of the operators' inputs


def _saturate(values: Array, zero: Array) -> Array:
    limits = np.iinfo(zero.dtype)
    made: Array = np.clip(np.rint(values) + zero.astype(np.float64), limits.min, limits.max).astype(zero.dtype)
    return made


def _centred(values: Array, zero: Array) -> Array:
    return values.astype(np.float64) - zero.astype(np.float64)


def _real(values: Array, scale: Array, zero: Array) -> Array:
    return _centred(values, zero) * scale.astype(np.float64)


def _conv(
    options: Mapping[str, Any],
    x: Array,
    xs: Array,
    xz: Array,
    w: Array,
    ws: Array,
    wz: Array,
    ys: Array,
    yz: Array,
    *b: Array,
) -> Array:
    space = w.ndim - 2
    kernel = list(w.shape[2:])
    strides, dilations = (list(options.get(name, [1] * space)) for name in ("strides", "dilations"))
    extents = [(k - 1) * d + 1 for k, d in zip(kernel, dilations, strict=True)]
    pads = _pads(options, list(x.shape[2:]), extents, strides)
    groups = int(options.get("group", 1))
    padded = np.pad(_centred(x, xz), [(0, 0), (0, 0), *pads])
    windows = sliding_window_view(padded, extents, axis=tuple(range(2, 2 + space)))
    every = (
        (slice(None),) * 2
        + tuple(slice(None, None, s) for s in strides)
        + tuple(slice(None, None, d) for d in dilations)
    )
    windows = windows[every]
    batch, channels, *rest = windows.shape
    size = tuple(rest[:space])
    columns = windows.reshape(batch, groups, channels // groups, int(np.prod(size)), -1)
    columns = columns.transpose(0, 1, 3, 2, 4).reshape(batch, groups, int(np.prod(size)), -1)
    zeros = wz.reshape(-1, *([1] * (w.ndim - 1))) if wz.size > 1 else wz
    weights = _centred(w, zeros).reshape(groups, w.shape[0] // groups, -1)
    sums = np.einsum("bgnk,gmk->bgmn", columns, weights, optimize=True).reshape(batch, w.shape[0], *size)
    each = (1, -1, *([1] * space))
    if b:
        sums = sums + b[0].astype(np.float64).reshape(each)
    factor = xs.astype(np.float64) * ws.astype(np.float64).reshape(each if ws.size > 1 else ()) / ys.astype(np.float64)
    return _saturate(sums * factor, yz)


def _pads(
    options: Mapping[str, Any], sizes: list[int], extents: list[int], strides: list[int]
) -> list[tuple[int, int]]:
    auto = options.get("auto_pad", b"NOTSET").decode()
    if auto in ("NOTSET", "VALID"):
        flat = list(options.get("pads", [0] * 2 * len(sizes))) if auto == "NOTSET" else [0] * 2 * len(sizes)
        return list(zip(flat[: len(sizes)], flat[len(sizes) :], strict=True))
    found = []
    for size, extent, stride in zip(sizes, extents, strides, strict=True):
        total = max((-(-size // stride) - 1) * stride + extent - size, 0)
        less, more = total // 2, total - total // 2
        found.append((less, more) if auto == "SAME_UPPER" else (more, less))
    return found


def _matmul(
    _: Mapping[str, Any], a: Array, az_: Array, az: Array, b: Array, bs: Array, bz: Array, ys: Array, yz: Array
) -> Array:
    return _saturate(_centred(a, az) @ _centred(b, bz) * (az_.astype(np.float64) * bs / ys), yz)


def _gemm(
    options: Mapping[str, Any],
    a: Array,
    as_: Array,
    az: Array,
    b: Array,
    bs: Array,
    bz: Array,
    c: Array | None,
    ys: Array,
    yz: Array,
) -> Array:
    turned = bool(options.get("transB", 0))
    zeros, scales = ((each.reshape(-1, 1) if turned and each.size > 1 else each) for each in (bz, bs))
    left = _centred(a, az)
    right = _centred(b, zeros)
    sums = (left.T if options.get("transA", 0) else left) @ (right.T if turned else right)
    sums = sums if c is None else sums + c.astype(np.float64)
    columns = scales.T if turned and scales.ndim == 2 else scales
    return _saturate(sums * (float(options.get("alpha", 1.0)) * as_.astype(np.float64) * columns / ys), yz)


def _add(
    _: Mapping[str, Any], a: Array, as_: Array, az: Array, b: Array, bs: Array, bz: Array, ys: Array, yz: Array
) -> Array:
    return _saturate((_real(a, as_, az) + _real(b, bs, bz)) / ys.astype(np.float64), yz)


def _mul(
    _: Mapping[str, Any], a: Array, as_: Array, az: Array, b: Array, bs: Array, bz: Array, ys: Array, yz: Array
) -> Array:
    return _saturate(_real(a, as_, az) * _real(b, bs, bz) / ys.astype(np.float64), yz)


def _sigmoid(_: Mapping[str, Any], x: Array, xs: Array, xz: Array, ys: Array, yz: Array) -> Array:
    return _saturate(1 / (1 + np.exp(-_real(x, xs, xz))) / ys.astype(np.float64), yz)


def _leaky(options: Mapping[str, Any], x: Array, xs: Array, xz: Array, ys: Array, yz: Array) -> Array:
    real = _real(x, xs, xz)
    return _saturate(np.where(real < 0, real * options.get("alpha", 0.01), real) / ys.astype(np.float64), yz)


def _average(options: Mapping[str, Any], x: Array, xs: Array, xz: Array, ys: Array, yz: Array) -> Array:
    real = _real(x, xs, xz)
    windows = _windows(options, real, 0.0)
    numbers = np.ones_like(real) if options.get("count_include_pad", 0) == 0 else None
    axes = tuple(range(windows.ndim - (real.ndim - 2), windows.ndim))
    count = np.prod(options["kernel_shape"]) if numbers is None else _windows(options, numbers, 0.0).sum(axis=axes)
    return _saturate(windows.sum(axis=axes) / count / ys.astype(np.float64), yz)


def _global_average(_: Mapping[str, Any], x: Array, xs: Array, xz: Array, ys: Array, yz: Array) -> Array:
    real = _real(x, xs, xz)
    return _saturate(real.mean(axis=tuple(range(2, x.ndim)), keepdims=True) / ys.astype(np.float64), yz)


def _windows(options: Mapping[str, Any], x: Array, filler: float) -> Array:
    kernel = list(options["kernel_shape"])
    strides = list(options.get("strides", [1] * len(kernel)))
    pads = _pads(options, list(x.shape[2:]), kernel, strides)
    padded = np.pad(x, [(0, 0), (0, 0), *pads], constant_values=filler)
    windows = sliding_window_view(padded, kernel, axis=tuple(range(2, x.ndim)))
    return windows[(slice(None),) * 2 + tuple(slice(None, None, s) for s in strides)]


def _concat(options: Mapping[str, Any], ys: Array, yz: Array, *given: Array) -> Array:
    parts = [_real(*given[i : i + 3]) for i in range(0, len(given), 3)]
    return _saturate(np.concatenate(parts, axis=options["axis"]) / ys.astype(np.float64), yz)


def _quantise(options: Mapping[str, Any], x: Array, scale: Array, zero: Array) -> Array:
    scale, zero = (_along(each, x, options) for each in (scale, zero))
    return _saturate(x.astype(np.float64) / scale.astype(np.float64), zero)


def _dequantise(options: Mapping[str, Any], x: Array, scale: Array, zero: Array | None = None) -> Array:
    zero = np.zeros((), x.dtype) if zero is None else zero
    return _real(x, _along(scale, x, options), _along(zero, x, options)).astype(np.float32)


def _along(each: Array, x: Array, options: Mapping[str, Any]) -> Array:
    if each.ndim == 0 or each.size == 1:
        return each.reshape(())
    shape = [1] * x.ndim
    shape[int(options.get("axis", 1))] = -1
    return each.reshape(shape)


KERNELS: Mapping[str, Callable[..., Array]] = {
    "QLinearConv": _conv,
    "QLinearMatMul": _matmul,
    "QGemm": _gemm,
    "QLinearAdd": _add,
    "QLinearMul": _mul,
    "QLinearSigmoid": _sigmoid,
    "QLinearLeakyRelu": _leaky,
    "QLinearAveragePool": _average,
    "QLinearGlobalAveragePool": _global_average,
    "QLinearConcat": _concat,
    "QuantizeLinear": _quantise,
    "DequantizeLinear": _dequantise,
}
"""Everything else either only moves values, or computes in floating point."""
