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
    found: list[tuple[float, boxes.Array]] = []
    for i, tile in enumerate(boxes.tiles(picture)):
        for sure, pairs in _detect(tile.picture):
            if not i or not boxes.is_cut_off(pairs[:2].reshape(4), tile):
                found.append((sure, tile.back(pairs)))
    kept: list[tuple[float, boxes.Array]] = []
    for sure, pairs in sorted(found, key=lambda each: -each[0]):
        if not any(boxes.is_same(pairs[:2].ravel(), other[:2].ravel(), boxes.SAME) for _, other in kept):
            kept.append((sure, pairs))
    return [
        Finding(
            at,
            "face",
            score=round(sure, 3),
            box=findings.box(*pairs[:2].ravel()),
            points=findings.points(
                (name, float(x), float(y), sure) for name, (x, y) in zip(POINTS, pairs[2:], strict=True)
            ),
        )
        for sure, pairs in kept
    ]


def _detect(picture: Image.Image) -> list[tuple[float, boxes.Array]]:
    """How sure each face is, and its corners and points in fractions of the picture."""
    model = _model()
    fitted = boxes.fit(picture, model.size)
    raw, scores = model(fitted.values * 2 - 1)
    sure = boxes.sigmoid(scores[:, 0])
    pairs = fitted.back(boxes.decode(raw, boxes.grid(model.size, [(CELL, 1)]), model.size))
    return [(float(sure[i]), pairs[i]) for i in boxes.distinct(pairs[:, :2].reshape(-1, 4), sure, AT_LEAST)]
