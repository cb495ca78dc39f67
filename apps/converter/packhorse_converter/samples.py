"""Input values to calibrate and to compare models with: the uploaded pictures, or made-up values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple, overload

import numpy as np
from numpy.typing import NDArray

from packhorse_converter.preprocessing import Preprocessing, Tensor
from packhorse_converter.toolchain import Feed

SYNTHETIC = 32
"""Made-up samples to calibrate with, if no picture was uploaded."""
FEW = 8
"""With fewer pictures, no separate part of them is kept for choices."""
MOST_INTEGER = 10
"""Integers are below this, if the model does not say which are allowed."""


class Feeds(Sequence[Feed]):
    """Feeds that are made on access: together they may need far more memory than one."""

    def __init__(self, make: Callable[[int], Feed], numbers: Sequence[int]) -> None:
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


class Parts(NamedTuple):
    """Numbers of the pictures for each purpose. Evaluation shares none with the others if there are two or more."""

    calibration: list[int]
    selection: list[int]
    evaluation: list[int]


def split(count: int) -> Parts:
    """At random, but the same every time: pictures are often sorted."""
    order = [int(each) for each in np.random.default_rng(0).permutation(count)]
    if count < 2:
        return Parts(order, order, order)
    held = max(1, count // 4)
    evaluation, rest = sorted(order[:held]), order[held:]
    if count < FEW:
        return Parts(sorted(rest), sorted(rest), evaluation)
    return Parts(sorted(rest[held:]), sorted(rest[:held]), evaluation)


def picture_feeds(paths: Sequence[Path], numbers: Sequence[int], inputs: Sequence[Tensor], how: Preprocessing) -> Feeds:
    """One feed for each number; a model with a fixed batch gets the following pictures too."""
    batch = next(tensor.shape[0] for tensor in inputs if tensor.name == how.input)

    def make(n: int) -> Feed:
        at = list(numbers).index(n)
        chosen = [numbers[(at + i) % len(numbers)] for i in range(batch)]
        pictures = [how.read(paths[each]) for each in chosen]
        return {how.input: np.concatenate(pictures), **_others(inputs, how, n)}

    return Feeds(make, numbers)


def synthetic_feeds(inputs: Sequence[Tensor], numbers: Sequence[int], how: Preprocessing | None) -> Feeds:
    """Made-up values that suit the type of each input, the same every time."""

    def make(n: int) -> Feed:
        feed = _others(inputs, how, n)
        if how is not None:
            batch = next(tensor.shape[0] for tensor in inputs if tensor.name == how.input)
            feed[how.input] = np.concatenate([how.from_pixels(_scene(how, n * batch + i)) for i in range(batch)])
        return feed

    return Feeds(make, numbers)


def _others(inputs: Sequence[Tensor], how: Preprocessing | None, n: int) -> dict[str, NDArray[Any]]:
    """Every input but the picture."""
    chance = np.random.default_rng(n)
    return {t.name: _value(t, how, chance) for t in inputs if how is None or t.name != how.input}


def _value(tensor: Tensor, how: Preprocessing | None, chance: np.random.Generator) -> NDArray[Any]:
    name, kind, shape = tensor.name.lower(), np.dtype(tensor.type), tensor.shape
    count = int(np.prod(shape, dtype=np.int64))
    if how is not None and count == 2 and ("shape" in name or "size" in name):
        return np.array([how.height, how.width], kind).reshape(shape)
    if how is not None and "scale" in name and count <= 4:
        return np.ones(shape, kind)
    if kind.kind == "b":
        return chance.random(shape) < 0.5
    if "mask" in name:
        return np.ones(shape, kind)
    if kind.kind in "iu":
        if tensor.below is None and ("rate" in name or name == "sr"):
            return np.full(shape, min(16_000, int(np.iinfo(kind).max)), kind)
        most = tensor.below or (256 if kind == np.uint8 else MOST_INTEGER)
        return chance.integers(0, most, shape).astype(kind)
    return chance.standard_normal(shape).astype(kind)


def _scene(how: Preprocessing, seed: int) -> NDArray[np.uint8]:
    """Something like a photograph: large soft areas, edges and a little noise."""
    chance = np.random.default_rng(seed)
    tall, wide = how.height, how.width
    y, x = np.mgrid[0 : 1 : tall * 1j, 0 : 1 : wide * 1j][..., np.newaxis]
    soft = sum(
        chance.uniform(20, 60, how.channels)
        * np.sin(chance.uniform(1, 9) * x + chance.uniform(1, 9) * y + chance.uniform(0, 6))
        for _ in range(3)
    )
    values = chance.uniform(60, 200, how.channels) + soft + chance.normal(0, 6, (tall, wide, how.channels))
    for _ in range(6):
        top, left = chance.integers(0, max(tall - 1, 1)), chance.integers(0, max(wide - 1, 1))
        values[top : top + tall // 4 + 1, left : left + wide // 4 + 1] += chance.uniform(-90, 90, how.channels)
    pixels: NDArray[np.uint8] = np.clip(values, 0, 255).astype(np.uint8)
    return pixels
