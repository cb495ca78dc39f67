"""Measures what can be heard in an audio file: where somebody speaks, and how high the voice is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import soundfile
from numpy.typing import NDArray

Sound = NDArray[np.float64]


def read_audio(path: Path) -> tuple[Sound, int]:
    sound, rate = soundfile.read(path)
    assert sound.ndim == 1
    return sound, rate


def phrases(sound: Sound, rate: int, *, pause: float, quiet: float = 0.0018) -> list[tuple[float, float]]:
    """From when to when something above -55 dB is heard, in ms, with so many seconds of silence between two."""
    size = rate // 250
    loud = np.flatnonzero(np.sqrt(np.convolve(sound**2, np.ones(size) / size, "same")) > quiet)
    breaks = np.flatnonzero(np.diff(loud) > pause * rate)
    starts = loud[np.concatenate(([0], breaks + 1))]
    ends = loud[np.concatenate((breaks, [loud.size - 1]))] + 1
    return [(start * 1000 / rate, end * 1000 / rate) for start, end in zip(starts, ends, strict=True)]


def pitch(sound: Sound, rate: int) -> float:
    """In Hz, the median over its voiced moments."""
    size = rate // 20
    found = []
    for at in range(0, sound.size - size, size):
        piece = sound[at : at + size] - np.mean(sound[at : at + size])
        if np.sqrt(np.mean(piece**2)) < 0.05:
            continue
        echo = np.correlate(piece, piece, "full")[size - 1 :]
        low, high = rate // 400, rate // 60
        best = low + int(np.argmax(echo[low:high]))
        if echo[best] > 0.5 * echo[0]:
            found.append(rate / best)
    return float(np.median(found))
