"""The speech app on the real engine. What it says about its audio is compared with what can be heard."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import soundfile

from packhorse.testing import Bench, BenchJob
from packhorse_speech import audio, audio_file, azure, evaluate, providers, ssml
from packhorse_speech.app import Assignment, Dialogue, Turn, assigned, dialogue, speak
from packhorse_speech.espeak import LANGUAGES, MEN, WOMEN, Espeak, spell_decimals
from tests.apps.audio_analysis import phrases, pitch, read_audio

DESIGN = """{
  "turns": [
    {"speaker": "A", "text": "你好", "index": 0},
    {"speaker": "B", "text": "嗨！", "index": 1}
  ],
  "voice_assignments": [
    {"speaker": "A", "voice_id": "zh-TW-HsiaoYuNeural", "voice_name": "曉雨"},
    {"speaker": "B", "voice_id": "zh-TW-YunJheNeural", "voice_name": "雲哲"}
  ],
  "language": "zh-TW",
  "output_format": "mp3",
  "gap_ms": 300,
  "crossfade_ms": 50
}"""
"""`input_params` of the design document, letter by letter."""

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
        ({"turns": turns("...", "—")}, "turns: none of them has anything to say"),
        ({"turns": [Turn(f"speaker {i}", "a") for i in range(201)]}, "turns: 201 speakers have no voice assigned"),
        ({"turns": turns("<speak>hello <audio src='a'/></speak>")}, "turn 0: <audio> is not supported; supported are"),
        ({"turns": turns("hello <break time='1s'>")}, "turn 0: the markup is not well-formed"),
        ({"turns": turns("<break onstart='x'/>hello")}, "turn 0: <break> does not take 'onstart'"),
        ({"turns": turns("hello <break time='11s'/>")}, "turn 0: the time of <break> must be at most 10s"),
        ({"turns": turns("<!DOCTYPE a><speak>a</speak>")}, "turn 0: comments, declarations"),
    ],
    ids=["twice", "some", "silent", "speakers", "element", "malformed", "attribute", "break", "doctype"],
)
def test_what_only_a_look_at_all_of_it_can_tell_fails_at_once_and_says_why(
    packhorse: Bench, wrong: dict[str, Any], why: str
) -> None:
    job = packhorse.run(dialogue, Dialogue(**{"turns": turns(*TEXTS)} | wrong))

    assert job.status == "failed"
    assert job.error is not None
    assert why in job.error.message
    assert job.error.permanent


def test_every_voice_of_every_language_speaks() -> None:
    engine = Espeak()

    heard = {
        voice.id: audio.trim(audio.level(engine.speak("1 2", voice.id), engine.rate), engine.rate).size
        for voice in engine.voices()
    }

    assert {voice.language for voice in engine.voices()} == LANGUAGES.keys()
    assert len(heard) == 20 * len(LANGUAGES)
    assert min(heard.values()) > engine.rate // 10
    assert {*azure.NEAREST.values()} <= heard.keys()


def test_a_quiet_consonant_is_not_cut_off() -> None:
    """Against what the engine made: of what is louder than -55 dB, single samples may go. eSpeak's noise is random."""
    engine = Espeak()
    for text in ("three", "if", "half a loaf", "thin", "safe"):
        whole = audio.level(engine.speak(text, "en-US+f3"), engine.rate)

        kept = audio.trim(whole, engine.rate)

        loud = np.flatnonzero(np.abs(whole) > 10 ** (-55 / 20))
        assert loud[-1] - loud[0] - 0.02 * engine.rate < kept.size < whole.size
        assert np.abs(kept).sum() > 0.999 * np.abs(whole).sum()


def test_trimming_keeps_the_ends_of_words_in_every_voice() -> None:
    engine = Espeak()

    assert evaluate.cut_endings(engine, audio.trim) <= 2
    assert evaluate.cut_endings(engine, lambda samples, rate: audio.trim(samples, rate, **evaluate.BEFORE)) > 80


def test_word_errors_count_insertions_deletions_and_replacements() -> None:
    assert evaluate.word_errors(["a", "b", "c", "d"], ["a", "x", "c", "c"]) == 2
    assert evaluate.word_errors(["a", "b"], ["b", "c"]) == 2
    assert evaluate.words("It's 5, isn't it?") == ["it's", "isn't", "it"]


def test_a_decimal_point_is_said_in_mandarin() -> None:
    assert evaluate.phonemes(spell_decimals("3.5")) == evaluate.phonemes("3点五")
    assert evaluate.phonemes("点") in evaluate.phonemes(spell_decimals("3.5"))
    assert evaluate.phonemes("点") not in evaluate.phonemes("3.5")
    assert spell_decimals("版本1.2.3，10.25") == "版本1.2.3，10点二五"
    assert spell_decimals("<prosody rate='1.5'>0.5</prosody>") == "<prosody rate='1.5'>0点五</prosody>"


