"""The speech app as people use it: over HTTP, on every store, and through the death of its worker."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import numpy as np
import pytest

from packhorse.errors import InvalidInput
from tests.apps.audio_analysis import phrases, read_audio
from tests.apps.places import PLACES, Stand, stand
from tests.apps.test_speech import DESIGN
from tests.http.processes import until

APP = "packhorse_speech:app"
TURNS = [{"speaker": "AB"[i % 2], "text": f"This is sentence number {i}", "index": i} for i in range(12)]
FOR_LONG = 120.0


@pytest.fixture(scope="module", params=PLACES)
def speech(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    with stand(tmp_path_factory.mktemp("speech"), APP, PLACES[request.param], slots=1) as found:
        found.ready("multi_role_tts")
        yield found


def test_a_dialogue_survives_the_death_of_its_worker(speech: Stand, tmp_path: Path) -> None:
    job = speech.client.submit("multi_role_tts", {"turns": TURNS, "gap_ms": 500}, user="ann")
    until(lambda: _done(speech, job["job_id"]) >= 3, FOR_LONG)
    speech.workers[-1].signal(signal.SIGKILL)
    speech.workers[-1].ended()
    before, running = _done(speech, job["job_id"]), speech.client.get(job["job_id"])
    speech.work()

    ended = speech.client.wait(job["job_id"], FOR_LONG)

    assert ended["status"] == "completed", ended["error"]
    assert before < len(TURNS)
    assert [each["alias"]["status"] for each in (job, running, ended)] == ["pending", "processing", "completed"]
    steps = [(event["type"], event["data"]) for event in speech.client.events(job["job_id"])]
    spoken = [(type, data["element"]) for type, data in steps if data.get("stage") == "speak" and "element" in data]
    assert not any(("stage_started", i) in spoken[spoken.index(("stage_completed", i)) :] for i in range(len(TURNS)))
    result = ended["result"]
    path = speech.client.result(job["job_id"], tmp_path)
    sound, rate = read_audio(path)
    found = phrases(sound, rate, pause=0.4)
    said = [(each["start_ms"], each["end_ms"]) for each in result["turn_timings"]]
    assert path.suffix == ".mp3"
    assert (len(found), result["synthesis_mode"]) == (len(TURNS), "segmented")
    assert np.abs(np.array(found) - np.array(said)).max() <= 20  # ms: a last consonant is random noise, and may fade


def _done(speech: Stand, job_id: str) -> int:
    found: int = speech.client.get(job_id)["stages"]["speak"]["elements"]["completed"]
    return found


@pytest.mark.parametrize(
    ("wrong", "field"),
    [
        ({"provider": "nobody"}, "provider"),
        ({"language": "xx"}, "language"),
        ({"voice_assignments": [{"speaker": "A", "voice_id": "nobody"}]}, "voice_assignments[0].voice_id"),
        ({"turns": []}, "turns"),
        ({"turns": [{"speaker": "A", "text": ""}]}, "turns[0].text"),
        ({"turns": [{"speaker": "A", "text": "  "}]}, "turns[0].text"),
        ({"turns": [{"speaker": "A", "text": "x"}] * 10_000}, "turns"),
        ({"turns": [{"speaker": "A", "text": "x", "loud": True}]}, "turns[0].loud"),
        ({"turns": [TURNS[1], TURNS[1]]}, "turns[1].index"),
        ({"turns": [TURNS[1], {"speaker": "A", "text": "x"}]}, "turns[1].index"),
        ({"voice_assignments": [{"speaker": "A", "voice_id": "en-US+f3"}] * 2}, "voice_assignments[1].speaker"),
        ({"gap_ms": -1}, "gap_ms"),
        ({"output_format": "ogg"}, "output_format"),
    ],
    ids=[
        "provider",
        "language",
        "voice",
        "no-turn",
        "empty",
        "blank",
        "many",
        "unknown",
        "twice",
        "some",
        "both",
        "gap",
        "format",
    ],
)
def test_what_cannot_be_spoken_is_refused_with_the_field(speech: Stand, wrong: dict[str, Any], field: str) -> None:
    before = len(speech.client.list()["items"])

    with pytest.raises(InvalidInput) as refused:
        speech.client.submit("multi_role_tts", {"turns": TURNS} | wrong, user="bob")

    assert field in {each["field"] for each in refused.value.errors}
    assert len(speech.client.list()["items"]) == before


STATUS_IN_WORDS = """
SELECT id, user_id, job_type, status, provider, input_params, audio_file_id, result_metadata, error_message,
    retry_count, created_at, started_at, completed_at
