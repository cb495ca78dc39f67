"""Objects of 80 kinds: SSDLite on MobileNet v2, trained on COCO."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import onnxruntime
from PIL import Image

from packhorse_video import boxes, findings, weights
from packhorse_video.findings import Finding
from packhorse_video.graph import IMAGE, SIZE

MODEL = "SSDLite MobileNet v2, COCO (tfjs coco-ssd, converted)"
AT_LEAST = 0.5
AT_LEAST_TILED = 0.6
"""In a tile, where there are more chances to be wrong."""
SAME = 0.5
VARIANCE = (10.0, 5.0)
"""What the distances and the sizes in an answer are divided by."""

KINDS = {
    int(number): kind
    for number, _, kind in (
        line.partition(" ") for line in Path(__file__).with_name("coco.txt").read_text().splitlines()
    )
}
"""By their numbers in COCO, which have gaps."""


@cache
def _session() -> onnxruntime.InferenceSession:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = 1  # its neighbours have the other cores
    return onnxruntime.InferenceSession(str(weights.path("objects.onnx")), options, providers=["CPUExecutionProvider"])


def find(picture: Image.Image, at: float) -> list[Finding]:
    return [
        Finding(at, kind, score=round(score, 3), box=findings.box(*box))
        for kind, score, box in detect(picture, AT_LEAST, AT_LEAST_TILED)
    ]


class Detected(NamedTuple):
    kind: str
    score: float
    box: boxes.Array
    """In fractions of the picture."""


def detect(picture: Image.Image, at_least: float, tiled: float, kinds: Collection[str] = ()) -> list[Detected]:
    """Objects in the picture and in its tiles; those of all kinds if none are named."""
    found: list[Detected] = []
    for i, tile in enumerate(boxes.tiles(picture)):
        least = tiled if i else at_least
        corners, scores = _run(tile.picture)
        for number, kind in KINDS.items():
            if (kinds and kind not in kinds) or scores[:, number].max() < least:
                continue
            for each in boxes.distinct(corners, scores[:, number], least, SAME):
                if not i or not boxes.is_cut_off(corners[each], tile):
                    box = tile.back(corners[each].reshape(2, 2)).reshape(4)
                    found.append(Detected(kind, float(scores[each, number]), box))
    return _distinct(found)


def _distinct(found: Sequence[Detected]) -> list[Detected]:
    """One of each object: a box that lies within a better one of its kind is a part of it."""
    kept: list[Detected] = []
    for each in sorted(found, key=lambda one: -one.score):
        if not any(one.kind == each.kind and boxes.is_same(one.box, each.box) for one in kept):
            kept.append(each)
    return kept


def _run(picture: Image.Image) -> tuple[boxes.Array, boxes.Array]:
    """Of each anchor its box, and its score for each class."""
    square = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    values = np.asarray(square, np.float32)[np.newaxis] / np.float32(127.5) - 1
    raw, scores, anchors = _session().run(None, {IMAGE: values})
    return _corners(raw.reshape(-1, 4), anchors[0]), scores[0]


def _corners(raw: boxes.Array, anchors: boxes.Array) -> boxes.Array:
    """Of each anchor's box: left, top, right, bottom. The model says down before across."""
    centre, size = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2:] - anchors[:, :2]
    moved = centre + raw[:, :2] / VARIANCE[0] * size
    half = np.exp(raw[:, 2:] / VARIANCE[1]) * size / 2
    (top, left), (bottom, right) = (moved - half).T, (moved + half).T
    return np.stack([left, top, right, bottom], 1)
