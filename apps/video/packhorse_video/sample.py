"""A video with known content: photographs that move, words written on them, and two people speaking.

``python -m packhorse_video.sample sample.mp4`` makes it, of what `pins.toml` names.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from fractions import Fraction
from functools import cache
from itertools import accumulate
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

from packhorse_video import sounds, weights
from packhorse_video.movies import Movie
from packhorse_video.sounds import RATE, Sound

SIZE = (640, 360)
RATE_OF_FRAMES = 25
FLASH = (3, 30)
"""Scene and frame of one that is white: no cut."""


class Scene(NamedTuple):
    frames: int
    photograph: str | None = None
    texts: Sequence[str] = ()
    objects: Sequence[str] = ()
    face: tuple[float, float, float, float] | None = None
    """Within these bounds of the photograph, as shares of its width; a person with a face also has a pose."""
    begins: tuple[float, float, float] = (0, 0, 1)
    """Left, top and width of what is seen of the photograph at first, as shares of its width; likewise at the end."""
    ends: tuple[float, float, float] = (0, 0, 1)

    def seen(self, done: float) -> tuple[float, float, float, float]:
        """Left, top, right and bottom of what is seen of the photograph, so far into the scene."""
        left, top, wide = (a + (b - a) * done for a, b in zip(self.begins, self.ends, strict=True))
        return left, top, left + wide, top + wide * SIZE[1] / SIZE[0]


class Spoken(NamedTuple):
    """Somebody says something, taken out of a recording."""

    speaker: str
    recording: str
    start: float
    end: float
    at: float
    phrases: Sequence[tuple[float, float, str]]
    """From when to when, in the recording, and what."""


ASTRONAUT = (0.32, 0.08, 0.58, 0.36)
PHOTOGRAPHER = (0.28, 0.14, 0.6, 0.42)
SCENES = (
    Scene(60, texts=("PACKHORSE", "VIDEO SAMPLE 2026")),
    Scene(90, "astronaut.png", ("COMMANDER COLLINS",), ("person",), ASTRONAUT, (0.0, 0.0, 1.0), (0.05, 0.02, 0.92)),
    Scene(60, "cup.png", (), ("cup",), begins=(0.0, 0.05, 0.95), ends=(0.05, 0.05, 0.95)),
    Scene(60, "cat.png", ("CHELSEA THE CAT",), ("cat",), begins=(0.0, 0.04, 1.0), ends=(0.02, 0.05, 0.96)),
    Scene(70, "camera.png", (), ("person",), PHOTOGRAPHER, (0.0, 0.05, 1.0), (0.05, 0.08, 0.95)),
)
SPEECH = (
    Spoken(
        "reader",
        "reader.wav",
        1.0,
        8.45,
        0.3,
        (
            (1.12, 4.74, "it was the best of times it was the worst of times"),
            (4.92, 6.40, "it was the age of wisdom"),
            (6.56, 8.36, "it was the age of foolishness"),
        ),
    ),
    Spoken(
        "president",
        "president.wav",
        0.2,
        4.6,
        8.4,
        ((0.25, 2.34, "and so my fellow americans"), (3.20, 4.52, "ask not")),
    ),
)
BOUNDS = tuple(each / RATE_OF_FRAMES for each in accumulate((scene.frames for scene in SCENES), initial=0))
CUTS = BOUNDS[1:-1]
DURATION = BOUNDS[-1]


def scene_at(at: float) -> tuple[Scene, float]:
    """And how far into it."""
    number = max(i for i, bound in enumerate(BOUNDS[:-1]) if bound <= at)
    return SCENES[number], (at - BOUNDS[number]) * RATE_OF_FRAMES / SCENES[number].frames


def write(path: Path, *, has_sound: bool = True) -> None:
    with Movie(path, SIZE, Fraction(RATE_OF_FRAMES), sound() if has_sound else None) as movie:
        for i, picture in enumerate(pictures()):
            movie.add(picture, i / RATE_OF_FRAMES)


def pictures() -> Iterator[Image.Image]:
    for number, scene in enumerate(SCENES):
        for frame in range(scene.frames):
            picture = _seen(scene, frame / scene.frames)
            yield Image.new("RGB", SIZE, "white") if (number, frame) == FLASH else picture


def _seen(scene: Scene, done: float) -> Image.Image:
    if scene.photograph is None:
        picture = Image.new("RGB", SIZE, (20, 34, 60))
    else:
        whole = photograph(scene.photograph)
        left, top, right, bottom = (each * whole.width for each in scene.seen(done))
        picture = whole.resize(SIZE, Image.Resampling.BILINEAR, (left, top, right, bottom))
    draw = ImageDraw.Draw(picture)
    for i, text in enumerate(scene.texts):
        at = (40, 130 + 60 * i) if scene.photograph is None else (30, SIZE[1] - 60)
        draw.text(at, text, "white", ImageFont.load_default(34), stroke_width=3, stroke_fill="black")
    return picture


@cache
def photograph(name: str) -> Image.Image:
    with Image.open(weights.path(f"sample/{name}")) as photograph:
        return photograph.convert("RGB")


def sound() -> Sound:
    whole = np.zeros(round(DURATION * RATE), np.float32)
    for spoken in SPEECH:
        heard = recording(weights.path(f"sample/{spoken.recording}"))[
            round(spoken.start * RATE) : round(spoken.end * RATE)
        ]
        at = round(spoken.at * RATE)
        whole[at : at + heard.size] = heard * (0.1 / np.sqrt(np.mean(heard**2)))
    return whole


def recording(path: Path) -> Sound:
    """At our rate."""
    heard, rate = sounds.read(path)
    if rate == RATE:
        return heard
    size = heard.size * RATE // rate
    spectrum = np.fft.rfft(heard)[: size // 2 + 1]
    return (np.fft.irfft(spectrum, size) * (size / heard.size)).astype(np.float32)


if __name__ == "__main__":
    write(Path(sys.argv[1]))
