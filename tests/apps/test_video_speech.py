"""Speech of a video: recognised the same way every time, by speaker, and only where it is understood."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from packhorse_speech.espeak import Espeak
from packhorse_video import sample, speakers, transcript, weights, words
from packhorse_video.sounds import RATE, Sound
from packhorse_video.transcript import Transcript
from packhorse_video.voices import Stretch

MANDARIN = "今天天气很好。我们一起去公园散步，然后去图书馆看书。"


def transcribed(sound: Sound) -> Transcript:
    return transcript.transcribe(sound, lambda _: None)


def text_of(made: Transcript) -> str:
    return " ".join(each.text for part in made.parts for each in part.words)


@pytest.fixture(scope="module")
def dialogue() -> Sound:
    """Two people take turns."""
    return sample.recording(weights.path("sample/dialogue.wav"))


@pytest.fixture(scope="module")
def made(dialogue: Sound) -> Transcript:
    return transcribed(dialogue)


@pytest.fixture(scope="module")
def mandarin() -> Sound:
    engine = Espeak()
    said = engine.speak(MANDARIN, "zh-TW+f2")
    at = np.arange(0, said.size, engine.rate / RATE)
    return np.asarray(np.interp(at, np.arange(said.size), said), np.float32)


def test_a_human_voice_is_understood(made: Transcript) -> None:
    assert "Do you hear me?" in text_of(made)
    assert "laugh less heartily" in text_of(made)
    assert made.note == ""


def test_what_was_heard_before_does_not_change_the_words(made: Transcript, dialogue: Sound, mandarin: Sound) -> None:
    transcribed(mandarin)

    assert transcribed(dialogue) == made


def test_two_people_who_take_turns_are_told_apart(made: Transcript, dialogue: Sound) -> None:
    turns = transcript.turns_of(dialogue, made, lambda _: None)

    assert [each.speaker for each in turns] == ["speaker 1", "speaker 2"] * 7
    assert turns[0].label == "Do you hear me?"
    assert turns[1].label == "Yes."


def test_speech_that_is_not_english_is_reported_and_not_made_into_english(mandarin: Sound) -> None:
    made = transcribed(mandarin)

    assert [each.label for each in transcript.words_of(made)] == [transcript.FOREIGN] * len(made.parts)
    assert {each.label for each in transcript.turns_of(mandarin, made, lambda _: None)} == {transcript.FOREIGN}
    assert "not English" in made.note


def test_a_decoder_that_loops_is_not_taken_for_sure() -> None:
    unsure = words.certainty([b"a", b"b", b"c", b"d", b"e", b"f"], [0.3] * 6)
    loops = words.certainty([b"a", b"b", b"c", b"d", b"e", b"f"] * 10, [0.3] * 6 + [0.99] * 54)

    assert unsure == pytest.approx(0.3)
    assert loops < words.LEAST_CHANCE


def test_a_transcript_is_read_as_it_was_written(made: Transcript, tmp_path: Path) -> None:
    path = tmp_path / "transcript.json"
    transcript.write(made, path)

    assert transcript.read(path) == made


def voiced(people: int, channel: float, turns: int = 4) -> tuple[np.ndarray, list[Stretch], list[int]]:
    """Embeddings of people who take turns of ten windows; ``channel`` is what all of them have in common."""
    noise = np.random.default_rng(people)
    voices = noise.standard_normal((people, 512))
    who = [person for _ in range(turns) for person in range(people) for _ in range(10)]
    found = 1.1 * noise.standard_normal((len(who), 512)) + voices[who] + channel * noise.standard_normal(512)
    windows = [Stretch(i * speakers.HOP, i * speakers.HOP + speakers.WINDOW) for i in range(len(who))]
    return (found / np.linalg.norm(found, axis=1, keepdims=True)).astype(np.float32), windows, who


@pytest.mark.parametrize("channel", [0.0, 0.5], ids=["studio", "telephone"])
@pytest.mark.parametrize("people", [1, 2, 3])
def test_the_number_of_speakers_is_found_also_where_all_voices_are_alike(people: int, channel: float) -> None:
    vectors, windows, who = voiced(people, channel)

    found = speakers.cluster(vectors, windows)

    assert len(set(found)) == people
    assert len(set(zip(found, who, strict=True))) == people


def test_a_cough_is_no_speaker_and_a_long_recording_is_told_apart_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(speakers, "COMPARED", 120)  # the time that this takes grows with its square
    vectors, windows, who = voiced(2, 0.5, turns=8)
    vectors[5] = np.random.default_rng(9).standard_normal(512) / 22.6

    found = speakers.cluster(vectors, windows)

    assert len(vectors) > speakers.COMPARED
    assert len(set(found)) == 2
    assert sum(found[i] == found[0] for i in range(len(who)) if who[i] == 0) >= 79
