"""Who speaks when: stretches of speech put together as long as one voice explains them better than two.

Each piece of sound is a cloud of cepstral features with a mean and a spread. Two clouds are one voice if a single
normal distribution for both costs less, by the Bayesian information criterion, than one for each. Neither needs
training, and neither needs the number of speakers.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse_video.sounds import RATE, Sound

MODEL = "cepstral features, clustered by BIC"
WINDOW, HOP = 400, 160
BANDS, FEATURES = 26, 12
SPECTRUM = 512
LOW, HIGH = 100.0, 7000.0
PENALTY = 2.5
"""How much a further voice costs. The theory says 1, for frames that know nothing of each other; ours overlap."""
SHORTEST = 1.0
"""Seconds. What is shorter says too little of its voice to found one, and is given to the nearest."""

BLOCK = 400
"""Pieces that are compared each with each; of a long video, what is left of each block is compared again."""
ENOUGH = 600
"""Frames, of 10 ms each, that a voice is judged by."""
LEAST = 1e-3
"""Spread that everything has, so that silence is not infinitely sure of itself."""

Features = NDArray[np.float64]


def speakers(pieces: Sequence[Sound]) -> list[int]:
    """Of each piece the number of its speaker, in the order in which they are first heard."""
    clouds = [features(piece) for piece in pieces]
    founding = [Voice.of(i, clouds[i]) for i, piece in enumerate(pieces) if piece.size >= SHORTEST * RATE]
    if not founding:
        return [0] * len(pieces)
    blocks = [_merge(founding[at : at + BLOCK]) for at in range(0, len(founding), BLOCK)]
    voices = _merge([voice for block in blocks for voice in block])
    known = {i for voice in voices for i in voice.pieces}
    for i in set(range(len(pieces))) - known:
        mean = clouds[i].mean(0)
        min(voices, key=lambda voice: float(np.linalg.norm(voice.sum / voice.count - mean))).pieces.append(i)
    order = sorted(voices, key=lambda voice: min(voice.pieces))
    numbers = {i: number for number, voice in enumerate(order) for i in voice.pieces}
    return [numbers[i] for i in range(len(pieces))]


class Voice(NamedTuple):
    """Pieces, and as much of their features as mean and spread are made of: two are put together by adding."""

    pieces: list[int]
    count: Any
    sum: Features
    products: Features

    @classmethod
    def of(cls, piece: int, cloud: Features) -> Voice:
        return cls([piece], np.float64(len(cloud)), cloud.sum(0), cloud.T @ cloud)

    def bounded(self) -> Voice:
        """As if no more had been heard of it than is enough: a voice changes over an hour, and would become several."""
        share = min(1.0, ENOUGH / self.count)
        return Voice(self.pieces, self.count * share, self.sum * share, self.products * share)

    def __add__(self, other: Voice) -> Voice:  # type: ignore[override]
        return Voice(
            [*self.pieces, *other.pieces],
            self.count + other.count,
            self.sum + other.sum,
            self.products + other.products,
        )


def _merge(voices: list[Voice]) -> list[Voice]:
    """The two that are most likely one, again and again, until no two are."""
    voices = list(voices)
    costs = np.full((len(voices), len(voices)), np.inf)
    for i in range(1, len(voices)):
        costs[i, :i] = _costs(voices[i], voices[:i])
    while len(voices) > 1:
        b, a = divmod(int(np.argmin(costs)), len(voices))
        if costs[b, a] >= 0:
            break
        voices[a] += voices.pop(b)
        costs = np.delete(np.delete(costs, b, 0), b, 1)
        costs[a, :a] = _costs(voices[a], voices[:a])
        costs[a + 1 :, a] = _costs(voices[a], voices[a + 1 :])
    return voices


def _costs(voice: Voice, others: Sequence[Voice]) -> Features:
    """What one voice for both costs over two, with each of the others; below zero it is one."""
    if not others:
        return np.zeros(0)
    mine, theirs = voice.bounded(), [other.bounded() for other in others]
    counts = np.array([other.count for other in theirs])
    sums = np.stack([other.sum for other in theirs])
    products = np.stack([other.products for other in theirs])
    alone = mine.count * _spread(mine.count, mine.sum, mine.products) + counts * _spread(counts, sums, products)
    both = counts + mine.count
    gained = both * _spread(both, sums + mine.sum, products + mine.products) - alone
    size = mine.sum.size
    parameters = size + size * (size + 1) / 2
    found: Features = gained / 2 - PENALTY * parameters / 2 * np.log(both)
    return found


def _spread(count: Any, sums: Features, products: Features) -> Any:
    """The logarithm of the determinant of the covariance, of one or of many."""
    mean = sums / count[..., None]
    covariance = products / count[..., None, None] - mean[..., :, None] * mean[..., None, :]
    return np.linalg.slogdet(covariance + LEAST * np.eye(mean.shape[-1]))[1]


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
