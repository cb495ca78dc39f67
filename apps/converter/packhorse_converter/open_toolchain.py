"""The built-in toolchain: ONNX Slim simplifies, ONNX Runtime quantises and runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
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


class OpenToolchain:
    version = f"onnxslim {version('onnxslim')}, onnxruntime {version('onnxruntime')}"

    def optimise(self, model: Path, to: Path) -> tuple[Report, Report]:
        import onnxslim  # takes seconds to load

        loaded = _load(model)
        before = _report(loaded)
        if before.opset < OLDEST_OPSET:
            loaded = _upgrade(loaded)
        slim: Any = onnxslim.slim(_fix_batch(loaded))
        onnx.checker.check_model(slim, full_check=True)
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
    if exactly:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])

    def run(feed: Feed) -> Outputs:
        outputs: Outputs = session.run(None, dict(feed))
        return outputs

    return run


def _load(path: Path) -> onnx.ModelProto:
    try:
        model: onnx.ModelProto = onnx.ModelProto.FromString(path.read_bytes())
        if _needs_other_files(model):
            raise ModelRefused("Its weights are in another file; send it as one.")
        onnx.checker.check_model(model, full_check=True)
    except ModelRefused:
        raise
    except Exception as error:  # broad: an upload may contain anything, and the library raises anything
        raise ModelRefused(f"It is not a sound ONNX model: {str(error).splitlines()[0][:300]}") from error
    if not model.graph.node:
        raise ModelRefused("The model does nothing: it has no node.")
    return model


def _needs_other_files(message: Any) -> bool:
    """Whether any tensor refers to another file: libraries would look for it in the current folder."""
    if isinstance(message, TensorProto) and message.data_location == TensorProto.EXTERNAL:
        return True
    fields = [value for field, value in message.ListFields() if field.message_type is not None]
    return any(_needs_other_files(each) for value in fields for each in _each(value))


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
