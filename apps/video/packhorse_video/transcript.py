"""Finds speech in a sound, splits it by speaker and recognises the words."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from packhorse_video import speakers, voices, words
from packhorse_video.findings import Finding
from packhorse_video.sounds import Sound
from packhorse_video.voices import Stretch

BREATH = 1.0
"""Seconds. Shorter pauses of one voice do not split a turn: recognition needs the context."""
LONGEST = 20.0
NOTHING = "[speech]"
"""Label of speech without a recognised word."""

Progress = Callable[[float], None]
"""Called with the seconds processed so far."""


def words_of(sound: Sound, progress: Progress) -> list[Finding]:
    """Every word with its time."""
    found: list[Finding] = []
    for turn in _turns(sound):
        heard = words.recognise(sound, turn.stretch)
        found += [Finding(each.at, each.text, until=each.until, score=each.score) for each in heard]
        progress(turn.stretch.until)
    return found


def turns_of(sound: Sound, progress: Progress) -> list[Finding]:
    """Every turn with its time, its speaker and its words."""
    found: list[Finding] = []
    for (at, until), who in _turns(sound):
        text = " ".join(each.text for each in words.recognise(sound, Stretch(at, until))) or NOTHING
        found.append(Finding(round(at, 2), text, until=round(until, 2), speaker=f"speaker {who + 1}"))
        progress(until)
    return found


class Turn(NamedTuple):
    stretch: Stretch
    who: int


def _turns(sound: Sound) -> list[Turn]:
    """Merge stretches of one speaker with short pauses."""
    stretches = voices.stretches(sound)
    turns: list[Turn] = []
    for stretch, who in zip(stretches, speakers.speakers([each.of(sound) for each in stretches]), strict=True):
        if turns and _go_together(turns[-1], stretch, who):
            turns[-1] = Turn(Stretch(turns[-1].stretch.at, stretch.until), who)
        else:
            turns.append(Turn(stretch, who))
    return turns


def _go_together(last: Turn, stretch: Stretch, who: int) -> bool:
    is_close = stretch.at - last.stretch.until < BREATH and stretch.until - last.stretch.at <= LONGEST
    return is_close and last.who == who
