"""What was found, drawn into the pictures: a preview to watch, and a sheet to look at."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from fractions import Fraction
from functools import cache
from itertools import pairwise
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

from packhorse_video.findings import Finding
from packhorse_video.frames import Frames
from packhorse_video.movies import Movie
from packhorse_video.sounds import Sound

COLOURS = {"face": "#ff5a5f", "pose": "#3ddc84", "yolo": "#4aa8ff", "ocr": "#ffd23f"}
LIMBS = (("shoulder", "elbow"), ("elbow", "wrist"), ("shoulder", "hip"), ("hip", "knee"), ("knee", "ankle"))
BONES = (
    *((f"{side}_{a}", f"{side}_{b}") for side in ("left", "right") for a, b in LIMBS),
    ("left_shoulder", "right_shoulder"),
    ("left_hip", "right_hip"),
)
"""Points of a pose with a line between them."""
LINE = 13
SURE = 0.5
"""Points that are seen less surely are not drawn."""
MOMENT = 1.0
"""The words spoken within these seconds of a frame are shown with it."""
SHEET = 12
COLUMNS = 3
TILE = 320

Found = Mapping[str, Sequence[Finding]]
"""By processor."""
Progress = Callable[[int, int], None]


def preview(frames: Frames, found: Found, sound: Sound | None, to: Path, rate: float, progress: Progress) -> None:
    """The sampled frames with all that was found in them, what is said below, and the sound."""
    marks = _by_time(found)
    with Movie(to, frames[0].picture.size, Fraction(rate).limit_denominator(1000), sound) as movie:
        for i, (at, picture) in enumerate(frames):
            draw = ImageDraw.Draw(picture)
            for processor, finding in marks.get(at, ()):
                _mark(draw, picture.size, processor, finding)
            if said := _caption(found, at, 1 / rate):
                _write(draw, (8, picture.height - LINE - 10), said, "white")
            movie.add(picture, at)
            progress(i + 1, len(frames))


def sheet(frames: Frames, found: Found, duration: float, to: Path) -> None:
    """A picture of each scene, with its time and what is in it; of one without cuts, evenly spaced ones."""
    chosen = _choose(frames, [each.at for each in found.get("cut", ())], duration)
    marks = _by_time(found)
    tiles = [_tile(*frames[i], [label for _, label in marks.get(frames.times[i], ())]) for i in chosen]
    columns = min(COLUMNS, len(tiles))
    width, height = tiles[0].size
    whole = Image.new("RGB", (columns * width, -(-len(tiles) // columns) * height), "#16181d")
    for i, tile in enumerate(tiles):
        whole.paste(tile, (i % columns * width, i // columns * height))
    whole.save(to, "JPEG", quality=90)


def _choose(frames: Frames, cuts: Sequence[float], duration: float) -> list[int]:
    """The middle frames of the scenes, at most so many as a sheet has."""
    bounds = [0.0, *cuts, duration]
    if len(bounds) == 2 or len(bounds) > SHEET + 1:
        count = min(SHEET, len(frames))
        bounds = [duration * i / count for i in range(count + 1)]
    middles = [(start + end) / 2 for start, end in pairwise(bounds)]
    nearest = [min(range(len(frames)), key=lambda i: abs(frames.times[i] - at)) for at in middles]
    return list(dict.fromkeys(nearest))


def _tile(at: float, picture: Image.Image, findings: Sequence[Finding]) -> Image.Image:
    picture = picture.resize((TILE, max(1, round(picture.height * TILE / picture.width))))
    labels = ", ".join(dict.fromkeys(each.label for each in findings))
    tile = Image.new("RGB", (TILE + 8, picture.height + LINE + 16), "#16181d")
    tile.paste(picture, (4, 4))
    _write(ImageDraw.Draw(tile), (6, picture.height + 6), f"{at:.1f} s  {labels}"[:52], "white")
    return tile


def _by_time(found: Found) -> dict[float, list[tuple[str, Finding]]]:
    marks: dict[float, list[tuple[str, Finding]]] = {}
    for processor in COLOURS:
        for finding in found.get(processor, ()):
            marks.setdefault(finding.at, []).append((processor, finding))
    return marks


def _mark(draw: ImageDraw.ImageDraw, size: tuple[int, int], processor: str, finding: Finding) -> None:
    width, height = size
    colour = COLOURS[processor]
    left, top, right, bottom = finding.box or (0.0, 0.0, 1.0, 1.0)
    draw.rectangle((left * width, top * height, right * width, bottom * height), outline=colour, width=2)
    _write(draw, (left * width + 4, max(0.0, top * height - LINE - 5)), finding.label, colour)
    points = {name: (x * width, y * height) for name, (x, y, seen) in (finding.points or {}).items() if seen > SURE}
    for a, b in BONES:
        if a in points and b in points:
            draw.line((*points[a], *points[b]), fill=colour, width=2)
    for x, y in points.values():
        draw.ellipse((x - 2, y - 2, x + 2, y + 2), fill=colour)


def _caption(found: Found, at: float, lasts: float) -> str:
    """The words of the moment and the speaker; without the processor `asr`, the words of the whole turn."""
    turn = next((each for each in found.get("asrx", ()) if each.at <= at + lasts and (each.until or 0.0) >= at), None)
    words = " ".join(each.label for each in found.get("asr", ()) if abs(each.at - at) <= MOMENT)
    if turn is None:
        return words
    return f"{turn.speaker}: {words or turn.label}"


def _write(draw: ImageDraw.ImageDraw, at: tuple[float, float], text: str, colour: str) -> None:
    draw.text(at, text, colour, _font(), stroke_width=2, stroke_fill="black")


@cache
def _font() -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(LINE)
