"""From a picture to a model's input: size, channel order, mean and scale. A packed model carries these values."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

FORMATS = ("PNG", "JPEG", "BMP", "WEBP")
"""Those whose suffixes are accepted. Of others, some are handed to further programs to be read."""
MOST_POINTS = 50_000_000
"""A small file may claim to be a huge picture, and needs four bytes for each point."""
UNIT = 1 / 255
"""The scale that maps pixel values to 0 to 1."""

Order = Literal["rgb", "bgr"]
Layout = Literal["nchw", "nhwc"]


class PictureRefused(ValueError):
    """A picture cannot be used; the text says why."""


class Unfit(ValueError):
    """The given values do not fit the model's input; the text names the parameter."""


class Tensor(msgspec.Struct, frozen=True):
    name: str
    type: str
    shape: list[int]
    below: int | None = None
    """Integers must be below this, where the model shows it: an index into a table of that many rows."""


class Preprocessing(msgspec.Struct, frozen=True, kw_only=True):
    """``value = (pixel - mean) * scale`` for each channel, with pixels from 0 to 255."""

    input: str
    """Name of the model's input that takes the picture."""
    type: Literal["float32", "uint8"] = "float32"
    channels: int
    height: int
    width: int
    layout: Layout
    channel_order: Order
    mean: list[float]
    """One value, or one per channel in the order of the model's channels."""
    scale: list[float]
    is_assumed: bool = False
    """Whether mean and scale are defaults that nobody gave."""

    def read(self, path: str | Path) -> NDArray[Any]:
        """The picture as a batch of one. Raises `PictureRefused`."""
        return self.convert(_open(Path(path), self.channels, (self.width, self.height)))

    def convert(self, image: Image.Image) -> NDArray[Any]:
        scaled = image.convert(_mode(self.channels)).resize((self.width, self.height), Image.Resampling.BILINEAR)
        return self.from_pixels(np.asarray(scaled))

    def from_pixels(self, pixels: NDArray[Any]) -> NDArray[Any]:
        """From an array of height, width and (if several) RGB channels."""
        values = pixels.reshape(self.height, self.width, self.channels)
        if self.channel_order == "bgr":
            values = values[..., ::-1]
        if self.type == "float32":
            mean, scale = (np.asarray(each, np.float32) for each in (self.mean, self.scale))
            values = (values.astype(np.float32) - mean) * scale
        if self.layout == "nchw":
            values = values.transpose(2, 0, 1)
        return np.ascontiguousarray(values[np.newaxis])


class Given(msgspec.Struct, frozen=True):
    """What the user said about the input; None where nothing was said."""

    mean: list[float] | None = None
    scale: list[float] | None = None
    channel_order: Order | None = None
    layout: Layout | None = None


def plan(inputs: list[Tensor], given: Given) -> Preprocessing | None:
    """For the first input that can take a picture; None if none can. Raises `Unfit`."""
    for tensor in inputs:
        if (found := _layout(tensor, given.layout)) is not None:
            return _plan(tensor, found, given)
    if given != Given():
        named = next(name for name, value in msgspec.structs.asdict(given).items() if value is not None)
        shapes = ", ".join(f"{each.name} {each.type} {each.shape}" for each in inputs)
        raise Unfit(f"{named} is for models that take pictures. This model has the inputs: {shapes}.")
    return None


def warn(found: Preprocessing) -> list[str]:
    """What may be wrong with the values."""
    if found.is_assumed:
        return [
            "Neither mean nor scale was given: pixels are scaled to 0 to 1. If the model was trained with other "
            "values, the results of the packed model are wrong, and the measured quality does not show it."
        ]
    if found.type == "float32" and any(found.mean) and max(map(abs, found.mean)) <= 1 and min(found.scale) > UNIT:
        return [
            f"mean {found.mean} is subtracted from pixels from 0 to 255. If it is for values from 0 to 1, "
            "multiply it by 255 and divide scale by 255."
        ]
    return []


def _plan(tensor: Tensor, found: tuple[int, int, int, Layout], given: Given) -> Preprocessing:
    channels, height, width, layout = found
    is_float = tensor.type == "float32"
    if not is_float and (given.mean is not None or given.scale is not None):
        raise Unfit(f"mean and scale cannot be applied: the input {tensor.name!r} takes {tensor.type} pixels.")
    is_assumed = is_float and given.mean is None and given.scale is None
    values = {"mean": given.mean or [0.0], "scale": given.scale or [UNIT if is_assumed else 1.0]}
    for name, numbers in values.items():
        if len(numbers) not in (1, channels):
            raise Unfit(f"{name} has {len(numbers)} values; the input {tensor.name!r} has {channels} channels.")
    return Preprocessing(
        input=tensor.name,
        type="float32" if is_float else "uint8",
        channels=channels,
        height=height,
        width=width,
        layout=layout,
        channel_order=given.channel_order or "rgb",
        is_assumed=is_assumed,
        **values,
    )


def _layout(tensor: Tensor, given: Layout | None) -> tuple[int, int, int, Layout] | None:
    """Channels, height, width and layout; None if the input takes no picture."""
    if len(tensor.shape) != 4 or tensor.type not in ("float32", "uint8"):
        return None
    _, a, b, c = tensor.shape
    if given != "nhwc" and a in (1, 3):
        return a, b, c, "nchw"
    if given != "nchw" and c in (1, 3):
        return c, a, b, "nhwc"
    if given is not None and (a in (1, 3) or c in (1, 3)):
        raise Unfit(f"layout {given} does not fit the input {tensor.name!r} with the shape {tensor.shape}.")
    return None


def _mode(channels: int) -> str:
    return "L" if channels == 1 else "RGB"


def _open(path: Path, channels: int, size: tuple[int, int]) -> Image.Image:
    """A picture that may be larger than the size, but is not much larger if its format can be read in parts."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # we look ourselves
            with Image.open(path, formats=FORMATS) as image:
                if image.width * image.height > MOST_POINTS:
                    raise PictureRefused(f"{path.name} has {image.width} x {image.height} points: too many.")
                image.draft(_mode(channels), size)
                return image.convert(_mode(channels))
    except (UnidentifiedImageError, OSError, SyntaxError, Image.DecompressionBombError) as error:
        raise PictureRefused(f"{path.name} is no picture that can be read: {error}") from error
