"""Document 003: the video app's own keys, messages and lifetimes."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from packhorse_video import sample
from tests.http.processes import until
from tests.sources.redis_views import Viewed, viewed

DAY, HOUR, MINUTE = 86_400, 3600, 60

JOB = {
    "uuid": "5dea6618a606e7c7",
    "video_path": "/path/to/video.mp4",
    "status": "running",
    "current_processor": "yolo",
    "progress_total": 70,
    "progress_current": 50,
    "started_at": 1700000000,
    "updated_at": 1700000100,
    "error_count": 0,
    "last_error": "",
}
PROCESSOR = {
    "name": "yolo",
    "status": "running",
    "progress": 70,
    "current_frame": 10000,
    "total_frames": 14315,
    "started_at": 1700000000,
    "updated_at": 1700000100,
}
MESSAGE = {
    "type": "progress",
    "processor": "yolo",
    "timestamp": 1700000000,
    "data": {"message": "Processing frame 5000", "current": 5000, "total": 14315},
}
"""The three formats of section 7."""


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Viewed]:
    """The view under the document's prefix for production."""
    with viewed(tmp_path_factory.mktemp("video"), "video_app.py", "video=momentry:") as found:
        yield found


def submit(keys: Viewed, tmp_path: Path, **parameters: Any) -> str:
    video = tmp_path / "video.mp4"
    video.write_bytes(b"video")
    job = keys.client.submit("analyse", parameters, files={"video": video}, user="ann")
    return str(job["job_id"])


def lasts(keys: Viewed, key: str, most: int) -> bool:
    return most - 120 < int(keys.redis.ttl(f"momentry:{key}")) <= most


def kinds(keys: Viewed, *names: str) -> list[str]:
    return [keys.redis.type(f"momentry:{name}") for name in names]


@pytest.fixture(scope="module")
def seen(keys: Viewed, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, list[dict[str, Any]], dict[str, Any]]:
    """A job that has ended, what was published on its channel, and its keys while it ran."""
    redis, folder = keys.redis, tmp_path_factory.mktemp("one")
    with redis.pubsub(ignore_subscribe_messages=True) as channel:
        channel.psubscribe("momentry:progress:*")
        channel.get_message(timeout=5)  # that it listens
        id = submit(keys, folder)
        key = f"momentry:job:{id}"
        until(lambda: redis.get(f"{key}:processor:yolo:current") == "5000")
        during = {
            "job": redis.hgetall(key),
            "status": redis.get(f"{key}:status"),
            "yolo": redis.hgetall(f"{key}:processor:yolo"),
            "active": redis.smembers("momentry:jobs:active"),
        }
        until(lambda: redis.exists(f"packhorse:metrics:{id}:cpu"))
        keys.gate.touch()
        keys.client.wait(id, 60)
        until(lambda: redis.get(f"{key}:status") == "completed")
        heard = []
        while message := channel.get_message(timeout=1):
            heard.append(json.loads(message["data"]))
    return id, heard, during


def test_a_running_job_is_a_hash_with_the_documents_fields(
    seen: tuple[str, list[dict[str, Any]], dict[str, Any]],
) -> None:
    id, _, during = seen

    job, yolo = during["job"], during["yolo"]
    assert job.keys() == JOB.keys()
    assert (job["uuid"], job["status"], job["current_processor"], during["status"]) == (
        id,
        "running",
        "yolo",
        "running",
    )
    assert (job["progress_total"], job["progress_current"], job["error_count"], job["last_error"]) == (
        "67",
        "35",
        "0",
        "",
    )
    assert job["video_path"].endswith(".mp4")
    assert yolo.keys() == PROCESSOR.keys()
    assert (yolo["current_frame"], yolo["total_frames"], yolo["progress"]) == ("5000", "14315", "35")
    numbers = [hash[name] for hash in (job, yolo) for name in ("started_at", "updated_at")]
    assert all(1_700_000_000 < int(each) < 10**10 for each in numbers)
    assert id in during["active"]


def test_progress_is_published_in_the_documents_format(
    seen: tuple[str, list[dict[str, Any]], dict[str, Any]],
) -> None:
    _, heard, _ = seen

    progress = next(each for each in heard if each["type"] == "progress")
    assert {**progress, "timestamp": 1700000000} == MESSAGE
    assert isinstance(progress["timestamp"], int)
    assert {each["type"] for each in heard} == {"info", "progress", "complete"}
    assert [each["processor"] for each in heard if each["type"] == "complete"] == ["cut", "yolo"]


