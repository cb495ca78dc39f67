"""Speech of a video: transcribed once, then reported as words and as turns of speakers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import msgspec

from packhorse_video import speakers, voices, words
from packhorse_video.findings import Finding
from packhorse_video.sounds import Sound
from packhorse_video.voices import Stretch

BREATH = 0.8
"""Seconds. Shorter pauses do not split what is recognised at once: recognition needs the context."""
LONGEST = 15.0
NOTHING = "[speech]"
"""Label of speech without a recognised word."""
FOREIGN = "[speech, not English]"
"""Label of speech that the English model does not understand."""

Progress = Callable[[float], None]
"""Called with the seconds processed so far."""


class Spoken(msgspec.Struct, frozen=True):
    text: str
    at: float
    until: float
    score: float
    bare: str
    """Without punctuation."""


class Part(msgspec.Struct, frozen=True):
    """Stretches of speech that were recognised at once."""

    voiced: list[tuple[float, float]]
    english: bool
    chance: float
    words: list[Spoken]
    """None if it is not English."""


class Transcript(msgspec.Struct, frozen=True):
    parts: list[Part]

    @property
    def note(self) -> str:
        """What was not transcribed, and why."""
        seconds = {True: 0.0, False: 0.0}
        for part in self.parts:
            seconds[part.english] += sum(until - at for at, until in part.voiced)
        if not seconds[False]:
            return ""
        total = seconds[True] + seconds[False]
        return (
            f"{seconds[False]:.1f} of {total:.1f} s of speech are not English or cannot be understood and were not "
            f"transcribed: there is a model for English only."
        )


def write(transcript: Transcript, to: Path) -> None:
    to.write_bytes(msgspec.json.encode(transcript))


def read(path: Path) -> Transcript:
    return msgspec.json.decode(path.read_bytes(), type=Transcript)


def transcribe(sound: Sound, progress: Progress) -> Transcript:
    parts: list[Part] = []
    for voiced in _parts(voices.stretches(sound)):
        heard = words.recognise(sound, voiced)
        said = [Spoken(each.text, each.at, each.until, each.score, each.bare) for each in heard.words]
        spans = [(stretch.at, stretch.until) for stretch in voiced]
        parts.append(Part(spans, heard.is_english, round(heard.chance, 3), said if heard.is_english else []))
        progress(voiced[-1].until)
    return Transcript(parts)


def _parts(stretches: Sequence[Stretch]) -> list[list[Stretch]]:
    """Stretches with short pauses between them go together."""
    found: list[list[Stretch]] = []
    for stretch in stretches:
        last = found[-1] if found else None
        if last and stretch.at - last[-1].until < BREATH and stretch.until - last[0].at <= LONGEST:
            last.append(stretch)
        else:
            found.append([stretch])
    return found


def words_of(transcript: Transcript) -> list[Finding]:
    """Every word with its time; speech in another language as one finding."""
    found: list[Finding] = []
    for part in transcript.parts:
        if not part.english:
            found.append(Finding(round(part.voiced[0][0], 2), FOREIGN, until=round(part.voiced[-1][1], 2)))
        found += [Finding(each.at, each.bare, until=each.until, score=each.score) for each in part.words]
    return found


class Turn(NamedTuple):
    at: float
    until: float
    who: int
    texts: list[str]


def turns_of(sound: Sound, transcript: Transcript, progress: Progress) -> list[Finding]:
    """Every turn with its time, its speaker and its words."""
    stretches = [Stretch(*span) for part in transcript.parts for span in part.voiced]
    turns: list[Turn] = []
    for piece in speakers.pieces(sound, stretches):
        last = turns[-1] if turns else None
        close = last is not None and piece.at - last.until < BREATH and piece.until - last.at <= LONGEST
        if last is not None and close and last.who == piece.who:
            turns[-1] = last._replace(until=piece.until)
        else:
            turns.append(Turn(piece.at, piece.until, piece.who, []))
        progress(piece.until)
    for part in transcript.parts:
        spoken = [(each.text, (each.at + each.until) / 2) for each in part.words]
        if not part.english:
            spoken = [(FOREIGN, (at + until) / 2) for at, until in part.voiced]
        for text, middle in spoken:
            nearest = min(turns, key=lambda turn: max(turn.at - middle, middle - turn.until, 0.0))
            if text != FOREIGN or FOREIGN not in nearest.texts:
                nearest.texts.append(text)
    return [
        Finding(
            round(turn.at, 2),
            " ".join(turn.texts) or NOTHING,
            until=round(turn.until, 2),
            speaker=f"speaker {turn.who + 1}",
        )
        for turn in turns
    ]
