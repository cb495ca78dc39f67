"""Documents 000 and 001: the model converter's own requests, keys and commands."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse_converter import sample
from tests.http.processes import until
from tests.sources.redis_views import Viewed, viewed

USER = "visionA-user-12345"
WEEK = 604_800

RECORD = """
{
  "job_id": "uuid",
  "created_at": "...",
  "updated_at": "...",
  "status": "ONNX | BIE | NEF | COMPLETED | FAILED",
  "stage": "onnx | bie | nef | null",
  "progress": 0,
  "parameters": {
    "model_id": 1001,
    "version": "0001",
    "platform": "520",
    "enable_evaluate": false,
    "enable_sim_fp": false,
    "enable_sim_fixed": false,
    "enable_sim_hw": false
  },
  "output": {
    "bie_path": null,
    "nef_path": null,
    "onnx_path": null
  },
  "result_object_keys": {
    "onnx": "jobs/{job_id}/output/out.onnx",
    "bie": "jobs/{job_id}/output/out.bie",
    "nef": "jobs/{job_id}/output/out.nef"
  },
  "error": null,
  "origin": "api | web",
  "user_id": "visionA-user-12345",
  "tenant_id": "uuid-or-null",
  "created_by_client_id": "visionA-service",
  "source_filename": "model.onnx",
  "input": {
    "filename": "model.onnx",
    "object_key": "jobs/{job_id}/input/model.onnx",
    "size_bytes": 204800000,
    "ref_images_count": 0
  },
  "stage_timings": {
    "onnx": { "started_at": "...", "completed_at": "..." },
    "bie": { "started_at": "...", "completed_at": null },
    "nef": null
  },
  "stage_progress": 0,
  "expires_at": "2026-05-23T12:00:00Z",
  "metadata": {},
  "promoted": false,
  "promoted_object_keys": []
}
"""
"""The record of section 3, without its comments."""


KIND_OF = {
    "object": {"parameters", "output", "result_object_keys", "input", "stage_timings", "metadata"},
    "text": {
        "job_id",
        "created_at",
        "updated_at",
        "status",
        "stage",
        "origin",
        "user_id",
        "source_filename",
        "expires_at",
    },
}


def fields(value: Any) -> Any:
    """The names in an object, as deep as they go."""
    return {name: fields(each) for name, each in value.items()} if isinstance(value, dict) else None


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewed]:
    """The view without a prefix: the keys are those of the document."""
    with viewed(tmp_path_factory.mktemp("converter"), "converter_app.py", "converter=") as found:
        yield found


def records(keys: Viewed, user: str) -> list[dict[str, Any]]:
    """As section 5.3 reads a user's jobs: one set, one pipeline."""
    ids = keys.redis.smembers(f"user:{user}:jobs")
    pipeline = keys.redis.pipeline()
    for id in ids:
        pipeline.get(f"job:{id}")
    return [json.loads(each) for each in pipeline.execute()]


def submit(keys: Viewed, tmp_path: Path, user: str, **parameters: Any) -> str:
    model = tmp_path / "model.onnx"
    model.write_bytes(b"model")
    job = keys.client.submit("convert", parameters, files={"model": model}, user=user)
    return str(job["job_id"])


def stream(keys: Viewed, queue: str, job_id: str) -> list[dict[str, str]]:
    entries: list[Any] = keys.redis.xrange(f"queue:{queue}")
    return [entry for _, entry in entries if entry["job_id"] == job_id]


