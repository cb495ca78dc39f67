"""Whether what the converter makes is right, and whether it says so when it is not."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from msgspec.structs import replace
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from packhorse import File
from packhorse.testing import Bench, BenchJob
from packhorse_converter import (
    calibration,
    commands,
    comparison,
    container,
    evaluate,
    quantiser,
    sample,
    samples,
    toolchain,
)
from packhorse_converter.app import TOOLCHAINS, Convert, convert
from packhorse_converter.calibration import Histogram
from packhorse_converter.integers import Integers
from packhorse_converter.open_toolchain import load
from packhorse_converter.preprocessing import Given, Tensor, Unfit, plan
from packhorse_converter.toolchain import FloatLayer, Options

CAFFE = [104.0, 117.0, 123.0]
SIZE = 16


def session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model.SerializeToString())


def value(name: str, shape: list[Any] | None, kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def weight(name: str, array: Any, kind: type = np.float32) -> TensorProto:
    return numpy_helper.from_array(np.asarray(array, kind), name)


def model_of(
    nodes: list[onnx.NodeProto], inputs: list[Any], outputs: list[Any], weights: list[TensorProto], **more: Any
) -> onnx.ModelProto:
    graph = helper.make_graph(nodes, "graph", inputs, outputs, weights)
    opsets = more.pop("opsets", [helper.make_opsetid("", 17)])
    return helper.make_model(graph, opset_imports=opsets, ir_version=more.pop("ir_version", 8))


def convolution(**change: Any) -> onnx.ModelProto:
    """Two convolutions and a classifier, with random weights."""
    chance = np.random.default_rng(5)
    kind = change.pop("kind", np.float32)
    element = helper.np_dtype_to_tensor_dtype(np.dtype(kind))
    shape = change.pop("shape", [1, 3, SIZE, SIZE])
    batch = shape[0]
    return model_of(
        [
            helper.make_node("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1]),
            helper.make_node("Relu", ["a"], ["b"]),
            helper.make_node("Conv", ["b", "w2"], ["c"], strides=[2, 2]),
            helper.make_node("GlobalAveragePool", ["c"], ["d"]),
            helper.make_node("Flatten", ["d"], ["e"]),
            helper.make_node("Gemm", ["e", "w3", "b3"], ["y"]),
        ],
        [value("x", shape, element)],
        [value("y", [batch, 4], element)],
        [
            weight("w1", chance.standard_normal((8, 3, 3, 3)) / 5, kind),
            weight("w2", chance.standard_normal((8, 8, 3, 3)) / 8, kind),
            weight("w3", chance.standard_normal((8, 4)), kind),
            weight("b3", chance.standard_normal(4) / 9, kind),
        ],
        **change,
    )


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


@pytest.fixture(scope="module")
def pictures(tmp_path_factory: pytest.TempPathFactory) -> list[File]:
    folder = tmp_path_factory.mktemp("pictures")
    for i, (image, _) in enumerate(sample.pictures(12, seed=2)):
        image.save(folder / f"{i:02}.png")
    return [File(path) for path in sorted(folder.iterdir())]


def converted(packhorse: Bench, model: onnx.ModelProto, folder: Path, **given: Any) -> BenchJob[Any]:
    return packhorse.run(convert, Convert(model=File(saved(model, folder)), **given))


# -- preprocessing


def test_a_packed_model_prepares_pictures_as_its_parameters_say(
    packhorse: Bench, tmp_path: Path, pictures: list[File]
) -> None:
    model = convolution()
    given: dict[str, Any] = {"mean": CAFFE, "scale": [0.5, 0.25, 1.0], "channel_order": "bgr"}

    job = converted(packhorse, model, tmp_path, ref_images=pictures, enable_evaluate=True, **given)

    assert job.status == "completed", job.error
    packed = container.read(job.result.model.path)
    run, exact = session(packed.model), session(model)
    for picture in pictures[:3]:
        pixels = np.asarray(Image.open(picture.path).resize((SIZE, SIZE), Image.Resampling.BILINEAR), np.float32)
        expected = ((pixels[:, :, ::-1] - CAFFE) * given["scale"]).transpose(2, 0, 1)[np.newaxis].astype(np.float32)
        feed = packed.prepare(picture.path)
        np.testing.assert_allclose(feed["x"], expected, atol=1e-4)
        wanted = exact.run(None, {"x": expected})[0]
        noise = np.sum((run.run(None, feed)[0] - wanted) ** 2)
        assert 10 * np.log10(np.sum(wanted**2) / noise) > 15
    assert not [each for each in job.result.warnings if "mean" in each]


def test_without_mean_and_scale_the_result_warns(packhorse: Bench, tmp_path: Path, pictures: list[File]) -> None:
    job = converted(packhorse, convolution(), tmp_path, ref_images=pictures[:3])

    assert job.result.preprocessing.is_assumed
    assert "Neither mean nor scale was given" in job.result.warnings[0]


def test_open_height_and_width_are_set_by_input_shape(packhorse: Bench, tmp_path: Path) -> None:
    model = convolution(shape=["batch", 3, "height", "width"])

    wrong = converted(packhorse, model, tmp_path, input_shape=[1, 4, 8, 8])
    right = converted(packhorse, model, tmp_path, input_shape=[1, 3, 20, 24], scale=[1.0])

    assert wrong.error is not None
    assert wrong.error.code == "INVALID_PARAMETERS"
    assert "input_shape [1, 4, 8, 8] fits none" in wrong.error.message
    assert right.result.report.inputs[0].shape == [1, 3, 20, 24]
    assert (right.result.preprocessing.height, right.result.preprocessing.width) == (20, 24)


def test_layout_and_channels_must_fit_the_input() -> None:
    wide = Tensor("x", "float32", [1, 3, 8, 3])

    first, last = plan([wide], Given(scale=[1.0])), plan([wide], Given(scale=[1.0], layout="nhwc"))

    assert first is not None
    assert last is not None
    assert (first.height, first.width, last.height, last.width) == (8, 3, 3, 8)
    with pytest.raises(Unfit, match="mean has 2 values"):
        plan([wide], Given(mean=[1.0, 2.0]))
    with pytest.raises(Unfit, match="layout nhwc does not fit"):
        plan([Tensor("x", "float32", [1, 3, 8, 8])], Given(layout="nhwc"))
    with pytest.raises(Unfit, match="scale is for models that take pictures"):
        plan([Tensor("x", "float32", [1, 8])], Given(scale=[1.0]))


# -- integer arithmetic


def test_the_simulation_runs_integer_operators_and_checks_each(
    packhorse: Bench, tmp_path: Path, pictures: list[File]
) -> None:
    job = converted(packhorse, convolution(), tmp_path, ref_images=pictures, scale=[1 / 255], enable_sim_hw=True)

    integer = job.result.integer
    assert integer.integer_operators["QLinearConv"] == 2
    assert integer.integer_operators["QGemm"] == 1
    assert not set(integer.float_operators) & {"Conv", "Gemm"}
    assert (integer.check.operators, integer.check.largest_difference <= 1) == (4, True)
    assert integer.check.same > 0.99
    assert job.result.sim_hw.sqnr_db > 30


def operators() -> onnx.ModelProto:
    """Every operator that has an integer kernel, between nodes that quantise and dequantise."""
    chance = np.random.default_rng(1)
    nodes: list[onnx.NodeProto] = []
    weights = [weight("s", 0.05), weight("z", 3, np.int8), weight("t", 0.02), weight("u", -5, np.int8)]

    def quantised(name: str, scale: str = "s", zero: str = "z") -> str:
        nodes.append(helper.make_node("QuantizeLinear", [name, scale, zero], [f"{name}_q"]))
        nodes.append(helper.make_node("DequantizeLinear", [f"{name}_q", scale, zero], [f"{name}_d"]))
        return f"{name}_d"

    def constant(name: str, array: Any, scale: str, zero: str = "z0") -> str:
        weights.append(numpy_helper.from_array(array, name))
        nodes.append(helper.make_node("DequantizeLinear", [name, scale, zero], [f"{name}_d"], axis=0))
        return f"{name}_d"

    weights.append(weight("z0", 0, np.int8))
    weights += [weight("ws", [0.01, 0.02, 0.03, 0.04]), weight("wz", [0] * 4, np.int8)]
    weights += [weight("bs", np.array([0.01, 0.02, 0.03, 0.04]) * 0.05), weight("bz", [0] * 4, np.int32)]
    x = quantised("x")
    kernel = constant("k", chance.integers(-127, 128, (4, 1, 3, 3), np.int8), "ws", "wz")
    bias = constant("b", chance.integers(-900, 900, 4, np.int32), "bs", "bz")

    def add(kind: str, inputs: list[str], name: str, scale: str = "t", zero: str = "u", **options: Any) -> str:
        nodes.append(helper.make_node(kind, inputs, [name], **options))
        return quantised(name, scale, zero)

    depthwise = add("Conv", [x, kernel, bias], "conv", group=4, pads=[1, 1, 0, 3], strides=[2, 1], dilations=[1, 2])
    same = add("Conv", [x, kernel], "same", group=4, auto_pad="SAME_LOWER", strides=[2, 1])
    both = add("Concat", [depthwise, add("Sigmoid", [same], "sig", "s", "z")], "cat", axis=1)
    summed = add("Add", [both, add("LeakyRelu", [both], "leaky", "s", "z", alpha=0.2)], "add")
    product = add("Mul", [summed, both], "mul", "s", "z")
    pooled = add("AveragePool", [product], "pool", kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    largest = add("MaxPool", [pooled], "max", kernel_shape=[2, 2])
    flat = add("Flatten", [add("GlobalAveragePool", [largest], "mean")], "flat")
    columns = constant("m", chance.integers(-127, 128, (8, 5), np.int8), "t", "u")
    turned = constant("g", chance.integers(-127, 128, (5, 8), np.int8), "t", "z0")
    first, second = add("MatMul", [flat, columns], "prod"), add("Gemm", [flat, turned], "gemm", transB=1)
    add("Add", [first, second], "last")
    return model_of(nodes, [value("x", [1, 4, 12, 12])], [value("last_d", [1, 5])], weights)


def test_every_integer_operator_agrees_with_the_reference() -> None:
    found = Integers(operators(), load)
    feed = {"x": np.random.default_rng(2).standard_normal((1, 4, 12, 12)).astype(np.float32) * 3}

    run, reference, check = found.run(feed)[0], found.reference(feed)[0], found.check(feed)
    integer, other = found.operators()

    wanted = {"QLinearConv": 2, "QLinearSigmoid": 1, "QLinearLeakyRelu": 1, "QLinearConcat": 1, "QLinearAdd": 2}
    wanted |= {"QLinearMul": 1, "QLinearAveragePool": 1, "QLinearGlobalAveragePool": 1, "QLinearMatMul": 1, "QGemm": 1}
    assert {name: integer.get(name) for name in wanted} == wanted
    assert (other, integer["MaxPool"]) == ({}, 1)
    assert (check.operators, check.largest_difference <= 1) == (12, True)
    assert check.same > 0.95
    np.testing.assert_allclose(run, reference, atol=2 * 0.02)


def test_the_check_notices_wrong_arithmetic(monkeypatch: pytest.MonkeyPatch) -> None:
    from packhorse_converter import integers

    found = Integers(operators(), load)
    right = integers.KERNELS["QLinearMul"]
    wrong = {**integers.KERNELS, "QLinearMul": lambda *given: right(*given) + np.int8(2)}
    monkeypatch.setattr(integers, "KERNELS", wrong)

    check = found.check({"x": np.ones((1, 4, 12, 12), np.float32)})

    assert check.largest_difference >= 2


# -- how much is int8


def in_a_loop() -> onnx.ModelProto:
    body = helper.make_graph(
        [
            helper.make_node("Conv", ["v", "w"], ["out"], pads=[1, 1, 1, 1]),
            helper.make_node("Identity", ["go"], ["again"]),
        ],
        "body",
        [value("i", [], TensorProto.INT64), value("go", [], TensorProto.BOOL), value("v", [1, 3, 8, 8])],
        [value("again", [], TensorProto.BOOL), value("out", [1, 3, 8, 8])],
        [weight("w", np.random.default_rng(0).standard_normal((3, 3, 3, 3)) / 5)],
    )
    node = helper.make_node("Loop", ["n", "yes", "x"], ["y"], body=body)
    weights = [weight("n", 2, np.int64), weight("yes", True, np.bool_)]
    return model_of([node], [value("x", [1, 3, 8, 8])], [value("y", [1, 3, 8, 8])], weights)


def custom() -> onnx.ModelProto:
    node = helper.make_node("FancyAttention", ["x"], ["y"], domain="acme")
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("acme", 1)]
    return model_of([node], [value("x", [1, 8])], [value("y", [1, 8])], [], opsets=opsets)


def sequence() -> onnx.ModelProto:
    made = helper.make_value_info("y", helper.make_sequence_type_proto(helper.make_tensor_type_proto(1, [1, 4])))
    return model_of([helper.make_node("SplitToSequence", ["x"], ["y"], axis=1)], [value("x", [1, 8])], [made], [])


def unknown() -> onnx.ModelProto:
    return model_of([helper.make_node("Convolve", ["x"], ["y"])], [value("x", [1, 8])], [value("y", [1, 8])], [])


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (in_a_loop, "its Conv is inside a Loop"),
        (custom, "acme::FancyAttention"),
        (sequence, "SplitToSequence is a sequence"),
        (unknown, "Convolve is not an ONNX operator"),
    ],
)
def test_what_cannot_be_converted_is_named_at_the_first_attempt(
    packhorse: Bench, tmp_path: Path, make: Callable[[], onnx.ModelProto], why: str
) -> None:
    job = converted(packhorse, make(), tmp_path)

    assert job.error is not None
    assert (job.status, job.error.code) == ("failed", "UNSUPPORTED_MODEL")
    assert why in job.error.message
    assert sum(job.attempts_of(each) for each in convert.stages.values()) <= 2


def test_a_share_of_float_weights_is_reported(packhorse: Bench, tmp_path: Path) -> None:
    model = in_a_loop()
    model.graph.node[0].output[0] = "looped"
    model.graph.node.append(helper.make_node("Conv", ["looped", "k"], ["y"], pads=[1, 1, 1, 1]))
    model.graph.initializer.append(weight("k", np.random.default_rng(1).standard_normal((3, 3, 3, 3)) / 5))

    job = converted(packhorse, model, tmp_path)

    assert job.status == "completed", job.error
    share = job.result.quantisation.share
    assert (share.weights, share.float_operators["Conv"]) == (0.5, 1)


# -- models that used to end in a raw exception


def with_weights_as_inputs() -> onnx.ModelProto:
    """IR 3: weights are inputs, too."""
    model = convolution(ir_version=3, opsets=[helper.make_opsetid("", 9)])
    model.graph.input.extend(value(each.name, list(each.dims)) for each in model.graph.initializer)
    return model


def with_constants() -> onnx.ModelProto:
    """Weights as Constant nodes."""
    model = convolution()
    for tensor in list(model.graph.initializer):
        model.graph.node.insert(0, helper.make_node("Constant", [], [tensor.name], value=tensor))
    del model.graph.initializer[:]
    return model


def half() -> onnx.ModelProto:
    return convolution(kind=np.float16)


def batch_of_four() -> onnx.ModelProto:
    return convolution(shape=[4, 3, SIZE, SIZE])


@pytest.mark.parametrize("make", [with_weights_as_inputs, with_constants, half, batch_of_four])
def test_old_half_precision_and_batched_models_are_converted(
    packhorse: Bench, tmp_path: Path, pictures: list[File], make: Callable[[], onnx.ModelProto]
) -> None:
    model = make()

    wishes = {"enable_evaluate": True, "enable_sim_fp": True}

    job = converted(packhorse, model, tmp_path, ref_images=pictures, scale=[1 / 255], **wishes)

    assert job.status == "completed", job.error
    assert job.result.evaluation.sqnr_db > 15
    assert job.result.sim_fp.sqnr_db > 40
    packed = container.read(job.result.model.path)
    feed = packed.prepare(pictures[0].path)["x"]
    feed = np.concatenate([feed] * packed.model.graph.input[0].type.tensor_type.shape.dim[0].dim_value)
    kind = helper.tensor_dtype_to_np_dtype(model.graph.input[0].type.tensor_type.elem_type)
    exact = session(model).run(None, {"x": feed.astype(kind)})[0].astype(np.float32)
    got = session(packed.model).run(None, {"x": feed})[0]
    assert 10 * np.log10(np.sum(exact**2) / np.sum((exact - got) ** 2)) > 15


@pytest.mark.release
@pytest.mark.parametrize("path", evaluate.old_models(), ids=lambda path: path.stem)
def test_the_test_models_of_onnx_are_converted(tmp_path: Path, path: Path) -> None:
    assert "of the weights int8" in evaluate._convert_old(path)


# -- samples


def test_integer_inputs_get_values_that_the_model_accepts(packhorse: Bench, tmp_path: Path) -> None:
    table = weight("table", np.random.default_rng(0).standard_normal((50, 8)))
    nodes = [
        helper.make_node("Gather", ["table", "tokens"], ["a"]),
        helper.make_node("MatMul", ["a", "w"], ["y"]),
    ]
    weights = [table, weight("w", np.random.default_rng(1).standard_normal((8, 4)))]
    model = model_of(nodes, [value("tokens", [1, 6], TensorProto.INT64)], [value("y", [1, 6, 4])], weights)

    job = converted(packhorse, model, tmp_path)

    assert job.status == "completed", job.error
    given = job.result.report.inputs[0]
    assert given.below == 50
    drawn = np.concatenate([each["tokens"] for each in samples.synthetic_feeds([given], range(32), None)])
    assert (drawn.min() < 5, drawn.max() > 44, drawn.max() < 50) == (True, True, True)


def test_made_up_values_suit_the_type_of_each_input() -> None:
    image = plan([Tensor("image", "float32", [1, 3, 8, 8])], Given(mean=[127.5], scale=[1 / 127.5]))
    inputs = [
        Tensor("image", "float32", [1, 3, 8, 8]),
        Tensor("im_shape", "float32", [1, 2]),
        Tensor("attention_mask", "int64", [1, 4]),
        Tensor("flags", "bool", [64]),
        Tensor("pixels", "uint8", [1, 500]),
        Tensor("audio", "float32", [1, 500]),
    ]

    feed = samples.synthetic_feeds(inputs, [0], image)[0]

    assert -1 <= feed["image"].min() < 0 < feed["image"].max() <= 1
    assert feed["im_shape"].tolist() == [[8, 8]]
    assert feed["attention_mask"].tolist() == [[1, 1, 1, 1]]
    assert 0 < feed["flags"].sum() < 64
    assert feed["pixels"].max() > 200
    assert feed["audio"].min() < -1


# -- verdicts


def outputs(*values: Any) -> list[Any]:
    return [np.asarray(each, np.float32) for each in values]


def agreement(got: list[Any], wanted: list[Any], names: list[str]) -> comparison.Agreement:
    """Of models that answer with these outputs, one after the other."""
    feeds = [{"n": np.array(i)} for i in range(len(wanted))]
    return comparison.compare(
        lambda feed: got[int(feed["n"])], lambda feed: wanted[int(feed["n"])], feeds, names, (64, 64)
    )


def test_each_output_is_measured_by_itself() -> None:
    classes, values = [[0.1, 0.9, 0.0]], [[[1000.0, -2000.0]]]

    found = agreement([outputs([[0.9, 0.1, 0.0]], values)], [outputs(classes, values)], ["scores", "values"])

    assert [(each.name, each.kind, each.same, each.verdict) for each in found.outputs] == [
        ("scores", "classes", 0.0, "unusable"),
        ("values", "values", None, "good"),
    ]
    assert (found.top1, found.verdict, found.sqnr_db < 10) == (0.0, "unusable", True)


def detector(boxes: list[tuple[int, float]]) -> list[Any]:
    """An output of YOLO's form: 40 rows of x, y, width, height, object and two classes."""
    rows = np.zeros((1, 40, 7))
    rows[0, :, :4] = [[20 * i, 30, 16, 16] for i in range(40)]
    for row, score in boxes:
        rows[0, row, 4:] = [score, 1.0, 0.0]
    return outputs(rows)


