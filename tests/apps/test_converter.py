"""The converter on real models: what it says of them is compared with what they compute."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from PIL import Image

from packhorse import File
from packhorse.core.plan import DownloadLimits
from packhorse.testing import Bench, BenchJob
from packhorse_converter import container, graphs, sample, samples, toolchain
from packhorse_converter.app import Convert, convert
from packhorse_converter.open_toolchain import load
from packhorse_converter.preprocessing import Given, Preprocessing, Tensor, plan
from packhorse_converter.toolchain import About, ModelRefused

IMAGE = Tensor("image", "float32", [1, 3, sample.SIZE, sample.SIZE])
PLANNED = plan([IMAGE], Given())
assert PLANNED is not None
PREPARED: Preprocessing = PLANNED


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    sample.write(folder)
    return folder


def converted(packhorse: Bench, folder: Path, *, images: bool = True, **parameters: Any) -> BenchJob[Any]:
    pictures = [File(path) for path in sorted(folder.glob("*.png"))] if images else []
    given: dict[str, Any] = {"model": File(folder / "shapes.onnx"), "ref_images": pictures} | parameters
    return packhorse.run(convert, Convert(**given))


def test_downloads_of_models_are_limited_per_key() -> None:
    gb = 1024**3
    assert convert.plan().result_name == "{source}{suffix}"
    assert convert.plan().downloads == DownloadLimits("key", 10, 5, 20, 1 * gb, 6 * gb)


def session(model: bytes) -> onnxruntime.InferenceSession:
    return onnxruntime.InferenceSession(model)


def answers(model: bytes, pictures: list[Any]) -> list[Any]:
    run = session(model)
    return [run.run(None, {"image": picture})[0] for picture in pictures]


def shown(folder: Path) -> list[Any]:
    return [PREPARED.read(path) for path in sorted(folder.glob("*.png"))]


def test_the_sample_model_tells_shapes_apart() -> None:
    run = session(sample.model().SerializeToString())
    pictures = sample.pictures(200, seed=11)

    right = [np.argmax(run.run(None, {"image": _values(image)})[0]) == label for image, label in pictures]

    assert np.mean(right) > 0.9


def _values(image: Any) -> Any:
    return (np.asarray(image, np.float32).transpose(2, 0, 1) / 255)[np.newaxis]


def test_a_model_is_optimised_quantised_and_packed(packhorse: Bench, made: Path) -> None:
    job = converted(packhorse, made, model_id=1001, version="0002", platform="720")

    assert job.status == "completed", job.error
    result = job.result
    assert (result.platform, result.model_id, result.version) == ("720", 1001, "0002")
    assert (result.toolchain, result.calibration) == ("open", "images")
    assert "onnxruntime" in result.toolchain_version
    assert result.model.name == "out.nef"
    packed = container.read(result.model.path)
    assert packed.about == About(720, 1001, "0002", "open", PREPARED)


def test_the_optimised_model_computes_the_same_with_less(packhorse: Bench, made: Path) -> None:
    job = converted(packhorse, made)

    source, optimised = (made / "shapes.onnx").read_bytes(), job.artifacts["onnx/out.onnx"].read_bytes()
    onnx.checker.check_model(onnx.load_from_string(optimised), full_check=True)
    assert len(onnx.load_from_string(optimised).graph.node) < len(onnx.load_from_string(source).graph.node)
    pictures = shown(made)
    np.testing.assert_allclose(answers(optimised, pictures), answers(source, pictures), rtol=1e-4, atol=1e-5)
    report = job.result.report
    assert report.nodes == len(onnx.load_from_string(optimised).graph.node)
    assert report.parameters == sum(int(np.prod(t.dims)) for t in onnx.load_from_string(optimised).graph.initializer)
    assert [(t.name, t.shape) for t in report.inputs] == [("image", [1, 3, 32, 32])]


def test_the_quantised_model_is_int8_and_the_error_is_what_it_really_is(packhorse: Bench, made: Path) -> None:
    job = converted(packhorse, made, enable_evaluate=True)

    quantised = job.artifacts["bie/out.bie"].read_bytes()
    weights = {t.data_type for t in onnx.load_from_string(quantised).graph.initializer if len(t.dims) > 1}
    assert weights == {TensorProto.INT8}
    share = job.result.quantisation.share
    assert (share.weights, share.operators, share.float_operators) == (1.0, 1.0, {})
    parts = samples.split(24)
    for numbers, found in ((parts.calibration, job.result.error), (parts.evaluation, job.result.evaluation)):
        pictures = [shown(made)[i] for i in numbers]
        exact = np.concatenate(answers(job.artifacts["onnx/out.onnx"].read_bytes(), pictures)).astype(np.float64)
        got = np.concatenate(answers(quantised, pictures)).astype(np.float64)
        assert found.samples == len(pictures)
        assert found.sqnr_db == pytest.approx(10 * np.log10(np.sum(exact**2) / np.sum((exact - got) ** 2)), abs=0.01)
        assert found.sqnr_db > 12
        assert found.max_error == pytest.approx(float(np.max(np.abs(exact - got))))
        assert found.top1 == pytest.approx(float(np.mean(np.argmax(exact, 1) == np.argmax(got, 1))))


def test_pictures_that_calibrate_do_not_evaluate(packhorse: Bench, made: Path) -> None:
    result = converted(packhorse, made, enable_evaluate=True).result

    used = [set(each) for each in (result.images.calibration, result.images.selection, result.images.evaluation)]
    assert [len(each) for each in used] == [12, 6, 6]
    assert set.union(*used) == {path.name for path in made.glob("*.png")}
    assert result.evaluation.samples == 6
    assert len({name.split("-")[1] for name in used[2]}) > 1, "sorted pictures are all of one class"


def test_the_packed_model_computes_what_the_quantised_one_does(packhorse: Bench, made: Path) -> None:
    job = converted(packhorse, made)

    packed = container.read(job.result.model.path).model.SerializeToString()
    pictures = shown(made)
    expected = answers(job.artifacts["bie/out.bie"].read_bytes(), pictures)
    assert all(np.array_equal(a, b) for a, b in zip(answers(packed, pictures), expected, strict=True))


def test_the_packed_model_still_tells_shapes_apart(packhorse: Bench, made: Path) -> None:
    packed = container.read(converted(packhorse, made).result.model.path).model.SerializeToString()
    run, pictures = session(packed), sample.pictures(200, seed=12)

    right = [np.argmax(run.run(None, {"image": _values(image)})[0]) == label for image, label in pictures]

    assert np.mean(right) > 0.9


def test_each_simulation_runs_when_it_is_asked_for(packhorse: Bench, made: Path) -> None:
    none = converted(packhorse, made).result
    all_of_them = converted(
        packhorse, made, enable_evaluate=True, enable_sim_fp=True, enable_sim_fixed=True, enable_sim_hw=True
    ).result

    assert (none.evaluation, none.sim_fp, none.sim_fixed, none.sim_hw) == (None, None, None, None)
    assert all_of_them.sim_fp.sqnr_db > 80
    assert 12 < all_of_them.sim_fixed.sqnr_db < 80
    assert all_of_them.sim_hw.sqnr_db >= all_of_them.sim_fixed.sqnr_db
    for agreement in (all_of_them.sim_fp, all_of_them.sim_fixed, all_of_them.sim_hw, all_of_them.evaluation):
        assert agreement.latency_ms > 0
        assert agreement.cosine > 0.95


def test_without_pictures_it_is_calibrated_with_noise_and_says_so(packhorse: Bench, made: Path) -> None:
    job = converted(packhorse, made, images=False)

    assert (job.result.calibration, job.result.error.samples) == ("synthetic", samples.SYNTHETIC)


def broken(folder: Path) -> Path:
    path = folder / "broken.onnx"
    path.write_bytes(b"this is no model")
    return path


def empty(folder: Path) -> Path:
    path = folder / "empty.onnx"
    path.write_bytes(b"")
    return path


def open_ended(folder: Path) -> Path:
    model = sample.model()
    model.graph.input[0].type.tensor_type.shape.dim[2].dim_param = "height"
    path = folder / "open.onnx"
    onnx.save(model, path)
    return path


HUGE = [1, 3, 16384, 16384]


def graph(nodes: list[onnx.NodeProto], shape: list[int], *weights: TensorProto) -> onnx.ModelProto:
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in "xy"]
    made = helper.make_graph(nodes, "graph", ends[:1], ends[1:], weights)
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)


def saved(model: onnx.ModelProto, folder: Path) -> Path:
    path = folder / "m.onnx"
    path.write_bytes(model.SerializeToString())
    return path


def filled(shape: str, *nodes: onnx.NodeProto) -> list[onnx.NodeProto]:
    """Makes zeros of that shape and adds their sum to x."""
    fill = helper.make_node("ConstantOfShape", [shape], ["zeros"])
    add = helper.make_node("ReduceSum", ["zeros"], ["sum"], keepdims=0), helper.make_node("Add", ["x", "sum"], ["y"])
    return [*nodes, fill, *add]


def huge_input(folder: Path) -> Path:
    path = saved(graph([helper.make_node("Relu", ["x"], ["y"])], HUGE), folder)
    assert path.stat().st_size < 100
    return path


def huge_constant(folder: Path) -> Path:
    return saved(graph(filled("shape"), [1, 8], numpy_helper.from_array(np.array(HUGE), "shape")), folder)


def huge_computed_constant(folder: Path) -> Path:
    square = helper.make_node("Mul", ["side", "side"], ["shape"])
    weight = numpy_helper.from_array(np.array([1, 3, 128, 128]), "side")
    return saved(graph(filled("shape", square), [1, 8], weight), folder)


def huge_in_all(folder: Path) -> Path:
    names = ["x", *(f"t{n}" for n in range(16)), "y"]
    nodes = [helper.make_node("Relu", [a], [b]) for a, b in pairwise(names)]
    return saved(graph(nodes, [1, 1, 64, 64]), folder)


def with_text(folder: Path) -> Path:
    text = TensorProto(name="words", data_type=TensorProto.STRING, dims=[2], string_data=[b"one", b"two"])
    return saved(graph([helper.make_node("Relu", ["x"], ["y"])], [1, 8], text), folder)


@pytest.mark.parametrize(
    ("make", "why"),
    [
        (huge_input, "has 805306368 elements"),
        (huge_constant, "has 805306368 elements"),
        (huge_computed_constant, "elements (limit"),
        (huge_in_all, "elements together"),
        (with_text, "holds text"),
        (broken, "not a sound ONNX model"),
        (empty, "not a sound ONNX model"),
        (open_ended, "leaves its dimension 2 open"),
    ],
    ids=["huge-input", "huge-constant", "huge-computed", "huge-in-all", "text", "broken", "empty", "open"],
)
def test_what_is_no_model_for_hardware_fails_at_once_and_says_why(
    packhorse: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[Path], Path], why: str
) -> None:
    monkeypatch.setattr(graphs, "MOST_IN_ALL", 2**16)

    job = packhorse.run(convert, Convert(model=File(make(tmp_path))))

    assert job.error is not None
    assert (job.status, job.error.code, job.attempts_of(convert.stages["onnx"])) == ("failed", "INVALID_MODEL", 1)
    assert why in job.error.message


def test_a_size_that_shows_only_when_the_model_runs_is_bounded() -> None:
    whole = helper.make_node("Cast", ["x"], ["shape"], to=TensorProto.INT64)
    run = load(graph(filled("shape", whole), [2]).SerializeToString())

    [fine] = run({"x": np.array([10, 10], np.float32)})
    with pytest.raises(ModelRefused, match="more than 4 GiB"):
        run({"x": np.array([50_000, 50_000], np.float32)})

    assert list(fine) == [10, 10]


def test_text_is_not_packed_as_pointers(tmp_path: Path) -> None:
    model = onnx.load(with_text(tmp_path))

    with pytest.raises(ValueError, match="holds text"):
        container.write(model, About(720, 1, "1", "open"), tmp_path / "out.nef")

    assert not (tmp_path / "out.nef").exists()


def test_every_stage_has_a_limit_of_memory() -> None:
    assert [each.plan.memory for each in convert.stages.values()] == [8 * 1024**3] * 3


WEIGHTS = "weights-of-somebody-else.bin"


def elsewhere(name: str = "w") -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.UINT8, dims=[8], data_location=TensorProto.EXTERNAL)
    for key, value in (("location", WEIGHTS), ("offset", "0"), ("length", "8")):
        tensor.external_data.add(key=key, value=value)
    return tensor


def constant(**attribute: Any) -> onnx.NodeProto:
    return helper.make_node("Constant", [], ["w"], **attribute)


def adding(*nodes: onnx.NodeProto, weights: tuple[TensorProto, ...] = ()) -> onnx.ModelProto:
    shapes = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1, 8]) for name in "xy"]
    cast = helper.make_node("Cast", ["w"], ["c"], to=TensorProto.FLOAT)
    add = helper.make_node("Add", ["x", "c"], ["y"])
    graph = helper.make_graph([*nodes, cast, add], "adding", shapes[:1], shapes[1:], weights)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def in_a_weight() -> onnx.ModelProto:
    return adding(weights=(elsewhere(),))


def in_a_sparse_weight() -> onnx.ModelProto:
    model = adding()
    indices = helper.make_tensor("at", TensorProto.INT64, [8], range(8))
    model.graph.sparse_initializer.append(helper.make_sparse_tensor(elsewhere(), indices, [8]))
    return model


def in_a_node() -> onnx.ModelProto:
    return adding(constant(value=elsewhere()))


def in_one_of_many() -> onnx.ModelProto:
    node = constant()
    node.attribute.append(helper.make_attribute("values", [elsewhere()]))
    return adding(node)


def in_a_branch() -> onnx.ModelProto:
    shape = helper.make_tensor_value_info("w", TensorProto.UINT8, [8])
    branch = helper.make_graph([], "branch", [], [shape], [elsewhere()])
    yes = helper.make_node("Constant", [], ["yes"], value=helper.make_tensor("yes", TensorProto.BOOL, [], [True]))
    return adding(yes, helper.make_node("If", ["yes"], ["w"], then_branch=branch, else_branch=branch))


def in_a_function() -> onnx.ModelProto:
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "weights", [], ["w"], [constant(value=elsewhere())], opsets)
    model = adding(helper.make_node("weights", [], ["w"], domain="own"))
    model.opset_import.append(opsets[1])
    model.functions.append(function)
    return model


@pytest.mark.parametrize(
    "make", [in_a_weight, in_a_sparse_weight, in_a_node, in_one_of_many, in_a_branch, in_a_function]
)
def test_a_model_gets_no_file_of_the_folder_its_worker_runs_in(
    packhorse: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, make: Callable[[], onnx.ModelProto]
) -> None:
    folder = tmp_path / "of-the-worker"
    folder.mkdir()
    (folder / WEIGHTS).write_bytes(b"canaries")
    monkeypatch.chdir(folder)
    (tmp_path / "m.onnx").write_bytes(make().SerializeToString())

    job = packhorse.run(convert, Convert(model=File(tmp_path / "m.onnx")))

    assert job.error is not None
    assert (job.status, job.error.code) == ("failed", "INVALID_MODEL")
    assert "in another file; send it as one" in job.error.message


def test_a_picture_that_cannot_be_read_is_named(packhorse: Bench, made: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.png").write_bytes(b"no picture")

    job = converted(packhorse, made, ref_images=[File(tmp_path / "bad.png")])

    assert job.error is not None
    assert (job.error.code, "bad.png is no picture" in job.error.message) == ("INVALID_REFERENCE", True)


@pytest.mark.parametrize("format", ["EPS", "TIFF"])
def test_only_the_accepted_formats_are_read_whatever_a_file_is_called(
    packhorse: Bench, made: Path, tmp_path: Path, format: str
) -> None:
    sample.pictures(1, seed=1)[0][0].save(tmp_path / "a.png", format)

    job = converted(packhorse, made, ref_images=[File(tmp_path / "a.png")])

    assert job.error is not None
    assert (job.error.code, "a.png is no picture" in job.error.message) == ("INVALID_REFERENCE", True)


def test_a_small_file_that_is_a_huge_picture_is_refused(packhorse: Bench, made: Path, tmp_path: Path) -> None:
    Image.new("1", (13_000, 13_000)).save(tmp_path / "a.png")

    job = converted(packhorse, made, ref_images=[File(tmp_path / "a.png")])

    assert job.error is not None
    assert (job.error.code, "a.png has 13000 x 13000 points" in job.error.message) == ("INVALID_REFERENCE", True)


def test_a_model_that_takes_no_pictures_is_not_calibrated_with_any(packhorse: Bench, tmp_path: Path) -> None:
    sums = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "sums",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 2])],
        [numpy_helper.from_array(np.ones((8, 2), np.float32), "w")],
    )
    onnx.save(helper.make_model(sums, opset_imports=[helper.make_opsetid("", 17)], ir_version=9), tmp_path / "m.onnx")
    sample.pictures(1, seed=1)[0][0].save(tmp_path / "a.png")
    model = File(tmp_path / "m.onnx")

    refused = packhorse.run(convert, Convert(model=model, ref_images=[File(tmp_path / "a.png")]))
    packed = packhorse.run(convert, Convert(model=model))

    assert refused.error is not None
    assert "takes no pictures" in refused.error.message
    assert packed.status == "completed", packed.error


def test_every_bit_of_a_packed_model_counts(packhorse: Bench, made: Path, tmp_path: Path) -> None:
    data = converted(packhorse, made).result.model.read_bytes()
    assert len(data) > 3000

    for at in [*range(120), *range(120, len(data), 97)]:
        spoiled = bytearray(data)
        spoiled[at] ^= 1
        (tmp_path / "spoiled.nef").write_bytes(spoiled)
        try:
            found = container.read(tmp_path / "spoiled.nef")
        except container.Unreadable:
            continue
        assert found.about != container.read(_written(tmp_path, data)).about or _is_padding(data, at), at


def _written(folder: Path, data: bytes) -> Path:
    (folder / "whole.nef").write_bytes(data)
    return folder / "whole.nef"


def _is_padding(data: bytes, at: int) -> bool:
    """Between two sections nothing is read."""
    count = container.HEADER.unpack_from(data)[5]
    table = data[container.HEADER.size : container.HEADER.size + container.ENTRY.size * count]
    inside = [(offset, offset + size) for _, offset, size, _ in container.ENTRY.iter_unpack(table)]
    return not any(start <= at < end for start, end in inside) and at >= container.HEADER.size + len(table)


@pytest.mark.parametrize("size", [0, 10, 40, 200])
def test_a_packed_model_that_was_cut_is_refused(packhorse: Bench, made: Path, tmp_path: Path, size: int) -> None:
    (tmp_path / "cut.nef").write_bytes(converted(packhorse, made).result.model.read_bytes()[:size])

    with pytest.raises(container.Unreadable):
        container.read(tmp_path / "cut.nef")


def test_a_vendors_toolchain_can_be_plugged_in(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "vendor"

        def load(self) -> Any:
            return lambda: "the vendor's"

    monkeypatch.setattr(toolchain, "entry_points", lambda group: [Entry()] if group == toolchain.GROUP else [])
    toolchain.toolchains.cache_clear()
    try:
        assert toolchain.names() == ["open", "vendor"]
    finally:
        toolchain.toolchains.cache_clear()
