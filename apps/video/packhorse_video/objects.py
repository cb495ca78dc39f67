"""Objects of 80 kinds: SSDLite on MobileNet v2, trained on COCO."""

from __future__ import annotations

from functools import cache
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image

from packhorse_video import boxes, findings, weights
from packhorse_video.findings import Finding
from packhorse_video.graph import IMAGE, SIZE

MODEL = "SSDLite MobileNet v2, COCO (tfjs coco-ssd, converted)"
AT_LEAST = 0.5
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
    square = picture.resize((SIZE, SIZE), Image.Resampling.BILINEAR)
    values = np.asarray(square, np.float32)[np.newaxis] / np.float32(127.5) - 1
    raw, scores, anchors = _session().run(None, {IMAGE: values})
    corners = _corners(raw.reshape(-1, 4), anchors[0])
    return [
        Finding(at, kind, score=round(float(scores[0, i, number]), 3), box=findings.box(*corners[i]))
        for number, kind in KINDS.items()
        if scores[0, :, number].max() >= AT_LEAST
        for i in boxes.distinct(corners, scores[0, :, number], AT_LEAST, SAME)
    ]


def _corners(raw: boxes.Array, anchors: boxes.Array) -> boxes.Array:
    """Of each anchor's box: left, top, right, bottom. The model says down before across."""
    centre, size = (anchors[:, :2] + anchors[:, 2:]) / 2, anchors[:, 2:] - anchors[:, :2]
    moved = centre + raw[:, :2] / VARIANCE[0] * size
    half = np.exp(raw[:, 2:] / VARIANCE[1]) * size / 2
    (top, left), (bottom, right) = (moved - half).T, (moved + half).T
    return np.stack([left, top, right, bottom], 1)
