"""The video app as people use it: over HTTP, on every store, and through the death of its worker."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from packhorse.errors import InvalidInput, UnsupportedMedia
from packhorse_video import processors, sample, timeline, weights
from tests.apps.places import PLACES, Stand, stand
from tests.http.processes import until
from tests.servers import valkey

APP = "packhorse_video:app"
FOR_LONG = 300.0
PROCESSORS = list(processors.PROCESSORS)
STAGES = {"decode", "hear", *PROCESSORS, "join"}
PARAMETERS = {"sampling_rate": 0.5}


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("video") / "sample.mp4"
    sample.write(path)
    return path


@pytest.fixture(scope="module", params=PLACES)
def video(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("runs"), APP, PLACES[request.param], slots=1) as found:
        found.ready("analyse")
        yield found


@pytest.mark.release  # so is the one of examples/four_apps
def test_a_video_is_analysed_though_its_worker_is_killed(video: Stand, made: Path, tmp_path: Path) -> None:
    job = video.client.submit("analyse", PARAMETERS, files={"video": made}, user="ann")
    until(lambda: _ended(video, job["job_id"]) & set(PROCESSORS), FOR_LONG)
    video.workers[-1].signal(signal.SIGKILL)
    video.workers[-1].ended()
    before = _ended(video, job["job_id"])
    video.work()

    ended = video.client.wait(job["job_id"], FOR_LONG)

    assert ended["status"] == "completed", ended["error"]
    assert "join" not in before
    assert not before & _begun_after(video, job["job_id"], before)
    assert set(ended["result_object_keys"]) == STAGES
    _check_the_findings(video, job["job_id"], tmp_path)


def _ended(video: Stand, job_id: str) -> set[str]:
    stages = video.client.get(job_id)["stages"]
    return {name for name, stage in stages.items() if stage["status"] == "completed"}


def _begun_after(video: Stand, job_id: str, done: set[str]) -> set[str]:
    """Of the stages that were done, those that have begun again."""
    steps = [(each["type"], each["data"].get("stage")) for each in video.client.events(job_id)]
    return {name for name in done if steps.count(("stage_started", name)) > 1}


def _check_the_findings(video: Stand, job_id: str, folder: Path) -> None:
    files = {each["name"]: each for each in video.client.artifacts(job_id)}
    assert {f"{name}/{name}.json" for name in PROCESSORS} | {"join/preview.mp4", "join/sheet.jpg"} <= set(files)
    found = timeline.read(video.client.artifact(job_id, "join/timeline.json", folder))
    assert [each.at for each in found.entries if each.processor == "cut"] == pytest.approx(sample.CUTS, abs=0.001)
    assert {each.label for each in found.entries if each.processor == "yolo"} == {"person", "cup", "cat"}
    assert len([each for each in found.entries if each.processor == "face"]) == 2
    assert {each.label.replace(" ", "") for each in found.entries if each.processor == "ocr"} == {
        text.replace(" ", "") for scene in sample.SCENES for text in scene.texts
    }
    assert "wisdom" in {each.label for each in found.entries if each.processor == "asr"}
    assert {each.speaker for each in found.entries if each.processor == "asrx"} == {"speaker 1", "speaker 2"}


def test_every_processor_is_seen_at_its_work(video: Stand, made: Path) -> None:
    job = video.client.submit(
        "analyse", PARAMETERS | {"processors": ["cut", "face", "asr", "asrx"]}, files={"video": made}
    )
    until(lambda: video.client.get(job["job_id"])["stages"]["decode"]["current"], FOR_LONG)
    during = video.client.get(job["job_id"])

    ended = video.client.wait(job["job_id"], FOR_LONG)

    assert set(during["stages"]) == STAGES
    for name, total in (("cut", 340), ("face", 7), ("asr", 14), ("asrx", 14)):
        stage = ended["stages"][name]
        assert (stage["status"], stage["progress"]) == ("completed", 100)
        assert (stage["current"], stage["total"]) == (total, total)
        assert ended["started_at"] <= stage["started_at"] <= stage["updated_at"] <= ended["completed_at"]
    assert ended["result"]["notes"] == dict.fromkeys(["ocr", "pose", "yolo"], "not selected")
    assert _together(ended["stage_timings"]["face"], ended["stage_timings"]["hear"]) > 0.1
    assert during["stage"] is not None
    assert 0 <= during["progress"] <= ended["progress"] == 100
    kept = datetime.fromisoformat(ended["expires_at"]) - datetime.fromisoformat(ended["completed_at"])
    assert kept == timedelta(hours=24)


def _together(*timings: dict[str, Any]) -> float:
    """How much of the shorter one both ran."""
    starts, ends = ([datetime.fromisoformat(each[at]) for each in timings] for at in ("started_at", "completed_at"))
    shorter = min(end - start for start, end in zip(starts, ends, strict=True))
    return (min(ends) - max(starts)) / shorter


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"processors": ["telepathy"]}, "processors[0]"),
        ({"processors": PROCESSORS * 2}, "processors"),
        ({"sampling_rate": 0}, "sampling_rate"),
        ({"sampling_rate": 1000}, "sampling_rate"),
        ({"frame_size": 10}, "frame_size"),
        ({"codec": "h264"}, "codec"),
    ],
    ids=["processor", "many", "never", "often", "small", "unknown"],
)
def test_what_cannot_be_done_is_refused_with_the_field(
    video: Stand, made: Path, wrong: dict[str, Any], field: str
) -> None:
    before = len(video.client.list()["items"])

    with pytest.raises(InvalidInput) as refused:
        video.client.submit("analyse", wrong, files={"video": made}, user="bob")

    assert field in {each["field"] for each in refused.value.errors}
    assert len(video.client.list()["items"]) == before


def test_what_is_no_video_by_its_name_is_refused(video: Stand, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("notes")

    with pytest.raises(UnsupportedMedia) as refused:
        video.client.submit("analyse", files={"video": tmp_path / "notes.txt"}, user="bob")

    assert "video" in str(refused.value)


@pytest.mark.parametrize("video", ["redis"], indirect=True)
def test_progress_is_published_as_it_goes(video: Stand, made: Path) -> None:
    prefix = unquote(video.server.place.settings.store.partition("?prefix=")[2])
    with valkey.shared().client() as raw, raw.pubsub(ignore_subscribe_messages=True) as channel:
        channel.psubscribe(f"{prefix}progress:*")
        channel.get_message(timeout=FOR_LONG)  # that it listens

        job = video.client.submit("analyse", PARAMETERS | {"processors": ["face", "asr"]}, files={"video": made})
        video.client.wait(job["job_id"], FOR_LONG)
        heard = list(_messages(channel, f"{prefix}progress:{job['job_id']}"))

    assert all(message.keys() == {"type", "processor", "timestamp", "data"} for message in heard)
    assert {message["type"] for message in heard} == {"info", "progress", "complete"}
    assert {message["processor"] for message in heard} >= STAGES
    of_faces = [message for message in heard if (message["type"], message["processor"]) == ("progress", "face")]
    assert of_faces[-1]["data"] == {"message": "face in 7 frames", "current": 7.0, "total": 7.0}
    assert isinstance(of_faces[-1]["timestamp"], float)


def _messages(channel: Any, name: str) -> Iterator[dict[str, Any]]:
    while message := channel.get_message(timeout=2):
        if message["channel"].decode() == name:
            yield json.loads(message["data"])


@pytest.mark.release  # a worker of its own
def test_a_processor_whose_weights_nobody_fetched_is_refused_at_submit(
    tmp_path_factory: pytest.TempPathFactory, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path_factory.mktemp("without")
    monkeypatch.setenv(weights.FOLDER, str(folder / "nothing"))
    with stand(folder, APP, PLACES["sqlite"]) as video:
        video.ready("analyse")

        with pytest.raises(InvalidInput) as refused:
            video.client.submit("analyse", {"processors": ["cut", "face"]}, files={"video": made})
        job = video.client.submit("analyse", PARAMETERS | {"processors": ["cut"]}, files={"video": made})
        ended = video.client.wait(job["job_id"], FOR_LONG)

    [error] = refused.value.errors
    assert error["field"] == "processors[1]"
    assert "cut" in error["message"]
    assert ended["result"]["found"] == {"cut": 4}
