"""The pipeline: who says what in which voice, each turn on its own, and all of them joined."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from packhorse import App, Choices, Context, File, Params, Permanent, each, gather, needs
from packhorse_speech import audio, audio_file, providers
from packhorse_speech.providers import Voice

MOST_TURNS = 1000

STATUSES = {"running": "processing"}

app = App("speech", statuses=STATUSES)

Text = Annotated[str, Meta(min_length=1, max_length=5000, pattern=r"\S")]
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"\S")]


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    speaker: Name
    text: Text
    index: Annotated[int, Meta(ge=0)] | None = None
    """Where it comes among the others; by default where it stands."""


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    speaker: Name
    voice_id: Annotated[str, Choices(providers.voice_ids)]
    voice_name: str | None = None


class Dialogue(Params):
    """Several speakers, one audio file. Who is assigned no voice is given one that nobody else has."""

    turns: Annotated[list[Turn], Meta(min_length=1, max_length=MOST_TURNS)]
    voice_assignments: Annotated[list[Assignment], Meta(max_length=100)] = []  # noqa: RUF012 (msgspec copies it)
    provider: Annotated[str, Choices(providers.names)] = "espeak-ng"
    language: Annotated[str, Choices(providers.languages)] = "en-US"
    output_format: Literal["mp3", "wav"] = "mp3"
    gap_ms: Annotated[int, Meta(ge=0, le=10_000)] = 300
    crossfade_ms: Annotated[int, Meta(ge=0, le=2000)] = 50


class Line(msgspec.Struct, frozen=True):
    """A turn that knows its voice."""

    text: str
    voice: str


class Spoken(msgspec.Struct, frozen=True):
    audio: File
    latency_ms: int
    """What synthesising it took."""


class Timing(msgspec.Struct, frozen=True):
    turn_index: int
    start_ms: int
    end_ms: int


class Recording(msgspec.Struct, frozen=True):
    audio: File
    duration_ms: int
    latency_ms: int
    """What synthesising all turns and joining them took, though they may have been synthesised side by side."""
    synthesis_mode: str
    turn_timings: list[Timing]


dialogue = app.pipeline(
    "multi_role_tts", Dialogue, keep={"completed": "30d", "failed": "30d", "cancelled": "7d"}, deadline="1h"
)


@dialogue.stage(retries=0)
def cast(ctx: Context, p: Dialogue) -> list[Line]:
    """Give every turn its voice, in the order in which they will be heard."""
    turns = ordered(p.turns)
    voices = assigned(p, [turn.speaker for turn in turns])
    ctx.log.info("%s", ", ".join(f"{speaker} is {voice}" for speaker, voice in voices.items()))
    return [Line(turn.text, voices[turn.speaker]) for turn in turns]


@dialogue.stage(queue="speech", retries=3, timeout="10m", elements=MOST_TURNS, weight=8)
def speak(ctx: Context, p: Dialogue, line: Line = each(cast)) -> Spoken:
    began = time.monotonic()
    provider = providers.providers()[p.provider]
    samples = audio.trim(audio.level(provider.speak(line.text, line.voice), provider.rate), provider.rate)
    if not samples.size:
        raise Permanent(f"There is nothing to be heard of {line.text[:50]!r}.", code="SILENT_TURN")
    path = ctx.scratch / "turn.wav"
    audio_file.write(samples, provider.rate, path)
    return Spoken(File(path), round((time.monotonic() - began) * 1000))


@dialogue.stage(retries=3, timeout="10m")
def join(ctx: Context, p: Dialogue, turns: list[Spoken] = gather(speak), lines: list[Line] = needs(cast)) -> Recording:
    began = time.monotonic()
    read = [audio_file.read_wav(turn.audio.path) for turn in ctx.track(turns, message="reading turns")]
    rate = read[0][1]
    whole, places = audio.join([samples for samples, _ in read], rate, p.gap_ms / 1000, p.crossfade_ms / 1000)
    path = ctx.scratch / f"dialogue.{p.output_format}"
    audio_file.write(whole, rate, path)
    ctx.log.info("%d turns of %d voices", len(turns), len({line.voice for line in lines}))
    return Recording(
        File(path),
        duration_ms=_ms(whole.size, rate),
        latency_ms=sum(turn.latency_ms for turn in turns) + round((time.monotonic() - began) * 1000),
        synthesis_mode="segmented",
        turn_timings=[Timing(i, _ms(at.start, rate), _ms(at.end, rate)) for i, at in enumerate(places)],
    )


def ordered(turns: list[Turn]) -> list[Turn]:
    """Sort by index, if given. Two turns must not have the same index."""
    given = [turn.index for turn in turns if turn.index is not None]
    if len(given) not in (0, len(turns)) or len(set(given)) != len(given):
        raise Permanent("turns: all of them must have an index of their own, or none may.", code="INVALID")
    return sorted(turns, key=lambda turn: turn.index or 0)


def assigned(p: Dialogue, speakers: list[str]) -> dict[str, str]:
    """A voice for each speaker: the assigned one, else the first unused one."""
    offered = providers.voices_of(p.provider, p.language)
    given = {each.speaker: each.voice_id for each in p.voice_assignments}
    for speaker, voice in given.items():
        _check(speaker, voice, p, offered)
    free = [voice.id for voice in offered if voice.id not in given.values()] or [voice.id for voice in offered]
    waiting = [speaker for speaker in dict.fromkeys(speakers) if speaker not in given]
    return given | {speaker: free[i % len(free)] for i, speaker in enumerate(waiting)}


def _check(speaker: str, voice: str, p: Dialogue, offered: list[Voice]) -> None:
    if voice not in [each.id for each in offered]:
        raise Permanent(
            f"voice_assignments: the voice {voice!r} of {speaker!r} is not one of {p.provider} for {p.language}.",
            code="INVALID",
        )


def _ms(samples: int, rate: int) -> int:
    return round(samples * 1000 / rate)
