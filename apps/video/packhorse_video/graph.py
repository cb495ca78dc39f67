"""A detector that was written for browsers, written down again as ONNX: the few operations it has, and no more.

A model of tfjs is a TensorFlow graph in JSON and its weights as raw bytes. What is taken is the part that learned
something: from the scaled picture to a box and a score of each class per anchor.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

IMAGE = "Preprocessor/sub"
"""Where a picture of `SIZE` by `SIZE` comes in, with values from -1 to 1."""
SIZE = 300
ANCHORS = 1917
CLASSES = 91
OUTPUTS: Mapping[str, tuple[str, Sequence[int]]] = {
    "boxes": ("concat", (1, ANCHORS, 1, 4)),
    "scores": ("Postprocessor/convert_scores", (1, ANCHORS, CLASSES)),
    "anchors": ("Postprocessor/ExpandDims", (1, ANCHORS, 4)),
}
OPSET = 17

Array = NDArray[Any]
Node = dict[str, Any]


def converted(folder: Path) -> onnx.ModelProto:
    """The model of ``folder/model.json``, with the outputs boxes, scores and anchors."""
    whole = json.loads((folder / "model.json").read_text())
    nodes = {node["name"]: node for node in whole["modelTopology"]["node"]}
    return _Conversion(nodes, _weights(folder, whole["weightsManifest"])).model()


def _weights(folder: Path, manifest: Sequence[Any]) -> dict[str, Array]:
    found: dict[str, Array] = {}
    for group in manifest:
        data = b"".join((folder / path).read_bytes() for path in group["paths"])
        at = 0
        for weight in group["weights"]:
            count = int(np.prod(weight["shape"], dtype=np.int64))
            found[weight["name"]] = np.frombuffer(data, weight["dtype"], count, at).reshape(weight["shape"])
            at += count * found[weight["name"]].itemsize
    return found


class _Conversion:
    """Everything keeps its layout, channels last; only convolutions turn their picture around and back.

    The runtime takes out what cancels.
    """

    def __init__(self, nodes: dict[str, Node], weights: dict[str, Array]) -> None:
        self._nodes = nodes
        self._weights = weights
        self._made: list[onnx.NodeProto] = []
        self._constants: dict[str, onnx.TensorProto] = {}
        self._done = {IMAGE}

    def model(self) -> onnx.ModelProto:
        for name, (source, _) in OUTPUTS.items():
            self._emit(source)
            self._add("Identity", [self._value(source)], name)
        graph = helper.make_graph(
            self._made,
            "coco",
            [helper.make_tensor_value_info(IMAGE, TensorProto.FLOAT, [1, SIZE, SIZE, 3])],
            [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, (_, shape) in OUTPUTS.items()],
            list(self._constants.values()),
        )
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=9)
        onnx.checker.check_model(made, full_check=True)
        return made

    def _emit(self, name: str) -> None:
        """The node, after those it needs: deeper than Python lets functions call each other."""
        waiting = [name]
        while waiting:
            node = self._nodes[waiting[-1]]
            needed = [each for each in self._inputs(node) if each not in self._done]
            if waiting[-1] in self._done or node["op"] == "Const":
                self._done.add(waiting.pop())
            elif needed:
                waiting.extend(needed)
            else:
                OPERATIONS[node["op"]](self, node)
                self._done.add(waiting.pop())

    def _inputs(self, node: Node) -> list[str]:
        return node["input"][:1] if node["op"] == "Reshape" else list(node["input"])

    def conv(self, node: Node) -> None:
        """Filters are (height, width, in, out) there and (out, in, height, width) here."""
        self._conv(node, self._weights[node["input"][1]].transpose(3, 2, 0, 1), 1)

    def depthwise(self, node: Node) -> None:
        filters = self._weights[node["input"][1]]
        height, width, channels, each = filters.shape
        turned = filters.transpose(2, 3, 0, 1).reshape(channels * each, 1, height, width)
        self._conv(node, turned, channels)

    def _conv(self, node: Node, filters: Array, groups: int) -> None:
        name, strides = node["name"], [int(n) for n in node["attr"]["strides"]["list"]["i"]]
        if _text(node, "padding") != "SAME" or _text(node, "data_format") != "NHWC":
            raise ValueError(f"{name} is laid out in a way that no part of this model was.")
        self._add("Transpose", [self._value(node["input"][0])], f"{name}/in", perm=[0, 3, 1, 2])
        weights = self._constant(f"{name}/filters", filters)
        self._add(
            "Conv",
            [f"{name}/in", weights],
            f"{name}/out",
            strides=strides[1:3],
            auto_pad="SAME_UPPER",
            group=groups,
            kernel_shape=list(filters.shape[2:]),
        )
        self._add("Transpose", [f"{name}/out"], name, perm=[0, 2, 3, 1])

    def normalise(self, node: Node) -> None:
        """What was learned about mean and spread is a factor and a summand."""
        gamma, beta, mean, variance = (self._weights[each].astype(np.float64) for each in node["input"][1:])
        factor = gamma / np.sqrt(variance + node["attr"]["epsilon"]["f"])
        name = node["name"]
        scaled = self._constant(f"{name}/factor", factor.astype(np.float32))
        moved = self._constant(f"{name}/summand", (beta - mean * factor).astype(np.float32))
        self._add("Mul", [self._value(node["input"][0]), scaled], f"{name}/scaled")
        self._add("Add", [f"{name}/scaled", moved], name)

    def relu6(self, node: Node) -> None:
        low = self._constant("zero", np.float32(0))
        high = self._constant("six", np.float32(6))
        self._add("Clip", [self._value(node["input"][0]), low, high], node["name"])

    def reshape(self, node: Node) -> None:
        """Its shape is computed there, from constants and the size of the batch, which here is one."""
        parts = self._nodes[node["input"][1]]["input"]
        shape = [1 if part not in self._weights else int(self._weights[part]) for part in parts]
        wanted = self._constant(f"{node['name']}/shape", np.array(shape, np.int64))
        self._add("Reshape", [self._value(node["input"][0]), wanted], node["name"])

    def concat(self, node: Node) -> None:
        *parts, axis = node["input"]
        self._add("Concat", [self._value(each) for each in parts], node["name"], axis=int(self._weights[axis]))

    def plain(self, node: Node) -> None:
        self._add(PLAIN[node["op"]], [self._value(each) for each in node["input"]], node["name"])

    def _value(self, name: str) -> str:
        return self._constant(name, self._weights[name]) if name in self._weights else name

    def _constant(self, name: str, value: Any) -> str:
        self._constants.setdefault(name, numpy_helper.from_array(np.ascontiguousarray(value), name))
        return name

    def _add(self, op: str, inputs: Sequence[str], output: str, **attributes: Any) -> None:
        self._made.append(helper.make_node(op, inputs, [output], name=output, **attributes))


PLAIN = {"Add": "Add", "AddN": "Sum", "BiasAdd": "Add", "Mul": "Mul", "Sigmoid": "Sigmoid"}
OPERATIONS: Mapping[str, Callable[[_Conversion, Node], None]] = {
    **dict.fromkeys(PLAIN, _Conversion.plain),
    "Conv2D": _Conversion.conv,
    "DepthwiseConv2dNative": _Conversion.depthwise,
    "FusedBatchNorm": _Conversion.normalise,
    "Relu6": _Conversion.relu6,
    "Reshape": _Conversion.reshape,
    "ConcatV2": _Conversion.concat,
}


def _text(node: Node, attribute: str) -> str:
    return bytes(node["attr"][attribute]["s"]).decode()
