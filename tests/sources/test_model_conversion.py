"""Documents 000 and 001: the requests to the model converter, and its job record field by field, on Redis."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import httpx2
import pytest

from packhorse import App
from packhorse.client import Client
from packhorse.factory import open_store
from packhorse.store.collections.workers import publish_definitions
from tests.apps.places import Stand
from tests.http.processes import until
from tests.servers import forks

FOR_LONG = 120.0

PARAMETERS = {
    "model_id": 1001,
    "version": "0001",
    "platform": "520",
    "enable_evaluate": False,
    "enable_sim_fp": False,
    "enable_sim_fixed": False,
    "enable_sim_hw": False,
}
"""As in section 3 of the document, "Job record schema"."""

PATHS = {"bie_path": "bie", "nef_path": "nef", "onnx_path": "onnx"}
"""The names of `output`, the old form of `result_object_keys`."""

MOVED = ("promoted", "promoted_object_keys", "updated_at", "version", "last_event")
"""What a promotion changes."""

RECORD = """
    job_id created_at updated_at status stage progress parameters output result_object_keys error origin user_id
    tenant_id created_by_client_id source_filename input stage_timings stage_progress expires_at metadata promoted
    promoted_object_keys
"""
"""Every field of that section."""


@contextmanager
def asking(at: Stand, key: str) -> Iterator[httpx2.Client]:
    with httpx2.Client(base_url=at.server.url, headers={"Authorization": f"Bearer {key}"}) as http:
        yield http


@pytest.fixture(scope="module")
def key(converter: Stand) -> str:
    """Of the product that calls the converter. The document's fixed client id is the name of the key's client."""
    command = ["keys", "create", "--client", "visionA-service", "--scope", "submit", "--scope", "read"]
    place = converter.server.place
    ended = forks.run("packhorse.cli", *command, env=place.environment(), cwd=place.folder, timeout=FOR_LONG)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.fixture(scope="module")
def created(converter: Stand, key: str, shapes: Path) -> dict[str, Any]:
    """The answer to the document's request. Its pictures come before its model, as a client may send them."""
    picture = next(iter(shapes.glob("*.png"))).read_bytes()
    files = [
        ("ref_images", ("a.png", picture, "image/png")),
        ("model", ("model.onnx", (shapes / "shapes.onnx").read_bytes(), "application/octet-stream")),
    ]
    values = {name: str(value).lower() for name, value in PARAMETERS.items()} | {"user_id": "visionA-user-12345"}
    with asking(converter, key) as http:
        answer = http.post("/api/v1/jobs", data=values, files=files)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


@pytest.fixture(scope="module")
def ended(converter: Stand, created: dict[str, Any]) -> dict[str, Any]:
    found = converter.client.wait(created["job_id"], FOR_LONG)
    assert found["status"] == "completed", found["error"]
    return found


def test_a_new_job_has_the_documents_record(created: dict[str, Any]) -> None:
    assert created.keys() >= set(RECORD.split())
    assert created["parameters"].items() >= PARAMETERS.items()
    assert (created["user_id"], created["created_by_client_id"]) == ("visionA-user-12345", "visionA-service")
    assert (created["origin"], created["stage"], created["progress"]) == ("api", "onnx", 0)
    assert (created["stage_progress"], created["error"], created["metadata"]) == (0, None, {})
    assert (created["promoted"], created["promoted_object_keys"]) == (False, [])


def test_the_input_is_the_model_although_a_picture_came_first(created: dict[str, Any], shapes: Path) -> None:
    given = created["input"]

    assert created["source_filename"] == given["filename"] == "model.onnx"
    assert given["size_bytes"] == (shapes / "shapes.onnx").stat().st_size
    assert given["ref_images_count"] == 1


def test_stages_that_have_not_started_have_null_timings(created: dict[str, Any], ended: dict[str, Any]) -> None:
    assert created["stage_timings"] == {"onnx": None, "bie": None, "nef": None}
    assert list(ended["stage_timings"]) == ["onnx", "bie", "nef"]
    assert all(each["started_at"] < each["completed_at"] for each in ended["stage_timings"].values())


def test_a_job_expires_in_seven_days_from_submit_on(created: dict[str, Any], ended: dict[str, Any]) -> None:
    for job, since in ((created, "created_at"), (ended, "completed_at")):
        assert datetime.fromisoformat(job["expires_at"]) - datetime.fromisoformat(job[since]) == timedelta(days=7)


