"""Finds where scenes change: hard cuts to the frame, and fades and dissolves with their beginning and end."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse_video.findings import Finding

MODEL = "difference of neighbours, against its surroundings; gradual changes by how straight their course is"
SIZE = (16, 9)
"""What frames are scaled to: so small that motion within the picture moves little."""
AT_LEAST = 12.0
"""Mean difference in levels of a scene change. Dark scenes differ by less: there, a share of the brightness counts."""
SHARE = 0.25
FAINTEST = 1.5
"""Levels. Smaller differences are noise, however dark the scene."""
ABOVE = 3.0
"""Multiple of the change between nearby frames: a camera pan changes all of them."""
NEARBY = 6
FLASH = 3
"""Frames. A shorter change is a flash."""

SHORTEST, LONGEST = 0.2, 4.0
"""Seconds that a gradual change lasts."""
SPANS = (0.4, 1.2)
"""Seconds between two frames whose difference suggests a gradual change."""
STEADY = 0.3
"""Share of the speed of a gradual change below which it has not begun or is over."""
STRAIGHT = 0.28
"""Deviation of the frames between from a mixture of the first and the last, as a share of their difference."""
SUDDEN = 0.5
"""Share of the whole change in one step that makes it a cut."""
BLACK = 12.0
"""Mean level, and spread, of a picture without content."""
ALIKE = 0.9
"""Correlation of two pictures of the same scene in another light."""

Thumbnails = NDArray[np.uint8]
Array = NDArray[np.float32]


class Gradual(NamedTuple):
    """Frames from the last of the old scene to the first of the new one."""

    start: int
    end: int
    label: str


def find(thumbnails: Thumbnails, times: Sequence[float]) -> list[Finding]:
    """Each first frame of a new scene, and each gradual change with its end."""
    values = thumbnails.reshape(len(thumbnails), -1).astype(np.float32)
    apart = np.diff(values, axis=0)
    change: Array = np.abs(apart, out=apart).mean(1, dtype=np.float32)  # in place: of a long video it is a gigabyte
    light: Array = values.mean(1, dtype=np.float32)
    hard = [
        i
        for i in np.flatnonzero(change >= FAINTEST).tolist()
        if change[i] >= _enough(light[i], light[i + 1])
        and change[i] >= ABOVE * _nearby(change, i)
        and not _comes_back(values, i)
    ]
    gradual = _gradual(values, change, light, times, hard)
    hard = [i for i in hard if not any(each.start <= i < each.end for each in gradual)]
    found = [Finding(times[i + 1], "cut", score=round(float(change[i]), 1)) for i in hard]
    for start, end, label in gradual:
        score = round(float(np.abs(values[end] - values[start]).mean()), 1)
        found.append(Finding(times[start], label, until=times[end], score=score))
    return sorted(found, key=lambda each: each.at)


def _enough(before: float, after: float) -> float:
    """The least difference of two scenes of this brightness."""
    return float(np.clip(SHARE * max(before, after), FAINTEST, AT_LEAST))


def _nearby(change: Array, i: int) -> float:
    """What frames around differ by, without this one and a flash beside it."""
    around = np.concatenate([change[max(0, i - NEARBY) : i], change[i + 1 : i + 1 + NEARBY]])
    return float(np.median(around)) if around.size else 0.0


def _comes_back(values: Array, i: int) -> bool:
    """Whether a frame soon after looks like the one before, or one soon before like the one after: a flash."""
    before, after = values[max(0, i - FLASH + 1) : i + 1], values[i + 1 : i + 1 + FLASH]
    apart = np.abs(before[:, None] - after[None]).mean(2)
    least = _enough(float(before[-1].mean()), float(after[0].mean()))
    return bool(apart[-1, 1:].size and apart[-1, 1:].min() < least) or bool(
        apart[:-1, 0].size and apart[:-1, 0].min() < least
    )


def _gradual(values: Array, change: Array, light: Array, times: Sequence[float], hard: Sequence[int]) -> list[Gradual]:
    """Fades and dissolves between hard cuts. A fade out and the fade in that follows are one change."""
    if len(times) < 3:
        return []
    frame = max(1e-3, float(np.median(np.diff(times))))
    found: list[Gradual] = []
    for begin, end in pairwise([0, *(i + 1 for i in hard), len(values)]):
        taken: list[tuple[int, int]] = []
        for span in SPANS:
            for middle in _candidates(values, change, light, begin, end, max(3, round(span / frame))):
                if any(start <= middle <= stop for start, stop in taken):
                    continue
                start, stop = _grow(values, change, middle, begin, end - 1, round(LONGEST / frame))
                label = _label(values, light, start, stop) if (stop - start) * frame >= SHORTEST else None
                if label is not None and not any(start < last and stop > first for first, last in taken):
                    taken.append((start, stop))
                    found.append(Gradual(start, stop, label))
    return _join_fades(sorted(found), light, round(LONGEST / frame))


def _candidates(values: Array, change: Array, light: Array, begin: int, end: int, span: int) -> list[int]:
    """Where the picture changes fastest in each span over which it changes more than over the spans beside it."""
    if end - begin <= span:
        return []
    apart = np.concatenate(
        [  # in blocks: of a long video it is a gigabyte
            np.abs(values[at + span : min(at + 4096 + span, end)] - values[at : min(at + 4096, end - span)]).mean(1)
            for at in range(begin, end - span, 4096)
        ]
    )
    least = np.clip(SHARE * np.maximum(light[begin : end - span], light[begin + span : end]), FAINTEST, AT_LEAST)
    peaks = []
    for i in np.flatnonzero(apart >= least).tolist():
        around = apart[max(0, i - span) : i + span + 1]
        if apart[i] >= around.max():
            steps = np.convolve(change[begin + i : begin + i + span], np.ones(3) / 3, "same")
            peaks.append(begin + i + int(np.argmax(steps)))
    return peaks


def _grow(values: Array, change: Array, middle: int, begin: int, last: int, longest: int) -> tuple[int, int]:
    """First and last frame of the change around the middle: until it is slow for two steps, or black."""
    low, high = max(begin, middle - longest), min(last, middle + longest)
    speed = float(np.median(change[max(low, middle - 2) : min(high, middle + 3)]))
    start, stop = middle, middle
    if speed <= 0:
        return start, stop
    while start > low and not _is_empty(values[start]) and change[max(low, start - 2) : start].max() >= STEADY * speed:
        start -= 1
    while stop < high and not _is_empty(values[stop]) and change[stop : min(high, stop + 2)].max() >= STEADY * speed:
        stop += 1
    return start, stop


def _label(values: Array, light: Array, start: int, stop: int) -> str | None:
    """What kind of change it is, if it is one: each frame between a mixture of the first and the last."""
    first, last, between = values[start], values[stop], values[start : stop + 1]
    way = last - first
    length = float(np.abs(way).mean())
    if length < _enough(float(light[start]), float(light[stop])):
        return None
    share = (between - first) @ way / float(way @ way)
    off = np.abs(between - first - share[:, None] * way).mean(1) / length
    steps = np.diff(share)
    if float(np.quantile(off, 0.8)) > STRAIGHT or steps.max() > SUDDEN or steps.min() < -0.1:
        return None
    if _is_empty(first) or _is_empty(last):
        return "fade"
    return None if _is_same_scene(first, last) else "dissolve"


def _is_empty(picture: Array) -> bool:
    return float(picture.std()) < BLACK and (float(picture.mean()) < BLACK or float(picture.mean()) > 255 - BLACK)


def _is_same_scene(first: Array, last: Array) -> bool:
    return float(np.corrcoef(first, last)[0, 1]) > ALIKE


def _join_fades(found: Sequence[Gradual], light: Array, longest: int) -> list[Gradual]:
    joined: list[Gradual] = []
    for each in found:
        before = joined[-1] if joined else None
        if (
            before is not None
            and before.label == each.label == "fade"
            and each.start - before.end <= longest
            and light[before.end] < light[before.start]
            and light[each.start] < light[each.end]
        ):
            joined[-1] = Gradual(before.start, each.end, "fade")
        else:
            joined.append(each)
    return joined