FROM jobs WHERE user_id = 'carol' AND status = $1 ORDER BY created_at DESC
"""
TYPES = """
SELECT column_name, data_type, character_maximum_length FROM information_schema.columns
WHERE table_schema = current_schema AND table_name = $1
"""
QUERIES = {  # for each index of the design, the condition that it is for
    "user_status": "user_id = 'ann' AND status = 'processing'",
    "created_at": "true ORDER BY created_at DESC LIMIT 10",
    "pending": "status = 'pending' AND created_at < now() - interval '24 hours'",
    "processing_timeout": "status = 'processing' AND started_at < now() - interval '10 minutes'",
    "completed_cleanup": "status IN ('completed', 'failed', 'cancelled') AND completed_at < now() - interval '30 days'",
}


@pytest.mark.parametrize("speech", ["postgresql"], indirect=True)
async def test_people_query_jobs_and_audio_files_by_the_names_of_the_design(speech: Stand) -> None:
    """The worker has made the views; another one that starts finds them."""
    speech.work()
    job = speech.client.submit("multi_role_tts", json.loads(DESIGN), user="carol")
    ended = speech.client.wait(job["job_id"], FOR_LONG)
    wrong = {"turns": [{"speaker": "A", "text": "<voice>" + "x" * 600 + "</voice><break/>"}]}
    speech.client.wait(speech.client.submit("multi_role_tts", wrong, user="carol")["job_id"], FOR_LONG)
    async with design_schema(speech) as db:
        [row] = await db.fetch(STATUS_IN_WORDS, "completed")
        [failed] = await db.fetch(STATUS_IN_WORDS, "failed")
        [file] = await db.fetch(
            "SELECT f.* FROM jobs j JOIN audio_files f ON f.id = j.audio_file_id WHERE user_id = 'carol'"
        )
        types = {name: (type, most) for name, type, most in await db.fetch(TYPES, "jobs")}
        files = {name: type for name, type, _ in await db.fetch(TYPES, "audio_files")}

    assert (str(row["id"]), row["job_type"], row["provider"]) == (job["job_id"], "multi_role_tts", "espeak-ng")
    assert json.loads(row["input_params"]) == json.loads(DESIGN)
    metadata = json.loads(row["result_metadata"])
    assert {"duration_ms", "latency_ms", "synthesis_mode", "turn_timings", "substituted"} <= metadata.keys()
    assert [each["turn_index"] for each in metadata["turn_timings"]] == [0, 1]
    assert (row["error_message"], row["retry_count"]) == (None, 0)
    assert (file["storage_path"], file["format"]) == (ended["result_object_keys"]["join"], "mp3")
    assert (file["duration_ms"], file["size"] > 1000) == (ended["result"]["duration_ms"], True)
    assert (failed["audio_file_id"], failed["error_message"] != "") == (None, True)
    assert types["id"] == types["audio_file_id"] == ("uuid", None)
    assert types["input_params"] == types["result_metadata"] == ("jsonb", None)
    assert types["error_message"] == ("character varying", 500)
    assert types["provider"] == ("character varying", 50)
    assert types["retry_count"] == ("integer", None)
    assert {types[name][0] for name in ("created_at", "started_at", "completed_at")} == {"timestamp with time zone"}
    assert files == {
        "id": "uuid",
        "storage_path": "text",
        "format": "character varying",
        "duration_ms": "integer",
        "size": "bigint",
    }


@pytest.mark.parametrize("speech", ["postgresql"], indirect=True)
@pytest.mark.parametrize("index", QUERIES)
async def test_a_question_in_the_words_of_the_design_uses_its_index(speech: Stand, index: str) -> None:
    async with design_schema(speech) as db, db.transaction():
        await db.execute("SET LOCAL enable_seqscan = off")
        plan = "\n".join(row[0] for row in await db.fetch(f"EXPLAIN SELECT id FROM jobs WHERE {QUERIES[index]}"))
        there = {
            row[0] for row in await db.fetch("SELECT indexname FROM pg_indexes WHERE indexname LIKE 'speech_jobs%'")
        }

    assert f"speech_jobs_{index}" in there
    assert "using speech_jobs_" in plan  # with few rows, PostgreSQL may prefer another of them


@asynccontextmanager
async def design_schema(speech: Stand) -> AsyncIterator[asyncpg.Connection[asyncpg.Record]]:
    address, _, schema = speech.server.place.settings.store.partition("?schema=")
    db = await asyncpg.connect(address, server_settings={"search_path": f"{schema}_speech"})
    try:
        yield db
    finally:
        await db.close()
