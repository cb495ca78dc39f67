"""The speech app on the real engine. What it says about its audio is compared with what can be heard."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from packhorse.testing import Bench, BenchJob
from packhorse_speech import audio, audio_file, providers
from packhorse_speech.app import Assignment, Dialogue, Turn, dialogue, speak
from tests.apps.audio_analysis import phrases, pitch, read_audio

TEXTS = ["Good morning everybody", "What a beautiful day", "Let us begin then"]


def turns(*texts: str, speakers: str = "ABAB") -> list[Turn]:
    return [Turn(speaker, text) for speaker, text in zip(speakers, texts, strict=False)]


def spoken(packhorse: Bench, **parameters: Any) -> BenchJob[Any]:
    job = packhorse.run(dialogue, Dialogue(**{"turns": turns(*TEXTS)} | parameters))
    assert job.status == "completed", job.error
    return job


@pytest.mark.parametrize("format", ["wav", "mp3"])
def test_turns_are_heard_where_the_timings_say(packhorse: Bench, format: Any) -> None:
    made = spoken(packhorse, output_format=format, gap_ms=700).result

    sound, rate = read_audio(made.audio.path)
    found = phrases(sound, rate, pause=0.5)
    said = [(timing.start_ms, timing.end_ms) for timing in made.turn_timings]
    assert made.audio.name == f"dialogue.{format}"
    assert len(found) == len(said) == 3
    assert np.abs(np.array(found) - np.array(said)).max() <= 10
    assert abs(sound.size * 1000 / rate - made.duration_ms) <= 10
    assert [timing.turn_index for timing in made.turn_timings] == [0, 1, 2]
    assert [later.start_ms - earlier.end_ms for earlier, later in pairwise(made.turn_timings)] == [700, 700]


def test_without_a_gap_turns_overlap_by_the_crossfade(packhorse: Bench) -> None:
    apart = spoken(packhorse, output_format="wav", gap_ms=0, crossfade_ms=0).result
    crossed = spoken(packhorse, output_format="wav", gap_ms=0, crossfade_ms=200).result

    assert [b.start_ms - a.end_ms for a, b in pairwise(apart.turn_timings)] == [0, 0]
    assert [b.start_ms - a.end_ms for a, b in pairwise(crossed.turn_timings)] == [-200, -200]
    for made in (apart, crossed):
        sound, rate = read_audio(made.audio.path)
        assert round(sound.size * 1000 / rate) == made.duration_ms == made.turn_timings[-1].end_ms


def test_gap_and_crossfade_are_kept_to_the_sample() -> None:
    ones, short = np.full(1000, 0.5, np.float32), np.full(50, 0.5, np.float32)

    spaced, at = audio.join([ones, ones, short], 1000, gap=0.25, crossfade=0.1)
    assert at == [(0, 1000), (1250, 2250), (2500, 2550)]
    assert not spaced[1000:1250].any()
    assert (spaced[10:990] == 0.5).all()

    crossed, at = audio.join([ones, ones, short], 1000, gap=0, crossfade=0.1)
    assert at == [(0, 1000), (900, 1900), (1875, 1925)]
    assert np.allclose(crossed[1000:1875], 0.5)
    power = crossed[900:1000] / 0.5
    assert power.min() >= 0.99
    assert power.max() <= 1.42


def test_speakers_have_voices_of_their_own_and_keep_them(packhorse: Bench) -> None:
    text = "The quick brown fox jumps over the lazy dog"
    made = spoken(packhorse, turns=turns(text, text, text, speakers="ABA"), output_format="wav", gap_ms=500).result

    sound, rate = read_audio(made.audio.path)
    parts = [sound[t.start_ms * rate // 1000 : t.end_ms * rate // 1000] for t in made.turn_timings]
    first, second, again = (pitch(part, rate) for part in parts)
    assert abs(first - again) < 5
    assert abs(first - second) > 20


def test_a_voice_that_was_assigned_is_the_one_heard(packhorse: Bench) -> None:
    text = "The quick brown fox jumps over the lazy dog"

    def sounds(voice: str) -> float:
        given = [Assignment("A", voice)]
        made = spoken(packhorse, turns=turns(text), voice_assignments=given, output_format="wav").result
        return pitch(*read_audio(made.audio.path))

    assert sounds("en-US+f2") - sounds("en-US+m3") > 40


def test_mandarin_is_spoken(packhorse: Bench) -> None:
    said = turns("你好世界", "今天天气很好")

    chinese = spoken(packhorse, turns=said, language="zh-TW", gap_ms=500).result

    assert [t.end_ms - t.start_ms > 400 for t in chinese.turn_timings] == [True, True]


def test_every_turn_is_as_loud_as_the_others(packhorse: Bench) -> None:
    voices = [Assignment("A", "en-US+f3"), Assignment("B", "en-US+m7")]
    made = spoken(packhorse, voice_assignments=voices, output_format="wav", gap_ms=500).result

    sound, rate = read_audio(made.audio.path)
    parts = [sound[t.start_ms * rate // 1000 : t.end_ms * rate // 1000] for t in made.turn_timings]
    levels = [20 * np.log10(audio.loudness(part.astype(np.float32), rate)) for part in parts]
    assert max(levels) - min(levels) < 1


def test_turns_are_put_in_the_order_of_their_numbers(packhorse: Bench) -> None:
    long, short = Turn("A", "This is a rather long sentence about nothing at all", 1), Turn("B", "Yes", 0)

    made = spoken(packhorse, turns=[long, short]).result

    first, second = (timing.end_ms - timing.start_ms for timing in made.turn_timings)
    assert first < second


def test_a_lost_turn_is_synthesised_again_and_the_others_are_not(packhorse: Bench) -> None:
    packhorse.lose(speak, element=1)

    job = spoken(packhorse)

    started = [event.data for event in job.events if event.type == "stage_started" and event.data["stage"] == "speak"]
    assert sorted((each["element"], each["attempt"]) for each in started) == [(0, 1), (1, 1), (1, 2), (2, 1)]


@pytest.mark.parametrize(
    ("wrong", "why"),
    [
        ({"turns": [Turn("A", "a", 1), Turn("B", "b", 1)]}, "turns: all of them must have an index of their own"),
        ({"turns": [Turn("A", "a", 1), Turn("B", "b")]}, "turns: all of them must have an index of their own"),
        (
            {"voice_assignments": [Assignment("A", "zh-TW+f3")]},
            "the voice 'zh-TW+f3' of 'A' is not one of espeak-ng for en-US",
        ),
        ({"turns": turns("...")}, "There is nothing to be heard"),
    ],
    ids=["twice", "some", "language", "silent"],
)
def test_what_only_a_look_at_all_of_it_can_tell_fails_at_once_and_says_why(
    packhorse: Bench, wrong: dict[str, Any], why: str
) -> None:
    job = packhorse.run(dialogue, Dialogue(**{"turns": turns(*TEXTS)} | wrong))

    assert job.status == "failed"
    assert job.error is not None
    assert why in job.error.message
    assert job.error.permanent


@pytest.mark.parametrize("rate", audio_file.RATES)
@pytest.mark.parametrize("seconds", [0.05, 1.0, 3.21])
def test_an_mp3_has_exactly_the_samples_that_went_in(tmp_path: Path, rate: int, seconds: float) -> None:
    size = int(rate * seconds)
    beep = np.zeros(size, np.float32)
    at = size // 3
    beep[at : at + rate // 50] = 0.5 * np.sin(2 * np.pi * 1000 * np.arange(rate // 50) / rate)[: size - at]
    audio_file.write(beep, rate, tmp_path / "a.mp3")

    back, found = soundfile.read(tmp_path / "a.mp3")

    assert (found, back.size) == (rate, size)
    assert abs(int(np.argmax(np.abs(back) > 0.2)) - int(np.argmax(np.abs(beep) > 0.2))) <= rate // 500


def test_another_package_may_bring_a_provider(monkeypatch: pytest.MonkeyPatch) -> None:
    class Entry:
        name = "tones"

        def load(self) -> Any:
            return lambda: "the provider"

    monkeypatch.setattr(providers, "entry_points", lambda group: [Entry()] if group == providers.GROUP else [])
    providers.providers.cache_clear()
    try:
        assert providers.providers()["tones"] == "the provider"  # type: ignore[comparison-overlap]
        assert "espeak-ng" in providers.providers()
    finally:
        providers.providers.cache_clear()
