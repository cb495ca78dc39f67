"""Input values to calibrate and to compare models with: the uploaded pictures, or noise."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import overload

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from packhorse_converter.toolchain import Feed, ModelRefused, Tensor

SYNTHETIC = 32
"""Noise samples, if no picture was uploaded."""
FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
"""Those whose suffixes are accepted. Of others, some are handed to further programs to be read."""
MOST_POINTS = 50_000_000
"""A small file may claim to be a huge picture, and needs four bytes for each point."""


class PictureRefused(ModelRefused):
    """A picture cannot be used; the text says why."""


class Feeds(Sequence[Feed]):
    """Feeds that are made when they are asked for: together they may need far more memory than one."""

    def __init__(self, make: Callable[[int], Feed], numbers: range) -> None:
        self._make = make
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, at: int) -> Feed: ...
    @overload
    def __getitem__(self, at: slice) -> Feeds: ...
    def __getitem__(self, at: int | slice) -> Feed | Feeds:
        if isinstance(at, slice):
            return Feeds(self._make, self._numbers[at])
        return self._make(self._numbers[at])

    def __iter__(self) -> Iterator[Feed]:
        return map(self._make, self._numbers)


def picture_feeds(paths: Sequence[Path], inputs: Sequence[Tensor]) -> Feeds:
    """One feed per picture, for the first input that a picture fits; other inputs get zeros."""
    for_pictures = next((tensor for tensor in inputs if _layout(tensor) is not None), None)
    if for_pictures is None:
        raise PictureRefused("The model takes no pictures, so it cannot be calibrated with any: leave ref_images out.")
    rest = {t.name: np.zeros(t.shape, np.dtype(t.type)) for t in inputs if t is not for_pictures}
    return Feeds(lambda n: {for_pictures.name: picture(paths[n], for_pictures), **rest}, range(len(paths)))


def picture(path: Path, tensor: Tensor) -> NDArray[np.float32]:
    """Scaled to the input's size, values from 0 to 1."""
    layout = _layout(tensor)
    assert layout is not None
    channels, height, width, is_last = layout
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # we look ourselves
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > MOST_POINTS:
                    raise PictureRefused(f"{path.name} has {image.width} x {image.height} points: too many.")
                mode = "L" if channels == 1 else "RGB"
                image.draft(mode, (width, height))
                scaled = image.convert(mode).resize((width, height), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise PictureRefused(f"{path.name} is no picture that can be read: {error}") from error
    values = (np.asarray(scaled, np.float32) / np.float32(255)).reshape(height, width, channels)
    return (values if is_last else values.transpose(2, 0, 1))[np.newaxis]


def noise_feeds(inputs: Sequence[Tensor], count: int = SYNTHETIC) -> Feeds:
    """Noise between 0 and 1, the same every time."""

    def noise(n: int) -> Feed:
        chance = np.random.default_rng(n)
        return {t.name: chance.random(t.shape).astype(np.dtype(t.type)) for t in inputs}

    return Feeds(noise, range(count))


def _layout(tensor: Tensor) -> tuple[int, int, int, bool] | None:
    """Channels, height, width, and whether the channels come last."""
    if len(tensor.shape) != 4 or tensor.type != "float32":
        return None
    _, a, b, c = tensor.shape
    if a in (1, 3):
        return a, b, c, False
    return (c, a, b, True) if c in (1, 3) else None
