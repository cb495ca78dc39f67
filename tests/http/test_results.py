"""What a job has made, on its way out: whole, summed, and under a name that harms nobody."""

from __future__ import annotations

import asyncio
import hashlib
import io
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from packhorse.blobs import open_blobs
from packhorse.client import Client
from packhorse.client.files import filename
from packhorse.core.models import Stored
from packhorse.define.files import disposition, sanitize_name
from packhorse.http.download import download_headers, file_content
from tests.contract.blob_fixtures import stream
from tests.http.conftest import run
from tests.http.processes import Place, Server, until
from tests.journey.places import PLACES

Json = dict[str, Any]

NOWHERE: Any = None
CONTENT = bytes(range(256)) * 4096


@pytest.fixture(scope="module", params=PLACES)
def running(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    folder = tmp_path_factory.mktemp("running")
    with run(Place(folder, **PLACES[request.param](folder))) as server:
        yield server


IN_A_FOLDER = pytest.mark.parametrize("running", ["sqlite"], indirect=True)


@pytest.fixture(scope="module")
def converted(running: Server, tmp_path_factory: pytest.TempPathFactory) -> Json:
    model = tmp_path_factory.mktemp("in") / "my model.onnx"
    model.write_bytes(CONTENT)
    with Client(running.url) as client:
        job = client.submit("convert", {"platform": "720"}, files={"model": model}, user="res")
        return client.wait(job["job_id"], 60)


@pytest.fixture(scope="module")
def split(running: Server, tmp_path_factory: pytest.TempPathFactory) -> Json:
    text = tmp_path_factory.mktemp("in") / "big words.txt"
    text.write_text("one two three")
    with Client(running.url) as client:
        return client.wait(client.submit("split", files={"text": text})["job_id"], 60)


def test_the_record_names_every_file(converted: Json) -> None:
    assert converted["status"] == "completed"
    assert converted["result_object_keys"].keys() == {"onnx", "nef"}
    assert converted["result"]["name"] == "nef/out.nef"
    assert converted["result"]["object_key"] == converted["result_object_keys"]["nef"]
    assert converted["stage_timings"].keys() == {"onnx", "nef"}
    assert converted["progress"] == 100.0
    assert {stage["status"] for stage in converted["stages"].values()} == {"completed"}
    assert converted["duration_ms"] >= sum(each["duration_ms"] for each in converted["stage_timings"].values()) - 5


def test_one_file_comes_as_it_is(running: Server, converted: Json) -> None:
    answer = httpx2.get(f"{running.api}/jobs/{converted['job_id']}/result")

    assert answer.content == CONTENT + b"720"
    assert hashlib.sha256(answer.content).hexdigest() == converted["result"]["sha256"]
    assert answer.headers["content-length"] == str(len(CONTENT) + 3)
    assert answer.headers["content-type"] == "application/octet-stream"
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert answer.headers["content-disposition"] == (
        "attachment; filename=\"my model-out.nef\"; filename*=UTF-8''my%20model-out.nef"
    )


def test_artifacts_are_listed_and_fetched_by_name(running: Server, converted: Json, client: Client) -> None:
    found = client.artifacts(converted["job_id"])

    assert [each["name"] for each in found] == ["onnx/model.onnx", "onnx/report.txt", "nef/out.nef"]
    for each in found:
        content = httpx2.get(f"{running.api}/jobs/{converted['job_id']}/artifacts/{each['name']}").content
        assert (len(content), hashlib.sha256(content).hexdigest()) == (each["size_bytes"], each["sha256"])


@pytest.mark.parametrize("name", ["nope", "nef", "nef/", "nef/../onnx/model.onnx", "%2e%2e/secret", "nef/out.nef/x"])
def test_another_name_is_404(running: Server, converted: Json, name: str) -> None:
    with running.connection() as connection:
        path = f"/api/v1/jobs/{converted['job_id']}/artifacts/{name}"
        connection.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = connection.recv(100)

    assert answer.startswith(b"HTTP/1.1 404")


def test_several_files_come_as_a_zip(running: Server, split: Json) -> None:
    answer = httpx2.get(f"{running.api}/jobs/{split['job_id']}/result")

    assert answer.headers["content-type"] == "application/zip"
    assert 'filename="big words-split.zip"' in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        assert archive.testzip() is None
        found = {name: archive.read(name).decode() for name in archive.namelist()}
    assert found == {f"words/{word}.txt": word for word in ("one", "two", "three")}


def test_without_a_file_the_result_is_the_value(running: Server, client: Client) -> None:
    job = client.wait(client.submit("add", {"a": 2, "b": 3})["job_id"], 60)

    answer = httpx2.get(f"{running.api}/jobs/{job['job_id']}/result")

    assert answer.json() == job["result"] == 5
    assert answer.headers["content-type"] == "application/json"
    assert "content-disposition" not in answer.headers


def test_an_object_that_is_gone_is_a_problem_not_half_a_file(running: Server, client: Client, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("lonely")
    job = client.wait(client.submit("split", files={"text": text})["job_id"], 60)
    replace(running, job["result_object_keys"]["words"], None)

    answer = httpx2.get(f"{running.api}/jobs/{job['job_id']}/result")

    assert answer.status_code == 404
    assert answer.headers["content-type"] == "application/problem+json"


def test_an_object_that_was_cut_is_a_cut_connection(running: Server, client: Client, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    model.write_bytes(CONTENT)
    job = client.wait(client.submit("convert", files={"model": model}, user="cut")["job_id"], 60)
    replace(running, job["result_object_keys"]["nef"], CONTENT[: len(CONTENT) // 2])

    with pytest.raises(httpx2.RemoteProtocolError):
        httpx2.get(f"{running.api}/jobs/{job['job_id']}/result")


def test_a_zip_with_an_object_that_was_cut_is_a_cut_connection(running: Server, client: Client, tmp_path: Path) -> None:
    text = tmp_path / "t.txt"
    text.write_text("first second")
    job = client.wait(client.submit("split", files={"text": text})["job_id"], 60)
    replace(running, job["result_object_keys"]["words"][1], b"sec")

    with pytest.raises(httpx2.RemoteProtocolError):
        httpx2.get(f"{running.api}/jobs/{job['job_id']}/result")


@IN_A_FOLDER
def test_a_reader_that_vanishes_is_let_go(running: Server, client: Client, tmp_path: Path) -> None:
    model = tmp_path / "m.onnx"
    with model.open("wb") as file:
        file.truncate(120 * 2**20)
    job = client.wait(client.submit("convert", files={"model": model}, user="vanish")["job_id"], 60)
    before = running.memory()
    connections = [running.connection() for _ in range(5)]
    for connection in connections:
        request = f"GET /api/v1/jobs/{job['job_id']}/result HTTP/1.1\r\nHost: localhost\r\n\r\n"
        connection.sendall(request.encode())
        assert connection.recv(1000).startswith(b"HTTP/1.1 200")

    for connection in connections:
        connection.close()

    until(lambda: not open_objects(running))
    assert running.memory() - before < 100 * 2**20


def replace(server: Server, key: str, content: bytes | None) -> None:
    """Behind everybody's back, as a disk that fails would."""
    settings = server.place.settings

    async def put() -> None:
        blobs = open_blobs(settings.blobs, settings.s3_access_key, settings.s3_secret_key)
        await blobs.delete([key])
        if content is not None:
            await blobs.put(key, stream(content))
        await blobs.close()

    asyncio.run(put())


def open_objects(server: Server) -> list[str]:
    """Objects the server has open."""
    found = []
    for fd in Path(f"/proc/{server.pid}/fd").iterdir():
        try:
            found.append(str(fd.readlink()))
        except FileNotFoundError:
            continue
    return [path for path in found if path.startswith(str(server.place.blobs / "jobs"))]


NAMES = [
    "plain.txt",
    'quo"te.txt',
    "back\\slash.txt",
    "semi;colon=x.txt",
    "per%22cent.txt",
    "größe.txt",
    "漢字 🐴.onnx",
    "line\r\nSet-Cookie: a=b.txt",
    "../../etc/passwd",
    "invoice\u202efdp.exe",
    "",
    "   ",
    "x" * 5000 + ".bin",
    "'single'.txt",
    "*star*.txt",
]


@pytest.mark.parametrize("name", NAMES)
def test_the_one_header_that_names_a_file_is_safe_and_says_the_name(name: str) -> None:
    header = disposition(name)

    assert header.isascii()
    assert header.isprintable()
    assert header.count('"') == 2
    assert header.endswith(f"filename*=UTF-8''{quote(sanitize_name(name), safe='')}")
    assert filename(header) == sanitize_name(name)


@pytest.mark.parametrize(
    ("kind", "sent"),
    [
        ("text/html", "application/octet-stream"),
        ("image/svg+xml", "application/octet-stream"),
        ("application/javascript", "application/octet-stream"),
        ("text/plain\r\nX: y", "application/octet-stream"),
        ("image/png", "image/png"),
        ("application/json", "application/json"),
    ],
)
def test_only_what_cannot_carry_a_script_keeps_its_type(kind: str, sent: str) -> None:
    file = Stored("k", "a", 1, "00" * 32, kind)

    assert download_headers(file_content(NOWHERE, file, label="a", filename="a"))["Content-Type"] == sent


def test_a_download_name_from_elsewhere_is_made_safe() -> None:
    assert filename('attachment; filename="../../x"') == "x"
    assert filename("attachment; filename*=UTF-8''..%2F..%2F.bashrc") == "bashrc"
    assert filename("attachment") == "result"
