"""Finds stretches of speech with Silero's voice activity model."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import onnxruntime

from packhorse_video import weights
from packhorse_video.sounds import RATE, Sound

STEP = 512
CONTEXT = 64
"""Samples of the previous step that the model gets again."""
BEGINS = 0.5
ENDS = 0.35
"""Lower than `BEGINS`, so that a quiet syllable does not end a stretch."""
PAUSE = 0.25
"""Seconds of silence that end a stretch; likewise the least that one lasts, and what is left around it."""
SHORTEST = 0.2
AROUND = 0.1
LONGEST = 15.0
"""A stretch is processed as a whole, so a longer one is split."""


class Stretch(NamedTuple):
    at: float
    until: float

    def of(self, sound: Sound) -> Sound:
        return sound[int(self.at * RATE) : int(self.until * RATE)]


@cache
def _session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(weights.path("voice.onnx")), options, providers=["CPUExecutionProvider"])


def chances(sound: Sound) -> Sound:
    """Probability of a voice, per step."""
    steps = -(-sound.size // STEP)
    padded = np.zeros(CONTEXT + steps * STEP, np.float32)
    padded[CONTEXT : CONTEXT + sound.size] = sound
    state = np.zeros((2, 1, 128), np.float32)
    rate = np.array(RATE, np.int64)
    found = np.zeros(steps, np.float32)
    for i in range(steps):
        heard = padded[np.newaxis, i * STEP : i * STEP + CONTEXT + STEP]
        chance, state = _session().run(None, {"input": heard, "state": state, "sr": rate})
        found[i] = chance[0, 0]
    return found


def stretches(sound: Sound) -> list[Stretch]:
    """From when to when somebody speaks, in seconds."""
    return _stretches(chances(sound), sound.size / RATE)


def _stretches(chances: Sequence[float] | Sound, length: float) -> list[Stretch]:
    second = STEP / RATE
    found: list[tuple[float, float]] = []
    start: float | None = None
    last = 0.0
    for i, chance in enumerate(chances):
        now = i * second
        if chance >= BEGINS or (start is not None and chance >= ENDS):
            start = now if start is None else start
            last = now + second
        if start is not None and (now + second - last >= PAUSE or now + second - start >= LONGEST):
            found.append((start, last))
            start = None
    if start is not None:
        found.append((start, last))
    long = [(at, until) for at, until in found if until - at >= SHORTEST]
    return _widen(long, length)


def _widen(found: Sequence[tuple[float, float]], length: float) -> list[Stretch]:
    """Add a margin to each stretch, without overlapping its neighbours."""
    widened = []
    for i, (at, until) in enumerate(found):
        before = (found[i - 1][1] + at) / 2 if i else 0.0
        after = (until + found[i + 1][0]) / 2 if i + 1 < len(found) else length
        widened.append(Stretch(max(before, at - AROUND), min(after, until + AROUND)))
    return widened