def test_detections_are_counted_as_boxes() -> None:
    wanted = detector([(3, 0.9), (8, 0.8), (20, 0.7)])

    same = agreement([wanted], [wanted], ["output"])
    worse = agreement([detector([(3, 0.9), (30, 0.8)])], [wanted], ["output"])

    counts = [(each.expected, each.found, each.extra) for each in (same.outputs[0], worse.outputs[0])]
    assert counts == [(3, 3, 0), (3, 1, 1)]
    assert (same.verdict, worse.verdict, worse.top1) == ("good", "unusable", None)


def test_an_answer_that_never_changes_is_unusable() -> None:
    wanted = [outputs([[5.0, 5.1 + 0.1 * i]]) for i in range(4)]

    found = agreement([outputs([[5.0, 5.25]])] * 4, wanted, ["y"])

    assert found.sqnr_db > 20
    assert (found.top1, found.verdict) == (1.0, "unusable")


def test_a_bad_result_has_a_verdict_and_a_warning(packhorse: Bench, tmp_path: Path, pictures: list[File]) -> None:
    model = convolution()
    bias = weight("b3", [1000.0] * 4)  # int8 has 256 steps from 0 to 1000, and classes differ by less than one
    model.graph.initializer[3].CopyFrom(bias)

    job = converted(packhorse, model, tmp_path, ref_images=pictures, scale=[1 / 255], enable_evaluate=True)

    assert job.result.evaluation.sqnr_db > 40
    assert job.result.verdict == "unusable"
    assert [each for each in job.result.warnings if "The quantised model is unusable" in each]


