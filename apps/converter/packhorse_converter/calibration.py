"""Input values to calibrate and to compare models with: the uploaded pictures, or noise."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from packhorse_converter.toolchain import Feed, ModelRefused, Tensor

SYNTHETIC = 32
"""Noise samples, if no picture was uploaded."""


def picture_feeds(paths: Sequence[Path], inputs: Sequence[Tensor]) -> list[Feed]:
    """One feed per picture, for the first input that a picture fits; other inputs get zeros."""
    for_pictures = next((tensor for tensor in inputs if _layout(tensor) is not None), None)
    if for_pictures is None:
        raise ModelRefused("The model takes no pictures, so it cannot be calibrated with any: leave ref_images out.")
    rest = {t.name: np.zeros(t.shape, np.dtype(t.type)) for t in inputs if t is not for_pictures}
    return [{for_pictures.name: picture(path, for_pictures), **rest} for path in paths]


def picture(path: Path, tensor: Tensor) -> NDArray[np.float32]:
    """Scaled to the input's size, values from 0 to 1."""
    layout = _layout(tensor)
    assert layout is not None
    channels, height, width, is_last = layout
    try:
        with Image.open(path) as image:
            scaled = image.convert("L" if channels == 1 else "RGB").resize((width, height), Image.Resampling.BILINEAR)
    except (UnidentifiedImageError, OSError, Image.DecompressionBombError) as error:
        raise ModelRefused(f"{path.name} is no picture that can be read: {error}") from error
    values = (np.asarray(scaled, np.float32) / np.float32(255)).reshape(height, width, channels)
    return (values if is_last else values.transpose(2, 0, 1))[np.newaxis]


def noise_feeds(inputs: Sequence[Tensor], count: int = SYNTHETIC) -> list[Feed]:
    """Noise between 0 and 1, the same every time."""
    chance = np.random.default_rng(0)
    return [{t.name: chance.random(t.shape).astype(np.dtype(t.type)) for t in inputs} for _ in range(count)]


def _layout(tensor: Tensor) -> tuple[int, int, int, bool] | None:
    """Channels, height, width, and whether the channels come last."""
    if len(tensor.shape) != 4 or tensor.type != "float32":
        return None
    _, a, b, c = tensor.shape
    if a in (1, 3):
        return a, b, c, False
    return (c, a, b, True) if c in (1, 3) else None
