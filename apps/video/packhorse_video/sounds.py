"""The sound format of all processors: one channel, one sampling rate."""

from __future__ import annotations

import wave
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

RATE = 16_000
"""Samples per second."""

Sound = NDArray[np.float32]
"""One channel at `RATE`, between -1 and 1."""


def read(path: Path) -> tuple[Sound, int]:
    """The sound and its rate."""
    with wave.open(str(path), "rb") as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2")
        return samples.astype(np.float32) / np.float32(32_768), file.getframerate()
