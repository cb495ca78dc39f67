"""Who speaks when: a neural embedding of every second or two of speech, clustered until no two voices are alike."""

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
WINDOW, HOP = 2.0, 1.0
"""Seconds of speech that an embedding is made of, and seconds from one to the next."""
SHORTEST = 1.2
"""Seconds. What is shorter says too little of its voice to found one, and is given to the nearest."""
ALIKE = 0.28
"""Mean similarity of two groups of windows that are one voice."""
SAME = 0.62
"""Similarity of the means of two large groups that are one voice."""
BLOCK = 400
"""Windows that are compared each with each; of a long video, what is left of each block is compared again."""

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
    long = [i for i, window in enumerate(windows) if window.until - window.at >= SHORTEST]
    labels = cluster(vectors, long or list(range(len(windows))))
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


def cluster(vectors: Embeddings, founding: Sequence[int]) -> list[int]:
    """The voice of each vector. Only the founding ones decide how many voices there are."""
    groups = [[i] for i in founding]
    blocks = [_merge(vectors, groups[at : at + BLOCK]) for at in range(0, len(groups), BLOCK)]
    groups = _merge(vectors, [group for block in blocks for group in block]) if len(blocks) > 1 else blocks[0]
    groups = _join(vectors, groups)
    means = np.stack([_mean(vectors, group) for group in groups])
    return [int(np.argmax(means @ vector)) for vector in vectors]


def _merge(vectors: Embeddings, groups: list[list[int]]) -> list[list[int]]:
    """Put the two groups together whose vectors are most alike in the mean, until none are alike enough."""
    groups = list(groups)
    sums = np.stack([vectors[group].sum(0) for group in groups])
    counts = np.array([len(group) for group in groups], np.float32)
    while len(groups) > 1:
        alike = sums @ sums.T / np.outer(counts, counts)
        np.fill_diagonal(alike, -1)
        a, b = sorted(divmod(int(np.argmax(alike)), len(groups)))
        if alike[a, b] < ALIKE:
            break
        groups[a] = groups[a] + groups.pop(b)
        sums[a] += sums[b]
        counts[a] += counts[b]
        sums, counts = np.delete(sums, b, 0), np.delete(counts, b)
    return groups


def _join(vectors: Embeddings, groups: list[list[int]]) -> list[list[int]]:
    """Means of many vectors say more than single ones: join voices whose means are the same."""
    groups = sorted(groups, key=len, reverse=True)
    found: list[list[int]] = []
    for group in groups:
        near = [(float(_mean(vectors, each) @ _mean(vectors, group)), i) for i, each in enumerate(found)]
        if near and max(near)[0] >= SAME:
            found[max(near)[1]] += group
        else:
            found.append(list(group))
    return found


def _mean(vectors: Embeddings, group: Sequence[int]) -> Embeddings:
    mean = vectors[list(group)].mean(0)
    return np.asarray(mean / max(1e-9, float(np.linalg.norm(mean))), np.float32)
