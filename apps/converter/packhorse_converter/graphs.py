"""Reads ONNX models and brings them into one form: checked, float32, current operators, fixed shapes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from packhorse_converter.preprocessing import Tensor
from packhorse_converter.toolchain import ModelRefused, ModelUnsupported, ParameterRefused, Report

OLDEST_OPSET = 13
"""Older opsets cannot quantise weights per channel."""
OLDEST_IR = 8
"""Older ones list weights as inputs too, or cannot hold current operators."""
MOST_ELEMENTS = 2**27
"""Of one tensor: 512 MiB of float32. A model of a hundred bytes can ask for any size."""
MOST_IN_ALL = 2**29
"""Elements of all tensors of a model."""
STANDARD = ("", "ai.onnx")
RUNTIME = ("com.microsoft", "com.microsoft.nchwc", "ai.onnx.ml", "ai.onnx.training", "ai.onnx.preview.training")
"""Domains besides the standard one whose operators the runtime knows."""
OTHER_FLOATS = (TensorProto.FLOAT16, TensorProto.BFLOAT16, TensorProto.DOUBLE)


def load(path: Path) -> onnx.ModelProto:
    """Raises `ModelRefused` for what is no sound model, `ModelUnsupported` for operators and types nobody can run."""
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(path.read_bytes())
    except Exception as error:  # broad: an upload may contain anything, and the library raises anything
        raise ModelRefused(f"It is not a sound ONNX model: {first_line(error)}") from error
    for tensor in tensors_in(model):
        if tensor.data_location == TensorProto.EXTERNAL:  # libraries would look for it in the current folder
            raise ModelRefused("Its weights are in another file; send it as one.")
        if tensor.data_type == TensorProto.STRING:
            raise ModelRefused(f"Its tensor {tensor.name!r} holds text, which no hardware can hold.")
    _check_operators(model)
    _check_ends(model)
    try:
        onnx.checker.check_model(model, full_check=not _has_own_operators(model))
    except Exception as error:  # broad: as above
        raise ModelRefused(f"It is not a sound ONNX model: {first_line(error)}") from error
    if not model.graph.node:
        raise ModelRefused("The model does nothing: it has no node.")
    return model


def first_line(error: Exception) -> str:
    """The part of a library's message that says something."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines[0] if lines else type(error).__name__)[:300]


def normalise(model: onnx.ModelProto, input_shape: list[int] | None) -> tuple[onnx.ModelProto, list[str]]:
    """The model in float32, with current operators and fixed shapes, and warnings. May change the model."""
    warnings = []
    drop_weights_from_inputs(model)
    _constants_to_weights(model.graph)
    if converted := _to_float32(model):
        warnings.append(f"The model was in {converted} and was converted to float32 before it was quantised.")
    if opset(model) < OLDEST_OPSET:
        model = _upgrade(model)
    for node in model.graph.node:
        if node.op_type == "Sum" and len(node.input) == 2 and node.domain in STANDARD:
            node.op_type = "Add"  # the same, and there is an integer operator for it
    bind_shapes(model, input_shape)
    check_sizes(model)  # before it is simplified, which computes whatever is constant
    return model, warnings


def opset(model: onnx.ModelProto) -> int:
    return next((found.version for found in model.opset_import if found.domain in STANDARD), 0)


