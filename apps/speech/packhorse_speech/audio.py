"""Joins turns of speech with sample-exact timing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from packhorse_speech.providers import Samples

LOUDNESS = 0.1
"""Target RMS of the loud parts of every turn: -20 dB."""
QUIET = LOUDNESS * 10 ** (-35 / 20)
"""RMS over a few milliseconds below which a passage counts as silent: -55 dB, far below any consonant."""
MARGIN = 0.005
"""Seconds to keep before and after the audible part."""
MOMENT = 0.004
LOUDEST = 0.95
EDGE = 0.003
"""Seconds of fade at a gap, against clicks."""
WINDOW = 0.02


class Placed(NamedTuple):
    start: int
    end: int


def trim(samples: Samples, rate: int, quiet: float = QUIET, margin: float = MARGIN) -> Samples:
    """Remove the silence around a turn, so that only the audible part counts; quiet consonants stay whole."""
    size = int(MOMENT * rate)
    level = np.sqrt(np.convolve(samples**2, np.full(size, 1 / size, np.float32), "same")) if samples.size else samples
    heard = np.flatnonzero(level > quiet)
    more = int(margin * rate)
    return samples[max(0, heard[0] - more) : heard[-1] + 1 + more] if heard.size else samples[:0]


def loudness(samples: Samples, rate: int) -> float:
    """RMS of the audible parts; pauses do not count."""
    size = max(1, int(WINDOW * rate))
    whole = samples[: samples.size - samples.size % size]
    if not whole.size:
        return float(np.sqrt(np.mean(samples**2))) if samples.size else 0.0
    power = np.mean(whole.reshape(-1, size) ** 2, axis=1)
    return float(np.sqrt(np.mean(power[power >= power.max() / 100])))


def level(samples: Samples, rate: int) -> Samples:
    """Bring a turn to `LOUDNESS`, as far as its peaks allow."""
    level, peak = loudness(samples, rate), float(np.max(np.abs(samples), initial=0.0))
    if level == 0.0:
        return samples
    return (samples * min(LOUDNESS / level, LOUDEST / peak)).astype(np.float32)


def join(turns: Sequence[Samples], rate: int, gap: float, crossfade: float) -> tuple[Samples, list[Placed]]:
    """Join all turns; return the samples and the place of each turn.

    With a gap, so much silence is between two turns, exactly. Without one, the next begins while the last fades: they
    overlap by the crossfade, or by half of the shorter one if that is less.
    """
    places: list[Placed] = []
    for i, turn in enumerate(turns):
        start = 0
        if i:
            start = places[-1].end + (round(gap * rate) if gap > 0 else -_overlap(turns[i - 1], turn, rate, crossfade))
        places.append(Placed(start, start + turn.size))
    whole = np.zeros(max((place.end for place in places), default=0), np.float32)
    for i, (turn, place) in enumerate(zip(turns, places, strict=True)):
        before = 0 if i == 0 or gap > 0 else places[i - 1].end - place.start
        after = 0 if i == len(turns) - 1 or gap > 0 else place.end - places[i + 1].start
        whole[place.start : place.end] += _fade(turn, before or _edge(turn, rate), after or _edge(turn, rate))
    return np.clip(whole, -LOUDEST, LOUDEST), places


def _overlap(before: Samples, after: Samples, rate: int, crossfade: float) -> int:
    return min(round(crossfade * rate), before.size // 2, after.size // 2)


def _edge(turn: Samples, rate: int) -> int:
    return min(int(EDGE * rate), turn.size // 2)


def _fade(turn: Samples, before: int, after: int) -> Samples:
    """Fade with equal power, so that a crossing of two turns keeps its loudness."""
    faded = turn.copy()
    if before:
        faded[:before] *= np.sin(np.linspace(0, np.pi / 2, before, dtype=np.float32))
    if after:
        faded[-after:] *= np.cos(np.linspace(0, np.pi / 2, after, dtype=np.float32))
    return faded
