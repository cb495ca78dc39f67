"""The built-in toolchain: ONNX Slim simplifies, ONNX Runtime quantises and runs."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Iterator, Sequence
from functools import cache
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import TensorProto, helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

from packhorse_converter import container
from packhorse_converter.toolchain import About, Feed, ModelRefused, Outputs, Report, Runner, Tensor

OLDEST_OPSET = 13
"""Older opsets cannot quantise weights per channel."""
MOST_ELEMENTS = 2**26
"""Of one tensor: 256 MiB of float32. A model of a hundred bytes can ask for any size."""
MOST_IN_ALL = 2**29
"""Elements of all tensors of a model."""
ARENA = 4 * 1024**3
"""Bytes for all tensors of running models: sizes that show only when a model runs are bounded by this."""


class OpenToolchain:
    version = f"onnxslim {version('onnxslim')}, onnxruntime {version('onnxruntime')}"

    def optimise(self, model: Path, to: Path) -> tuple[Report, Report]:
        import onnxslim  # takes seconds to load

        loaded = _load(model)
        before = _report(loaded)
        if before.opset < OLDEST_OPSET:
            loaded = _upgrade(loaded)
        fixed = _fix_batch(loaded)
        _check_sizes(fixed)  # before it is simplified, which computes whatever is constant
        slim: Any = onnxslim.slim(fixed)
        onnx.checker.check_model(slim, full_check=True)
        _check_sizes(slim)
        onnx.save(slim, to)
        return before, _report(slim)

    def quantise(self, model: Path, samples: Sequence[Feed], to: Path) -> None:
        logging.getLogger().setLevel(logging.ERROR)  # it warns that the model should be optimised, which it is
        quantize_static(
            str(model),
            str(to),
            _Reader(samples),
            quant_format=QuantFormat.QDQ,
            activation_type=QuantType.QInt8,
            weight_type=QuantType.QInt8,
            per_channel=True,
        )

    def pack(self, model: Path, about: About, to: Path) -> None:
        container.write(onnx.load(model), about, to)

    def runner(self, model: Path, *, exactly: bool = False) -> Runner:
        return _runner(model.read_bytes(), exactly=exactly)

    def packed_runner(self, packed: Path) -> Runner:
        return _runner(container.read(packed).model.SerializeToString(), exactly=False)


class _Reader(CalibrationDataReader):  # type: ignore[misc]  # the library has no types
    def __init__(self, samples: Sequence[Feed]) -> None:
        self._samples: Iterator[Feed] = iter(samples)

    def get_next(self) -> Feed | None:
        return next(self._samples, None)


def _runner(model: bytes, *, exactly: bool) -> Runner:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    if _has_arena():
        options.add_session_config_entry("session.use_env_allocators", "1")
    if exactly:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run(feed: Feed) -> Outputs:
        try:
            outputs: Outputs = session.run(None, dict(feed))
        except Exception as error:
            if "arena" not in str(error):
                raise
            raise ModelRefused(f"Running the model takes more than {ARENA // 1024**3} GiB.") from error
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


def _load(path: Path) -> onnx.ModelProto:
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(path.read_bytes())
        for tensor in _tensors(model):
            if tensor.data_location == TensorProto.EXTERNAL:  # libraries would look for it in the current folder
                raise ModelRefused("Its weights are in another file; send it as one.")
            if tensor.data_type == TensorProto.STRING:
                raise ModelRefused(f"Its tensor {tensor.name!r} holds text, which no hardware can hold.")
        onnx.checker.check_model(model, full_check=True)
    except ModelRefused:
        raise
    except Exception as error:  # broad: an upload may contain anything, and the library raises anything
        raise ModelRefused(f"It is not a sound ONNX model: {str(error).splitlines()[0][:300]}") from error
    if not model.graph.node:
        raise ModelRefused("The model does nothing: it has no node.")
    return model


def _tensors(message: Any) -> Iterator[TensorProto]:
    """Every tensor that is written down anywhere in the model: weights, attributes, branches, functions."""
    if isinstance(message, TensorProto):
        yield message
    for value in [value for field, value in message.ListFields() if field.message_type is not None]:
        for each in _each(value):
            yield from _tensors(each)


def _check_sizes(model: onnx.ModelProto) -> None:
    """Refuse a model that would need more memory than anybody has: the sizes are known before it runs."""
    inferred = onnx.shape_inference.infer_shapes(model, data_prop=True)
    in_all = 0
    for name, elements in _sizes(inferred.graph):
        if elements > MOST_ELEMENTS:
            raise ModelRefused(f"Its tensor {name!r} has {elements} elements (limit {MOST_ELEMENTS}).")
        in_all += elements
    if in_all > MOST_IN_ALL:
        raise ModelRefused(f"Its tensors have {in_all} elements together (limit {MOST_IN_ALL}).")


def _sizes(graph: onnx.GraphProto) -> Iterator[tuple[str, int]]:
    """Names and elements of the tensors whose shape is known, those of branches and loops too."""
    for tensor in graph.initializer:
        yield tensor.name, math.prod(tensor.dims)
    for sparse in graph.sparse_initializer:
        yield sparse.values.name, math.prod(sparse.dims)
    for value in (*graph.input, *graph.value_info, *graph.output):
        dims = value.type.tensor_type.shape.dim
        yield value.name, math.prod(dim.dim_value if dim.HasField("dim_value") else 1 for dim in dims)
    for inner in (each.g for node in graph.node for each in node.attribute if each.HasField("g")):
        yield from _sizes(inner)


def _each(value: Any) -> Iterable[Any]:
    return [value] if hasattr(value, "ListFields") else value


def _upgrade(model: onnx.ModelProto) -> onnx.ModelProto:
    try:
        return onnx.version_converter.convert_version(model, OLDEST_OPSET)
    except Exception as error:  # broad: as above
        raise ModelRefused(f"Its operators are too old: {str(error).splitlines()[0][:300]}") from error


def _fix_batch(model: onnx.ModelProto) -> onnx.ModelProto:
    """Set an open batch size to 1. The hardware needs fixed sizes, so any other open dimension is refused."""
    weights = {tensor.name for tensor in model.graph.initializer}
    for given in model.graph.input:
        if given.name in weights:
            continue
        for i, dim in enumerate(given.type.tensor_type.shape.dim):
            if dim.HasField("dim_value") and dim.dim_value > 0:
                continue
            if i > 0:
                raise ModelRefused(f"The input {given.name!r} leaves its dimension {i} open; hardware needs a number.")
            dim.Clear()
            dim.dim_value = 1
    for made in (*model.graph.output, *model.graph.value_info):
        dims = made.type.tensor_type.shape.dim
        if dims and not dims[0].HasField("dim_value"):
            dims[0].Clear()
            dims[0].dim_value = 1
    return model


def _report(model: onnx.ModelProto) -> Report:
    weights = {tensor.name for tensor in model.graph.initializer}
    return Report(
        nodes=len(model.graph.node),
        parameters=sum(int(np.prod(tensor.dims, dtype=np.int64)) for tensor in model.graph.initializer),
        opset=next((found.version for found in model.opset_import if found.domain in ("", "ai.onnx")), 0),
        inputs=[_tensor(given) for given in model.graph.input if given.name not in weights],
        outputs=[_tensor(made) for made in model.graph.output],
    )


def _tensor(info: onnx.ValueInfoProto) -> Tensor:
    kind = info.type.tensor_type
    name = "float32" if kind.elem_type == TensorProto.FLOAT else str(helper.tensor_dtype_to_np_dtype(kind.elem_type))
    return Tensor(info.name, name, [dim.dim_value for dim in kind.shape.dim])