def test_markup_is_followed_and_not_read_aloud(packhorse: Bench) -> None:
    texts = [
        "hello world",
        "hello <break time='1s'/> world",
        "<speak><prosody rate='50%'>hello world</prosody></speak>",
    ]
    texts += ["WHO", "<say-as interpret-as='spell-out'>WHO</say-as>", "a < b", "<emphasis>hello</emphasis> world"]
    made = spoken(packhorse, turns=[Turn("A", text) for text in texts]).result

    plain, paused, slow, word, spelled, compared, stressed = (t.end_ms - t.start_ms for t in made.turn_timings)
    assert 900 < paused - plain < 1200
    assert slow > 1.8 * plain
    assert spelled > 2 * word
    assert compared > word
    assert plain < stressed < 1.5 * plain


@pytest.mark.parametrize("time", ["1000000s", "10001ms", "10.1s", "1e9s", "-1s", "10", "soon", ""])
def test_a_break_that_is_too_long_or_has_no_time_is_refused(time: str) -> None:
    with pytest.raises(ssml.InvalidSsml, match="at most 10s"):
        ssml.document(f"<break time='{time}'/>")


@pytest.mark.parametrize("time", ["10s", "10000ms", ".5s", "1.5s", "0s"])
def test_a_break_of_up_to_ten_seconds_is_accepted(time: str) -> None:
    assert ssml.document(f"<break time='{time}'/>") is not None


def test_stages_that_hold_audio_have_a_memory_limit() -> None:
    assert {name for name, stage in dialogue.stages.items() if stage.plan.memory} == {"speak", "join"}


def test_the_document_of_the_design_works_as_it_stands(packhorse: Bench) -> None:
    document = json.loads(DESIGN)

    made = spoken(packhorse, **msgspec.structs.asdict(msgspec.convert(document, Dialogue))).result

    assert [(each.speaker, each.voice_id) for each in made.substituted] == [
        ("A", "zh-TW-HsiaoYuNeural"),
        ("B", "zh-TW-YunJheNeural"),
    ]
    women, men = ({f"zh-TW+{name}" for name in names} for names in (WOMEN, MEN))
    assert made.substituted[0].used in women
    assert made.substituted[1].used in men
    assert [timing.turn_index for timing in made.turn_timings] == [0, 1]
    assert made.turn_timings[1].start_ms - made.turn_timings[0].end_ms == 300
    assert made.audio.name == "dialogue.mp3"


def test_the_times_of_the_design_are_those_of_the_pipeline() -> None:
    plan, day = dialogue.plan(), 86_400

    assert (plan.pending, plan.run_timeout) == (day, 600)
    assert plan.deadline >= plan.pending + 600
    assert plan.keep == {"completed": 30 * day, "failed": 30 * day, "cancelled": 7 * day}
    assert max(stage.retries for stage in plan.stages) == 3


def test_a_turn_keeps_the_index_it_was_given(packhorse: Bench) -> None:
    made = spoken(packhorse, turns=[Turn("A", "This comes later", 40), Turn("B", "First", 7)]).result

    assert [timing.turn_index for timing in made.turn_timings] == [7, 40]


def test_a_turn_with_nothing_to_say_is_a_pause(packhorse: Bench) -> None:
    said = [Turn("A", "Well", 1), Turn("B", "...", 2), Turn("A", "Good bye", 3)]
    made = spoken(packhorse, turns=said, output_format="wav").result

    sound, rate = read_audio(made.audio.path)
    pause = made.turn_timings[1]
    assert made.silent_turns == [2]
    assert pause.end_ms - pause.start_ms == 500
    assert not sound[pause.start_ms * rate // 1000 : pause.end_ms * rate // 1000].any()


def test_each_of_many_speakers_has_a_voice_of_its_own() -> None:
    engine, text = Espeak(), "Good morning"
    crowd = Dialogue(turns=[Turn(f"speaker {i}", text) for i in range(60)])

    voices = assigned(crowd, [turn.speaker for turn in crowd.turns])

    assert len({*voices.values()}) == 60
    assert len({engine.speak(text, voice).tobytes() for voice in voices.values()}) == 60


def test_a_voice_of_another_language_speaks_it(packhorse: Bench) -> None:
    given = [Assignment("B", "zh-TW+f3")]
    made = spoken(packhorse, turns=turns("Hello", "你好"), voice_assignments=given, output_format="wav").result

    alone = spoken(packhorse, turns=[Turn("B", "你好")], language="zh-TW", voice_assignments=given).result
    second = made.turn_timings[1]
    assert second.end_ms - second.start_ms == pytest.approx(alone.duration_ms, abs=1)


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