# -- calibration


def test_percentile_and_entropy_leave_outliers_out() -> None:
    counts = np.zeros(calibration.BINS, np.int64)
    counts[:200] = 1_000_000 * np.exp(-np.arange(200) / 20)
    counts[-1] = 1
    found = {"x": Histogram(0.0, 100.0, counts)}

    ranges = {method: calibration.ranges(found, method)["x"] for method in ("max", "percentile", "entropy")}

    assert ranges["max"] == (0.0, 100.0)
    assert ranges["percentile"][1] < 10
    assert ranges["entropy"][1] < 100


@pytest.mark.parametrize("method", ["max", "percentile", "entropy"])
def test_a_method_can_be_chosen(tmp_path: Path, method: Any) -> None:
    found = quantised(convolution(), tmp_path, Options(calibration=method))

    assert found.method.startswith(method)
    assert all(name.startswith(method) for name in found.tried)
    assert found.per_channel


def test_rare_scores_are_not_clipped_as_outliers(tmp_path: Path) -> None:
    """One in thousands of scores is high, as a detector's are, and percentiles would cut it off."""
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["a"]),
        helper.make_node("Add", ["a", "b"], ["c"]),
        helper.make_node("Sigmoid", ["c"], ["scores"]),
        helper.make_node("MatMul", ["scores", "k"], ["y"]),
    ]
    side = 192
    bias = np.full((1, 1, side, side), -9.0)
    bias[0, 0, 4, 5] = 4.0
    weights = [weight("w", np.full((1, 3, 1, 1), 0.01)), weight("b", bias), weight("k", np.eye(side))]
    ends = [value("x", [1, 3, side, side])], [value("y", [1, 1, side, side])]

    quantised(model_of(nodes, *ends, weights), tmp_path, Options(calibration="percentile"), side)

    made = session(onnx.load(tmp_path / "out.bie")).run(None, {"x": np.zeros((1, 3, side, side), np.float32)})[0]
    assert made[0, 0, 4, 5] > 0.9


