"""The converter as its callers use it: a form with files, on every store, and through the death of its worker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from packhorse.errors import InvalidInput, SlotTaken
from packhorse_converter import container, sample
from tests.apps.places import PLACES, Stand, stand
from tests.http.processes import until

APP = "packhorse_converter:app"
FOR_LONG = 180.0


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shapes")
    sample.write(folder, images=8)
    return folder


@pytest.fixture(scope="module", params=PLACES)
def converter(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("converter"), APP, PLACES[request.param]) as found:
        found.ready("convert")
        yield found


def test_a_model_goes_through_all_stages_though_its_worker_is_killed(
    converter: Stand, made: Path, tmp_path: Path
) -> None:
    files: dict[str, Any] = {"model": made / "shapes.onnx", "ref_images": sorted(made.glob("*.png"))}
    job = converter.client.submit("convert", {"platform": "730", "enable_sim_hw": True}, files=files, user="ann")
    with pytest.raises(SlotTaken) as taken:
        converter.client.submit("convert", files={"model": made / "shapes.onnx"}, user="ann")
    until(lambda: converter.client.get(job["job_id"])["stages"]["onnx"]["status"] != "pending", FOR_LONG)
    converter.workers[-1].signal(signal.SIGKILL)
    converter.workers[-1].ended()
    converter.work()

    ended = converter.client.wait(job["job_id"], FOR_LONG)

    assert taken.value.facts["active_job_id"] == job["job_id"]
    assert ended["status"] == "completed", ended["error"]
    keys = ended["result_object_keys"]
    assert set(keys) == {"onnx", "bie", "nef"}
    nothing = {"onnx_path": None, "bie_path": None, "nef_path": None}
    assert job["alias"] == {"status": "created", "stage": None, "output": nothing}
    paths = {"onnx_path": keys["onnx"], "bie_path": keys["bie"], "nef_path": keys["nef"]}
    assert ended["alias"] == {"status": "completed", "stage": None, "output": paths}
    assert (ended["source_filename"], ended["input"]["ref_images_count"]) == ("shapes.onnx", 8)
    assert (ended["result"]["calibration"], ended["result"]["sim_hw"]["top1"]) == ("images", 1.0)
    path = Path(converter.client.result(job["job_id"], tmp_path))
    packed = container.read(path)
    assert (path.name, packed.about.platform) == ("shapes.nef", 730)
    run = onnxruntime.InferenceSession(packed.model.SerializeToString())
    pictures = [(np.asarray(i, np.float32).transpose(2, 0, 1) / 255, label) for i, label in sample.pictures(80, seed=3)]
    right = [np.argmax(run.run(None, {"image": values[np.newaxis]})[0]) == label for values, label in pictures]
    assert np.mean(right) > 0.9


def test_what_is_no_conversion_is_refused_with_the_field(converter: Stand, made: Path) -> None:
    model = {"model": made / "shapes.onnx"}
    wrong: list[tuple[dict[str, Any], dict[str, Any], str]] = [
        ({"platform": "999"}, model, "platform"),
        ({"toolchain": "nobody"}, model, "toolchain"),
        ({"model_id": 0}, model, "model_id"),
        ({"version": "much too long for a header"}, model, "version"),
        ({"mean": [1, 2, 3, 4]}, model, "mean"),
        ({"mean": "bright"}, model, "mean"),
        ({"scale": [1, 0]}, model, "scale"),
        ({"channel_order": "grb"}, model, "channel_order"),
        ({"layout": "chwn"}, model, "layout"),
        ({"input_shape": [1, 3, -1, 640]}, model, "input_shape"),
        ({"calibration": "guess"}, model, "calibration"),
        ({"float_layers": 100}, model, "float_layers"),
        ({}, {}, "model"),
        ({}, {"model": made / "00-circle.png"}, "model"),
    ]

    for parameters, files, field in wrong:
        with pytest.raises(InvalidInput) as refused:
            converter.client.submit("convert", parameters, files=files, user="bob")
        assert field in {each["field"].split(".")[0].split("[")[0] for each in refused.value.errors}
