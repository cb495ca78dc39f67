"""Faces: BlazeFace, whose answer is a box and six points of each face."""

from __future__ import annotations

from functools import cache

from PIL import Image

from packhorse_video import boxes, findings
from packhorse_video.findings import Finding
from packhorse_video.litert import Model

MODEL = "BlazeFace, full range (MediaPipe 0.10.21)"
AT_LEAST = 0.6
POINTS = ("right_eye", "left_eye", "nose", "mouth", "right_ear", "left_ear")
"""Right and left of the person."""
CELL = 4


@cache
def _model() -> Model:
    return Model("face.tflite")


def find(picture: Image.Image, at: float) -> list[Finding]:
    model = _model()
    fitted = boxes.fit(picture, model.size)
    raw, scores = model(fitted.values * 2 - 1)
    sure = boxes.sigmoid(scores[:, 0])
    pairs = fitted.back(boxes.decode(raw, boxes.grid(model.size, [(CELL, 1)]), model.size))
    kept = boxes.distinct(pairs[:, :2].reshape(-1, 4), sure, AT_LEAST)
    return [
        Finding(
            at,
            "face",
            score=round(float(sure[i]), 3),
            box=findings.box(*pairs[i, :2].ravel()),
            points=findings.points(
                (name, float(x), float(y), float(sure[i])) for name, (x, y) in zip(POINTS, pairs[i, 2:], strict=True)
            ),
        )
        for i in kept
    ]