def quantised(model: onnx.ModelProto, folder: Path, options: Options, side: int = SIZE) -> toolchain.Quantisation:
    tools = toolchain.toolchains()["open"]
    feeds = samples.synthetic_feeds([Tensor("x", "float32", [1, 3, side, side])], range(12), None)
    tools.optimise(saved(model, folder), folder / "out.onnx", options)
    return tools.quantise(folder / "out.onnx", feeds[:8], feeds[8:], folder / "out.bie", options)


def test_the_method_with_the_least_error_is_chosen(tmp_path: Path) -> None:
    found = quantised(convolution(), tmp_path, Options())

    assert len(found.tried) == 4
    assert found.tried[found.method] == max(found.tried.values())


def test_sensitive_layers_are_kept_in_float_as_long_as_they_gain(monkeypatch: pytest.MonkeyPatch) -> None:
    model = convolution()
    for node, name in zip(model.graph.node, ("first", "relu", "second", "pool", "flat", "last"), strict=True):
        node.name = name
    gains = {"first": 1.0, "second": -2.0, "last": 3.0}
    monkeypatch.setattr(quantiser, "_insert", lambda model, ranges, excluded: list(excluded))

    def measure(names: Any) -> float:
        return 20.0 + sum(gains[name] for name in names)

    two = quantiser._sensitive(model, {}, [], 20.0, measure, 2)
    one = quantiser._sensitive(model, {}, [], 20.0, measure, 1)

    assert [(each.name, each.operator, each.gained_db) for each in two] == [
        ("last", "Gemm", 3.0),
        ("first", "Conv", 1.0),
    ]
    assert [each.name for each in one] == ["last"]