def nodes_in(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    """All nodes, those of branches and loops too."""
    for node in graph.node:
        yield node
        for inner in graphs_in(node):
            yield from nodes_in(inner)


def graphs_in(node: onnx.NodeProto) -> list[onnx.GraphProto]:
    return [each.g for each in node.attribute if each.HasField("g")] + [
        g for each in node.attribute for g in each.graphs
    ]


def tensors_in(message: Any) -> Iterator[TensorProto]:
    """Every tensor that is written down anywhere in the model: weights, attributes, branches, functions."""
    if isinstance(message, TensorProto):
        yield message
    for value in [value for field, value in message.ListFields() if field.message_type is not None]:
        for each in _each(value):
            yield from tensors_in(each)


def true_inputs(model: onnx.ModelProto) -> list[onnx.ValueInfoProto]:
    weights = {tensor.name for tensor in model.graph.initializer}
    return [given for given in model.graph.input if given.name not in weights]


def check_sizes(model: onnx.ModelProto) -> None:
    """Refuse a model that would need more memory than anybody has: the sizes are known before it runs."""
    try:
        inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    except Exception as error:  # broad: the library raises anything
        raise ModelRefused(f"The shapes of its tensors do not fit together: {first_line(error)}") from error
    in_all = 0
    for name, elements in _sizes(inferred.graph):
        if elements > MOST_ELEMENTS:
            raise ModelRefused(f"Its tensor {name!r} has {elements} elements (limit {MOST_ELEMENTS}).")
        in_all += elements
    if in_all > MOST_IN_ALL:
        raise ModelRefused(f"Its tensors have {in_all} elements together (limit {MOST_IN_ALL}).")


def report(model: onnx.ModelProto) -> Report:
    weights = {tensor.name: tensor for tensor in model.graph.initializer}
    return Report(
        nodes=len(model.graph.node),
        parameters=sum(int(np.prod(tensor.dims, dtype=np.int64)) for tensor in weights.values()),
        opset=opset(model),
        inputs=[_tensor(given, _rows(model.graph, given.name)) for given in true_inputs(model)],
        outputs=[_tensor(made) for made in model.graph.output],
    )


def drop_weights_from_inputs(model: onnx.ModelProto) -> None:
    """Older models list weights as inputs too, and refuse weights that are not listed, which optimisers add."""
    model.ir_version = max(model.ir_version, OLDEST_IR)
    kept = true_inputs(model)
    del model.graph.input[:]
    model.graph.input.extend(kept)


def _constants_to_weights(graph: onnx.GraphProto) -> None:
    """Weights that are written down as Constant nodes: the quantiser looks for them among the initializers."""
    for node in [each for each in graph.node if each.op_type == "Constant" and each.domain in STANDARD]:
        if [each.name for each in node.attribute] == ["value"]:
            graph.initializer.append(node.attribute[0].t)
            graph.initializer[-1].name = node.output[0]
            graph.node.remove(node)


def bind_shapes(model: onnx.ModelProto, input_shape: list[int] | None) -> None:
    """Give every input fixed sizes: those of ``input_shape``, and 1 for an open batch.

    A name for an open size means the same size wherever it occurs, so one number can settle several inputs.
    """
    inputs = true_inputs(model)
    names: dict[str, int] = {}
    if input_shape is not None:
        fitting = [given for given in inputs if _fits(given, input_shape)]
        if not fitting:
            shapes = ", ".join(f"{given.name!r} {_written(given)}" for given in inputs)
            raise ParameterRefused(f"input_shape {input_shape} fits none of the model's inputs: {shapes}.")
        for given in fitting:
            _bind(given, input_shape, names)
    for given in inputs:
        dims = given.type.tensor_type.shape.dim
        if dims and not _is_fixed(dims[0]) and (dims[0].dim_param or "") not in names:
            names |= {dims[0].dim_param: 1} if dims[0].dim_param else {}
            dims[0].dim_value = names.get(dims[0].dim_param, 1)
        for i, dim in enumerate(dims):
            if not _is_fixed(dim):
                if dim.dim_param not in names:
                    raise ModelRefused(
                        f"The input {given.name!r} leaves its dimension {i} open ({_written(given)}); hardware needs "
                        "a number: set input_shape."
                    )
                dim.dim_value = names[dim.dim_param]
    for made in (*model.graph.output, *model.graph.value_info):  # shape inference finds the others
        for dim in made.type.tensor_type.shape.dim:
            if not _is_fixed(dim):
                size = names.get(dim.dim_param)
                dim.Clear()
                if size is not None:
                    dim.dim_value = size


def _bind(given: onnx.ValueInfoProto, shape: list[int], names: dict[str, int]) -> None:
    for dim, size in zip(given.type.tensor_type.shape.dim, shape, strict=True):
        if dim.dim_param:
            names.setdefault(dim.dim_param, size)
        dim.dim_value = size


def _fits(given: onnx.ValueInfoProto, shape: list[int]) -> bool:
    dims = given.type.tensor_type.shape.dim
    return len(dims) == len(shape) and all(
        not _is_fixed(dim) or dim.dim_value == size for dim, size in zip(dims, shape, strict=True)
    )


def _is_fixed(dim: Any) -> bool:
    return bool(dim.HasField("dim_value") and dim.dim_value > 0)


def _written(given: onnx.ValueInfoProto) -> str:
    dims = given.type.tensor_type.shape.dim
    return "x".join(str(dim.dim_value) if _is_fixed(dim) else (dim.dim_param or "?") for dim in dims)


def _check_operators(model: onnx.ModelProto) -> None:
    """Name the operator that nobody knows, before a library fails on it."""
    own = {(each.domain, each.name) for each in model.functions}
    graphs = [*nodes_in(model.graph), *(node for each in model.functions for node in each.node)]
    for node in graphs:
        if (node.domain, node.op_type) in own or node.domain in RUNTIME:
            continue
        if node.domain not in STANDARD:
            raise ModelUnsupported(
                f"Its operator {node.domain}::{node.op_type} is a custom one, which cannot be converted."
            )
        if not onnx.defs.has(node.op_type):
            raise ModelUnsupported(f"Its operator {node.op_type} is not an ONNX operator.")


def _has_own_operators(model: onnx.ModelProto) -> bool:
    """Whether it uses operators that the checker cannot infer shapes for."""
    return any(node.domain in RUNTIME for node in nodes_in(model.graph))


def _check_ends(model: onnx.ModelProto) -> None:
    """Hardware takes and gives tensors."""
    makers = {name: node.op_type for node in model.graph.node for name in node.output}
    for word, values in (("input", true_inputs(model)), ("output", model.graph.output)):
        for value in values:
            kind = value.type.WhichOneof("value")
            if kind not in ("tensor_type", None):
                by = f" of the operator {makers[value.name]}" if value.name in makers else ""
                what = kind.removesuffix("_type").replace("_", " ")
                raise ModelUnsupported(f"Its {word} {value.name!r}{by} is a {what}, not a tensor.")


def _to_float32(model: onnx.ModelProto) -> str:
    """Convert weights, attributes and declared types; returns the names of the types that were converted."""
    found = set()
    for tensor in tensors_in(model):
        if tensor.data_type in OTHER_FLOATS:
            found.add(tensor.data_type)
            name = tensor.name
            tensor.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(tensor).astype(np.float32), name))
    for kind in _types_in(model):
        if kind.elem_type in OTHER_FLOATS:
            found.add(kind.elem_type)
            kind.elem_type = TensorProto.FLOAT
    nodes = [*nodes_in(model.graph), *(node for each in model.functions for node in each.node)]
    for attribute in (each for node in nodes for each in node.attribute if each.name in ("to", "dtype")):
        if attribute.i in OTHER_FLOATS:
            found.add(attribute.i)
            attribute.i = TensorProto.FLOAT
    return " and ".join(sorted(TensorProto.DataType.Name(each).lower() for each in found))


