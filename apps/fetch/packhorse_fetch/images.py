"""Facts about a picture: its size, a thumbnail, its main colours."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import cast

import msgspec
from PIL import Image, ImageOps

from packhorse import Permanent

FORMATS = ("JPEG", "PNG", "GIF", "WEBP", "AVIF", "BMP", "TIFF", "ICO", "JPEG2000", "CUR", "DIB")
MOST_POINTS = 50_000_000
"""A small file may claim to be a huge picture, and needs four bytes for each point."""
THUMBNAIL = (256, 256)
COLOURS = 5
SAMPLE = (128, 128)
SOLID = 128
"""How opaque a point is, from 0 to 255, whose colour counts."""
LEAST = 0.02
"""Share of the picture below which a colour is not told."""


class Colour(msgspec.Struct, frozen=True):
    hex: str
    share: float


class Picture(msgspec.Struct, frozen=True):
    format: str
    width: int
    height: int
    colours: list[Colour]
    """The most frequent first."""


def looked_at(path: Path, thumbnail: Path) -> Picture:
    """Writes the thumbnail, too: a PNG, since what is small should be exact."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of decompression bombs, which we look for ourselves, and of odd metadata
            with Image.open(path, formats=FORMATS) as picture:
                if picture.width * picture.height > MOST_POINTS:
                    raise Permanent(f"The picture is {picture.width} x {picture.height}.", code="IMAGE_TOO_LARGE")
                seen = _in_colour(_upright(picture))
                found = Picture(picture.format or "", seen.width, seen.height, _colours(seen))
            seen.thumbnail(THUMBNAIL, Image.Resampling.LANCZOS)
            is_solid = seen.getchannel("A").getextrema() == (255, 255)
            (seen.convert("RGB") if is_solid else seen).save(thumbnail, "PNG")
    except (Permanent, MemoryError):
        raise
    except Image.DecompressionBombError as error:
        raise Permanent(str(error), code="IMAGE_TOO_LARGE") from error
    except Exception as error:  # broad: on a damaged file its decoders raise whatever comes to their mind
        raise Permanent(
            f"It cannot be read as a picture: {str(error) or type(error).__name__}", code="BAD_IMAGE"
        ) from error
    return found


def _upright(picture: Image.Image) -> Image.Image:
    """Turned as its EXIF says; as it is stored, if that cannot be read."""
    picture.load()
    try:
        return ImageOps.exif_transpose(picture)
    except Exception:  # broad: it is written by cameras and editors, and damaged by both
        return picture


def _in_colour(picture: Image.Image) -> Image.Image:
    """Grey of more than eight bits is brought to eight by its own range: Pillow would cut it off at 255."""
    if picture.mode.startswith(("I", "F")):
        exact = picture.convert("F")
        low, high = cast(tuple[float, float], exact.getextrema())
        scale = 255 / (high - low) if high > low else 1.0
        picture = exact.point(lambda value: value * scale - low * scale).convert("L")
    return picture.convert("RGBA")


def _colours(picture: Image.Image) -> list[Colour]:
    """Of what is not transparent, in as few colours as tell most."""
    small = picture.copy()
    small.thumbnail(SAMPLE, Image.Resampling.BOX)
    data = small.tobytes()
    solid = b"".join(data[i : i + 3] for i in range(0, len(data), 4) if data[i + 3] >= SOLID)
    if not solid:
        return []
    points = len(solid) // 3
    row = Image.frombytes("RGB", (points, 1), solid)
    few = row.quantize(COLOURS, Image.Quantize.MEDIANCUT, kmeans=3).convert("RGB")
    counted = cast(list[tuple[int, tuple[int, int, int]]], few.getcolors(COLOURS) or [])
    shares = sorted(((count / points, rgb) for count, rgb in counted), reverse=True)
    return [Colour(f"#{r:02x}{g:02x}{b:02x}", round(share, 3)) for share, (r, g, b) in shares if share >= LEAST]