def test_float_layers_are_reported_with_what_they_gained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = [FloatLayer("Conv_0", "Conv", 1.0)]
    monkeypatch.setattr(quantiser, "_sensitive", lambda *given: kept)

    found = quantised(convolution(), tmp_path, Options(calibration="max", float_layers=1))

    assert (found.float_layers, found.float_layers_gained_db is not None) == (kept, True)
    assert found.share is not None
    assert (found.share.weights < 1, found.share.float_operators["Conv"]) == (True, 1)


def test_a_tensor_that_hardly_changes_is_calibrated(tmp_path: Path) -> None:
    model = model_of(
        [helper.make_node("Add", ["x", "b"], ["y"])], [value("x", [1, 8])], [value("y", [1, 8])], [weight("b", 1000.0)]
    )
    feeds = [{"x": np.full((1, 8), i * 1e-3, np.float32)} for i in range(30)]

    found = calibration.observe(model, feeds, lambda each: load(each.SerializeToString()))

    assert found["y"].low == 1000.0
    assert calibration.ranges(found, "entropy")["y"] == (found["y"].low, found["y"].high)


def test_calibration_holds_few_tensors_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = onnx.shape_inference.infer_shapes(convolution())
    feeds = samples.synthetic_feeds([Tensor("x", "float32", [1, 3, SIZE, SIZE])], range(3), None)
    whole = calibration.observe(model, feeds, lambda each: load(each.SerializeToString()))
    sizes: list[int] = []

    def counted(each: onnx.ModelProto) -> toolchain.Runner:
        run = load(each.SerializeToString())

        def measured(feed: toolchain.Feed) -> toolchain.Outputs:
            made = run(feed)
            sizes.append(sum(array.size for array in made))
            return made

        return measured

    monkeypatch.setattr(calibration, "MOST_AT_ONCE", 8 * SIZE * SIZE)
    parts = calibration.observe(model, feeds, counted)

    assert max(sizes) <= 8 * SIZE * SIZE < sum(sizes) / 6
    assert {name: (h.low, h.high, h.counts.sum()) for name, h in parts.items()} == {
        name: (h.low, h.high, h.counts.sum()) for name, h in whole.items()
    }


