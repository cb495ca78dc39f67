"""What is said, and by whom: speech found, taken apart by speaker, and recognised."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from packhorse_video import speakers, voices, words
from packhorse_video.findings import Finding
from packhorse_video.sounds import Sound
from packhorse_video.voices import Stretch

BREATH = 1.0
"""Seconds. Stretches with less between them are recognised in one go: words are known by their neighbours."""
LONGEST = 20.0
NOTHING = "[speech]"
"""Where somebody speaks and no word was recognised."""

Told = Callable[[float], None]
"""How many seconds were listened to."""


def recognised(sound: Sound, told: Told) -> list[Finding]:
    """Every word with its time."""
    found: list[Finding] = []
    stretches = voices.stretches(sound)
    for group in _grouped(stretches, [0] * len(stretches)):
        heard = words.heard(sound, _whole(stretches, group))
        found += [Finding(each.at, each.text, until=each.until, score=each.score) for each in heard]
        told(stretches[group[-1]].until)
    return found


def told_apart(sound: Sound, told: Told) -> list[Finding]:
    """Every turn with its time, its speaker and its words."""
    found: list[Finding] = []
    stretches = voices.stretches(sound)
    who = speakers.speakers([each.of(sound) for each in stretches])
    for group in _grouped(stretches, who):
        whole = _whole(stretches, group)
        text = " ".join(each.text for each in words.heard(sound, whole)) or NOTHING
        speaker = f"speaker {who[group[0]] + 1}"
        found.append(Finding(round(whole.at, 2), text, until=round(whole.until, 2), speaker=speaker))
        told(whole.until)
    return found


def _whole(stretches: Sequence[Stretch], group: Sequence[int]) -> Stretch:
    return Stretch(stretches[group[0]].at, stretches[group[-1]].until)


def _grouped(stretches: Sequence[Stretch], who: Sequence[int]) -> list[list[int]]:
    """Numbers of neighbours that one speaker says nearly without a pause."""
    groups: list[list[int]] = []
    for i, stretch in enumerate(stretches):
        last = groups[-1] if groups else None
        if (
            last is not None
            and who[last[0]] == who[i]
            and stretch.at - stretches[last[-1]].until < BREATH
            and stretch.until - stretches[last[0]].at <= LONGEST
        ):
            last.append(i)
        else:
            groups.append([i])
    return groups
