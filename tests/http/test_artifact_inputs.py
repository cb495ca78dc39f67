"""An artifact of an earlier job as input: copied, checked like an upload, and only for who may read it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from litestar.testing import AsyncTestClient

from packhorse.auth.access import GRANTS, Caller
from packhorse.blobs import open_blobs
from packhorse.client import Client
from packhorse.core import lifecycle
from packhorse.core.models import Artifact, Result, Stored, TaskId
from packhorse.define import File, Options
from packhorse.errors import InvalidInput
from packhorse.jobs.transact import Transactor
from packhorse.runtime import Runtime
from packhorse.store.base import Store
from tests.http import sample
from tests.http.conftest import run
from tests.http.processes import Place, Server
from tests.http.test_jobs import submitted
from tests.http.test_submit import asking_as, fields
from tests.journey.places import PLACES
from tests.worker.builders import chunks

Http = AsyncTestClient[Any]
Json = dict[str, Any]


@pytest.fixture(scope="module", params=PLACES)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("earlier")
    with run(Place(folder, file_limit=2000, **PLACES[request.param](folder))) as server:
        yield server


@pytest.fixture
def earlier(running: Server) -> Json:
    """A job that has made `onnx/model.onnx`, `onnx/report.txt` and `nef/out.nef`."""
    files = {"model": ("m.onnx", b"weights")}
    answer = httpx2.post(f"{running.api}/jobs?pipeline=convert", files=files, headers={"Prefer": "wait=30"}, timeout=40)
    assert answer.status_code == 200
    found: Json = answer.json()
    return found


def reference(job: Json, name: str = "onnx/model.onnx") -> str:
    return f"job:{job['job_id']}/artifacts/{name}"


def ended(running: Server, **asked: Any) -> Json:
    answer = httpx2.post(f"{running.api}/jobs", **asked, headers={"Prefer": "wait=30"}, timeout=40)
    assert answer.status_code == 200, answer.text
    found: Json = answer.json()
    return found


def test_an_artifact_is_copied_and_outlives_its_job(running: Server, client: Client, earlier: Json) -> None:
    parameters = {"model": reference(earlier), "ref_images": [reference(earlier, "onnx/report.txt")] * 2}
    asked = {"pipeline": "convert", "parameters": parameters, "user_id": "next"}

    job = ended(running, json=asked)
    client.delete(earlier["job_id"])
    again = client.wait(client.retry(job["job_id"], "*")["job_id"], 30)

    assert [each["filename"] for each in job["inputs"]] == ["model.onnx", "report.txt", "report.txt"]
    assert job["input"]["object_key"].startswith(f"jobs/{job['job_id']}/input/model.0")
    assert job["result"]["sha256"] == again["result"]["sha256"] == earlier["result"]["sha256"]
    assert again["status"] == "completed"


def test_a_form_may_name_one_beside_files_that_it_sends(running: Server, earlier: Json) -> None:
    data = {"pipeline": "convert", "user_id": "form", "model": reference(earlier)}

    job = ended(running, data=data, files=[("ref_images", ("a.png", b"a")), ("ref_images", ("b.png", b"b"))])

    assert [(each["parameter"], each["size_bytes"]) for each in job["inputs"]] == [
        ("ref_images", 1),
        ("ref_images", 1),
        ("model", 7),
    ]
    assert job["result"]["sha256"] == earlier["result"]["sha256"]


def test_a_form_may_name_several(running: Server, earlier: Json) -> None:
    named = [("ref_images", (None, reference(earlier, f"{name}"))) for name in ("nef/out.nef", "onnx/report.txt")]

    job = ended(running, params={"pipeline": "convert"}, files=[*named, ("model", ("m", b"x"))])

    assert [each["filename"] for each in job["inputs"]] == ["m", "out.nef", "report.txt"]


@pytest.mark.parametrize("field", ["model", "ref_images"])
@pytest.mark.parametrize("how", ["json", "form", "part"])
@pytest.mark.parametrize(
    "wrong",
    [
        "job:01890a5d-ac96-774b-bcce-b302099a8057/artifacts/onnx/model.onnx",
        "job:{id}/artifacts/onnx/none.onnx",
        "job:{id}/artifacts/",
        "job:{id}/inputs/model",
        "job:../../x/artifacts/y",
        "jobs/{id}/input/model.0.onnx",
        "/etc/passwd",
        "",
    ],
)
def test_what_is_not_there_is_refused_by_the_name_of_its_field(
    running: Server, earlier: Json, client: Client, field: str, how: str, wrong: str
) -> None:
    text = wrong.format(id=earlier["job_id"])
    value = [text] if field == "ref_images" else text
    before = [job["job_id"] for job in client.list()["items"]]
    ways: Json = {
        "json": {"json": {"pipeline": "convert", "parameters": {"model": reference(earlier)} | {field: value}}},
        "form": {"files": [("pipeline", (None, "convert")), (field, (None, text))]},
        "part": {"files": [("pipeline", (None, "convert")), ("parameters", (None, f'{{"{field}": "{text}"}}'))]},
    }
    sent: Json = ways[how]
    if field == "ref_images" and how != "json":
        sent["files"].append(("model", ("m", b"x")))
    if how == "part" and field == "ref_images":
        sent["files"][1] = ("parameters", (None, f'{{"{field}": ["{text}"]}}'))

    answer = httpx2.post(f"{running.api}/jobs", **sent)

    assert (answer.status_code, fields(answer)) == (422, {field}), answer.text
    assert [job["job_id"] for job in client.list()["items"]] == before


def test_one_that_is_larger_than_a_file_may_be_is_413(running: Server, client: Client, tmp_path: Path) -> None:
    (tmp_path / "m").write_bytes(b"x" * 2000)
    job = client.wait(client.submit("convert", files={"model": tmp_path / "m"}, user="large")["job_id"], 30)
    asked = {"pipeline": "convert", "user_id": "large", "parameters": {"model": reference(job, "nef/out.nef")}}

    answer = httpx2.post(f"{running.api}/jobs", json=asked)

    assert (answer.status_code, fields(answer)) == (413, {"model"})


def test_one_of_a_kind_that_is_not_taken_is_415(running: Server, earlier: Json) -> None:
    answer = httpx2.post(f"{running.api}/jobs?pipeline=picture", json={"parameters": {"image": reference(earlier)}})

    assert (answer.status_code, fields(answer)) == (415, {"image"})


def test_the_same_key_gives_the_same_job(running: Server, earlier: Json) -> None:
    asked = {"pipeline": "convert", "user_id": "once", "parameters": {"model": reference(earlier)}}
    headers = {"Idempotency-Key": earlier["job_id"]}

    made = [httpx2.post(f"{running.api}/jobs", json=asked, headers=headers).json() for _ in range(2)]

    assert made[0]["job_id"] == made[1]["job_id"]


async def test_python_submits_with_one(running: Server, earlier: Json) -> None:
    runtime = Runtime(running.place.settings)
    file = File.of_job(earlier["job_id"], "onnx/model.onnx")

    handle = await runtime.a_submit(sample.convert, sample.Convert(model=file), Options(user="python"))
    with pytest.raises(InvalidInput) as error:
        await runtime.a_submit(sample.convert, sample.Convert(model=File.of_job(handle.id, "none")), Options(user="x"))
    snapshot = await handle.a_wait(30)

    assert snapshot.result.sha256 == earlier["result"]["sha256"]
    assert error.value.errors[0]["field"] == "model"


PNG = b"\x89PNG\r\n\x1a\n"
MADE = Stored("jobs/earlier/output/add/t/0.png", "seen.png", len(PNG), "ab" * 32, "image/png")


async def finished(http: Http, store: Store, place: Place) -> str:
    """The id of ann's job, which has made `add/seen.png`."""
    job_id, at = await submitted(http), TaskId("add")
    blobs, transact = open_blobs(place.settings.blobs), Transactor(store)
    await blobs.put(MADE.key, chunks(PNG))
    await blobs.close()
    await transact(job_id, lambda job: lifecycle.start(job, at, token="t", worker="w", lease=60, now=store.now()))
    result = Result(b"1", extra=(Artifact("add/seen.png", MADE),))
    await transact(job_id, lambda job: lifecycle.finish(job, at, token="t", result=result, now=store.now()))
    return job_id


FULL = GRANTS["submit"] | GRANTS["read"]


@pytest.mark.parametrize(
    ("caller", "status"),
    [
        (Caller("default", FULL, key_id="k", default_user="bob"), 202),
        (Caller("default", FULL, key_id="k", user="ann"), 202),
        (Caller("default", FULL, key_id="k", user="bob"), 422),
        (Caller("other", FULL, key_id="k", default_user="bob"), 422),
        (Caller("default", FULL, key_id="k", default_user="bob", job_id="another"), 403),
        (Caller("default", GRANTS["submit"], key_id="k", default_user="bob"), 403),
    ],
)
async def test_who_may_not_read_it_may_not_use_it(
    http: Http, store: Store, place: Place, monkeypatch: pytest.MonkeyPatch, caller: Caller, status: int
) -> None:
    job_id = await finished(http, store, place)
    before = place.objects()

    async with asking_as(place, monkeypatch, caller) as theirs:
        named = {"image": f"job:{job_id}/artifacts/add/seen.png"}
        answer = await theirs.post("jobs?pipeline=picture", json={"parameters": named})

    assert answer.status_code == status, answer.text
    assert len(place.objects()) == len(before) + (status == 202)