# -- a vendor's programs

PROGRAM = """
import sys, shutil, pathlib
stage, model, out, *rest = sys.argv[1:]
data = pathlib.Path(model).read_bytes()
if b"reject" in data:
    print("operator Reject is not supported", file=sys.stderr); sys.exit(65)
if stage == "bie":
    assert len(list(pathlib.Path(rest[0]).glob("*.npz"))) == 3
pathlib.Path(out).write_bytes(data if stage == "onnx" else stage.encode() + b":" + " ".join(rest[-3:]).encode())
"""


@pytest.fixture
def vendor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    program, settings = tmp_path / "vendor.py", tmp_path / "toolchains.toml"
    program.write_text(PROGRAM)
    call = f'"{sys.executable}", "{program}"'
    settings.write_text(
        f"""
        [vendor]
        version = "7.1"
        onnx = [{call}, "onnx", "{{model}}", "{{out}}"]
        bie = [{call}, "bie", "{{model}}", "{{out}}", "{{samples}}"]
        nef = [{call}, "nef", "{{model}}", "{{out}}", "{{platform}}", "{{model_id}}", "{{version}}"]
        """
    )
    monkeypatch.setenv(commands.SETTING, str(settings))
    toolchain.toolchains.cache_clear()
    TOOLCHAINS.__dict__.pop("values", None)  # it asks once per process
    yield settings
    toolchain.toolchains.cache_clear()
    TOOLCHAINS.__dict__.pop("values", None)


