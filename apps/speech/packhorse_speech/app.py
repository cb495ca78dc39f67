"""The pipeline: who says what in which voice, each turn on its own, and all of them joined."""

from __future__ import annotations

import time
from typing import Annotated, Literal

import msgspec
import numpy as np
from msgspec import Meta

from packhorse import App, Choices, Context, File, Params, Permanent, each, gather, needs
from packhorse_speech import audio, audio_file, azure, providers, ssml
from packhorse_speech.providers import Provider, Samples, SsmlProvider, VaryingProvider

MOST_TURNS = 1000
MEMORY = "4GB"
PAUSE = 0.5
"""Seconds for a turn in which there is nothing to say, such as "..." or an emoji."""

STATUSES = {"running": "processing"}

app = App("speech", statuses=STATUSES, postgres="postgres.sql")

Text = Annotated[str, Meta(min_length=1, max_length=5000, pattern=r"\S")]
Name = Annotated[str, Meta(min_length=1, max_length=100, pattern=r"\S")]


def voice_ids() -> list[str]:
    """The voices of all providers, and the well-known ones that a voice stands in for."""
    return sorted({*providers.voice_ids(), *azure.NEAREST})


class Turn(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    speaker: Name
    text: Text
    index: Annotated[int, Meta(ge=0)] | None = None
    """Where it comes among the others, and its name in ``turn_timings``; by default where it stands."""


class Assignment(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    speaker: Name
    voice_id: Annotated[str, Choices(voice_ids)]
    voice_name: str | None = None


class Dialogue(Params):
    """Makes one audio file from the turns of several speakers. A speaker without an assignment gets an unused voice."""

    turns: Annotated[list[Turn], Meta(min_length=1, max_length=MOST_TURNS, extra_json_schema={"x-unique-by": "index"})]
    voice_assignments: Annotated[
        list[Assignment], Meta(max_length=100, extra_json_schema={"x-unique-by": "speaker"})
    ] = []  # noqa: RUF012 (msgspec copies it)
    provider: Annotated[str, Choices(providers.names)] = "espeak-ng"
    language: Annotated[str, Choices(providers.languages)] = "en-US"
    output_format: Literal["mp3", "wav"] = "mp3"
    gap_ms: Annotated[int, Meta(ge=0, le=10_000)] = 300
    crossfade_ms: Annotated[int, Meta(ge=0, le=2000)] = 50


class Line(msgspec.Struct, frozen=True):
    """A turn that knows its voice."""

    text: str
    voice: str
    index: int
    is_ssml: bool = False


class Substitution(msgspec.Struct, frozen=True):
    """A voice that another provider has, and the one that stood in for it."""

    speaker: str
    voice_id: str
    used: str


class Spoken(msgspec.Struct, frozen=True):
    audio: File
    latency_ms: int
    """Time that the synthesis took."""
    is_silent: bool = False


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
    substituted: list[Substitution]
    silent_turns: list[int]
    """Indexes of turns with nothing to say: a pause of half a second each."""


dialogue = app.pipeline(
    "multi_role_tts",
    Dialogue,
    keep={"completed": "30d", "failed": "30d", "cancelled": "7d"},
    pending="24h",
    run_timeout="10m",
    deadline="25h",
)


@dialogue.stage(retries=0)
def cast(ctx: Context, p: Dialogue) -> list[Line]:
    """Give every turn its voice, in the order in which they will be heard."""
    turns = ordered(p.turns)
    voices = assigned(p, [turn.speaker for turn in turns])
    ctx.log.info("%s", ", ".join(f"{speaker} is {voice}" for speaker, voice in voices.items()))
    return [_line(turn, i, voices[turn.speaker], p) for i, turn in enumerate(turns)]


@dialogue.stage(queue="speech", retries=3, timeout="10m", elements=MOST_TURNS, weight=8, memory=MEMORY)
def speak(ctx: Context, p: Dialogue, line: Line = each(cast)) -> Spoken:
    began = time.monotonic()
    provider = providers.providers()[p.provider]
    samples = audio.trim(audio.level(_synthesise(provider, line), provider.rate), provider.rate)
    is_silent = not samples.size
    if is_silent:
        samples = np.zeros(int(PAUSE * provider.rate), np.float32)
    path = ctx.scratch / "turn.wav"
    audio_file.write(samples, provider.rate, path)
    return Spoken(File(path), round((time.monotonic() - began) * 1000), is_silent)


@dialogue.stage(retries=3, timeout="10m", memory=MEMORY)
def join(ctx: Context, p: Dialogue, turns: list[Spoken] = gather(speak), lines: list[Line] = needs(cast)) -> Recording:
    began = time.monotonic()
    if all(turn.is_silent for turn in turns):
        raise Permanent("turns: none of them has anything to say.", code="SILENT")
    read = [audio_file.read_wav(turn.audio.path) for turn in ctx.track(turns, message="reading turns")]
    rate = read[0][1]
    whole, places = audio.join([samples for samples, _ in read], rate, p.gap_ms / 1000, p.crossfade_ms / 1000)
    path = ctx.scratch / f"dialogue.{p.output_format}"
    audio_file.write(whole, rate, path)
    ctx.log.info("%d turns of %d voices", len(turns), len({line.voice for line in lines}))
    indexes = [line.index for line in lines]
    return Recording(
        File(path),
        duration_ms=_ms(whole.size, rate),
        latency_ms=sum(turn.latency_ms for turn in turns) + round((time.monotonic() - began) * 1000),
        synthesis_mode="segmented",
        turn_timings=[Timing(i, _ms(at.start, rate), _ms(at.end, rate)) for i, at in zip(indexes, places, strict=True)],
        substituted=substitutions(p),
        silent_turns=[i for i, turn in zip(indexes, turns, strict=True) if turn.is_silent],
    )


def ordered(turns: list[Turn]) -> list[Turn]:
    """Sort by index, if given. The server has refused two turns with one index; a submit from Python comes here."""
    given = [turn.index for turn in turns if turn.index is not None]
    if len(given) not in (0, len(turns)) or len(set(given)) != len(given):
        raise Permanent("turns: all of them must have an index of their own, or none may.", code="INVALID")
    return sorted(turns, key=lambda turn: turn.index or 0)


def substitutions(p: Dialogue) -> list[Substitution]:
    return [
        Substitution(each.speaker, each.voice_id, azure.NEAREST[each.voice_id])
        for each in p.voice_assignments
        if each.voice_id in azure.NEAREST
    ]


def assigned(p: Dialogue, speakers: list[str]) -> dict[str, str]:
    """A voice for each speaker: the assigned one, which may be of another language, else the first unused one."""
    provider = providers.providers()[p.provider]
    known = {voice.id for voice in provider.voices()}
    given = {each.speaker: each.voice_id for each in p.voice_assignments}
    given |= {each.speaker: each.used for each in substitutions(p)}
    for speaker, voice in given.items():
        if voice not in known:
            raise Permanent(
                f"voice_assignments: the voice {voice!r} of {speaker!r} is not one of {p.provider}.", code="INVALID"
            )
    offered = [voice.id for voice in providers.voices_of(p.provider, p.language)]
    waiting = [speaker for speaker in dict.fromkeys(speakers) if speaker not in given]
    free = [voice for voice in offered if voice not in given.values()]
    n = 0
    while len(free) < len(waiting):
        n += 1
        more = [provider.variation(voice, n) for voice in offered] if isinstance(provider, VaryingProvider) else []
        found = [voice for voice in more if voice is not None]
        if not found:
            raise Permanent(
                f"turns: {len(waiting)} speakers have no voice assigned, and {p.provider} has {len(free)} more voices "
                f"for {p.language}. Assign voices with voice_assignments.",
                code="TOO_MANY_SPEAKERS",
            )
        free += found
    return given | dict(zip(waiting, free, strict=False))


def _line(turn: Turn, i: int, voice: str, p: Dialogue) -> Line:
    try:
        markup = ssml.document(turn.text)
    except ssml.InvalidSsml as error:
        raise Permanent(
            f"The text of turn {turn.index if turn.index is not None else i}: {error}.", code="INVALID_SSML"
        ) from error
    if markup is not None and not isinstance(providers.providers()[p.provider], SsmlProvider):
        raise Permanent(f"turns: {p.provider} does not read SSML.", code="INVALID_SSML")
    return Line(markup or turn.text, voice, i if turn.index is None else turn.index, markup is not None)


def _synthesise(provider: Provider, line: Line) -> Samples:
    if line.is_ssml and isinstance(provider, SsmlProvider):
        return provider.speak_ssml(line.text, line.voice)
    return provider.speak(line.text, line.voice)


def _ms(samples: int, rate: int) -> int:
    return round(samples * 1000 / rate)