def test_a_job_from_the_form_has_the_origin_web(converter: Stand, key: str) -> None:
    at = f"{converter.server.url}/jobs/new"
    model = {"model": ("model.onnx", b"\x08\x08", "application/octet-stream")}
    with asking(converter, key) as http:
        answer = http.post(at, params={"pipeline": "convert", "user_id": "visionA-user-67890"}, files=model)

    assert answer.status_code == 303, answer.text
    job = converter.client.get(answer.headers["Location"].partition("?")[0].rpartition("/")[2])
    assert (job["origin"], job["source_filename"]) == ("web", "model.onnx")


def test_the_old_output_is_at_the_top_of_the_record(created: dict[str, Any], ended: dict[str, Any]) -> None:
    assert created["output"] == dict.fromkeys(PATHS)
    assert ended["output"] == {name: ended["result_object_keys"][stage] for name, stage in PATHS.items()}


def test_jobs_are_found_by_the_status_created(converter: Stand, key: str, shapes: Path) -> None:
    model = {"model": ("model.onnx", (shapes / "shapes.onnx").read_bytes(), "application/octet-stream")}
    who = {"user_id": "visionA-user-11111"}
    with asking(converter, key) as http:
        waiting = http.post("/api/v1/jobs", data=who | {"delay": "1h"}, files=model).json()

        found = http.get("/api/v1/jobs", params=who | {"status": "created"}).json()["items"]

    assert [(each["job_id"], each["status"], each["alias"]["status"]) for each in found] == [
        (waiting["job_id"], "pending", "created")
    ]


def test_the_records_status_words_are_declared_for_its_stages(converter: Stand, key: str) -> None:
    with asking(converter, key) as http:
        [convert] = http.get("/api/v1/pipelines").json()["items"]
        refused = http.get("/api/v1/jobs", params={"status": "ONNX"}).json()

    words = {"running:onnx": "ONNX", "running:bie": "BIE", "running:nef": "NEF"}
    assert convert["statuses"].items() >= words.items()
    assert refused["errors"][0]["message"] == "It names a job while its stage onnx runs: use running"


def test_files_have_the_documents_names_beside_their_keys(ended: dict[str, Any]) -> None:
    at = f"jobs/{ended['job_id']}"

    assert ended["input"]["name"] == f"{at}/input/model.onnx"
    assert ended["result_object_names"] == {stage: f"{at}/output/out.{stage}" for stage in ("onnx", "bie", "nef")}
    assert ended["result_object_keys"].keys() == ended["result_object_names"].keys()


def test_a_promoted_copy_has_the_documents_name(converter: Stand, ended: dict[str, Any], tmp_path: Path) -> None:
    promoted = converter.client.promote(ended["job_id"])

    copy = converter.server.place.folder / "promoted/jobs" / ended["job_id"] / "output/out.nef"
    assert (promoted["promoted"], promoted["promoted_object_keys"]) == (True, [f"file://{copy}"])
    assert copy.read_bytes() == Path(converter.client.result(ended["job_id"], tmp_path)).read_bytes()


def test_the_documents_request_needs_no_pipeline_though_other_apps_run(
    converter: Stand, key: str, ended: dict[str, Any]
) -> None:
    """The last test here: from now on, another app runs too."""
    asyncio.run(publish_another(converter.server.place.settings.store))
    model = {"model": ("model.onnx", b"\x08\x08", "application/octet-stream")}
    who = {"user_id": "visionA-user-22222"}
    with asking(converter, key) as http:
        until(lambda: len(http.get("/api/v1/pipelines").json()["items"]) == 2)

        alone = http.post("/apps/converter/api/v1/jobs", data=who | {"delay": "1h"}, files=model)
        shared = http.post("/api/v1/jobs", data=who | {"delay": "1h"}, files=model)
    with Client(f"{converter.server.url}/apps/converter", key=key) as client:
        record = client.get(ended["job_id"])

    assert (alone.status_code, alone.json()["pipeline"]) == (202, "convert")
    assert (shared.status_code, shared.json()["errors"][0]["field"]) == (422, "pipeline")
    assert {**record, **{name: ended[name] for name in MOVED}} == ended


async def publish_another(address: str) -> None:
    app = App("another")

    @app.job
    def other() -> None: ...

    store = await open_store(address)
    try:
        await publish_definitions(store, app.code.definitions())
    finally:
        await store.close()
