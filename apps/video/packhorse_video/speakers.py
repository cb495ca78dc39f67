"""Who speaks when: a neural embedding of every half second of speech, clustered.

How many speakers there are is estimated: it is the largest number of groups that differ more from each other than the
windows of each differ among themselves. On a telephone all voices are more alike, those of one person too, so that a
fixed similarity would make one speaker of all of them there."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from packhorse_video import weights
from packhorse_video.sounds import RATE, Sound
from packhorse_video.voices import Stretch

MODEL = "x-vectors (pyannote, in moonshine-voice 0.0.48), clustered"
WINDOW, HOP = 1.5, 0.5
"""Seconds of speech that an embedding is made of, and seconds from one to the next."""
SHORTEST = 1.2
"""Seconds. What is shorter says too little of its voice to found one, and is given to the nearest."""
SAME = 0.68
"""How alike two groups are that are one voice, as a share of how alike the windows of each are among themselves."""
FEWEST = 6
"""Windows of a speaker, which is about four seconds. A speaker with fewer is merged with the most similar one."""
BRIEF, CLEAR = 3, 0.3
"""Windows of a speaker whose voice is clearly another one, and how alike it may be at most (see `SAME`)."""
MOST = 8
"""Maximum number of speakers."""
PRIOR = 6
"""Pairs of windows. A small group says little of its own voice; so many more are assumed to be like all others."""
COMPARED = 600
"""Windows that are compared each with each: five minutes of speech. Of more speech, windows are left out evenly."""

Embeddings = NDArray[np.float32]


class Piece(NamedTuple):
    """Part of a stretch of speech by one speaker."""

    at: float
    until: float
    who: int


@cache
def _session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(str(weights.path("speaker.ort")), options, providers=["CPUExecutionProvider"])


def embed(sound: Sound) -> Embeddings:
    padded = np.tile(sound, -(-RATE // max(1, sound.size)))[: max(sound.size, RATE)]
    [found] = _session().run(None, {"waveform": padded[np.newaxis].astype(np.float32)})
    return np.asarray(found[0] / max(1e-9, float(np.linalg.norm(found[0]))), np.float32)


def pieces(sound: Sound, stretches: Sequence[Stretch]) -> list[Piece]:
    """Speech by speaker, in order of time; speakers are numbered in the order in which they are first heard."""
    windows = [window for stretch in stretches for window in _windows(stretch)]
    if not windows:
        return []
    vectors = np.stack([embed(window.of(sound)) for window in windows])
    labels = cluster(vectors, windows)
    found: list[Piece] = []
    for stretch in stretches:
        found += _divide(stretch, [(w, who) for w, who in zip(windows, labels, strict=True) if _is_in(w, stretch)])
    order = {who: i for i, who in enumerate(dict.fromkeys(piece.who for piece in found))}
    return [Piece(piece.at, piece.until, order[piece.who]) for piece in found]


def _windows(stretch: Stretch) -> list[Stretch]:
    length = stretch.until - stretch.at
    if length <= WINDOW * 1.25:
        return [stretch]
    count = 1 + round((length - WINDOW) / HOP)
    starts = np.linspace(stretch.at, stretch.until - WINDOW, max(2, count))
    return [Stretch(float(at), float(at) + WINDOW) for at in starts]


def _is_in(window: Stretch, stretch: Stretch) -> bool:
    return stretch.at - 1e-6 <= window.at and window.until <= stretch.until + 1e-6


def _divide(stretch: Stretch, windows: Sequence[tuple[Stretch, int]]) -> list[Piece]:
    """A stretch changes hands halfway between the middles of two windows of different speakers."""
    found: list[Piece] = []
    start = stretch.at
    for i, (window, who) in enumerate(windows):
        if i + 1 < len(windows) and windows[i + 1][1] == who:
            continue
        after = windows[i + 1][0] if i + 1 < len(windows) else None
        end = stretch.until if after is None else (window.at + window.until + after.at + after.until) / 4
        found.append(Piece(start, end, who))
        start = end
    return found


def cluster(vectors: Embeddings, windows: Sequence[Stretch]) -> list[int]:
    """The voice of each vector. Only long windows decide how many voices there are."""
    founding = [i for i, each in enumerate(windows) if each.until - each.at >= SHORTEST] or list(range(len(windows)))
    founding = founding[:: -(-len(founding) // COMPARED)]
    means = _voices(vectors[founding], [windows[i] for i in founding])
    return [int(i) for i in np.argmax(vectors @ means.T, axis=1)]


def _voices(vectors: Embeddings, windows: Sequence[Stretch]) -> Embeddings:
    """The mean of each voice. Every number of voices is tried, each from several beginnings."""
    alike, apart = (vectors @ vectors.T).astype(np.float64), _are_apart(windows)
    found = _mean(vectors)[np.newaxis]
    levels = _levels(alike)
    for count in range(2, min(MOST, len(vectors) // BRIEF) + 1):
        tries = []
        for level in range(count, min(len(vectors), 4 * count + 8) + 1):
            groups = sorted(levels[level], key=len, reverse=True)[:count]
            labels, means = _refine(vectors, np.stack([_mean(vectors[group]) for group in groups]))
            fewest, likeness = np.bincount(labels, minlength=count).min(), _likeness(alike, apart, labels, count)
            if fewest >= FEWEST or (fewest >= BRIEF and likeness < CLEAR):
                tries.append((likeness, level, means))
        if tries and min(tries, key=lambda each: each[:2])[0] < SAME:
            found = min(tries, key=lambda each: each[:2])[2]
    return found


def _levels(alike: NDArray[np.float64]) -> dict[int, list[list[int]]]:
    """Groups for each number of groups: from one vector each, always join the two that are most alike in the mean."""
    groups, total, counts = [[i] for i in range(len(alike))], alike.copy(), np.ones(len(alike))
    found = {len(groups): list(groups)}
    while len(groups) > 1:
        mean = total / np.outer(counts, counts)
        np.fill_diagonal(mean, -np.inf)
        a, b = sorted(divmod(int(np.argmax(mean)), len(groups)))
        groups = [*groups[:a], groups[a] + groups[b], *groups[a + 1 : b], *groups[b + 1 :]]
        counts[a] += counts[b]
        total[a] += total[b]
        total[:, a] += total[:, b]
        total, counts = np.delete(np.delete(total, b, 0), b, 1), np.delete(counts, b)
        found[len(groups)] = groups
    return found


def _refine(vectors: Embeddings, means: Embeddings) -> tuple[NDArray[np.intp], Embeddings]:
    """Spherical k-means. A group that loses all vectors keeps its mean."""
    for _ in range(10):
        labels = np.argmax(vectors @ means.T, axis=1)
        means = np.stack([_mean(vectors[labels == i]) if (labels == i).any() else each for i, each in enumerate(means)])
    return np.argmax(vectors @ means.T, axis=1), means


def _likeness(alike: NDArray[np.float64], apart: NDArray[np.float64], labels: NDArray[np.intp], count: int) -> float:
    """Of the two groups that are most alike, as a share of how alike the vectors of each are."""
    members = np.eye(count)[labels]
    total, pairs = members.T @ (alike * apart) @ members, members.T @ apart @ members
    typical = np.trace(total) / max(1.0, np.trace(pairs))
    within = np.maximum(0.05, (np.diag(total) + PRIOR * typical) / (np.diag(pairs) + PRIOR))
    shares = total / np.maximum(pairs, 1) / np.sqrt(np.outer(within, within))
    return float(shares[~np.eye(count, dtype=bool) & (pairs >= 1)].max(initial=-1))


def _are_apart(windows: Sequence[Stretch]) -> NDArray[np.float64]:
    """1 for two windows that share no sound, which would make them alike; else 0."""
    at, until = (np.array([getattr(each, name) for each in windows]) for name in ("at", "until"))
    shared = np.minimum.outer(until, until) - np.maximum.outer(at, at)
    return np.asarray(shared <= 0.05, np.float64)


def _mean(vectors: Embeddings) -> Embeddings:
    mean = vectors.mean(0)
    return np.asarray(mean / max(1e-9, float(np.linalg.norm(mean))), np.float32)
