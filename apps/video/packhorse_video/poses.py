"""Poses: people by the object detector, confirmed and described by BlazePose with 33 points each."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from packhorse_video import boxes, findings, objects
from packhorse_video.findings import Finding
from packhorse_video.litert import Model

MODEL = "BlazePose, full (MediaPipe 0.10.21), on people found by SSDLite MobileNet v2"
PERSON = 0.35
"""Least score of a person; lower than that of an object, because a second network has to agree."""
PERSON_TILED = 0.45
REGION = 0.4
POSE = 0.5
"""Least score of a pose in the place of a person."""
STRIDES = ((8, 2), (16, 2), (32, 6))
AROUND = 1.25
"""What is looked at, against the circle that the detector draws around a person."""
SIDES = ("eye_inner", "eye", "eye_outer")
PAIRS = ("shoulder", "elbow", "wrist", "pinky", "index", "thumb", "hip", "knee", "ankle", "heel", "foot")
POINTS = (
    "nose",
    *(f"{side}_{name}" for side in ("left", "right") for name in SIDES),
    *(f"{side}_{name}" for name in ("ear", "mouth", *PAIRS) for side in ("left", "right")),
)
"""In the order of the model; left and right of the person."""


Array = NDArray[np.float32]


@cache
def _detector() -> Model:
    return Model("person.tflite")


@cache
def _landmarks() -> Model:
    return Model("pose.tflite")


def find(picture: Image.Image, at: float) -> list[Finding]:
    """Somebody is there if both networks say so: each of them alone takes buildings and trees for people."""
    size = np.array(picture.size, np.float32)
    people = objects.detect(picture, PERSON, PERSON_TILED, ("person",))
    seen = _regions(picture) if people else []
    found = []
    for person in people:
        hips, top = _region(person.box, seen, size)
        there, points, sure = _pose(picture, hips, top)
        if there >= POSE:
            found.append(_finding(at, there, points / size, sure))
    return found


def _regions(picture: Image.Image) -> list[Array]:
    """What BlazePose itself takes for people: hips and the top of the circle around each, in pixels."""
    detector = _detector()
    fitted = boxes.fit(picture, detector.size)
    raw, scores = detector(fitted.values * 2 - 1)
    sure = boxes.sigmoid(scores[:, 0])
    pairs = fitted.back(boxes.decode(raw, boxes.grid(detector.size, STRIDES), detector.size))
    size = np.array(picture.size, np.float32)
    return [pairs[i, 2:4] * size for i in boxes.distinct(pairs[:, :2].reshape(-1, 4), sure, REGION)]


def _region(box: Array, seen: Sequence[Array], size: Array) -> tuple[Array, Array]:
    """Where to look for a pose: the circle of BlazePose if it fits the box, else one around the box."""
    left, top, right, bottom = box * np.tile(size, 2)
    for hips, above in seen:
        radius = float(np.hypot(*(above - hips)))
        is_inside = left <= hips[0] <= right and top <= hips[1] <= bottom + (bottom - top)
        if is_inside and radius >= (bottom - top) / 3 and abs(float(hips[0] - (left + right) / 2)) < right - left:
            return hips, above
    middle = np.array([(left + right) / 2, (top + bottom) / 2], np.float32)
    return middle, middle - np.array([0, max(bottom - top, right - left) / 2], np.float32)


def _pose(picture: Image.Image, hips: Array, top: Array) -> tuple[float, Array, Array]:
    """How surely somebody is there, the points in the picture, and how surely each is seen.

    ``hips`` is the middle of the person, ``top`` is where the circle around them ends above: that way is up.
    """
    model = _landmarks()
    way = top - hips
    radius = float(np.hypot(*way)) * AROUND
    turn = math.atan2(float(way[1]), float(way[0])) + math.pi / 2
    across = np.array([math.cos(turn), math.sin(turn)], np.float32) * (2 * radius / model.size)
    down = np.array([-across[1], across[0]], np.float32)
    corner = hips - (across + down) * (model.size / 2)
    placing = (across[0], down[0], corner[0], across[1], down[1], corner[1])
    upright = picture.transform(
        (model.size, model.size), Image.Transform.AFFINE, [float(n) for n in placing], Image.Resampling.BILINEAR
    )
    raw, there, *_ = model(np.asarray(upright, np.float32) / np.float32(255))
    values = raw.reshape(-1, 5)[: len(POINTS)]
    points = corner + values[:, :1] * across + values[:, 1:2] * down
    return float(there[0]), points, boxes.sigmoid(values[:, 3])


def _finding(at: float, there: float, points: Array, seen: Array) -> Finding:
    inside = points[seen > 0.5] if (seen > 0.5).any() else points
    (left, top), (right, bottom) = inside.min(0), inside.max(0)
    return Finding(
        at,
        "person",
        score=round(there, 3),
        box=findings.box(left, top, right, bottom),
        points=findings.points(
            (name, float(x), float(y), float(s)) for name, (x, y), s in zip(POINTS, points, seen, strict=True)
        ),
    )
