"""Who speaks when: stretches of speech put together as long as one voice explains them better than two.

Each piece of sound is a cloud of cepstral features with a mean and a spread. Two clouds are one voice if a single
normal distribution for both costs less, by the Bayesian information criterion, than one for each. Neither needs
training, and neither needs the number of speakers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray

from packhorse_video.sounds import RATE, Sound

MODEL = "cepstral features, clustered by BIC"
WINDOW, HOP = 400, 160
BANDS, FEATURES = 26, 12
SPECTRUM = 512
LOW, HIGH = 100.0, 7000.0
PENALTY = 2.0
"""How much a further voice costs. The theory says 1, for frames that know nothing of each other; ours overlap."""
SHORTEST = 1.0
"""Seconds. What is shorter says too little of its voice to found one, and is given to the nearest."""

Features = NDArray[np.float64]


def speakers(pieces: Sequence[Sound]) -> list[int]:
    """Of each piece the number of its speaker, in the order in which they are first heard."""
    clouds = [features(piece) for piece in pieces]
    founding = [i for i, piece in enumerate(pieces) if piece.size >= SHORTEST * RATE]
    if not founding:
        return [0] * len(pieces)
    groups = _merged([[i] for i in founding], clouds)
    for i in set(range(len(pieces))) - set(founding):
        _nearest(clouds[i], groups, clouds).append(i)
    order = sorted(groups, key=min)
    numbers = {i: number for number, group in enumerate(order) for i in group}
    return [numbers[i] for i in range(len(pieces))]


def _merged(groups: list[list[int]], clouds: Sequence[Features]) -> list[list[int]]:
    """The two that are most likely one voice, again and again, until no two are."""
    while len(groups) > 1:
        cost, a, b = min(
            (_cost(_joined(groups[a], clouds), _joined(groups[b], clouds)), a, b)
            for a in range(len(groups))
            for b in range(a + 1, len(groups))
        )
        if cost >= 0:
            break
        groups[a] += groups.pop(b)
    return groups


def _nearest(cloud: Features, groups: Sequence[list[int]], clouds: Sequence[Features]) -> list[int]:
    return min(groups, key=lambda group: float(np.linalg.norm(_joined(group, clouds).mean(0) - cloud.mean(0))))


def _joined(group: Sequence[int], clouds: Sequence[Features]) -> Features:
    return np.concatenate([clouds[i] for i in group])


def _cost(a: Features, b: Features) -> float:
    """What one voice for both costs over two; below zero it is one."""
    both, size = np.concatenate([a, b]), a.shape[1]
    parameters = size + size * (size + 1) / 2
    gained = len(both) * _spread(both) - len(a) * _spread(a) - len(b) * _spread(b)
    return float(gained / 2 - PENALTY * parameters / 2 * np.log(len(both)))


def _spread(cloud: Features) -> float:
    _, found = np.linalg.slogdet(np.cov(cloud.T) + 1e-3 * np.eye(cloud.shape[1]))
    return float(found)


def features(sound: Sound) -> Features:
    """Cepstra of the loud moments, without the first, which only says how loud it was."""
    padded = np.pad(sound, (0, max(0, WINDOW - sound.size)))
    frames = np.lib.stride_tricks.sliding_window_view(padded, WINDOW)[::HOP] * np.hamming(WINDOW)
    power = np.abs(np.fft.rfft(frames, SPECTRUM)) ** 2
    bands = np.log(power @ _filters().T + 1e-8)
    loud = bands.mean(1) >= np.median(bands.mean(1))
    cepstra: Features = (bands @ _cosines().T)[loud]
    return cepstra


@cache
def _filters() -> Features:
    """Triangles, evenly spaced as an ear hears."""
    edges = 700 * (10 ** (np.linspace(_mel(LOW), _mel(HIGH), BANDS + 2) / 2595) - 1)
    at = np.fft.rfftfreq(SPECTRUM, 1 / RATE)
    rising = (at - edges[:-2, None]) / np.diff(edges)[:-1, None]
    falling = (edges[2:, None] - at) / np.diff(edges)[1:, None]
    filters: Features = np.clip(np.minimum(rising, falling), 0, None)
    return filters


def _mel(frequency: float) -> float:
    return 2595 * float(np.log10(1 + frequency / 700))


@cache
def _cosines() -> Features:
    steps = np.arange(1, FEATURES + 1)[:, None] * (np.arange(BANDS) + 0.5) * np.pi / BANDS
    cosines: Features = np.cos(steps) * np.sqrt(2 / BANDS)
    return cosines
