"""Turns the raw output of detectors (one answer per anchor) into distinct boxes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image

Array = NDArray[np.float32]
SQUARE = 1.2
"""Ratio of the sides up to which a picture is looked at as a whole only."""
EDGE = 0.02
"""Fraction of the side of a tile that counts as its edge."""
SAME = 0.3
"""Boxes with a larger intersection over union show the same thing."""


class Fitted(NamedTuple):
    """A picture scaled into a square for a detector, and the mapping back."""

    values: Array
    scale: tuple[float, float]
    """Sides of the square relative to those of the picture; 1 for the longer side."""

    def back(self, xy: Array) -> Array:
        """Map points from fractions of the square to fractions of the picture."""
        found: Array = (xy - 0.5) * np.array(self.scale, np.float32) + 0.5
        return found


class Tile(NamedTuple):
    """A part of a picture, and where it is in it."""

    picture: Image.Image
    corner: tuple[float, float]
    """Left and top, as fractions of the whole picture."""
    size: tuple[float, float]

    def back(self, xy: Array) -> Array:
        """Map points from fractions of the tile to fractions of the whole picture."""
        found: Array = xy * np.array(self.size, np.float32) + np.array(self.corner, np.float32)
        return found


def tiles(picture: Image.Image) -> list[Tile]:
    """The picture, and squares of its shorter side that overlap: what is small in it is larger in one of them."""
    short, long = sorted(picture.size)
    found = [Tile(picture, (0.0, 0.0), (1.0, 1.0))]
    if long < SQUARE * short:
        return found
    count = max(2, round(1.7 * long / short))
    for start in np.linspace(0, long - short, count):
        left, top = (float(start), 0.0) if picture.width == long else (0.0, float(start))
        part = picture.crop((round(left), round(top), round(left) + short, round(top) + short))
        found.append(
            Tile(
                part,
                (left / picture.width, top / picture.height),
                (short / picture.width, short / picture.height),
            )
        )
    return found


def is_cut_off(box: Array, tile: Tile) -> bool:
    """Whether a box (in fractions of the tile) ends at an edge of the tile that is not one of the picture."""
    (left, top), (wide, high) = tile.corner, tile.size
    edges = (left > EDGE, top > EDGE, left + wide < 1 - EDGE, top + high < 1 - EDGE)
    touches = (box[0] < EDGE, box[1] < EDGE, box[2] > 1 - EDGE, box[3] > 1 - EDGE)
    return any(edge and touch for edge, touch in zip(edges, touches, strict=True))


def fit(picture: Image.Image, size: int) -> Fitted:
    """Scale to fit with black borders; values from 0 to 1."""
    scale = size / max(picture.size)
    width, height = (max(1, round(side * scale)) for side in picture.size)
    square = Image.new("RGB", (size, size))
    square.paste(
        picture.resize((width, height), Image.Resampling.BILINEAR), ((size - width) // 2, (size - height) // 2)
    )
    return Fitted(np.asarray(square, np.float32) / np.float32(255), (size / width, size / height))


def grid(size: int, strides: Sequence[tuple[int, int]]) -> Array:
    """Centres of the anchors: for each stride and number, so many in the middle of every cell."""
    found = []
    for stride, count in strides:
        cells = (np.arange(size // stride, dtype=np.float32) + 0.5) / (size // stride)
        y, x = np.meshgrid(cells, cells, indexing="ij")
        found.append(np.repeat(np.stack([x.ravel(), y.ravel()], 1), count, axis=0))
    return np.concatenate(found)


def decode(raw: Array, anchors: Array, size: int) -> Array:
    """Pairs in shares of the square: the corners of each box first, then its points."""
    pairs = raw.reshape(len(anchors), -1, 2) / np.float32(size)
    centre, half = pairs[:, 0] + anchors, pairs[:, 1] / 2
    return np.concatenate(
        [(centre - half)[:, None], (centre + half)[:, None], pairs[:, 2:] + anchors[:, None]], axis=1
    ).astype(np.float32)


def sigmoid(raw: Any) -> Any:
    return 1 / (1 + np.exp(-np.clip(raw, -80, 80)))


def distinct(boxes: Array, scores: Array, at_least: float, same: float = SAME) -> list[int]:
    """Non-maximum suppression: indices of the best boxes; `boxes` is (n, 4) of left, top, right, bottom."""
    left = [int(i) for i in np.argsort(-scores) if scores[i] >= at_least]
    kept: list[int] = []
    while left:
        best, *rest = left
        kept.append(best)
        left = [i for i in rest if _overlap(boxes[best], boxes[i]) < same]
    return kept


def is_same(a: Array, b: Array, same: float = 0.5, within: float = 0.8) -> bool:
    """Whether two boxes overlap that much, or one of them is inside the other."""
    wide, high = min(a[2], b[2]) - max(a[0], b[0]), min(a[3], b[3]) - max(a[1], b[1])
    if wide <= 0 or high <= 0:
        return False
    return _overlap(a, b) >= same or float(wide * high) / max(1e-9, min(_area(a), _area(b))) >= within


def _overlap(a: Array, b: Array) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    if wide <= 0 or high <= 0:
        return 0.0
    both = wide * high
    return float(both / (_area(a) + _area(b) - both))


def _area(box: Array) -> float:
    return float((box[2] - box[0]) * (box[3] - box[1]))