def test_every_key_of_an_ended_job_has_the_documents_type_and_lifetime(
    keys: Viewed, seen: tuple[str, list[dict[str, Any]], dict[str, Any]]
) -> None:
    id, _, _ = seen
    leaves = [f"job:{id}:processor:yolo:{leaf}" for leaf in ("status", "progress", "current", "total", "started_at")]
    for_a_day = {
        f"job:{id}": "hash", f"job:{id}:status": "string", f"job:{id}:processor:yolo": "hash",
        f"result:{id}": "hash", f"output:{id}": "string", f"metrics:{id}:duration": "string", f"log:{id}": "string",
        **dict.fromkeys(leaves, "string"),
    }  # fmt: skip
    until(lambda: kinds(keys, *for_a_day) == [*for_a_day.values()])

    assert [key for key in for_a_day if not lasts(keys, key, DAY)] == []
    assert keys.redis.get(f"momentry:job:{id}:status") == "completed"
    assert keys.redis.mget([f"momentry:{leaf}" for leaf in leaves[:4]]) == ["completed", "100", "14315", "14315"]
    assert json.loads(str(keys.redis.hget(f"momentry:result:{id}", "cut"))) == {"cuts": 3}
    assert str(keys.redis.get(f"momentry:output:{id}")).startswith(f"jobs/{id}/output/")
    assert "cut: looking for cuts" in str(keys.redis.get(f"momentry:log:{id}"))
    assert int(str(keys.redis.get(f"momentry:metrics:{id}:duration"))) > 0


def test_samples_are_lists_of_a_hundred_for_an_hour(
    keys: Viewed, seen: tuple[str, list[dict[str, Any]], dict[str, Any]]
) -> None:
    names = [f"metrics:{seen[0]}:{what}" for what in ("cpu", "memory")]

    cpu, memory = (keys.redis.lrange(f"momentry:{name}", 0, -1) for name in names)

    assert kinds(keys, *names) == ["list"] * 2
    assert [lasts(keys, name, HOUR) for name in names] == [True] * 2
    assert 0 < len(cpu) == len(memory) <= 100
    assert all(float(each) >= 0 for each in cpu)
    assert all(int(each) > 0 for each in memory)


def test_the_global_keys_have_the_documents_types_and_lifetimes(
    keys: Viewed, seen: tuple[str, list[dict[str, Any]], dict[str, Any]], tmp_path: Path
) -> None:
    broken = submit(keys, tmp_path, is_broken=True)
    keys.client.wait(broken, 60)
    until(lambda: keys.redis.get(f"momentry:job:{broken}:status") == "failed")
    fresh = {"health:current": "string", "health:services": "hash"}
    until(lambda: kinds(keys, *fresh) == [*fresh.values()])
    current = ("stats:cpu:current", "stats:memory:current")
    until(lambda: kinds(keys, *current) == ["string"] * 2)

    redis = keys.redis
    assert [redis.smembers(f"momentry:jobs:{name}") for name in ("active", "completed", "failed")] == [
        set(),
        {seen[0]},
        {broken},
    ]
    assert [redis.type(f"momentry:jobs:{name}") for name in ("completed", "failed")] == ["set", "set"]
    assert (redis.get("momentry:stats:total_jobs"), redis.ttl("momentry:stats:total_jobs")) == ("2", -1)
    assert redis.get("momentry:stats:processed_today") == "2"
    assert lasts(keys, "stats:processed_today", DAY)
    assert all(0 < int(redis.ttl(f"momentry:{name}")) <= MINUTE for name in fresh)
    assert all(int(redis.ttl(f"momentry:{name}")) <= 10 for name in current)
    assert redis.hget(f"momentry:job:{broken}", "last_error") == "ValueError: The frame cannot be read."


@pytest.mark.release
def test_the_video_app_itself_fills_the_view(tmp_path: Path) -> None:
    """Not a stand-in: seven processors, of which two are asked for."""
    sample.write(tmp_path / "sample.mp4")
    with viewed(tmp_path, "packhorse_video:app", "video=momentry:") as keys:
        until(lambda: "analyse" in [each["name"] for each in keys.client.pipelines()], 90)
        parameters = {"sampling_rate": 0.5, "processors": ["cut", "face"]}
        id = keys.client.submit("analyse", parameters, files={"video": tmp_path / "sample.mp4"}, user="ann")["job_id"]
        keys.client.wait(id, 180)
        until(lambda: keys.redis.get(f"momentry:job:{id}:status") == "completed")

        job = keys.redis.hgetall(f"momentry:job:{id}")
        names = ("yolo", "ocr", "face", "pose", "cut", "asr", "asrx")
        processors = {name: keys.redis.hgetall(f"momentry:job:{id}:processor:{name}") for name in names}

    assert job.keys() == JOB.keys()
    assert job["video_path"] == f"jobs/{id}/input/video.0.mp4"
    assert {each["status"] for each in processors.values()} == {"completed"}
    assert all(PROCESSOR.keys() == each.keys() for each in processors.values())
    assert (processors["cut"]["total_frames"], processors["face"]["total_frames"]) == ("340", "7")