@pytest.mark.usefixtures("vendor")
def test_a_vendors_programs_convert_a_model(packhorse: Bench, tmp_path: Path, pictures: list[File]) -> None:
    given = {"ref_images": pictures[:4], "platform": "720", "model_id": 9, "enable_sim_hw": True}

    job = converted(packhorse, convolution(), tmp_path, toolchain="vendor", scale=[1.0], **given)

    assert job.status == "completed", job.error
    assert job.result.model.read_bytes() == b"nef:720 9 0001"
    assert (job.result.toolchain, job.result.toolchain_version) == ("vendor", "7.1")
    assert (job.result.verdict, job.result.error, job.result.sim_hw) == ("not measured", None, None)


@pytest.mark.usefixtures("vendor")
def test_a_model_that_a_vendors_program_rejects_is_not_tried_again(packhorse: Bench, tmp_path: Path) -> None:
    model = convolution()
    model.doc_string = "reject"

    job = converted(packhorse, model, tmp_path, toolchain="vendor")

    assert job.error is not None
    assert (job.error.code, job.attempts_of(convert.stages["onnx"])) == ("INVALID_MODEL", 1)
    assert "operator Reject is not supported" in job.error.message


def test_a_vendors_program_runs_in_a_container_without_a_network(tmp_path: Path) -> None:
    engine = tmp_path / "engine"
    engine.write_text(
        '#!/bin/sh\necho "$@" > "$LOGGED"\nfor last; do :; done\nfolder=${5#--volume=}\n: > "${folder%%:*}/out.nef"\n'
    )
    engine.chmod(0o755)
    logged = tmp_path / "logged"
    settings = commands.Settings([], [], ["pack", "{model}", "{out}"], image="acme:1", engine=str(engine))
    settings = replace(settings, environment={"LOGGED": str(logged)})
    (tmp_path / "m.bie").write_bytes(b"model")

    commands.CommandToolchain("acme", settings).pack(
        tmp_path / "m.bie", toolchain.About(520, 1, "1", "acme"), tmp_path / "out.nef"
    )

    words = logged.read_text().split()
    assert words[:3] == ["run", "--rm", "--network=none"]
    assert words[-4:] == ["acme:1", "pack", "/work/model.bie", "/work/out.nef"]
    assert (tmp_path / "out.nef").is_file()


def test_wrong_settings_of_toolchains_are_named(tmp_path: Path) -> None:
    (tmp_path / "t.toml").write_text("[acme]\nonnx = ['a']\nbie = ['b']\n")

    with pytest.raises(ValueError, match=r"CONVERTER_TOOLCHAINS: .*missing required field `nef`"):
        commands.configured({commands.SETTING: str(tmp_path / "t.toml")})
