"""The speech app as people use it: over HTTP, on every store, and through the death of its worker."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from packhorse.errors import InvalidInput
from tests.apps.audio_analysis import phrases, read_audio
from tests.apps.places import PLACES, Stand, stand
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