def test_a_users_jobs_are_one_set_and_each_is_a_string_with_the_documents_fields(keys: Viewed, tmp_path: Path) -> None:
    wanted = json.loads(RECORD)
    id = submit(keys, tmp_path, USER, **wanted["parameters"])
    until(lambda: [each["stage_progress"] for each in records(keys, USER)] == [25])
    [during] = records(keys, USER)
    slot = keys.redis.get(f"user:{USER}:active_job")
    keys.gate.touch()
    keys.client.wait(id, 60)
    until(lambda: records(keys, USER)[0]["status"] == "COMPLETED")

    [after] = records(keys, USER)

    assert (during["status"], during["stage"], slot) == ("BIE", "bie", id)
    assert fields(during) == fields(wanted)
    assert fields(after["stage_timings"]) == dict.fromkeys(
        ("onnx", "bie", "nef"), dict.fromkeys(("started_at", "completed_at"))
    )
    assert after["parameters"] == wanted["parameters"]
    assert KIND_OF["object"] == {name for name, value in during.items() if isinstance(value, dict)}
    assert KIND_OF["text"] <= {name for name, value in during.items() if isinstance(value, str)}
    assert during["promoted"] is False
    assert during["promoted_object_keys"] == []
    assert (after["stage"], after["progress"], after["user_id"], after["source_filename"]) == (
        None,
        100,
        USER,
        "model.onnx",
    )
    assert after["output"]["nef_path"] == after["result_object_keys"]["nef"]
    assert after["input"]["size_bytes"] == 5
    assert keys.redis.get(f"user:{USER}:active_job") is None
    assert [keys.redis.type(key) for key in (f"job:{id}", f"user:{USER}:jobs")] == ["string", "set"]
    assert [WEEK - 60 < int(keys.redis.ttl(key)) <= WEEK for key in (f"job:{id}", f"user:{USER}:jobs")] == [True] * 2


def test_the_streams_carry_an_entry_for_each_job(keys: Viewed, tmp_path: Path) -> None:
    keys.gate.touch()
    id = submit(keys, tmp_path, "visionA-user-2")
    keys.client.wait(id, 60)
    until(lambda: len(stream(keys, "done", id)) == 3)

    assert [keys.redis.type(f"queue:{name}") for name in ("onnx", "bie", "nef", "done")] == ["stream"] * 4
    assert [stream(keys, name, id) for name in ("onnx", "bie", "nef")] == [
        [{"job_id": id, "stage": name}] for name in ("onnx", "bie", "nef")
    ]
    assert [(each["stage"], each["status"]) for each in stream(keys, "done", id)] == [
        (name, "completed") for name in ("onnx", "bie", "nef")
    ]


def test_a_failed_job_is_failed_and_gives_its_slot_back(keys: Viewed, tmp_path: Path) -> None:
    user = "visionA-user-3"
    id = submit(keys, tmp_path, user, platform="none")
    keys.client.wait(id, 60)
    until(lambda: [each["status"] for each in records(keys, user)] == ["FAILED"])

    [record] = records(keys, user)

    assert (record["stage"], record["error"]["message"]) == ("bie", "ValueError: There is no such platform.")
    assert record["stage_timings"]["nef"] is None
    assert record["output"]["nef_path"] is None
    assert keys.redis.exists(f"user:{user}:active_job") == 0
    assert [each["status"] for each in stream(keys, "done", id)] == ["completed", "failed"]


@pytest.mark.release
def test_the_converter_itself_fills_the_view(tmp_path: Path) -> None:
    """Not a stand-in: its plan, its parameters and its files."""
    sample.write(tmp_path, images=8)
    files: dict[str, Any] = {"model": tmp_path / "shapes.onnx", "ref_images": sorted(tmp_path.glob("*.png"))}
    with viewed(tmp_path, "packhorse_converter:app", "converter=") as keys:
        until(lambda: "convert" in [each["name"] for each in keys.client.pipelines()], 90)
        id = keys.client.submit("convert", {"platform": "730"}, files=files, user=USER)["job_id"]
        keys.client.wait(id, 180)
        until(lambda: records(keys, USER)[0]["status"] == "COMPLETED")

        [record] = records(keys, USER)
        until(lambda: len(stream(keys, "done", id)) == 3)
        streams = [[each["stage"] for each in stream(keys, name, id)] for name in ("onnx", "bie", "nef", "done")]

    assert fields(json.loads(RECORD)).keys() == record.keys()
    assert record["parameters"]["platform"] == "730"
    assert (record["source_filename"], record["input"]["ref_images_count"]) == ("shapes.onnx", 8)
    assert {name: key.rpartition(".")[2] for name, key in record["result_object_keys"].items()} == {
        "onnx": "onnx", "bie": "bie", "nef": "nef"
    }  # fmt: skip
    assert streams == [["onnx"], ["bie"], ["nef"], ["onnx", "bie", "nef"]]