def _types_in(message: Any) -> Iterator[Any]:
    if isinstance(message, onnx.TypeProto.Tensor):
        yield message
        return
    for value in [value for field, value in message.ListFields() if field.message_type is not None]:
        for each in _each(value):
            if not isinstance(each, TensorProto):
                yield from _types_in(each)


def _upgrade(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:  # broad: as above
        named = next((node.op_type for node in nodes_in(model.graph) if node.op_type in str(error)), None)
        which = f"Its operator {named} of opset {opset(model)}" if named else f"Its opset {opset(model)}"
        raise ModelUnsupported(f"{which} cannot be converted to opset {OLDEST_OPSET}: {first_line(error)}") from error


def _sizes(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Names and elements of the tensors whose shape is known, those of branches and loops too."""
    for tensor in graph.initializer:
        yield tensor.name, math.prod(tensor.dims)
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, math.prod(sparse.dims)
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        yield value.name, math.prod(dim.dim_value if dim.HasField("dim_value") else 1 for dim in dims)
    for inner in (each for node in graph.node for each in graphs_in(node)):
        yield from _sizes(inner)


def _each(value: Any) -> Iterable[Any]:
    return [value] if hasattr(value, "ListFields") else value


def _rows(graph: onnx.GraphProto, name: str, steps: int = 4) -> int | None:
    """How many rows the tables have that an input is an index into; None if it is no index."""
    weights = {tensor.name: list(tensor.dims) for tensor in graph.initializer}
    found = []
    for node in graph.node:
        if name not in node.input:
            continue
        if node.op_type == "Gather" and node.input[1] == name and node.input[0] in weights:
            axis = next((each.i for each in node.attribute if each.name == "axis"), 0)
            found.append(weights[node.input[0]][axis])
        elif steps and node.op_type in ("Cast", "Unsqueeze", "Squeeze", "Reshape", "Transpose", "Identity", "Flatten"):
            found += [rows] if (rows := _rows(graph, node.output[0], steps - 1)) else []
    return min(found, default=None)


def _tensor(info: onnx.ValueInfoProto, below: int | None = None) -> Tensor:
    kind = info.type.tensor_type
    name = "float32" if kind.elem_type == TensorProto.FLOAT else str(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return Tensor(info.name, name, [dim.dim_value for dim in kind.shape.dim], below)
