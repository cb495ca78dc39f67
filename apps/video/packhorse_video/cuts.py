"""Hard cuts: where a frame has little in common with the one before, and what follows does not come back to it."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from packhorse_video.findings import Finding

MODEL = "difference of neighbours, against its surroundings"
SIZE = (16, 9)
"""What frames are scaled to: so small that motion within the picture moves little."""
AT_LEAST = 12.0
"""Levels between two frames, in the mean: less is no cut, however quiet the rest is."""
ABOVE = 3.0
"""Multiple of the change between nearby frames: a camera pan changes all of them."""
NEARBY = 6
FLASH = 3
"""Frames. A shorter change is a flash."""

Thumbnails = NDArray[np.uint8]


def find(thumbnails: Thumbnails, times: Sequence[float]) -> list[Finding]:
    """At each first frame of a new scene."""
    values = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    apart = np.diff(values, axis=0)
    change = np.abs(apart, out=apart).mean(1)  # in place: of a long video it is a gigabyte
    return [
        Finding(times[i + 1], "cut", score=round(float(change[i]), 1))
        for i in np.flatnonzero(change >= AT_LEAST).tolist()
        if change[i] >= ABOVE * _nearby(change, i) and not _comes_back(values, i)
    ]


def _nearby(change: NDArray[np.float32], i: int) -> float:
    """What frames around differ by, without this one and a flash beside it."""
    around = np.concatenate([change[max(0, i - NEARBY) : i], change[i + 1 : i + 1 + NEARBY]])
    return float(np.median(around)) if around.size else 0.0


def _comes_back(values: NDArray[np.float32], i: int) -> bool:
    """Whether a frame soon after looks like the one before, or one soon before like the one after: a flash."""
    before, after = values[max(0, i - FLASH + 1) : i + 1], values[i + 1 : i + 1 + FLASH]
    apart = np.abs(before[:, None] - after[None]).mean(2)
    return bool(apart[-1, 1:].size and apart[-1, 1:].min() < AT_LEAST) or bool(
        apart[:-1, 0].size and apart[:-1, 0].min() < AT_LEAST
    )
