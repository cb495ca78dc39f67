"""Boxes in the outputs of a detector: which outputs hold them, and how many of the expected ones a model finds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from packhorse_converter.toolchain import Outputs

CONFIDENT = 0.25
"""Score from which a box counts."""
OVERLAP = 0.5
"""Intersection over union from which two boxes are the same object."""
FEWEST = 10
"""Rows that an output with boxes has at least."""
MOST_ROWS = 2000
"""Boxes of one picture that are compared, the most confident first."""

Array = NDArray[Any]


class Boxes(NamedTuple):
    classes: Array
    scores: Array
    corners: Array | None
    """Left, top, right, bottom; None if the output holds offsets from anchors. Then there is one entry per class."""


class Layout(NamedTuple):
    """Where the boxes are."""

    scores: int
    """Number of the output with the scores."""
    boxes: int
    """Number of the output with coordinates; the same, if one output holds both."""
    is_turned: bool
    """Whether the rows are the last dimension."""
    has_object_score: bool
    grid: Array | None = None
    """Column, row and stride of each place, if the coordinates are relative to these, as YOLOX gives them."""

    def read(self, outputs: Outputs) -> Boxes:
        scores = _rows(np.asarray(outputs[self.scores], np.float64), self.is_turned)
        if self.boxes == self.scores:
            places, scores = scores[:, :4], scores[:, 4:]
            if self.grid is not None:
                stride = self.grid[:, 2:]
                sizes = np.exp(np.minimum(places[:, 2:], 20)) * stride
                places = np.concatenate([(places[:, :2] + self.grid[:, :2]) * stride, sizes], axis=1)
            if self.has_object_score:
                scores = scores[:, :1] * scores[:, 1:]
            return _confident(scores, _corners_of_centres(places))
        places = np.asarray(outputs[self.boxes], np.float64).reshape(-1, 4)
        scores = _probabilities(scores)
        skipped = _background(scores)
        return _confident(
            np.delete(scores, skipped, axis=1) if skipped is not None else scores,
            None if _are_offsets(places) else places,
        )


def find(outputs: Outputs, names: Sequence[str], picture: tuple[int, int]) -> Layout | None:
    """The layout of a detector's outputs, such as YOLO's or SSD's; None if they are no detections.

    ``picture``: height and width of the model's input.
    """
    arrays = [np.asarray(each) for each in outputs]
    for i, boxes in enumerate(arrays):
        if boxes.shape[-1:] == (4,) and boxes.size >= 4 * FEWEST:
            for k, scores in enumerate(arrays):
                if (
                    k != i
                    and scores.ndim == 3
                    and scores.shape[1] * 4 == boxes[:1].size
                    and "anchor" not in names[i].lower()
                ):
                    return Layout(k, i, is_turned=False, has_object_score=False)
    for k, array in enumerate(arrays):
        if array.ndim == 3 and array.dtype.kind == "f":
            is_turned = array.shape[1] < array.shape[2]
            rows = _rows(array, is_turned)
            if len(rows) >= max(FEWEST, 5 * rows.shape[1]) and rows.shape[1] >= 5:
                scores = rows[:, 4:]
                if scores.min() >= -1e-3 and scores.max() <= 1.001 and np.abs(rows[:, :4]).max() > 1.001:
                    grid = _grid(picture) if _are_offsets(rows[:, :4]) else None
                    grid = grid if grid is not None and len(grid) == len(rows) else None
                    return Layout(k, k, is_turned, not is_turned and rows.shape[1] > 5, grid)
    return None


def match(got: Boxes, wanted: Boxes) -> tuple[int, int]:
    """How many expected boxes were found, and how many were not expected. Each box counts once."""
    left = list(range(len(got.scores)))
    found = 0
    for k in range(len(wanted.scores)):
        same = [i for i in left if got.classes[i] == wanted.classes[k]]
        if wanted.corners is None or got.corners is None:
            hit = same[0] if same else None
        else:
            overlaps = _overlaps(wanted.corners[k], got.corners[same]) if same else np.zeros(0)
            hit = same[int(np.argmax(overlaps))] if len(overlaps) and overlaps.max() >= OVERLAP else None
        if hit is not None:
            found += 1
            left.remove(hit)
    return found, len(left)


def _rows(array: Array, is_turned: bool) -> Array:
    return array[0].T if is_turned else array.reshape(-1, array.shape[-1])


def _confident(scores: Array, corners: Array | None) -> Boxes:
    best, classes = scores.max(axis=1), scores.argmax(axis=1)
    chosen = np.argsort(-best)[:MOST_ROWS]
    chosen = chosen[best[chosen] >= CONFIDENT]
    if corners is None:
        chosen = chosen[np.unique(classes[chosen], return_index=True)[1]]
    else:
        chosen = _without_doubles(chosen, classes, corners)
    return Boxes(classes[chosen], best[chosen], None if corners is None else corners[chosen])


def _without_doubles(chosen: Array, classes: Array, corners: Array) -> Array:
    """Non-maximum suppression: of overlapping boxes of one class, the most confident."""
    kept: list[int] = []
    for i in chosen:
        rivals = [k for k in kept if classes[k] == classes[i]]
        if not rivals or _overlaps(corners[i], corners[rivals]).max() < OVERLAP:
            kept.append(int(i))
    return np.array(kept, np.int64)


def _corners_of_centres(places: Array) -> Array | None:
    if _are_offsets(places):
        return None
    centre, size = places[:, :2], places[:, 2:]
    return np.concatenate([centre - size / 2, centre + size / 2], axis=1)


def _grid(picture: tuple[int, int]) -> Array:
    """Column, row and stride of the places of three feature maps."""
    maps = []
    for stride in (8, 16, 32):
        y, x = np.mgrid[0 : picture[0] // stride, 0 : picture[1] // stride]
        maps.append(np.stack([x.ravel(), y.ravel(), np.full(x.size, stride)], axis=1))
    return np.concatenate(maps).astype(np.float64)


def _are_offsets(places: Array) -> bool:
    """Offsets from anchors are negative as often as not; sizes and corners are not."""
    return bool(np.mean(places[:, 2:] < 0) > 0.05)


def _probabilities(scores: Array) -> Array:
    if scores.min() >= -1e-3 and scores.max() <= 1.001:
        return scores
    raised = np.exp(scores - scores.max(axis=1, keepdims=True))
    softmax: Array = raised / raised.sum(axis=1, keepdims=True)
    return softmax


def _background(scores: Array) -> int | None:
    """The class of most rows, if almost every row has it: no object is everywhere."""
    if scores.shape[1] < 2:
        return None
    classes, numbers = np.unique(scores.argmax(axis=1), return_counts=True)
    return int(classes[numbers.argmax()]) if numbers.max() > 0.9 * len(scores) else None


def _overlaps(one: Array, others: Array) -> Array:
    left, top = np.maximum(one[0], others[:, 0]), np.maximum(one[1], others[:, 1])
    right, bottom = np.minimum(one[2], others[:, 2]), np.minimum(one[3], others[:, 3])
    shared = np.clip(right - left, 0, None) * np.clip(bottom - top, 0, None)
    area = (one[2] - one[0]) * (one[3] - one[1])
    areas = (others[:, 2] - others[:, 0]) * (others[:, 3] - others[:, 1])
    ratio: Array = shared / np.maximum(area + areas - shared, 1e-9)
    return ratio
